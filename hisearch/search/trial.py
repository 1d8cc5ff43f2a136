"""What a study produces: trials, the front among them, and a recommendation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hisearch.specs.deployment import DeploymentSpec
from hisearch.specs.study import MAXIMISED

#: The key in ``Trial.metrics`` that an objective of a study reads.
_METRIC_OF = {
    "goodput": "goodput_rps",
    "usd_per_hour": "usd_per_hour",
    "usd_per_million_tokens": "usd_per_million_tokens",
}


def metric_of(objective: str) -> str:
    """Metric key of an objective: ``ttft_p99`` -> ``ttft_p99_s``, ``goodput`` -> ``goodput_rps``."""
    return _METRIC_OF.get(objective, f"{objective}_s")


def is_maximised(objective: str) -> bool:
    """True where more is better."""
    return objective in MAXIMISED


@dataclass(frozen=True)
class TermCheck:
    """One SLO term held against a simulation.

    ``margin`` is 1 - value / bound: positive inside the SLO, negative by how much it is missed.
    """

    label: str
    value_s: float
    bound_s: float

    @property
    def margin(self) -> float:
        """Share of the bound that is left; negative where it is missed."""
        return 1.0 - self.value_s / self.bound_s

    @property
    def holds(self) -> bool:
        """True where the term is met."""
        return self.value_s <= self.bound_s


@dataclass(frozen=True)
class Trial:
    """One simulated deployment.

    number: position in the study, from 0. stage: 1, 2 or 3. parameters: the searched dimensions, flat.
    metrics: seconds, requests per second, dollars (see ``hisearch.score.metrics``), empty where the trial failed.
    feasible: every SLO term holds and no more requests were rejected than allowed.
    error: why it failed, or "".
    """

    number: int
    stage: int
    deployment: DeploymentSpec
    parameters: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    slo: tuple[TermCheck, ...] = ()
    feasible: bool = False
    error: str = ""
    warnings: tuple[str, ...] = ()

    def objective(self, name: str) -> float:
        """Value of an objective in its own direction (not sign-flipped)."""
        return self.metrics[metric_of(name)]


@dataclass(frozen=True)
class Recommendation:
    """The deployment to buy, why, and what stands next to it."""

    trial: Trial
    reason: str
    runner_ups: tuple[tuple[Trial, str], ...] = ()
