"""Attention of heads or windows for which an engine has other kernels: one law for each width and window.

The laws are those of usual heads (``families``), without relative rates of other widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import I8
from hisearch.calibrate import families
from hisearch.calibrate.fitting import Problem, fit
from hisearch.latency.laws.attention import Heads, decode_s, prefill_s
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.machines.laws import DecodeTerms, PrefillTerms

if TYPE_CHECKING:
    import pandas as pd


def prefill_terms(
    frame: pd.DataFrame, width: int, window: int, kv_bytes: float, sheet: Sheet, source: str
) -> PrefillTerms:
    """Coefficients of prompt attention; ``frame``: rows of one width, window (0: none) and format of the KV cache."""
    frame = frame[(frame["new_tokens"] >= families.LEAST_CHUNK) & (frame["heads"] >= families.LEAST_HEADS)]
    batch, new = families.floats(frame, "batch", "new_tokens")
    parts, limit = _shapes(frame, width, kv_bytes), float(window) if window else np.inf

    def predict(coefficients: Mapping[str, Any], at: I8) -> npt.NDArray[np.float64]:
        terms = PrefillTerms.model_construct(**(families.BLANK | dict(coefficients)))
        seconds = np.empty(len(at))
        for heads, inside in _parts(parts, at):
            rows = at[inside]
            seconds[inside] = prefill_s(terms, sheet, heads, batch[rows], new[rows], np.zeros(len(rows)), limit)
        return seconds

    bounds = {name: bound for name, bound in families.PREFILL.items() if not name.startswith("rate_")}
    fitted = fit(
        Problem(bounds, predict, families.seconds_of(frame), families.groups_of(frame, "heads", "kv_heads"), new)
    )
    ranges = ("batch", "new_tokens", "heads", "kv_heads")
    return PrefillTerms(**families.with_rates(families.described(fitted, source, frame, *ranges)))


def decode_terms(
    frame: pd.DataFrame, width: int, window: int, kv_bytes: float, sheet: Sheet, source: str
) -> DecodeTerms:
    """Coefficients of decode attention, likewise."""
    few, many = families.QUERIES_PER_HEAD
    grouped = (frame["heads"] / frame["kv_heads"]).between(few, many) & (frame["heads"] >= families.LEAST_HEADS)
    frame = frame[grouped & (frame["context_tokens"] >= families.LEAST_CONTEXT)]
    batch, context = families.floats(frame, "batch", "context_tokens")
    parts, seen = _shapes(frame, width, kv_bytes), np.minimum(context, window) if window else context

    def predict(coefficients: Mapping[str, Any], at: I8) -> npt.NDArray[np.float64]:
        terms = DecodeTerms.model_construct(**(families.BLANK | dict(coefficients)))
        seconds = np.empty(len(at))
        for heads, inside in _parts(parts, at):
            rows = at[inside]
            seconds[inside] = decode_s(terms, sheet, heads, batch[rows], batch[rows] * seen[rows], warm=True)
        return seconds

    bounds = {name: bound for name, bound in families.DECODE.items() if not name.startswith("rate_")}
    fitted = fit(
        Problem(bounds, predict, families.seconds_of(frame), families.groups_of(frame, "heads", "kv_heads"), batch)
    )
    ranges = ("batch", "context_tokens", "heads", "kv_heads")
    return DecodeTerms(**families.with_rates(families.described(fitted, source, frame, *ranges)))


def _shapes(frame: pd.DataFrame, width: int, kv_bytes: float) -> list[tuple[Heads, npt.NDArray[np.bool_]]]:
    """Heads of a rank, and a mask of the rows that have them."""
    heads, kv_heads = (frame[column].to_numpy(dtype=np.int64) for column in ("heads", "kv_heads"))
    pairs = sorted(set(zip(heads.tolist(), kv_heads.tolist(), strict=True)))
    return [
        (Heads(number, kv, float(width), 2.0 * kv * width * kv_bytes), (heads == number) & (kv_heads == kv))
        for number, kv in pairs
    ]


def _parts(shapes: list[tuple[Heads, npt.NDArray[np.bool_]]], at: I8) -> list[tuple[Heads, npt.NDArray[np.bool_]]]:
    return [(heads, inside[at]) for heads, inside in shapes if inside[at].any()]
