"""Output of ``hisearch validate e2e`` and ``validate batch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.cli import output
from hisearch.specs.wording import format_percent

if TYPE_CHECKING:
    from hisearch.validate.batch import BatchFile, Errors
    from hisearch.validate.e2e import E2eCase, Figure

_TITLES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "latency_s": "latency"}


def show_e2e(cases: Sequence[E2eCase]) -> None:
    """A table per case, then one row for each."""
    for case in cases:
        output.heading(f"{case.case}: KV of {case.kv_capacity_tokens:,} tokens, {case.capacity}")
        rows = [
            (f"{_TITLES[metric]} {statistic}", *_milliseconds(figure))
            for metric, figures in case.metrics.items()
            for statistic, figure in figures.items()
        ]
        rows.append(("output tokens/s", *_plain(case.output_tokens_per_s)))
        rows.append(("makespan, s", *_plain(case.makespan_s)))
        output.table(("", "measured", "simulated", "error", "peer's error"), rows, numbers=(1, 2, 3, 4))
        output.say()
    summary = [
        {
            "case": case.case,
            "accelerator": case.accelerator,
            "vLLM": case.engine_version,
            "KV capacity": case.capacity,
            "mean abs. error": format_percent(case.mean_abs_error, 2),
            "peer's": "" if case.peer_mean_abs_error is None else format_percent(case.peer_mean_abs_error, 2),
        }
        for case in cases
    ]
    output.records(summary, text=("case", "accelerator", "vLLM", "KV capacity"))


def show_batches(files: Sequence[BatchFile]) -> None:
    """A row per file and regime."""
    rows = []
    for file in files:
        errors_by_regime: dict[str, Errors | BatchFile] = {"all": file, **file.regimes}
        for regime, errors in errors_by_regime.items():
            figures = (format_percent(value, 1) for value in (errors.median_ape, errors.p90_ape, errors.mape))
            rows.append((file.file if regime == "all" else "", regime, f"{errors.rows:,}", *figures))
    output.table(("file", "batches", "held out", "median error", "p90", "mean"), rows, numbers=(2, 3, 4, 5))


def _milliseconds(figure: Figure) -> tuple[str, ...]:
    return (f"{figure.measured * 1e3:,.1f} ms", f"{figure.simulated * 1e3:,.1f} ms", *_errors(figure))


def _plain(figure: Figure) -> tuple[str, ...]:
    return (f"{figure.measured:,.1f}", f"{figure.simulated:,.1f}", *_errors(figure))


def _errors(figure: Figure) -> tuple[str, str]:
    peer = "" if figure.peer_error is None else format_percent(figure.peer_error, 1, signed=True)
    return format_percent(figure.error, 1, signed=True), peer
