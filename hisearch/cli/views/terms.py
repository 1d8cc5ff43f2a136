"""SLO terms and times as rows and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hisearch.report.words.terms import seconds, term_lines
from hisearch.score.stated import LATENCIES
from hisearch.score.terms import Check, check_to_dict

#: Columns that ``term_rows`` fills.
TERM_COLUMNS = ("term", "simulated", "at most", "margin", "verdict")


def term_rows(checks: Iterable[Check]) -> list[tuple[str, ...]]:
    """A row per check of an SLO: name, value, bound, share of the bound that is left, verdict."""
    return [(line.term, line.value, line.bound, line.margin, line.verdict) for line in term_lines(checks)]


def terms_to_dict(checks: Iterable[Check]) -> list[dict[str, Any]]:
    """Checks for machines."""
    return [check_to_dict(check) for check in checks]


def latency_rows(metrics: dict[str, float]) -> list[tuple[str, ...]]:
    """A row each for TTFT, TTFO where it is known, TPOT, ITL and E2E."""
    return [
        (name.upper(), *(seconds(metrics.get(f"{name}_{point}_s", math.nan)) for point in LATENCY_POINTS))
        for name in LATENCIES
        if name != "ttfo" or "ttfo_mean_s" in metrics
    ]


#: Statistics in ``latency_rows``.
LATENCY_POINTS = ("mean", "p50", "p90", "p95", "p99")
