"""Itemized costs of a study's deployments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hisearch.api.deployments.replay import Replay
from hisearch.hardware.prices import CostBreakdown, deployment_cost
from hisearch.report.data.inputs import CostRow
from hisearch.search.model.trial import Recommendation, Trial
from hisearch.specs.deployments.deployment import DeploymentSpec

if TYPE_CHECKING:
    from hisearch.api.studies.study_outcome import StudyOutcome
    from hisearch.specs.documents.resolved import ResolvedStudy


def pool_costs_of(result: StudyOutcome, trial: Trial) -> list[CostBreakdown]:
    """Dollars per hour of each pool of a trial's deployment."""
    spec = trial.deployment
    return [cost_of(result.resolved, spec.model_copy(update={"pools": [pool]})) for pool in spec.pools]


def cost_of(resolved: ResolvedStudy, deployment: DeploymentSpec) -> CostBreakdown:
    """Dollars per hour of a deployment, at the study's prices."""
    return deployment_cost(
        deployment,
        {name: document.spec for name, document in resolved.accelerators.items()},
        {name: document.spec for name, document in resolved.hosts.items()},
        {name: document.spec for name, document in resolved.media.items()},
        resolved.hardware.device_specs,
    )


def replay_of(result: StudyOutcome, trial: Trial) -> Replay:
    """A trial's deployment, ready to be simulated again."""
    fleet = result.simulation.fleet(trial.deployment)
    return Replay(trial.deployment, fleet, pool_costs_of(result, trial), result.resolved.slo.spec)


def cost_rows(
    resolved: ResolvedStudy, recommendation: Recommendation | None, nearest_miss: Trial | None
) -> tuple[CostRow, ...]:
    """Cost rows of the recommendation and its runner-ups, or of the nearest miss."""
    if recommendation is not None:
        trials = [recommendation.trial, *(trial for trial, _ in recommendation.runner_ups)]
    else:
        trials = [nearest_miss] if nearest_miss is not None else []
    return tuple(_row(trial, cost_of(resolved, trial.deployment)) for trial in trials)


def _row(trial: Trial, cost: CostBreakdown) -> CostRow:
    parts = {"Accelerators": cost.accelerator_usd_per_hour, "Hosts": cost.host_usd_per_hour}
    if cost.device_usd_per_hour:
        parts["Devices"] = cost.device_usd_per_hour
    for tier in cost.tiers:
        parts[tier.medium] = parts.get(tier.medium, 0.0) + tier.usd_per_hour
    return CostRow(trial.number, tuple(parts.items()), mean_power_w(trial.metrics))


def mean_power_w(metrics: dict[str, float]) -> float | None:
    """Watts over the simulated time: joules per token times tokens per second; None where no token was served."""
    power_w = metrics.get("joules_per_token", math.nan) * metrics.get("total_tokens_per_s", math.nan)
    return power_w if math.isfinite(power_w) else None
