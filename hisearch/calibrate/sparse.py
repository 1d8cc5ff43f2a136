"""The fit of sparse attention to measured attention blocks; the laws of dense products price their share of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.calibrate.families import described
from hisearch.calibrate.fitting import LEAST_POINTS, Bounds, Fit, Problem, fit
from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.gemm import gemm_s
from hisearch.latency.laws.model import law_of
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.laws.sparse import Indexer, dense_s, indexer, sparse_decode_s, sparse_prefill_s
from hisearch.latency.parameters import attention_matrices
from hisearch.latency.sharding import Shard, shard
from hisearch.specs.base import DType
from hisearch.specs.machines.laws import FitError, GemmTerms, PrefillTerms, SparsePhase, SparseTerms
from hisearch.specs.models.model import ModelSpec

if TYPE_CHECKING:
    import pandas as pd


#: Heads of a rank in real shards, used in the fit.
HEADS = (8, 16, 32, 64, 128)
#: Most tokens of a step and fewest of a chunk used in the fit. Batches of many short chunks behind long contexts score
#: the keys of all of them; no engine makes such steps.
MOST_TOKENS, LEAST_CHUNK = 32768, 128

#: A prompt block of at most ``SMALL_TOKENS`` that takes longer than ``HOST_BLOCK_S`` is launched kernel by kernel. The
#: host hides the device until the median over contexts is ``HOST_FACTOR`` times as long.
SMALL_TOKENS, HOST_BLOCK_S, HOST_FACTOR = 64, 3e-4, 1.5
#: A decode batch that takes over this many times as long as half of it runs outside CUDA graphs.
GRAPH_FACTOR = 3.0

#: Coefficients of either phase; of the block, fitted on decodes; of reading at one number of heads.
_PHASE = {
    "token_s": Bounds(1e-10, 3e-8, 5e-6), "score_flops": Bounds(0.05, 0.5, 1.0), "choose_s": Bounds(1e-13, 1e-11, 1e-9),
}  # fmt: skip
_BLOCK = {
    "launch_s": Bounds(1e-6, 3e-5, 3e-4), "serial_score_s": Bounds(1e-12, 1e-10, 5e-9),
    "serial_read_s": Bounds(1e-10, 5e-9, 1e-7), "beyond_s": Bounds(1e-7, 1e-5, 2e-4),
}  # fmt: skip
_READ = Bounds(1e-11, 3e-10, 2e-8)


class Laws(NamedTuple):
    """Laws of the rest of a block: products by format of the weights, and densely attended prompts."""

    gemm: Mapping[str, GemmTerms]
    dense: PrefillTerms | None


def sparse(
    frame: pd.DataFrame,
    models: Mapping[str, ModelSpec],
    laws: Laws,
    sheet: Callable[[DType], Sheet],
    source: str,
) -> SparseTerms:
    """Coefficients of one format of the KV cache; ``frame`` has that format's rows, of ``models`` by name.

    Raises:
        ValueError: too few rows show the device.
    """
    frame = _that_count(frame, models, laws)
    if len(frame) < LEAST_POINTS:
        raise ValueError(f"{source}: {len(frame)} blocks show the device, {LEAST_POINTS} are needed")
    decoded, prompted = (set(frame.loc[frame["phase"] == phase, "heads"]) for phase in ("decode", "prefill"))
    heads = sorted(int(value) for value in decoded & prompted)
    rows = _Rows.of(frame[frame["heads"].isin(heads)].reset_index(drop=True), models, laws, sheet)
    bounds = _PHASE | {f"read_s.{index}": _READ for index in range(len(heads))}
    dimensions = ("batch", "new_tokens", "cached_tokens", "heads")
    decodes = _fit(rows, "decode", heads, _BLOCK | bounds, {})
    block = {name: decodes.coefficients[name] for name in _BLOCK}
    prompts = {
        dense: _fit(rows.reading(dense=dense), "prefill", heads, bounds, block)
        for dense in ((False, True) if laws.dense is not None else (False,))
    }
    dense = min(prompts, key=lambda kind: prompts[kind].error.median)
    of_decodes = described(decodes, source, frame, *dimensions)
    of_prompts = described(prompts[dense], source, frame, *dimensions)
    phases = {
        name: SparsePhase(**{key: values[key] for key in SparsePhase.model_fields})
        for name, values in (("prefill", of_prompts), ("decode", of_decodes))
    }
    return SparseTerms(
        **{name: of_decodes[name] for name in (*_BLOCK, "source", "ranges")},
        **phases,
        error=joined_errors(decodes.error, prompts[dense].error),
        heads=heads,
        dense_short=dense,
    )


def _that_count(frame: pd.DataFrame, models: Mapping[str, ModelSpec], laws: Laws) -> pd.DataFrame:
    """Rows of real shards of ``models``, in steps that servers run, whose products have a law."""
    frame = frame[frame["heads"].isin(HEADS) & (frame["batch"] * frame["new_tokens"] <= MOST_TOKENS)]
    frame = frame[
        frame["model"].isin(list(models)) & frame["dtype"].map(lambda name: law_of(laws.gemm, name) is not None)
    ]
    frame = frame[frame["heads"] <= frame["model"].map(lambda name: models[name].attention_heads)]
    frame = _on_device(frame)
    return frame[(frame["phase"] == "decode") | (frame["new_tokens"] >= LEAST_CHUNK)].reset_index(drop=True)


def joined_errors(decodes: FitError, prompts: FitError) -> FitError:
    """The error of both phases: each phase's median, and the worse of the common figures."""
    return FitError(
        points=decodes.points + prompts.points,
        median=max(decodes.median, prompts.median),
        p90=max(decodes.p90, prompts.p90),
        fitted_median=max(decodes.fitted_median, prompts.fitted_median),
        decode_median=decodes.median,
        prefill_median=prompts.median,
    )


class _Rows(NamedTuple):
    """Measured blocks, and the seconds that other laws price.

    rest: seconds of dense products.
    short: seconds of short prompts as dense MLA; NaN elsewhere.
    number: index of each row's indexer in ``indexers``.
    """

    frame: pd.DataFrame
    sheet: Sheet
    rest: F8
    short: F8
    indexers: list[Indexer]
    number: I8

    @classmethod
    def of(
        cls, frame: pd.DataFrame, models: Mapping[str, ModelSpec], laws: Laws, sheet: Callable[[DType], Sheet]
    ) -> _Rows:
        batch, new, cached = _sizes(frame)
        rest, short, number = np.zeros(len(frame)), np.full(len(frame), np.nan), np.zeros(len(frame), dtype=np.int64)
        indexers: list[Indexer] = []
        prompts = np.asarray(frame["phase"] == "prefill")
        for key, inside in frame.groupby(["model", "dtype", "heads"]).indices.items():
            name, dtype, heads = cast("tuple[str, str, int]", key)
            model = models[name]
            part = shard(model, model.attention_heads // int(heads))
            number[inside] = len(indexers)
            indexers.append(indexer(model, part))
            rest[inside] = products_s(model, part, laws.gemm, dtype, sheet, batch[inside] * new[inside])
            within = inside[prompts[inside] & (cached[inside] + new[inside] <= indexers[-1].topk)]
            if laws.dense is not None:
                short[within] = dense_s(
                    model, part, laws.dense, sheet("bf16"), batch[within], new[within], cached[within]
                )
        return cls(frame, sheet("fp8"), rest, short, indexers, number)

    def reading(self, *, dense: bool) -> _Rows:
        """``dense``: short prompts as dense MLA; else through the indexer like the others."""
        return self if dense else self._replace(short=np.full_like(self.short, np.nan))


def _fit(
    rows: _Rows,
    phase: Literal["prefill", "decode"],
    heads: list[int],
    bounds: dict[str, Bounds],
    known: Mapping[str, Any],
) -> Fit:
    """The coefficients of ``bounds`` on one phase's rows; ``known``: coefficients of the block."""
    of_phase_rows = np.flatnonzero(rows.frame["phase"] == phase)
    frame = rows.frame.iloc[of_phase_rows]
    batch, new, cached = _sizes(frame)
    rest, short, number = rows.rest[of_phase_rows], rows.short[of_phase_rows], rows.number[of_phase_rows]

    def predict(coefficients: Mapping[str, Any], at: I8) -> F8:
        of_phase = SparsePhase.model_construct(**{name: coefficients[name] for name in SparsePhase.model_fields})
        block = {name: coefficients.get(name, known.get(name)) for name in _BLOCK}
        terms = SparseTerms.model_construct(heads=heads, prefill=of_phase, decode=of_phase, **block)
        seconds = rest[at] + terms.launch_s
        for index, reader in enumerate(rows.indexers):
            members = np.flatnonzero(number[at] == index)
            if not len(members):
                continue
            where = at[members]
            if phase == "decode":
                context = batch[where] * (cached[where] + 1.0)
                seconds[members] += sparse_decode_s(terms, rows.sheet, reader, batch[where], context)
            else:
                read = sparse_prefill_s(terms, rows.sheet, reader, batch[where], new[where], cached[where])
                seconds[members] += np.where(np.isnan(short[where]), read, short[where])
        return np.asarray(seconds)

    shape = ["model", "dtype", "heads", "batch" if phase == "decode" else "new_tokens"]
    groups = np.asarray(frame.groupby(shape, sort=True).ngroup(), dtype=np.int64)
    return fit(Problem(bounds, predict, frame["latency_s"].to_numpy(dtype=np.float64), groups, batch * new))


def _sizes(frame: pd.DataFrame) -> tuple[F8, F8, F8]:
    return (
        frame["batch"].to_numpy(dtype=np.float64),
        frame["new_tokens"].to_numpy(dtype=np.float64),
        frame["cached_tokens"].to_numpy(dtype=np.float64),
    )


def products_s(
    model: ModelSpec,
    part: Shard,
    gemm: Mapping[str, GemmTerms],
    dtype: str,
    sheet: Callable[[DType], Sheet],
    tokens: F8,
) -> F8:
    """Seconds of a layer's dense products of attention, weights in ``dtype``."""
    total = np.zeros_like(tokens)
    for matrix in attention_matrices(model, part):
        name = law_of(gemm, dtype if matrix.quantised else "bf16")
        assert name is not None
        layout = FORMATS[name]
        total += gemm_s(
            gemm[name], sheet(layout.rate), tokens, float(matrix.outputs), float(matrix.inputs),
            weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes,
        )  # fmt: skip
    return total


def _on_device(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that show the device, not a host that launches kernels one by one."""
    import pandas as pd

    kernels = [*(["source"] if "source" in frame.columns else []), "phase", "model", "dtype", "heads"]
    kept = [
        _graphed(rows) if rows["phase"].iloc[0] == "decode" else _launched(rows) for _, rows in frame.groupby(kernels)
    ]
    return pd.concat(kept) if kept else frame


def _launched(rows: pd.DataFrame) -> pd.DataFrame:
    tokens = rows["batch"] * rows["new_tokens"]
    floor = rows.loc[tokens <= SMALL_TOKENS, "latency_s"].median()
    if not floor > HOST_BLOCK_S:
        return rows
    usual = rows["latency_s"].groupby(tokens).transform("median")
    kept: pd.DataFrame = rows[(usual > HOST_FACTOR * floor) & (rows["latency_s"] > floor)]
    return kept


def _graphed(rows: pd.DataFrame) -> pd.DataFrame:
    usual = rows.groupby("batch")["latency_s"].min()
    ungraphed = [size for size in usual.index if usual[size] > GRAPH_FACTOR * usual.get(size // 2, np.inf)]
    kept: pd.DataFrame = rows[rows["batch"] < min(ungraphed, default=np.inf)]
    return kept
