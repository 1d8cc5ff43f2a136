"""Names, units and number formats of reported figures. Internal seconds become ms where readers expect ms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hisearch.score.terms import REJECTED, Check
from hisearch.specs.studies.slo import OF_CLASS
from hisearch.specs.studies.study import MAXIMISED

#: Average hours of a month: 8,760 / 12.
HOURS_PER_MONTH = 730.0

#: Shown for an undefined figure, such as TPOT without a second output token.
UNDEFINED = "-"

_LATENCIES = {
    "ttft": ("TTFT", "time to first token", "s", 1.0),
    "ttfo": ("TTFO", "time to first output token behind any thinking", "s", 1.0),
    "tpot": ("TPOT", "time per output token", "ms", 1e3),
    "itl": ("ITL", "gap between two tokens", "ms", 1e3),
    "e2e": ("E2E", "whole request", "s", 1.0),
}

_OTHERS = {
    "goodput": ("Goodput", "requests per second that meet every SLO term", "requests/s"),
    "capacity": ("Capacity", "largest factor on the arrival rate at which the SLO holds", "× the load"),
    "queue_growth": ("Queue growth", "requests in the system, of a load that does not last", "requests/s"),
    "usd_per_hour": ("Cost", "price of everything that runs", "USD/hour"),
    "usd_per_million_tokens": ("Cost per million tokens", "prompt and output tokens", "USD"),
    "agents_per_accelerator": (
        "Agents per accelerator",
        "of the largest population of this kind that meets the SLO",
        "agents",
    ),
    "usd_per_agent_hour": ("Cost of an agent", "of the largest population of this kind that meets the SLO", "USD/hour"),
    "accelerators": ("Accelerators", "that the deployment is made of", ""),
    "replicas": ("Replicas", "of the smallest pool, of which some may be down", ""),
    "mean_w": ("Power", "of accelerators, hosts, links and media", "W"),
    "joules_per_token": ("Energy per token", "prompt and output tokens", "J"),
}


class Quantity(NamedTuple):
    """How a study's objective or SLO term is written.

    label: short name. meaning: in plain words. unit: of the shown value, "" for a pure number.
    scale: shown value / stored value. maximised: more is better.
    """

    label: str
    meaning: str
    unit: str
    scale: float
    maximised: bool

    @property
    def title(self) -> str:
        """Axis title: label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def within(self) -> str:
        """The label within a sentence: ``TTFT p99``, ``goodput``."""
        return self.label if self.label[:2].isupper() else self.label[:1].lower() + self.label[1:]

    @property
    def good(self) -> str:
        """Which direction is better, as text."""
        return "higher is better" if self.maximised else "lower is better"

    def show(self, value: float) -> str:
        """A stored value in shown units; seconds below 0.1 in milliseconds."""
        if self.unit.startswith("USD"):
            return usd(value) + self.unit.removeprefix("USD")
        if self.unit == "%":
            return percent(value)
        unit, scale = self._unit_for(value)
        text = significant(value * scale)
        return f"{text} {unit}" if unit and math.isfinite(value) else text

    def show_bound(self, value: float) -> str:
        """A bound in shown units, as it was written."""
        if self.unit == "%":
            return f"{value * 100:g} %"
        if self.unit.startswith("USD"):
            return usd(value) + self.unit.removeprefix("USD")
        unit, scale = self._unit_for(value)
        return f"{value * scale:g} {unit}".rstrip()

    def _unit_for(self, value: float) -> tuple[str, float]:
        return ("ms", 1e3) if self.unit == "s" and abs(value) < 0.1 else (self.unit, self.scale)

    def number(self, value: float) -> str:
        """A stored value in shown units, for a column whose heading has the unit."""
        return usd(value).removeprefix("$") if self.unit.startswith("USD") else significant(value * self.scale)


def quantity(name: str) -> Quantity:
    """How an objective or an SLO term's label (``ttft_p99``) is shown.

    Raises:
        KeyError: neither a latency percentile nor a known objective.
    """
    if name in _OTHERS:
        label, meaning, unit = _OTHERS[name]
        return Quantity(label, meaning, unit, 1.0, name in MAXIMISED)
    if name == REJECTED:
        return Quantity("Rejected", "requests that the deployment turned away", "%", 100.0, False)
    of_all, _, of_class = name.partition(OF_CLASS)
    metric, _, percentile = of_all.rpartition("_p")
    label, meaning, unit, scale = _LATENCIES[metric]
    label, meaning = f"{label} p{percentile}", f"{meaning}, {_ordinal(percentile)} percentile"
    if of_class:
        requests = of_class.replace("=", " ").replace(",", ", ")
        label, meaning = f"{label} of {requests}", f"{meaning}; of these requests alone"
    return Quantity(label, meaning, unit, scale, False)


def titled(check: Check) -> str:
    """A check's name for people, with its model if there are several: ``TTFT p99 of qwen3-8b``."""
    label = quantity(check.label).label
    return f"{label} of {check.model}" if check.model else label


def notes(checks: Iterable[Check]) -> tuple[str, ...]:
    """Notes on the checks' values, a sentence each without its full stop."""
    return tuple(f"{titled(check)}: {check.note}" for check in checks if check.note)


def _ordinal(number: str) -> str:
    if not number.isdigit() or number[-2:] in {"11", "12", "13"}:
        return f"{number}th"
    return number + {"1": "st", "2": "nd", "3": "rd"}.get(number[-1], "th")


def significant(value: float, digits: int = 3) -> str:
    """``digits`` significant digits without an exponent; thousands separated: 0.0123, 4.57, 18,432."""
    if math.isnan(value):
        return UNDEFINED
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0.0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}".replace("-", "−")


def percent(fraction: float) -> str:
    """0.1234 -> ``12.3 %``; a share just below 1 never reads 100 %."""
    if not math.isfinite(fraction):
        return significant(fraction)
    if 0.9995 <= fraction < 1.0:
        return "> 99.9 %"
    return f"{fraction * 100:,.1f} %".replace("-", "−")


def usd(value: float) -> str:
    """Dollars: cents below 1,000, whole dollars above, two significant digits below a cent."""
    if not math.isfinite(value):
        return significant(value)
    if 0.0 < abs(value) < 0.01:
        return f"${significant(value, 2)}"
    return f"${value:,.2f}" if abs(value) < 1000 else f"${value:,.0f}"
