"""Requirements on a deployment, checked against a simulation: latency terms, limits, rejected requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hisearch.specs.wording import leave_out

#: Why requests are rejected: keys of ``RejectionCheck.reasons``. TOO_LARGE is either of the first two.
OVER_WINDOW = "over_window"
OVER_KV_MEMORY = "over_kv_memory"
TOO_LARGE = "too_large"
SHED = "shed"
LOST = "lost"

REASON_TEXTS = {
    OVER_WINDOW: "with more tokens, prompt and declared output together, than the model's window",
    OVER_KV_MEMORY: "with more tokens than a worker's whole KV memory",
    TOO_LARGE: "with more tokens than the model's window or a worker's whole KV memory",
    SHED: "not let in by the router",
    LOST: "given up after their worker had died, or where none was up",
}

#: Label of every ``RejectionCheck``, which is also the key of its value among the metrics.
REJECTED = "rejected_fraction"

#: Label of the check that enough replicas are left while some are down.
REPLICAS = "replicas"


@dataclass(frozen=True)
class TermCheck:
    """A latency term's value and its bound.

    value_s: the percentile; infinite if counted requests never ended; None if undefined, because no request has this
    measure (TPOT without a second output token). An undefined term holds: nobody waited. note: remark on the value, or
    "". model: the model whose requests are meant, if a deployment serves several.
    """

    label: str
    value_s: float | None
    bound_s: float
    note: str = ""
    model: str = ""

    @property
    def margin(self) -> float | None:
        """Share of the bound that is left; negative if missed, minus infinity for an infinite value."""
        return None if self.value_s is None else 1.0 - self.value_s / self.bound_s

    @property
    def violation(self) -> float:
        """Excess over the bound, as a share of the bound; at most 0 if the term holds."""
        return 0.0 if self.margin is None else -self.margin

    @property
    def holds(self) -> bool:
        """True if the term is met."""
        return self.value_s is None or self.value_s <= self.bound_s


@dataclass(frozen=True)
class RejectionCheck:
    """The rejected share of the arrived requests and the share that the SLO allows.

    bound: largest share allowed, 0 to 1. arrived: requests. reasons: rejected requests by reason. model: as in
    ``TermCheck``. window_tokens: the model's window; 0 where it is not known.
    """

    bound: float
    arrived: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    model: str = ""
    window_tokens: int = 0

    @property
    def label(self) -> str:
        """Its name among the terms."""
        return REJECTED

    @property
    def requests(self) -> int:
        """Rejected requests."""
        return sum(self.reasons.values())

    @property
    def value(self) -> float:
        """Rejected share of the requests that arrived."""
        return self.requests / self.arrived if self.arrived else 0.0

    @property
    def over_window(self) -> float:
        """Share of arrived requests that exceed the model's window: every deployment rejects them."""
        return self.reasons.get(OVER_WINDOW, 0) / self.arrived if self.arrived else 0.0

    @property
    def margin(self) -> float | None:
        """Share of the bound that is left; None if the bound is 0."""
        return 1.0 - self.value / self.bound if self.bound > 0.0 else None

    @property
    def violation(self) -> float:
        """Share of requests rejected beyond the bound; at most 0 if the check holds."""
        return self.value - self.bound

    @property
    def holds(self) -> bool:
        """True if no more were rejected than allowed."""
        return self.value <= self.bound

    @property
    def note(self) -> str:
        """How many requests were rejected and why; "" if none was."""
        if not self.requests:
            return ""
        why = ", ".join(f"{count:,} {self._reason(reason)}" for reason, count in self.reasons.items())
        return f"{self.requests:,} of {self.arrived:,} requests rejected: {why}"

    def _reason(self, reason: str) -> str:
        text = REASON_TEXTS[reason]
        if reason != OVER_WINDOW or not self.window_tokens:
            return text
        return f"{text} of {self.window_tokens:,} ({leave_out(self.window_tokens)})"


@dataclass(frozen=True)
class LimitCheck:
    """A figure and a bound that is not part of the SLO: dollars, watts, accelerators, a percentile of ITL, goodput.

    label: the objective's name. value: NaN if undefined; the limit then holds. at_least: the bound is a lower one.
    """

    label: str
    value: float
    bound: float
    at_least: bool = False
    model: ClassVar[str] = ""

    @property
    def margin(self) -> float | None:
        """Share of the bound that is left; negative if missed; None for an undefined figure."""
        if math.isnan(self.value):
            return None
        share = self.value / self.bound
        return share - 1.0 if self.at_least else 1.0 - share

    @property
    def violation(self) -> float:
        """Distance beyond the bound, as a share of the bound; at most 0 if the limit holds."""
        return 0.0 if self.margin is None else -self.margin

    @property
    def holds(self) -> bool:
        """True if the figure keeps to the bound."""
        return self.violation <= 0.0

    @property
    def note(self) -> str:
        """Remark on the value, or ""."""
        return "undefined; it holds" if math.isnan(self.value) else ""


#: All checks that decide whether a simulation is feasible.
Check = TermCheck | LimitCheck | RejectionCheck

#: Limits that a larger deployment misses by more.
_OF_SIZE = frozenset({"usd_per_hour", "usd_per_million_tokens", "accelerators", "mean_w", "joules_per_token"})


def is_of_size(check: Check) -> bool:
    """True for a limit on a deployment's cost or power: more workers do not help."""
    return isinstance(check, LimitCheck) and check.label in _OF_SIZE


def worst_check(checks: Iterable[Check]) -> Check | None:
    """The check with the largest violation, the first of equal ones; None without checks."""
    return max(checks, key=lambda check: check.violation, default=None)


def worst_margin(checks: Iterable[Check]) -> float:
    """Smallest margin over the latency terms; infinite if no term has a value."""
    margins = (check.margin for check in checks if isinstance(check, TermCheck))
    return min((margin for margin in margins if margin is not None), default=math.inf)


def name_of(check: Check) -> str:
    """The check's label, with its model if there are several."""
    return f"{check.label} of {check.model}" if check.model else check.label


def of_model(check: Check, model: str) -> Check:
    """The same check for ``model``'s requests; a limit always covers the deployment."""
    return check if isinstance(check, LimitCheck) else replace(check, model=model)


def check_from_json(data: Mapping[str, Any]) -> Check:
    """Inverse of ``dataclasses.asdict``.

    Raises:
        TypeError: ``data`` is not the dict of a check.
    """
    if "reasons" in data:
        return RejectionCheck(**data)
    return LimitCheck(**data) if "at_least" in data else TermCheck(**data)


def check_to_dict(check: Check) -> dict[str, Any]:
    """A check for machines: its fields and the verdict (docs/json.md)."""
    fields: dict[str, Any] = {"label": check.label}
    if isinstance(check, TermCheck):
        fields |= {"value_s": check.value_s, "bound_s": check.bound_s}
    elif isinstance(check, LimitCheck):
        fields |= {"value": check.value, "bound": check.bound, "at_least": check.at_least}
    else:
        fields |= {"value": check.value, "bound": check.bound, "requests": check.requests}
        fields |= {"arrived": check.arrived, "reasons": dict(check.reasons)}
    if check.model:
        fields["model"] = check.model
    return fields | {"margin": check.margin, "holds": check.holds, "note": check.note}
