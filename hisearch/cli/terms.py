"""SLO terms and times as rows and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from hisearch.report.quantities import percent, significant
from hisearch.score.terms import TermCheck

#: Columns that ``term_rows`` fills.
TERM_COLUMNS = ("term", "simulated", "at most", "margin", "verdict")


def term_rows(checks: Iterable[TermCheck]) -> list[tuple[str, ...]]:
    """A row per term: name, value, bound, share of the bound that is left, verdict."""
    return [
        (
            check.label,
            seconds(check.value_s),
            seconds(check.bound_s),
            percent(check.margin),
            "met" if check.holds else "missed",
        )
        for check in checks
    ]


def terms_to_dict(checks: Iterable[TermCheck]) -> list[dict[str, Any]]:
    """Terms for machines."""
    return [{**asdict(check), "margin": check.margin, "holds": check.holds} for check in checks]


def latency_rows(metrics: dict[str, float]) -> list[tuple[str, ...]]:
    """A row each for TTFT, TPOT and E2E."""
    return [
        (name.upper(), *(seconds(metrics[f"{name}_{point}_s"]) for point in LATENCY_POINTS))
        for name in ("ttft", "tpot", "e2e")
    ]


#: What ``latency_rows`` shows of each latency.
LATENCY_POINTS = ("mean", "p50", "p90", "p95", "p99")


def seconds(value_s: float) -> str:
    """A time in ms below one second, else in s."""
    if not math.isfinite(value_s):
        return significant(value_s)
    return f"{significant(value_s * 1e3)} ms" if value_s < 1.0 else f"{significant(value_s)} s"
