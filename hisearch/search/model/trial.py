"""Results of a study: trials, the front among them, and a recommendation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hisearch.base.shown import Shown
from hisearch.score.metrics import metric_of
from hisearch.score.quantities import titled
from hisearch.score.terms import Check, RejectionCheck, TermCheck, is_of_size, worst_check
from hisearch.score.terms import worst_margin as worst_margin_of
from hisearch.search.model.deployments import describe
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import MAXIMISED, RuleName
from hisearch.specs.wording import format_percent

__all__ = ["Recommendation", "TermCheck", "Trial", "is_maximised", "metric_of", "price_of"]


def is_maximised(objective: str) -> bool:
    """True if larger values are better."""
    return objective in MAXIMISED


class Verdict:
    """What the checks of a simulation say; without any, the simulation failed."""

    slo: tuple[Check, ...]

    @property
    def worst(self) -> Check | None:
        """The check with the largest violation."""
        return worst_check(self.slo)

    @property
    def worst_violation(self) -> float:
        """Largest violation over all checks, at most 0 if all hold; infinite if the simulation failed."""
        return max((check.violation for check in self.slo), default=math.inf)


@dataclass(frozen=True, repr=False)
class Trial(Verdict, Shown):
    """One simulated deployment.

    number: position in the study, from 0. stage: 1, 2 or 3, or 4 for the comparisons after them. parameters: the
    searched dimensions, flat. metrics: seconds, requests per second, dollars (see ``hisearch.score.metrics``), empty if
    the trial failed. slo: a check per latency term, one per limit of the study and one of the rejected requests.
    feasible: all of them hold. error: why the trial failed, or "". slice_fraction: replayed share of the trace's
    requests, from its beginning; figures of slices serve for ranking only and never reach the front. load: factor on
    the study's own load. simulations: number used, more than one if its capacity was searched.
    """

    number: int
    stage: int
    deployment: DeploymentSpec
    parameters: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    slo: tuple[Check, ...] = ()
    feasible: bool = False
    error: str = ""
    warnings: tuple[str, ...] = ()
    slice_fraction: float = 1.0
    load: float = 1.0
    simulations: int = 1

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        verdict = self.error or ("meets the SLO" if self.feasible else "misses the SLO")
        facts = {"number": str(self.number), "deployment": describe(self.deployment), "verdict": verdict}
        if "usd_per_hour" in self.metrics:
            facts["price"] = f"${price_of(self):,.2f} per hour"
        return facts | {titled(check): _format_margin(check) for check in self.slo}

    @property
    def comparable(self) -> bool:
        """True if the complete trace was replayed at the study's own load, without an error."""
        return not self.error and self.slice_fraction == 1.0 and self.load == 1.0

    @property
    def meets_slo(self) -> bool:
        """True if it is comparable and feasible: only then may it be recommended."""
        return self.comparable and self.feasible

    @property
    def worst_margin(self) -> float:
        """Smallest margin over the SLO's latency terms; minus infinity if the trial failed."""
        return worst_margin_of(self.slo) if self.slo else -math.inf

    @property
    def serves(self) -> bool:
        """True if all checks hold except limits on the deployment's size, which more workers only miss by more."""
        return not self.error and all(check.holds for check in self.slo if not is_of_size(check))

    @property
    def service_violation(self) -> float:
        """Largest violation over the checks of ``serves``; infinite if the trial failed."""
        return max((check.violation for check in self.slo if not is_of_size(check)), default=math.inf)

    @property
    def rejects_too_many(self) -> bool:
        """True if more requests were rejected than the SLO allows; more replicas do not help."""
        return any(isinstance(check, RejectionCheck) and not check.holds for check in self.slo)

    @property
    def rejects_beyond_window(self) -> bool:
        """See the function of that name."""
        return rejects_beyond_window(self.slo)

    def objective(self, name: str) -> float:
        """Value of an objective in its own direction (not sign-flipped)."""
        return self.metrics[metric_of(name)]


def rejects_beyond_window(checks: Iterable[Check]) -> bool:
    """True if the model's window alone rejects more requests than the SLO allows; no deployment helps."""
    return any(isinstance(check, RejectionCheck) and check.over_window > check.bound for check in checks)


def _format_margin(check: Check) -> str:
    if check.margin is None:
        return "met" if check.holds else "missed"
    if check.margin == -math.inf:
        return "requests that never ended"
    return f"{format_percent(abs(check.margin))} {'to spare' if check.holds else 'beyond the limit'}"


def price_of(trial: Trial) -> float:
    """Dollars per hour without the last bits, which depend on the order of summation."""
    return round(trial.metrics["usd_per_hour"], 6)


@dataclass(frozen=True, repr=False)
class Recommendation(Shown):
    """The recommended deployment, the reason, and its closest competitors.

    rule: the rule that chose it (``specs.studies.study.RuleName``). against_baseline: a sentence that compares it with
    ``baseline``; "" if that was not simulated.
    """

    trial: Trial
    reason: str
    runner_ups: tuple[tuple[Trial, str], ...] = ()
    rule: RuleName = "cheapest"
    baseline: Trial | None = None
    against_baseline: str = ""

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        return self.trial.facts() | {"rule": self.rule, "reason": self.reason}
