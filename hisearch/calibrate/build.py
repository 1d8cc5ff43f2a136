"""Fits the LatencyProfile of one accelerator under one engine to tables of operator latencies."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hisearch.calibrate import families, sparse
from hisearch.calibrate.fitting import LEAST_POINTS
from hisearch.calibrate.tables import Tables
from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.base import DTYPE_BYTES, ENGINE_TITLES, DType, EngineName, Provenance
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.laws import (
    CollectiveCurve,
    CollectiveCurves,
    GemmTerms,
    LawsSpec,
    LawTerms,
    PrefillTerms,
    SparseTerms,
)
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.wording import format_percent

if TYPE_CHECKING:
    import pandas as pd

#: Knots of a collective's curve: sizes four times apart.
CURVE_KNOTS = tuple(256.0 * 4.0**i for i in range(12))

#: Range of matrix widths whose products compare tables of narrow operands.
USUAL_WIDTHS = (1024, 16384)

#: Host seconds of a step and of each sequence in it. Assumed, for engines whose scheduler overlaps with the device.
HOST_S: dict[EngineName, tuple[float, float]] = {
    "vllm": (4.0e-4, 2.0e-6), "sglang": (3.0e-4, 2.0e-6), "trtllm": (3.0e-4, 2.0e-6),
}  # fmt: skip

#: Batch sizes for which engines capture CUDA graphs by default, from their documentation.
GRAPH_BATCHES: dict[EngineName, list[int]] = {
    "vllm": [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)],
    "sglang": [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16)],
    "trtllm": [1, 2, 4, *range(8, 129, 8), 256, 512, 1024, 2048],
}


class Measured(NamedTuple):
    """Tables of one version of an engine."""

    engine: EngineName
    version: str
    tables: Tables


class Target(NamedTuple):
    """The accelerator and engine of a profile. The accelerator's spec does not state ``multiprocessors``."""

    accelerator_name: str
    accelerator: AcceleratorSpec
    multiprocessors: int
    engine: EngineName

    def sheet(self, rate: DType) -> Sheet:
        """Data-sheet figures at the peak of ``rate``; at the 16-bit peak where the accelerator does not multiply it."""
        flops = self.accelerator.peak_flops
        return Sheet(
            self.multiprocessors, flops.get(rate, flops["bf16"]), self.accelerator.memory_bandwidth_bytes_per_s
        )


#: Fits a law to the rows of one format: rows, format, target, source.
Fits = Callable[[Any, Any, Target, str], LawTerms]


def build_profile(
    target: Target,
    measured: Iterable[Measured],
    roofline: LatencyProfileSpec,
    *,
    source: str,
    as_of: datetime.date,
    report: Callable[[str], None] = lambda text: None,
    lent: Mapping[tuple[str, str], EngineName] = MappingProxyType({}),
) -> LatencyProfileSpec:
    """Fit every family.

    Args:
        target: accelerator and engine.
        measured: tables, the engine's own first. Another engine's tables replace a missing family, a format that shows
            the host rather than the device, and narrow products that it multiplied faster. The law names them.
        roofline: terms of operators without a law.
        source: of the tables, with their licence.
        as_of: day on which they were read.
        report: called with a line about each fit.
        lent: (family, format) -> engine whose tables hold the kernels that this one runs, where its own hold others.

    Raises:
        ValueError: no table has dense products, prefill or decode attention.
    """
    choices = list(measured)
    fitted = {name: _family(name, fits, target, choices, report, lent) for name, fits in _FITS.items()}
    fitted["sparse_attention"] = _sparse(fitted, target, choices, report)
    missing = [name for name in ("gemm", "prefill_attention", "decode_attention") if not fitted[name]]
    if missing:
        raise ValueError(f"{target.accelerator_name}, {target.engine}: nothing to fit {', '.join(missing)} on")
    laws = LawsSpec(
        accelerator=target.accelerator_name,
        engine=target.engine,
        engine_version=choices[0].version,
        multiprocessors=target.multiprocessors,
        memory_bandwidth_bytes_per_s=target.accelerator.memory_bandwidth_bytes_per_s,
        in_band_ecc=target.accelerator.in_band_ecc,
        flops=target.accelerator.peak_flops["bf16"],
        collectives=_collectives(choices),
        **fitted,
    )
    step_s, per_sequence_s = HOST_S[target.engine]
    host = EngineOverhead(
        step_s=step_s, per_sequence_s=per_sequence_s, graph_batches=GRAPH_BATCHES[target.engine],
        version=choices[0].version,
    )  # fmt: skip
    return roofline.model_copy(
        update={
            "estimator": "scaled",
            "evidence": "fitted",
            "engines": {target.engine: host},
            "laws": laws,
            "relative_error": stated_error(laws),
            "provenance": Provenance(source=source, as_of=as_of, notes=_notes(target)),
        }
    )


def stated_error(laws: LawsSpec) -> float:
    """The largest median error on held-out shapes, over the families that every step has."""
    usual = (laws.gemm, laws.prefill_attention, laws.decode_attention)
    errors = [
        terms.error.median for family in usual for name, terms in family.items() if name == "bf16" and terms.error
    ]
    return max(errors, default=0.25)


def _family(
    name: str,
    fits: Fits,
    target: Target,
    choices: list[Measured],
    report: Callable[[str], None],
    lent: Mapping[tuple[str, str], EngineName],
) -> dict[str, Any]:
    """Laws by format, on the first tables that have the family.

    A format whose rows show the host rather than the device is fitted on the next tables.
    """
    measured = [choice for choice in choices if name in choice.tables.frames]
    if not measured:
        return {}
    first = measured[0].tables.frames[name]
    column = "dtype" if "dtype" in first.columns else "kv_dtype"
    laws: dict[str, Any] = {}
    for dtype in sorted(set(first[column])):
        for choice in _order(name, dtype, measured, lent.get((name, dtype))):
            frame, source = choice.tables.frames[name], choice.tables.sources[name]
            rows = frame[frame[column] == dtype]
            if len(rows) < LEAST_POINTS or not _multiplied(target, dtype):
                continue
            try:
                laws[dtype] = fits(rows, dtype, target, source)
            except families.HostBound as problem:
                report(f"{name} {dtype}, {source}: {problem}")
                continue
            error = laws[dtype].error
            report(
                f"{name} {dtype}, {source}: median {format_percent(error.median, 1)}, "
                f"p90 {format_percent(error.p90, 1)}"
            )
            break
    return laws


def _sparse(
    fitted: Mapping[str, Any], target: Target, choices: list[Measured], report: Callable[[str], None]
) -> dict[str, SparseTerms]:
    """Laws of sparse attention by KV-cache format, on the engine's own table only: other engines run other kernels."""
    tables = choices[0].tables
    if "sparse_attention" not in tables.frames:
        return {}
    table = (tables.frames["sparse_attention"], tables.sources["sparse_attention"])
    return sparse_attention(table, fitted["gemm"], fitted["mla_prefill"], target, report)


def sparse_attention(
    table: tuple[pd.DataFrame, str],
    gemm: Mapping[str, GemmTerms],
    mla_prefill: Mapping[str, PrefillTerms],
    target: Target,
    report: Callable[[str], None],
) -> dict[str, SparseTerms]:
    """Laws of sparse attention by KV-cache format, on one table.

    Args:
        table: blocks, with the columns of ``sparse_attention``, and their source.
        gemm: laws of the products in these blocks.
        mla_prefill: laws of MLA, for prompts short enough to be attended densely.
        target: accelerator and engine.
        report: called with a line about each fit.
    """
    frame, source = table
    dense = mla_prefill.get("bf16") or next(iter(mla_prefill.values()), None)
    models = {name: Catalogue().get("Model", name).spec for name in sorted(set(frame["model"]))}
    laws: dict[str, SparseTerms] = {}
    for dtype in sorted(set(frame["kv_dtype"])):
        rows = frame[frame["kv_dtype"] == dtype]
        laws[dtype] = sparse.sparse(rows, models, sparse.Laws(dict(gemm), dense), target.sheet, source)
        error = laws[dtype].error
        assert error is not None
        report(
            f"sparse_attention {dtype}, {source}: median {format_percent(error.median, 1)}, "
            f"p90 {format_percent(error.p90, 1)}"
        )
    return laws


def _order(name: str, dtype: str, choices: list[Measured], lender: EngineName | None) -> list[Measured]:
    """The engine's own tables first, or the lender's; for products of narrow operands, the fastest on average.

    Engines multiply narrow operands with the same libraries, and servers quantise activations in the preceding norm.
    Tables differ by how the benchmark quantised: in one pass or several, with the host in between, or with a scale for
    each token. Some kernels read such scales slowly unless tokens are a multiple of 16.
    """
    if lender is not None:
        return sorted(choices, key=lambda choice: choice.engine != lender)
    if name != "gemm" or FORMATS[dtype].operand_bytes >= 2.0:
        return choices
    usual = [(_usual_s(choice.tables.frames[name], dtype), choice) for choice in choices]
    measured = [(seconds, choice) for seconds, choice in usual if len(seconds)]
    shapes = functools.reduce(
        lambda common, index: common.intersection(index), [seconds_of.index for seconds_of, _ in measured]
    )
    return [choice for _, choice in sorted(measured, key=lambda pair: float(np.log(pair[0][shapes]).mean()))]


def _usual_s(frame: pd.DataFrame, dtype: str) -> pd.Series[float]:
    """Seconds of products with matrices of usual widths, by (m, n, k)."""
    rows = frame[(frame["dtype"] == dtype) & frame["n"].between(*USUAL_WIDTHS) & frame["k"].between(*USUAL_WIDTHS)]
    return rows.groupby(["m", "n", "k"])["latency_s"].median()


def _multiplied(target: Target, dtype: str) -> bool:
    """Whether the accelerator multiplies the format. Where not, tables hold other kernels under the format's name."""
    return dtype not in FORMATS or FORMATS[dtype].rate in target.accelerator.peak_flops


def _by_format(fits: Callable[..., LawTerms]) -> Fits:
    """The fit of products or experts in one format of the weights."""
    return lambda rows, dtype, target, source: fits(rows, FORMATS[dtype], target.sheet(FORMATS[dtype].rate), source)


def _by_kv(fits: Callable[..., LawTerms], kv_dtype: DType | None = None) -> Fits:
    """The fit of attention with a KV cache of one format; ``kv_dtype``: of all rows, whatever the table says."""
    return lambda rows, dtype, target, source: fits(rows, DTYPE_BYTES[kv_dtype or dtype], target.sheet("bf16"), source)


_FITS: Mapping[str, Fits] = {
    "gemm": _by_format(families.gemm),
    "prefill_attention": _by_kv(families.prefill),
    "decode_attention": _by_kv(families.decode),
    # Keys and values are rebuilt in 16 bits, whatever the latent's format.
    "mla_prefill": _by_kv(families.prefill, "bf16"),
    "mla_decode": _by_kv(families.decode),
    "moe": _by_format(families.moe),
    "linear_attention": lambda rows, dtype, target, source: families.linear(rows, source),
    "kda": lambda rows, dtype, target, source: families.linear(rows, source),
}


def _collectives(choices: list[Measured]) -> CollectiveCurves | None:
    for choice in choices:
        frame = choice.tables.frames.get("collectives")
        if frame is None:
            continue
        curves = {name: curves_of(frame[frame["collective"] == name]) for name in sorted(set(frame["collective"]))}
        if "all_reduce" in curves:
            return CollectiveCurves(source=choice.tables.sources["collectives"], **curves)
    return None


def curves_of(rows: pd.DataFrame) -> list[CollectiveCurve]:
    """The curves of one collective, by ranks."""
    return [_curve(int(ranks), rows[rows["ranks"] == ranks]) for ranks in sorted(set(rows["ranks"]))]


def _curve(ranks: int, rows: pd.DataFrame) -> CollectiveCurve:
    """The curve at the knots that the rows span. Larger payloads are never faster: a slow small one is an outlier."""
    medians = rows.groupby("payload_bytes")["latency_s"].median().sort_index()
    sizes, seconds = medians.index.to_numpy(dtype=np.float64), medians.to_numpy(dtype=np.float64)
    seconds = np.minimum.accumulate(seconds[::-1])[::-1]
    knots = [knot for knot in CURVE_KNOTS if sizes[0] <= knot <= sizes[-1]]
    at = np.exp(np.interp(np.log(knots), np.log(sizes), np.log(seconds)))
    return CollectiveCurve(ranks=ranks, payload_bytes=knots, seconds=[float(f"{value:.4g}") for value in at])


def _notes(target: Target) -> str:
    return (
        f"Coefficients fitted on operator latencies of {target.accelerator_name} under "
        f"{ENGINE_TITLES[target.engine]}; each law names its table and its error on shapes left out, and "
        "relative_error is the largest median of dense products and attention in bf16. Host times are assumed, CUDA "
        "graphs' batches are the engine's defaults; norms, activation and sampling keep the roofline's assumed terms."
    )
