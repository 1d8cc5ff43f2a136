"""Rows of measured serving runs, read from CSV.

A row is one run of a serving engine under a closed loop: ``concurrency`` requests in flight, random prompts of
``input_tokens`` that share no prefix, outputs of ``output_tokens``. Times are means over the run's requests, in
milliseconds. Unknown columns are kept and written back; empty cells are unknown.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hisearch.latency.sharding import Parallelism

#: Columns that every row needs.
REQUIRED = (
    "backend", "backend_version", "model", "system", "mode", "input_tokens", "output_tokens", "concurrency",
    "measured_ttft_ms", "measured_tpot_ms",
)  # fmt: skip


#: Version of rows whose cell is empty.
UNKNOWN_VERSION = "unknown"
#: Most ranks over which an engine splits attention by tensor parallelism. Rows of GB200 that state 20 to 72 for one
#: engine count the accelerators of all workers: InferenceX's recipes for that rack are disaggregated.
WIDEST_TENSOR = 16


class SiliconFileError(ValueError):
    """A file of measured runs that cannot be read; names file, line, column and what was expected."""


@dataclass(frozen=True)
class SiliconRow:
    """One measured run.

    tensor, attention_data, expert, pipeline: the split that ran (see ``split_of``), not the columns themselves.
    gemm_dtype, moe_dtype, precision: as written, empty where unknown. cells: the row of the file.
    """

    line: int
    backend: str
    version: str
    model: str
    system: str
    mode: str
    precision: str
    gemm_dtype: str
    moe_dtype: str
    campaign: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    parallelism: Parallelism
    measured_ttft_s: float
    measured_tpot_s: float
    cells: Mapping[str, str]

    @property
    def tokens(self) -> int:
        """Longest sequence."""
        return self.input_tokens + self.output_tokens

    def count(self, column: str, absent: int = 0) -> int:
        """A whole number of a cell; ``absent`` where it is empty."""
        text = self.cells.get(column, "")
        return int(float(text)) if text else absent

    @property
    def states_workers(self) -> bool:
        """Whether the row states the number of prefill and of decode workers."""
        return self.count("prefill_workers") > 0 and self.count("decode_workers") > 0

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Key of a row's group: engine, version, GPU, model, mode."""
        return (self.backend, self.version, self.system, self.model, self.mode)


def read_rows(path: Path, where: Mapping[str, str] | None = None) -> tuple[list[str], list[SiliconRow]]:
    """Header and rows of ``path``, only those whose cells equal ``where``.

    Raises:
        SiliconFileError: a missing column, a cell that is no number, or a column of ``where`` that the file lacks.
        OSError: the file cannot be read.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or ())
        _check_header(path, header, where or {})
        rows = []
        for cells in reader:
            if None in cells:
                raise SiliconFileError(f"{path}:{reader.line_num}: more cells than the header's {len(header)}")
            if all(_same(cells[name], value_to_match) for name, value_to_match in (where or {}).items()):
                rows.append(_row(path, reader.line_num, {name: value or "" for name, value in cells.items()}))
    return header, rows


def _check_header(path: Path, header: Sequence[str], where: Mapping[str, str]) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise SiliconFileError(f"{path}:1: no column {', '.join(missing)}; expected {', '.join(REQUIRED)}")
    unknown = [name for name in where if name not in header]
    if unknown:
        raise SiliconFileError(f"{path}:1: no column {', '.join(unknown)} to select by; it has {', '.join(header)}")


def _same(cell: str | None, value: str) -> bool:
    """Equal as text, or as numbers: ``tp=8`` selects ``8.0``."""
    if (cell or "") == value:
        return True
    try:
        return float(cell or "") == float(value)
    except ValueError:
        return False


def _row(path: Path, line: int, cells: Mapping[str, str]) -> SiliconRow:
    def number(name: str, *, default: float | None = None, positive: bool = True) -> float:
        text = cells.get(name, "")
        if text == "" and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            raise SiliconFileError(f"{path}:{line}: {name}: expected a {'positive ' * positive}number, not '{text}'")
        return value

    def count(name: str) -> int:
        return max(int(number(name, default=1.0, positive=False)), 1)

    mode, split = cells["mode"], Parallelism()
    if mode == "agg":
        stated_dp = cells.get("attention_dp", "") != ""
        split = split_of(
            count("tp"), count("attention_dp"), count("moe_tp"), count("moe_ep"), count("pp"), stated_dp=stated_dp
        )
    if split.tensor > WIDEST_TENSOR:
        mode, cells, split = "disagg", {**cells, "prefill_tp": cells["tp"], "decode_tp": cells["tp"]}, Parallelism()
    return SiliconRow(
        line=line,
        backend=cells["backend"],
        version=cells["backend_version"] or UNKNOWN_VERSION,
        model=cells["model"],
        system=cells["system"],
        mode=mode,
        precision=cells.get("precision", ""),
        gemm_dtype=cells.get("gemm_dtype", ""),
        moe_dtype=cells.get("moe_dtype", ""),
        campaign=cells.get("campaign", ""),
        input_tokens=int(number("input_tokens")),
        output_tokens=int(number("output_tokens")),
        concurrency=int(number("concurrency", default=1.0)),
        parallelism=split,
        measured_ttft_s=number("measured_ttft_ms") / 1e3,
        measured_tpot_s=number("measured_tpot_ms") / 1e3,
        cells=cells,
    )


def split_of(tp: int, dp: int, moe_tp: int, moe_ep: int, pp: int, *, stated_dp: bool) -> Parallelism:
    """The split that ran, from the columns.

    If attention's data parallelism is stated, runs with expert parallelism of k ranks appear in two forms that count k
    twice: tp (or dp) = k * k with moe_tp = moe_ep = k, and tp = dp = k with moe_ep = k * k. The bundled measurements
    list several runs in both such a form and the plain one (tp or dp = k, moe_ep = k) with the same times. No run had
    more than the eight accelerators of one host.
    """
    if stated_dp:
        if moe_tp == moe_ep > 1 and tp * dp == moe_ep * moe_ep and min(tp, dp) == 1:
            return Parallelism(min(tp, moe_ep), min(dp, moe_ep), moe_ep, pp)
        if moe_tp == 1 and tp == dp > 1 and moe_ep == tp * dp:
            return Parallelism(tp, 1, tp, pp)
    return Parallelism(tp, dp, moe_ep, pp)
