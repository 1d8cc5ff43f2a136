"""Measured operator tables: a folder of CSV files, as kernel profilers of serving engines write them.

    FOLDER/tpN/dense.csv          layer, tokens, time_us: token-wise operators of one rank of N, one call each
    FOLDER/tpN/per_sequence.csv   layer, sequences, time_us: lm_head and sampler
    FOLDER/tpN/attention.csv      prefill_chunk, kv_prefill, n_decode, kv_decode, time_us: attention of one layer, of a
                                  prompt chunk behind ``kv_prefill`` tokens beside ``n_decode`` decodes, each behind
                                  ``kv_decode`` tokens (its own new token not counted)
    FOLDER/tpN/moe.csv            tokens, activated_experts, time_us: routed experts of one layer; of MoE models
    FOLDER/tpN/skew.csv           optional: n, nb, pc, kvs, kv_big, kv_mean, t_mean_us, t_skew_us: attention of ``n``
                                  decodes of which ``nb`` are ``kv_big`` long, the others ``kvs``, beside a chunk of
                                  ``pc`` tokens, and of as many of their mean length
    FOLDER/meta.yaml              optional: hardware, gpu, vllm_version; measurement_iterations, by which the times of
                                  skew.csv are divided

Files may end in .csv or .csv.gz. Layers are called as in ``LAYER_CALLS`` and ``MODEL_CALLS``; qk_norm is both norms.
The form is that of the tables bundled with LLMServingSim 2.0 (github casys-kaist/LLMServingSim), so that its profiler
can make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hisearch.latency.curves import F8, Curve, Grid
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

#: Chunks of at least so many tokens fill the accelerator, so that decodes beside them add to their time. Beside shorter
#: ones they partly hide.
_FILLING_TOKENS = 128
#: A batch is skewed by few long decodes where at most this share of it is long.
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
    decode: by (sequences, mean tokens before the new one), of steps in which all decode.
    mixed_decode: likewise, what decodes add to a step with prompt chunks; None where not measured.
    skew, mixed_skew: by sequences, seconds per token that the longest context exceeds the mean; None: not measured.
    """

    prefill: Grid
    decode: Grid
    mixed_decode: Grid | None
    skew: Curve | None
    mixed_skew: Curve | None


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


def read_tables(folder: Path, tensor: int) -> OperatorTables:
    """The tables of one rank of ``tensor``.

    Raises:
        TableError: a folder, file or column is missing, or a figure is not a positive number.
    """
    part = folder / f"tp{tensor}"
    if not part.is_dir():
        known = sorted(path.name for path in folder.glob("tp*") if path.is_dir())
        found = f"there are {', '.join(known)}" if known else "there is no tpN folder at all"
        raise _error(folder, "", f"no tables for {tensor} tensor-parallel ranks: expected a folder tp{tensor}; {found}")
    dense = _curves(part, "dense", "tokens")
    _check_layers(part, dense)
    per_sequence = _curves(part, "per_sequence", "sequences")
    for name in ("lm_head", "sampler"):
        if name not in per_sequence:
            raise _error(part / "per_sequence.csv", "layer", f"'{name}' is missing")
    return OperatorTables(folder, tensor, dense, per_sequence, _attention(folder, part), _moe(part))


def table_meta(folder: Path) -> dict[str, Any]:
    """What ``meta.yaml`` says; nothing where there is none.

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


def _error(path: Path, key: str, what: str) -> SpecError:
    return TableError.at(what, path=path, key=key)


def _read(part: Path, name: str, columns: Sequence[str], *, required: bool = True) -> pd.DataFrame | None:
    import pandas as pd

    for path in (part / f"{name}.csv", part / f"{name}.csv.gz"):
        if path.exists():
            break
    else:
        if required:
            raise _error(part / f"{name}.csv", "", "is missing (.csv or .csv.gz)")
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
            raise _error(path, column, f"row {row + 2}: expected a number >= 0, not {frame[column].iloc[row]!r}")
    if frame.empty:
        raise _error(path, "", "has no rows")
    return frame


def _curves(part: Path, name: str, unit: str) -> dict[str, Curve]:
    frame = _read(part, name, ("layer", unit, "time_us"))
    assert frame is not None
    curves = {}
    for layer, rows in frame.groupby("layer"):
        points = rows.groupby(unit)["time_us"].median()
        curves[str(layer)] = Curve(points.index.to_numpy(np.float64), points.to_numpy(np.float64) * _MICRO)
    return curves


def _check_layers(part: Path, dense: dict[str, Curve]) -> None:
    known = (*LAYER_CALLS, *MODEL_CALLS)
    unknown = sorted(set(dense) - set(known))
    if unknown:
        raise _error(part / "dense.csv", "layer", f"'{unknown[0]}' is not known; known: {', '.join(sorted(known))}")
    missing = sorted(set(known) - set(OPTIONAL) - set(dense))
    if missing:
        raise _error(part / "dense.csv", "layer", f"'{missing[0]}' is missing")


def _grid(frame: pd.DataFrame, rows: str, columns: str, values: str) -> Grid:
    """Values over two columns; where a row lacks a column that others have, by its own neighbours."""
    x = np.unique(frame[rows].to_numpy(np.float64))
    curves = []
    for value in x:
        points = frame[frame[rows] == value].groupby(columns)[values].median()
        curves.append(Curve(points.index.to_numpy(np.float64), points.to_numpy(np.float64)))
    y = np.unique(np.concatenate([curve.x for curve in curves]))
    return Grid(x, y, np.stack([curve(y) for curve in curves]))


def _attention(folder: Path, part: Path) -> AttentionTables:
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    frame = _read(part, "attention", names)
    assert frame is not None
    frame = frame.assign(time_s=frame["time_us"] * _MICRO)
    prompts, decodes = frame["prefill_chunk"] > 0, frame["n_decode"] > 0
    for what, rows in (("prompts alone", prompts & ~decodes), ("decodes alone", decodes & ~prompts)):
        if not rows.any():
            raise _error(part / "attention.csv", "", f"no row of {what}")
    prefill = _grid(frame[prompts & ~decodes], "prefill_chunk", "kv_prefill", "time_s")
    decode = _grid(frame[decodes & ~prompts], "n_decode", "kv_decode", "time_s")
    beside = frame[prompts & decodes & (frame["prefill_chunk"] >= _FILLING_TOKENS)]
    mixed = None
    if len(beside):
        alone = prefill(beside["prefill_chunk"].to_numpy(), beside["kv_prefill"].to_numpy())
        added = beside.assign(added_s=np.maximum(beside["time_s"].to_numpy() - alone, 0.0))
        mixed = _grid(added, "n_decode", "kv_decode", "added_s")
    skew, mixed_skew = _skews(folder, part)
    return AttentionTables(prefill, decode, mixed, skew, mixed_skew)


def _skews(folder: Path, part: Path) -> tuple[Curve | None, Curve | None]:
    names = ("n", "nb", "pc", "kv_big", "kv_mean", "t_mean_us", "t_skew_us")
    frame = _read(part, "skew", names, required=False)
    if frame is None:
        return None, None
    runs = table_meta(folder).get("measurement_iterations", 1)
    if not isinstance(runs, int) or runs < 1:
        raise _error(folder / "meta.yaml", "measurement_iterations", f"expected a whole number from 1, not {runs!r}")
    longer = frame["kv_big"] - frame["kv_mean"]
    few = (frame["nb"] <= _FEW * frame["n"]) | (frame["nb"] == 1)
    rows = frame[few & (longer >= _SKEW_TOKENS)]
    rate = (rows["t_skew_us"] - rows["t_mean_us"]) * _MICRO / runs / longer[rows.index]
    return _skew_curve(rows, rate, rows["pc"] == 0), _skew_curve(rows, rate, rows["pc"] > 0)


def _skew_curve(rows: pd.DataFrame, rate: pd.Series, which: pd.Series) -> Curve | None:
    medians = rate[which].groupby(rows["n"][which]).median().clip(lower=0.0)
    if medians.empty:
        return None
    return Curve(medians.index.to_numpy(np.float64), medians.to_numpy(np.float64))


def _moe(part: Path) -> Grid | None:
    frame = _read(part, "moe", ("tokens", "activated_experts", "time_us"), required=False)
    if frame is None:
        return None
    return _grid(frame.assign(time_s=frame["time_us"] * _MICRO), "tokens", "activated_experts", "time_s")


def skew_by_sequences(curve: Curve | None, sequences: int) -> F8 | None:
    """Shape (sequences + 1,): at every number of sequences the figure of the next one that was measured.

    Kernels decide by the size of the batch, rounded up to the next captured one, whether a sequence is split over
    several groups of threads; in between there is nothing to interpolate.
    """
    if curve is None:
        return None
    at = np.minimum(np.searchsorted(curve.x, np.arange(sequences + 1)), len(curve.x) - 1)
    values = curve.y[at]
    values[:2] = 0.0
    return np.ascontiguousarray(values)
