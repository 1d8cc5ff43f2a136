"""The fit of attention that reads compressed entries or chosen blocks to measured blocks (``latency.laws.entries``).

Laws of dense products price their share of a block, as they price it in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.calibrate.families import described
from hisearch.calibrate.fitting import LEAST_POINTS, Bounds, Fit, Problem, fit
from hisearch.calibrate.sparse import HOST_BLOCK_S, HOST_FACTOR, LEAST_CHUNK, MOST_TOKENS, joined_errors
from hisearch.latency.laws.entries import Sheets, entries_decode_s, entries_prefill_s, layer_launch_s
from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.gemm import gemm_s
from hisearch.latency.laws.model import law_of
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.matrices.entries import EntriesShape
from hisearch.latency.operators import AttentionShape, attention_shape
from hisearch.latency.parameters import attention_matrices
from hisearch.latency.sharding import shard
from hisearch.specs.base import DType
from hisearch.specs.machines.laws import EntriesPhase, EntriesTerms, GemmTerms
from hisearch.specs.models.model import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

#: Prompts of so few tokens show the host where their median is above ``HOST_BLOCK_S``.
SMALL_BLOCK = 256
#: Most rows of a phase that are fitted: a table of SGLang's has 40,000.
MOST_ROWS = 6000

_PHASE = {
    "token_s": Bounds(1e-10, 5e-8, 2e-6), "index_token_s": Bounds(1e-11, 2e-8, 2e-6),
    "head_token_s": Bounds(1e-11, 2e-9, 1e-7), "sequence_s": Bounds(1e-11, 3e-8, 2e-4),
    "read_flops": Bounds(0.01, 0.4, 1.5), "score_flops": Bounds(0.001, 0.3, 1.5),
}  # fmt: skip
_LAUNCHES = {"launch_s": Bounds(1e-6, 3e-5, 2e-4), "index_launch_s": Bounds(1e-7, 1e-5, 2e-4)}


class Group(NamedTuple):
    """Attention of rows of one model, split and kind of layers."""

    shape: AttentionShape
    heads: int
    kind: EntriesShape


def entries_terms(
    frame: pd.DataFrame,
    models: Mapping[str, ModelSpec],
    gemm: Mapping[str, GemmTerms],
    kv_dtype: DType,
    sheet: Callable[[DType], Sheet],
    source: str,
) -> EntriesTerms:
    """Coefficients of one kind of attention and format of the KV cache.

    Args:
        frame: blocks with columns model, dtype, phase, ratio, batch, new_tokens, cached_tokens, heads and latency_s.
        models: by name.
        gemm: laws of dense products.
        kv_dtype: format of the KV cache.
        sheet: the accelerator's figures by format.
        source: the table's name.

    Raises:
        ValueError: too few rows.
    """
    frame = frame[frame["batch"] * frame["new_tokens"] <= MOST_TOKENS]
    frame = _on_device(frame[(frame["phase"] == "decode") | (frame["new_tokens"] >= LEAST_CHUNK)])
    sheets, dimensions = Sheets(sheet("bf16"), sheet("fp8")), ("batch", "new_tokens", "cached_tokens", "heads")
    fits: dict[str, Fit] = {}
    for phase in ("decode", "prefill"):
        rows = frame[frame["phase"] == phase]
        if len(rows) < LEAST_POINTS:
            raise ValueError(f"{source}: {len(rows)} blocks of {phase}s, {LEAST_POINTS} are needed")
        rows = rows.iloc[:: -(-len(rows) // MOST_ROWS)].reset_index(drop=True)
        known = {name: fits["decode"].coefficients[name] for name in _LAUNCHES} if phase == "prefill" else {}
        fits[phase] = _fit(rows, models, gemm, kv_dtype, sheet, sheets, phase, known)
    decodes, prompts = (described(fits[phase], source, frame, *dimensions) for phase in ("decode", "prefill"))
    phases = {
        name: EntriesPhase(**{key: values[key] for key in EntriesPhase.model_fields})
        for name, values in (("decode", decodes), ("prefill", prompts))
    }
    return EntriesTerms(
        **{name: decodes[name] for name in (*_LAUNCHES, "source", "ranges")},
        **phases,
        error=joined_errors(fits["decode"].error, fits["prefill"].error),
    )


def _on_device(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows without prompts that show a host that launches kernels one by one."""
    prompts = frame["phase"] == "prefill"
    small = frame[prompts & (frame["batch"] * frame["new_tokens"] <= SMALL_BLOCK)]
    floor_s = float(small["latency_s"].median()) if len(small) else 0.0
    if floor_s <= HOST_BLOCK_S:
        return frame
    return frame[~prompts | (frame["latency_s"] > HOST_FACTOR * floor_s)]


def _fit(
    frame: pd.DataFrame,
    models: Mapping[str, ModelSpec],
    gemm: Mapping[str, GemmTerms],
    kv_dtype: DType,
    sheet: Callable[[DType], Sheet],
    sheets: Sheets,
    phase: str,
    known: Mapping[str, Any],
) -> Fit:
    batch, new, cached = (frame[name].to_numpy(dtype=np.float64) for name in ("batch", "new_tokens", "cached_tokens"))
    groups: list[Group] = []
    rest, number = np.zeros(len(frame)), np.zeros(len(frame), dtype=np.int64)
    for key, members in frame.groupby(["model", "dtype", "ratio", "heads"]).indices.items():
        name, dtype, ratio, heads = cast("tuple[str, str, int, int]", key)
        model, inside = models[name], np.asarray(members, dtype=np.int64)
        part = shard(model, model.attention_heads // int(heads))
        shape = attention_shape(model, part, kv_dtype)
        kind = next(kind for kind in shape.entries if kind.ratio == ratio)
        number[inside] = len(groups)
        groups.append(Group(shape, part.heads, kind))
        for matrix in attention_matrices(model, part):
            if matrix.name in kind.products:
                rest[inside] += _product_s(gemm, matrix, dtype, sheet, batch[inside] * new[inside])

    def predict(coefficients: Mapping[str, Any], at: npt.NDArray[np.int64]) -> F8:
        of_phase = EntriesPhase.model_construct(**{name: coefficients[name] for name in EntriesPhase.model_fields})
        launches = {name: coefficients.get(name, known.get(name)) for name in _LAUNCHES}
        terms = EntriesTerms.model_construct(prefill=of_phase, decode=of_phase, **launches)
        seconds = rest[at].copy()
        for index, group in enumerate(groups):
            members = np.flatnonzero(number[at] == index)
            if not len(members):
                continue
            where, launched = at[members], layer_launch_s(terms, group.kind)
            sizes = (terms, sheets, group.shape, group.heads, group.kind)
            if phase == "decode":
                block = entries_decode_s(*sizes, batch[where], batch[where] * (cached[where] + 1.0))
            else:
                block = entries_prefill_s(*sizes, batch[where], new[where], cached[where])
            seconds[members] += launched + block
        return np.asarray(seconds)

    of_shape = ["model", "dtype", "ratio", "heads", "batch" if phase == "decode" else "new_tokens"]
    shapes = np.asarray(frame.groupby(of_shape, sort=True).ngroup(), dtype=np.int64)
    bounds = _PHASE | ({} if known else _LAUNCHES)
    return fit(Problem(bounds, predict, frame["latency_s"].to_numpy(dtype=np.float64), shapes, batch * new))


def _product_s(
    gemm: Mapping[str, GemmTerms], matrix: Any, dtype: str, sheet: Callable[[DType], Sheet], tokens: F8
) -> F8:
    name = law_of(gemm, dtype if matrix.quantised else "bf16")
    assert name is not None
    layout = FORMATS[name]
    return gemm_s(
        gemm[name], sheet(layout.rate), tokens, float(matrix.outputs), float(matrix.inputs),
        weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes,
    )  # fmt: skip
