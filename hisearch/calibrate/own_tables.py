"""Operator latencies that a user measured.

A folder with any of these files, CSV or parquet, one row per measurement, ``latency_s`` in seconds:

    gemm               dtype, m, n, k
    prefill_attention  kv_dtype, batch, new_tokens, heads, kv_heads, head_dim, value_dim
    decode_attention   kv_dtype, batch, context_tokens (of each sequence, with the new one), heads, kv_heads, head_dim
    mla_prefill, mla_decode   as above; of a decode, kv_heads 1 and the latent's width
    moe                dtype, tokens, hidden, width (an expert's, on a rank), per_token, experts, sets, routing (even or
                       skewed)
    linear_attention   dtype, batch, new_tokens, value_heads (of a rank): prompts, heads of 128 x 128
    kda                likewise, of Kimi Delta Attention without its convolution
    sparse_attention   model (a name of the catalogue), dtype (of the weights), kv_dtype, phase (prefill or decode),
                       batch, new_tokens, cached_tokens, heads (of a rank): whole attention blocks, products included
    collectives        collective (all_reduce, all_gather, reduce_scatter, all_to_all), ranks, payload_bytes

``dtype`` is bf16, fp8, fp8_block, nvfp4, fp4 or int4. The optional ``source`` names the kernel. Further columns are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hisearch.calibrate.fitting import LEAST_POINTS
from hisearch.calibrate.tables import COLUMNS, Tables
from hisearch.latency.laws.formats import FORMATS
from hisearch.specs.base import DTYPE_BYTES
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.wording import listed

if TYPE_CHECKING:
    import pandas as pd

#: Tables that every profile needs.
NEEDED = ("gemm", "prefill_attention", "decode_attention")

#: Text columns and their allowed values; empty: any.
WORDS: dict[str, tuple[str, ...]] = {
    "dtype": tuple(FORMATS), "kv_dtype": tuple(DTYPE_BYTES), "routing": ("even", "skewed"),
    "phase": ("prefill", "decode"), "collective": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    "model": (),
}  # fmt: skip

#: Numbers that may be 0.
FROM_ZERO = frozenset({"cached_tokens"})

#: Optional columns that are kept.
OPTIONAL = ("source",)

#: Largest measurements lie within these factors of the data sheet's peak (half the clock, or operands in the L2 cache).
#: Milli- and microseconds do not.
FASTEST, SLOWEST = 0.1, 100.0

#: Launches hide work below this, seconds.
_LAUNCH_S = 1e-5


def read_own(folder: Path) -> Tables:
    """The tables of a folder in the form above.

    Raises:
        ValueError: the folder has none, or a table lacks a column or rows, or holds an invalid value.
    """
    frames, sources = {}, {}
    for name in COLUMNS:
        paths = [path for path in paths_of(folder, name) if path.exists()]
        if len(paths) > 1:
            raise ValueError(f"{folder}: {' and '.join(path.name for path in paths)}: keep one of the two")
        for path in paths:
            frames[name], sources[name] = _read(path, name), path.name
    if not frames:
        raise ValueError(f"{folder}: none of {', '.join(f'{name}.csv' for name in COLUMNS)} is there")
    return Tables(frames, sources)


def paths_of(folder: Path, name: str) -> tuple[Path, Path]:
    """The files that a table may be in."""
    return folder / f"{name}.csv", folder / f"{name}.parquet"


def check_fit_for(tables: Tables, accelerator: AcceleratorSpec, folder: Path) -> None:
    """Refuse, before any fit, tables that cannot make a profile of ``accelerator``.

    Raises:
        ValueError: a table that every profile needs is missing or has too few rows, or ``latency_s`` is not in seconds.
    """
    absent = [f"{name}.csv" for name in NEEDED if name not in tables.frames]
    if absent:
        raise ValueError(
            f"{folder}: {', '.join(absent)}: not there (or .parquet); every profile needs {listed(NEEDED)}"
        )
    for name in NEEDED:
        frame, where = tables.frames[name], folder / tables.sources[name]
        most = frame[_format_of(name)].value_counts().max()
        if most < LEAST_POINTS:
            raise ValueError(f"{where}: {most} rows of one format; a law is fitted on {LEAST_POINTS} and more")
        _check_seconds(_least_s(name, frame, accelerator), frame["latency_s"].to_numpy(float), where)


def _read(path: Path, name: str) -> pd.DataFrame:
    """One table with the columns in use, numbers parsed."""
    import pandas as pd

    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: no table: {error}") from None
    columns = (*COLUMNS[name], "latency_s")
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"{path}: columns {', '.join(missing)} are missing; expected {', '.join(columns)}, found "
            f"{', '.join(map(str, frame.columns)) or 'none'}"
        )
    if frame.empty:
        raise ValueError(f"{path}: no rows")
    for column in columns:
        if column in WORDS:
            _check_words(frame[column], WORDS[column], path)
        else:
            frame[column] = _numbers(frame[column], path)
    return frame[[*columns, *(column for column in OPTIONAL if column in frame.columns)]]


def _check_words(values: pd.Series[str], known: tuple[str, ...], path: Path) -> None:
    odd = ~values.isin(known) if known else values.isna()
    if odd.any():
        expected = f"expected {', '.join(known)}" if known else "expected a name"
        raise ValueError(f"{_where(path, odd)}: {values.name}: {expected}, not {values[odd].iloc[0]}{_more(odd)}")


def _numbers(values: pd.Series[float], path: Path) -> pd.Series[float]:
    """``values`` as positive numbers; counts must be whole."""
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce").astype(float)
    seconds, least = values.name == "latency_s", 0 if values.name in FROM_ZERO else 1
    outside = (numbers <= 0) if seconds else ((numbers < least) | (numbers % 1 != 0))
    wrong = numbers.isna() | (numbers == np.inf) | outside
    if wrong.any():
        expected = "a positive number of seconds" if seconds else f"a whole number of at least {least}"
        raise ValueError(
            f"{_where(path, wrong)}: {values.name}: expected {expected}, not {values[wrong].iloc[0]}{_more(wrong)}"
        )
    return numbers if seconds else numbers.astype("int64")  # type: ignore[return-value]


def _where(path: Path, wrong: pd.Series[bool]) -> str:
    """File and line (of a CSV) or row (from 1) of the first wrong value."""
    at = int(wrong.to_numpy().argmax())
    return f"{path}:{at + 2}" if path.suffix == ".csv" else f"{path}: row {at + 1}"


def _more(wrong: pd.Series[bool]) -> str:
    count = int(wrong.sum()) - 1
    return f" ({count:,} more such rows)" if count else ""


def _format_of(name: str) -> str:
    return "dtype" if "dtype" in COLUMNS[name] else "kv_dtype"


def _least_s(name: str, frame: pd.DataFrame, accelerator: AcceleratorSpec) -> np.ndarray:
    """Seconds that an accelerator needs at its data-sheet peaks, shape (rows,)."""
    bf16, bandwidth = accelerator.peak_flops["bf16"], accelerator.memory_bandwidth_bytes_per_s
    columns: Mapping[str, np.ndarray] = {c: frame[c].to_numpy(float) for c in COLUMNS[name] if c not in WORDS}
    if name == "gemm":
        formats = [FORMATS[dtype] for dtype in frame["dtype"]]
        peak = np.array([accelerator.peak_flops.get(layout.rate, bf16) for layout in formats])
        weights = np.array([layout.weight_bytes for layout in formats])
        return np.asarray(
            np.maximum(
                2 * columns["m"] * columns["n"] * columns["k"] / peak, weights * columns["n"] * columns["k"] / bandwidth
            )
        )
    if name == "prefill_attention":
        pairs = columns["batch"] * columns["new_tokens"] * (columns["new_tokens"] + 1) / 2
        return np.asarray(2 * pairs * columns["heads"] * (columns["head_dim"] + columns["value_dim"]) / bf16)
    kv_bytes = (
        2 * columns["kv_heads"] * columns["head_dim"] * np.array([DTYPE_BYTES[dtype] for dtype in frame["kv_dtype"]])
    )
    return np.asarray(columns["batch"] * columns["context_tokens"] * kv_bytes / bandwidth)


def _check_seconds(least_s: np.ndarray, latency_s: np.ndarray, where: Path) -> None:
    """Compare the largest tenth of the rows with the data sheet."""
    large = least_s >= np.quantile(least_s, 0.9)
    ratio = float(np.median(latency_s[large] / np.maximum(least_s[large], _LAUNCH_S)))
    if ratio < FASTEST or ratio > SLOWEST:
        factor = f"{ratio:,.0f} times" if ratio > 1 else f"{ratio:.2g} of"
        raise ValueError(
            f"{where}: latency_s: the largest measurements take {factor} what the accelerator's sheet allows at its "
            "peak: is this another accelerator, or are these no seconds?"
        )
