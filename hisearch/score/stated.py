"""Which percentiles of a latency to speak of: those that are asked for, p99 where none is."""

from __future__ import annotations

from collections.abc import Iterable

#: Spoken of where nothing is asked for.
USUAL = "p99"

#: What has percentiles.
LATENCIES = ("ttft", "tpot", "itl", "e2e")


def stated(labels: Iterable[str]) -> tuple[str, ...]:
    """Metrics of the latencies among what is bounded, each once, in their order: ``ttft_p95_s``, ``itl_p90_s``.

    Args:
        labels: of terms and limits (``score.terms.Check.label``).
    """
    return tuple(dict.fromkeys(f"{label}_s" for label in labels if label.partition("_")[0] in LATENCIES))


def spoken_of(latency: str, asked: Iterable[str]) -> tuple[str, ...]:
    """Metrics of one latency to show, the smallest percentile first.

    Args:
        latency: ``ttft``, ``tpot``, ``itl`` or ``e2e``.
        asked: metrics of the latencies that are bounded, as ``stated`` gives them.
    """
    own = {name for name in asked if name.startswith(f"{latency}_p")}
    return tuple(sorted(own, key=percentile_of)) or (f"{latency}_{USUAL}_s",)


def percentile_of(metric: str) -> float:
    """95.0 for ``ttft_p95_s``."""
    return float(metric.removesuffix("_s").rpartition("_p")[2])
