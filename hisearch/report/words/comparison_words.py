"""A comparison as text and rows, the same for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hisearch.report.data.comparison import PART_MEANINGS, Comparison, Driver, Figure, Side
from hisearch.report.data.intervals import CONFIDENCE
from hisearch.report.words.templating import text
from hisearch.report.words.terms import seconds, term_lines
from hisearch.score.quantities import UNDEFINED, percent, significant, usd
from hisearch.score.stated import spoken_of
from hisearch.specs.wording import format_percent

#: Metric -> its name for readers.
_NAMES = {
    "usd_per_hour": "Cost per hour",
    "usd_per_million_tokens": "Cost per million tokens",
    "goodput_rps": "Goodput (requests/s)",
    "attainment": "Good requests",
    "throughput_rps": "Throughput (requests/s)",
    "hit_rate": "Prefix-cache hit rate",
    "preemptions": "Preemptions per request",
    "joules_per_token": "Joules per token",
}
_SHARES = frozenset({"attainment", "hit_rate"})

#: Relative difference below which it is not mentioned.
_NEGLIGIBLE = 0.01


def name_of(metric: str) -> str:
    """``TTFT p99`` for ``ttft_p99_s``."""
    if metric in _NAMES:
        return _NAMES[metric]
    latency, statistic, _ = metric.split("_")
    return f"{latency.upper()} {statistic}"


def show(metric: str, value: float, *, signed: bool = False) -> str:
    """A metric's value, or a difference of it, with its unit."""
    if not math.isfinite(value):
        return significant(value)
    if metric.startswith("usd"):
        shown = usd(abs(value))
    elif metric in _SHARES:
        shown = f"{abs(value) * 100:.1f} {'points' if signed else '%'}"
    elif metric.endswith("_s"):
        shown = seconds(abs(value))
    else:
        shown = significant(abs(value))
    if not any(digit in shown for digit in "123456789"):
        return shown  # it rounds to 0: no sign
    return ("−" if value < 0 else "+" if signed else "") + shown


def figure_rows(figures: Iterable[Figure]) -> list[tuple[str, str, str, str, str, str]]:
    """Name, A, B, difference, its interval, and which is better."""
    return [
        (
            name_of(figure.name),
            show(figure.name, figure.a),
            show(figure.name, figure.b),
            _difference(figure),
            _interval(figure),
            {"A": "A", "B": "B", "same": "same", "neither": "", "unsure": "not sure"}[figure.better],
        )
        for figure in figures
    ]


INTERVAL = f"{format_percent(CONFIDENCE)} interval"
FIGURE_COLUMNS = ("", "A", "B", "B − A", INTERVAL, "better")


def _difference(figure: Figure) -> str:
    if figure.better == "same":
        return "0"
    relative = figure.relative
    share = "" if relative is None else f" ({'+' if relative > 0 else ''}{percent(relative)})"
    return f"{show(figure.name, figure.difference, signed=True)}{share}"


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return UNDEFINED
    return f"{show(figure.name, figure.low, signed=True)} to {show(figure.name, figure.high, signed=True)}"


def part_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Part, its contribution to B's mean time, its meaning."""
    rows = [(_spoken(part.name), _signed_s(part.difference_s), PART_MEANINGS[part.name]) for part in comparison.parts]
    total = sum(part.difference_s for part in comparison.parts)
    return [*rows, ("in all", _signed_s(total), "mean time of a request, B − A")] if rows else []


def time_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Mean time of a request by part, on both sides."""
    rows = [(_spoken(row.name), seconds(row.a_s), seconds(row.b_s)) for row in comparison.times]
    totals = [sum(row.a_s for row in comparison.times), sum(row.b_s for row in comparison.times)]
    return [*rows, ("in all", seconds(totals[0]), seconds(totals[1]))] if rows else []


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _signed_s(value_s: float) -> str:
    return f"{'+' if value_s > 0 else '−' if value_s < 0 else ''}{seconds(abs(value_s))}"


def driver_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Name, A, B of each driver; drivers that are 0 on both sides are left out."""
    return [
        (driver.name, _driver(driver, driver.a), _driver(driver, driver.b))
        for driver in comparison.drivers
        if driver.a or driver.b
    ]


def _driver(driver: Driver, value: float) -> str:
    if driver.unit == "%":
        return percent(value)
    if driver.unit == "s":
        return seconds(value)
    return f"{significant(value)} {driver.unit}".strip()


def verdict(side: Side) -> str:
    """``meets the SLO``, ``misses the SLO (TTFT p99 2.1 s of at most 2 s)``, or "" without an SLO."""
    if side.feasible is None:
        return ""
    missed = [text("comparison", "missed_term", line) for line in term_lines(side.slo) if not line.met]
    return text("comparison", "verdict", side.feasible, missed)


def summary(comparison: Comparison) -> str:
    """The result in two or three sentences."""
    verdicts = [verdict(side) for side in (comparison.a, comparison.b)]
    total = sum(part.difference_s for part in comparison.parts)
    cost = comparison.figure("usd_per_hour")
    chances = [side.chance for side in (comparison.a, comparison.b)]
    parts = _main_parts(comparison, total)
    return text("comparison", "summary", verdicts, chances, cost, _speeds(comparison), parts, total)


def _speeds(comparison: Comparison) -> dict[str, list[Any]]:
    """The SLO's latencies that clearly differ (with the difference), that may differ, and that are the same.

    Without an SLO they are TTFT and TPOT.
    """
    speeds: dict[str, list[Any]] = {"different": [], "unsure": [], "same": []}
    shown = [figure.name for figure in comparison.figures]
    slo_names = [name for name in comparison.asked if name in shown]
    for name in slo_names or [name for latency in ("ttft", "tpot") for name in spoken_of(latency, ())]:
        figure = comparison.figure(name)
        if figure is None or figure.relative is None:
            continue
        if figure.better == "same":
            speeds["same"].append(name_of(name))
        elif figure.better == "unsure" or abs(figure.relative) < _NEGLIGIBLE:
            speeds["unsure"].append(name_of(name))
        else:
            speeds["different"].append((name_of(name), figure.difference))
    return speeds


def _main_parts(comparison: Comparison, total_s: float) -> list[str]:
    """The main parts of the difference in mean time, the largest first; empty where it is negligible."""
    mean_s = max(sum(row.a_s for row in comparison.times), 1e-12)
    if not comparison.parts or abs(total_s) < _NEGLIGIBLE * mean_s:
        return []
    largest = sorted(comparison.parts, key=lambda part: -abs(part.difference_s))
    main = [part for part in largest if abs(part.difference_s) > 0.1 * abs(largest[0].difference_s)]
    return [f"{_spoken(part.name)} {_signed_s(part.difference_s)}" for part in main]
