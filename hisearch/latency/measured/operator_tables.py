"""Measured operator tables: a folder of CSV files from a kernel profiler of serving engines.

    FOLDER/tpN/dense.csv          layer, tokens, time_us: token-wise operators of one rank of N, one call each
    FOLDER/tpN/per_sequence.csv   layer, sequences, time_us: lm_head and sampler
    FOLDER/tpN/attention.csv      prefill_chunk, kv_prefill, n_decode, kv_decode, time_us: attention of one layer, of a
                                  prompt chunk behind ``kv_prefill`` tokens, with ``n_decode`` decodes in the same step,
                                  each behind ``kv_decode`` tokens (its own new token not counted)
    FOLDER/tpN/moe.csv            tokens, activated_experts, time_us: routed experts of one layer; of MoE models
    FOLDER/tpN/skew.csv           optional: n, nb, pc, kp, kv_big, kv_mean, t_mean_us, t_skew_us: attention of ``n``
                                  decodes with a chunk of ``pc`` tokens behind ``kp``: ``nb`` decodes are ``kv_big``
                                  long and the others equally short (t_skew_us), or all have the mean length (t_mean_us)
    FOLDER/meta.yaml              optional: hardware, gpu, vllm_version; measurement_iterations, a divisor of the times
                                  in skew.csv

Files may end in .csv or .csv.gz. Layer names are those of ``LAYER_CALLS`` and ``MODEL_CALLS``; qk_norm is both norms.
The format is that of the tables bundled with LLMServingSim 2.0 (github casys-kaist/LLMServingSim), so that its profiler
can make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.latency.costs import LateCosts
from hisearch.latency.knots import knots_up_to, octaves, whole_octaves
from hisearch.latency.measured.curves import Curve, Grid
from hisearch.latency.measured.late import fit_late, late_shares, late_tokens
from hisearch.latency.measured.tiles import Residuals, fill_along, fit_tiles, residuals
from hisearch.specs.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

#: Calls of a token-wise operator in each layer of the model.
LAYER_CALLS: dict[str, int] = {
    "layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1,
    "gate_up_proj": 1, "act_fn": 1, "down_proj": 1,
}  # fmt: skip
#: Token-wise operators that run once per step.
MODEL_CALLS = ("embedding", "final_layernorm")
#: Of a layer, those that belong to a dense FFN.
DENSE_FFN = ("gate_up_proj", "act_fn", "down_proj")
#: Operators that not every model has.
OPTIONAL = ("qk_norm", *DENSE_FFN)

#: Most share of long decodes in the batches that ``skew`` is fitted on.
_FEW = 0.2
#: Skews of fewer tokens than this are lost in the noise of the measurement.
_SKEW_TOKENS = 500.0

_MICRO = 1e-6


class TableError(SpecError):
    """A table that cannot be used; ``str`` of it is ``file: key: what is wrong``."""


@dataclass(frozen=True)
class AttentionTables:
    """Attention of one layer and rank, in seconds.

    prefill: by (chunk tokens, tokens before it).
    decode: of decode steps, by (sequences, mean tokens before the new one).
    mixed: seconds that decodes add to a mixed step, by (chunk tokens, tokens before it, sequences, mean tokens); its
        knots are ``knots.octaves``. None: not measured.
    skew: by sequences, seconds per token that the longest context exceeds the mean; None: not measured.
    late: see ``StepCosts``; None: not measured.
    """

    prefill: Grid
    decode: Grid
    mixed: Grid | None
    skew: Curve | None
    late: LateCosts | None

    def batch_s(
        self,
        chunk: npt.ArrayLike,
        cached: npt.ArrayLike,
        sequences: npt.ArrayLike,
        mean: npt.ArrayLike,
        longer: npt.ArrayLike,
        long: npt.ArrayLike,
    ) -> F8:
        """Attention of one chunk and decodes in a step, as in ``StepCosts``, for each entry; either may be absent (0).

        Args:
            chunk: tokens of the chunk.
            cached: tokens before it.
            sequences: decodes.
            mean: their mean tokens before the new one.
            longer: excess of the longest over the mean.
            long: share of long decodes (f of ``latency.costs``); 0 where all are equal.
        """
        new, before, n, tokens, more, share = (
            np.asarray(value, dtype=np.float64)
            for value in np.broadcast_arrays(chunk, cached, sequences, mean, longer, long)
        )
        prompts, decodes = new > 0, n > 0
        at = n.astype(np.int64)
        skew = by_sequences(self.skew, int(at.max(initial=1)))
        alone = self.decode(np.maximum(n, 1.0), tokens)
        if skew is not None:
            alone += skew[at] * more
        total = np.where(prompts, self.prefill(np.maximum(new, 1.0), before), 0.0)
        if self.mixed is None:
            return np.asarray(total + np.where(decodes, alone, 0.0))
        mixed = self.mixed(new, before, np.maximum(n, 1.0), tokens)
        if self.late is not None:
            single, longest = partial(self.mixed, new, before, 1.0), tokens + more
            reached = np.minimum(longest, late_tokens(self.late, tokens, share))
            late = late_shares(self.late, n, share, n * (tokens + 1.0))
            mixed += late * (single(reached) - single(tokens)) + single(longest) - single(reached)
        return np.asarray(total + np.where(decodes, np.where(prompts, mixed, alone), 0.0))


@dataclass(frozen=True)
class OperatorTables:
    """All tables of one rank of ``tensor`` ranks.

    dense: seconds of one call by tokens. per_sequence: by sequences. moe: of one layer by (tokens, activated experts).
    """

    folder: Path
    tensor: int
    dense: dict[str, Curve]
    per_sequence: dict[str, Curve]
    attention: AttentionTables
    moe: Grid | None


@lru_cache(maxsize=8)
def read_tables(folder: Path, tensor: int) -> OperatorTables:
    """The tables of one rank of ``tensor``; read once per process.

    Raises:
        TableError: a folder, file or column is missing, or a figure is not a positive number.
    """
    rank_folder = folder / f"tp{tensor}"
    if not rank_folder.is_dir():
        known = sorted(path.name for path in folder.glob("tp*") if path.is_dir())
        available = f"there are {', '.join(known)}" if known else "there is no tpN folder at all"
        raise _error(
            folder, "", f"no tables for {tensor} tensor-parallel ranks: expected a folder tp{tensor}; {available}"
        )
    dense = _curves(rank_folder, "dense", "tokens")
    _check_layers(rank_folder, dense)
    per_sequence = _curves(rank_folder, "per_sequence", "sequences")
    for name in ("lm_head", "sampler"):
        if name not in per_sequence:
            raise _error(rank_folder / "per_sequence.csv", "layer", f"'{name}' is missing")
    attention = attention_tables(rank_folder, attention_rows(rank_folder), skew_rows(rank_folder))
    return OperatorTables(folder, tensor, dense, per_sequence, attention, _moe(rank_folder))


def table_meta(folder: Path) -> dict[str, Any]:
    """Contents of ``meta.yaml``; empty where absent.

    Raises:
        TableError: not YAML, or not a mapping.
    """
    import yaml

    path = folder / "meta.yaml"
    if not path.exists():
        return {}
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _error(path, "", f"cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise _error(path, "", "expected a mapping")
    return data


def table_hardware(meta: dict[str, Any]) -> str:
    """Hardware that ``meta.yaml`` states, or an empty string."""
    return str(meta.get("hardware") or meta.get("gpu") or "")


def _error(path: Path, key: str, what: str) -> SpecError:
    return TableError.at(what, path=path, key=key)


def _read(rank_folder: Path, name: str, columns: Sequence[str], *, required: bool = True) -> pd.DataFrame | None:
    import pandas as pd

    for path in (rank_folder / f"{name}.csv", rank_folder / f"{name}.csv.gz"):
        if path.exists():
            break
    else:
        if required:
            raise _error(rank_folder / f"{name}.csv", "", "is missing (.csv or .csv.gz)")
        return None
    try:
        frame = pd.read_csv(path)
    except (ValueError, OSError, EOFError) as error:
        raise _error(path, "", f"cannot be read: {error}") from None
    missing = [column for column in columns if column not in frame]
    if missing:
        raise _error(path, ", ".join(missing), f"no such column; there are {', '.join(map(str, frame.columns))}")
    for column in columns:
        if column == "layer":
            continue
        values = pd.to_numeric(frame[column], errors="coerce")
        if not np.isfinite(values).all() or (values < 0).any():
            row = int(np.flatnonzero(~(np.isfinite(values) & (values >= 0)))[0])
            raise _error(path, column, f"row {row + 2}: expected a number >= 0, not {frame[column].iloc[row]}")
    if frame.empty:
        raise _error(path, "", "has no rows")
    return frame


def _curves(rank_folder: Path, name: str, unit: str) -> dict[str, Curve]:
    frame = _read(rank_folder, name, ("layer", unit, "time_us"))
    assert frame is not None
    curves = {}
    for layer, rows in frame.groupby("layer"):
        points = rows.groupby(unit)["time_us"].median()
        curves[str(layer)] = Curve(points.index.to_numpy(np.float64), points.to_numpy(np.float64) * _MICRO)
    return curves


def _check_layers(rank_folder: Path, dense: dict[str, Curve]) -> None:
    known = (*LAYER_CALLS, *MODEL_CALLS)
    unknown = sorted(set(dense) - set(known))
    if unknown:
        raise _error(
            rank_folder / "dense.csv", "layer", f"'{unknown[0]}' is not known; known: {', '.join(sorted(known))}"
        )
    missing = sorted(set(known) - set(OPTIONAL) - set(dense))
    if missing:
        raise _error(rank_folder / "dense.csv", "layer", f"'{missing[0]}' is missing")


def _grid(frame: pd.DataFrame, rows: str, columns: str, values: str) -> Grid:
    """Values over two columns; gaps of a row are interpolated along the row."""
    x = np.unique(frame[rows].to_numpy(np.float64))
    curves = []
    for value in x:
        points = frame[frame[rows] == value].groupby(columns)[values].median()
        curves.append(Curve(points.index.to_numpy(np.float64), points.to_numpy(np.float64)))
    y = np.unique(np.concatenate([curve.x for curve in curves]))
    return Grid((x, y), np.stack([curve(y) for curve in curves]))


def attention_rows(rank_folder: Path) -> pd.DataFrame:
    """Rows of ``attention.csv`` in a folder ``tpN``, with ``time_s``.

    Raises:
        TableError: as ``read_tables``.
    """
    frame = _read(rank_folder, "attention", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"))
    assert frame is not None
    return frame.assign(time_s=frame["time_us"] * _MICRO)


def skew_rows(rank_folder: Path) -> pd.DataFrame | None:
    """Rows of ``skew.csv`` in a folder ``tpN``, None where there is none.

    Adds ``mean_s`` and ``skew_s``, seconds; ``longer``, the long decodes' excess over the mean; ``long``, their share.

    Raises:
        TableError: as ``read_tables``.
    """
    names = ("n", "nb", "pc", "kp", "kv_big", "kv_mean", "t_mean_us", "t_skew_us")
    frame = _read(rank_folder, "skew", names, required=False)
    if frame is None:
        return None
    folder = rank_folder.parent
    runs = table_meta(folder).get("measurement_iterations", 1)
    if not isinstance(runs, int) or runs < 1:
        raise _error(folder / "meta.yaml", "measurement_iterations", f"expected a whole number from 1, not {runs!r}")
    return frame.assign(
        mean_s=frame["t_mean_us"] * _MICRO / runs,
        skew_s=frame["t_skew_us"] * _MICRO / runs,
        longer=frame["kv_big"] - frame["kv_mean"],
        long=frame["nb"] / frame["n"],
    )


def attention_tables(rank_folder: Path, frame: pd.DataFrame, skewed: pd.DataFrame | None) -> AttentionTables:
    """Tables of ``attention_rows`` and ``skew_rows``, or of some of them; errors name ``rank_folder``.

    Raises:
        TableError: no row of prompts alone, or none of decodes alone.
    """
    prompts, decodes = frame["prefill_chunk"] > 0, frame["n_decode"] > 0
    for what, rows in (("prompts alone", prompts & ~decodes), ("decodes alone", decodes & ~prompts)):
        if not rows.any():
            raise _error(rank_folder / "attention.csv", "", f"no row of {what}")
    law = fit_tiles(frame)
    alone, both = frame[prompts & ~decodes], frame[prompts & decodes]
    prefill = _grid(alone, "prefill_chunk", "kv_prefill", "time_s")
    if law is not None:
        prefill = _by_law(residuals(law, alone), prefill)
    decode = _grid(frame[decodes & ~prompts], "n_decode", "kv_decode", "time_s")
    mixed = _mixed(both, prefill, None if law is None else residuals(law, both))
    if skewed is None:
        return AttentionTables(prefill, decode, mixed, None, None)
    few = skewed[(skewed["nb"] <= _FEW * skewed["n"]) | (skewed["nb"] == 1)]
    return AttentionTables(
        prefill, decode, mixed, _skew(few), None if mixed is None else fit_late(skewed, prefill, mixed)
    )


def _by_law(times: Residuals, measured: Grid) -> Grid:
    """Prompts alone, at the ``measured`` knots and the token knots between them."""
    chunk, cached = (
        np.unique([*axis, *(knot for knot in knots_up_to(int(axis[-1])) if axis[0] <= knot <= axis[-1])])
        for axis in measured.axes
    )
    return Grid((chunk, cached), times(*np.broadcast_arrays(chunk[:, None], cached[None, :], 0.0, 0.0)))


def _mixed(frame: pd.DataFrame, prefill: Grid, times: Residuals | None) -> Grid | None:
    """Seconds that decodes add to a chunk's attention: by ``times``, else from rows measured at powers of two."""
    if frame.empty:
        return None
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    knots = [_octaves(axis, frame[column].max()) for axis, column in enumerate(columns)]
    at = np.ix_(*knots)
    if times is not None:
        return _rising(tuple(knots), np.maximum(times(*np.broadcast_arrays(*at)) - prefill(at[0], at[1]), 0.0))
    axes = tuple(whole_octaves(axis) for axis in knots)
    places = [
        np.searchsorted(axis, frame[column]).clip(max=len(axis) - 1) for axis, column in zip(axes, columns, strict=True)
    ]
    exact = np.all(
        [axis[place] == frame[column] for axis, place, column in zip(axes, places, columns, strict=True)], axis=0
    )
    added = frame["time_s"].to_numpy() - prefill(frame["prefill_chunk"].to_numpy(), frame["kv_prefill"].to_numpy())
    values = np.full(tuple(len(axis) for axis in axes), np.nan)
    values[tuple(place[exact] for place in places)] = np.maximum(added[exact], 0.0)
    if np.isnan(values).all():
        return None
    # Along the decodes' length first: the time depends on it most evenly.
    for axis in (3, 1, 0, 2):
        values = fill_along(values, axis, np.arange(float(len(axes[axis]))))
    return Grid(tuple(knots), np.ascontiguousarray(_rising(axes, values).on(knots)))


def _rising(axes: tuple[F8, ...], values: F8) -> Grid:
    """Never falling with more or longer decodes: a fall is noise, and would continue beyond the table."""
    for axis in (2, 3):
        values = np.maximum.accumulate(values, axis=axis)
    return Grid(axes, np.ascontiguousarray(values))


def _octaves(axis: int, largest: float) -> F8:
    count = 2
    while octaves(axis, count + 1)[-1] <= largest:
        count += 1
    return np.array(octaves(axis, count), dtype=np.float64)


def _skew(frame: pd.DataFrame) -> Curve | None:
    """``skew`` of decode batches; None where not measured."""
    rows = frame[(frame["pc"] == 0) & (frame["longer"] >= _SKEW_TOKENS)]
    values = (rows["skew_s"] - rows["mean_s"]) / rows["longer"]
    medians = values.groupby(rows["n"]).median().clip(lower=0.0)
    if medians.empty:
        return None
    return Curve(medians.index.to_numpy(np.float64), medians.to_numpy(np.float64))


def _moe(rank_folder: Path) -> Grid | None:
    frame = _read(rank_folder, "moe", ("tokens", "activated_experts", "time_us"), required=False)
    if frame is None:
        return None
    return _grid(frame.assign(time_s=frame["time_us"] * _MICRO), "tokens", "activated_experts", "time_s")


def by_sequences(curve: Curve | None, sequences: int) -> F8 | None:
    """Shape (sequences + 1,): at every number of sequences the value at the next measured number.

    Kernels split a sequence over several groups of threads by the batch size, rounded up to the next captured one.
    Interpolating between sizes would be wrong.
    """
    if curve is None:
        return None
    at = np.minimum(np.searchsorted(curve.x, np.arange(sequences + 1)), len(curve.x) - 1)
    values = curve.y[at]
    values[:2] = 0.0
    return np.ascontiguousarray(values)
