"""What a study produces: trials, the front among them, and a recommendation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hisearch.score.terms import Check, RejectionCheck, TermCheck
from hisearch.score.terms import worst_margin as worst_margin_of
from hisearch.specs.deployment import DeploymentSpec
from hisearch.specs.study import MAXIMISED

__all__ = ["Recommendation", "TermCheck", "Trial", "is_maximised", "metric_of"]

#: The key in ``Trial.metrics`` that an objective of a study reads.
_METRIC_OF = {
    "goodput": "goodput_rps",
    "usd_per_hour": "usd_per_hour",
    "usd_per_million_tokens": "usd_per_million_tokens",
    "mean_w": "mean_w",
    "joules_per_token": "joules_per_token",
}


def metric_of(objective: str) -> str:
    """Metric key of an objective: ``ttft_p99`` -> ``ttft_p99_s``, ``goodput`` -> ``goodput_rps``."""
    return _METRIC_OF.get(objective, f"{objective}_s")


def is_maximised(objective: str) -> bool:
    """True where more is better."""
    return objective in MAXIMISED


@dataclass(frozen=True)
class Trial:
    """One simulated deployment.

    number: position in the study, from 0. stage: 1, 2 or 3, or 4 for the comparisons after them. parameters: the
    searched dimensions, flat.
    metrics: seconds, requests per second, dollars (see ``hisearch.score.metrics``), empty where the trial failed.
    slo: a check per latency term and one of the rejected requests. feasible: every one of them holds.
    error: why it failed, or "".
    slice_fraction: share of the trace's requests, from its beginning, that was replayed; figures of slices are for
    ranking only and never reach the front. load: factor on the study's own load.
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

    @property
    def comparable(self) -> bool:
        """True where the whole trace was replayed at the study's own load, without an error."""
        return not self.error and self.slice_fraction == 1.0 and self.load == 1.0

    @property
    def worst_margin(self) -> float:
        """Smallest margin over the SLO's latency terms; minus infinity where the trial failed."""
        return worst_margin_of(self.slo) if self.slo else -math.inf

    @property
    def worst_violation(self) -> float:
        """Largest violation over all checks, at most 0 where all hold; infinite where the trial failed."""
        return max((check.violation for check in self.slo), default=math.inf)

    @property
    def rejects_too_many(self) -> bool:
        """True where more requests were rejected than the SLO allows, which no number of replicas heals."""
        return any(isinstance(check, RejectionCheck) and not check.holds for check in self.slo)

    @property
    def rejects_beyond_window(self) -> bool:
        """True where the model's window alone rejects more requests than the SLO allows: every deployment's would."""
        return any(isinstance(check, RejectionCheck) and check.over_window > check.bound for check in self.slo)

    def objective(self, name: str) -> float:
        """Value of an objective in its own direction (not sign-flipped)."""
        return self.metrics[metric_of(name)]


@dataclass(frozen=True)
class Recommendation:
    """The deployment to buy, why, and what stands next to it."""

    trial: Trial
    reason: str
    runner_ups: tuple[tuple[Trial, str], ...] = ()
