"""Which percentiles of a latency to show: those with a bound, p99 if none has one."""

from __future__ import annotations

from collections.abc import Iterable

from hisearch.specs.studies.slo import OF_CLASS

#: Shown if no percentile has a bound.
USUAL = "p99"

#: Metrics with percentiles.
LATENCIES = ("ttft", "ttfo", "tpot", "itl", "e2e")


def stated(labels: Iterable[str]) -> tuple[str, ...]:
    """Metrics of the bounded latencies, each once, in their order: ``ttft_p95_s``, ``itl_p90_s``.

    labels: of terms and limits (``score.terms.Check.label``).
    """
    return tuple(dict.fromkeys(f"{label}_s" for label in labels if label.partition("_")[0] in LATENCIES))


def spoken_of(latency: str, bounded: Iterable[str]) -> tuple[str, ...]:
    """Metrics of one latency to show, the smallest percentile first.

    latency: one of ``LATENCIES``. bounded: as returned by ``stated``.
    """
    of_latency = {name for name in bounded if name.startswith(f"{latency}_p")}
    return tuple(sorted(of_latency, key=percentile_of)) or (f"{latency}_{USUAL}_s",)


def percentile_of(metric: str) -> float:
    """95.0 for ``ttft_p95_s``, and for the label ``ttft_p95@priority=0``."""
    return float(metric.removesuffix("_s").partition(OF_CLASS)[0].rpartition("_p")[2])
