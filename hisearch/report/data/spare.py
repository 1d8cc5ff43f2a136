"""One more replica: what it costs that the SLO holds while a replica is updated, drained or lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hisearch.search.model.deployments import resized
from hisearch.search.model.trial import Trial
from hisearch.specs.deployments.deployment import DeploymentSpec


@dataclass(frozen=True)
class Spare:
    """A deployment with one more replica of each pool than one that meets the SLO, which is what is left without it.

    of_trial: number of that one, whose figures and probability hold while a replica is away.
    """

    deployment: DeploymentSpec
    usd_per_hour: float
    of_trial: int


def cheapest_spare(trials: Iterable[Trial], usd_per_hour: Callable[[DeploymentSpec], float]) -> Spare | None:
    """The cheapest deployment that still is one of ``trials`` with a replica of each pool away; None without trials.

    Args:
        trials: that meet the SLO; the first of equal prices is taken.
        usd_per_hour: price of a deployment.
    """
    spares = []
    for trial in trials:
        more = resized(trial.deployment, [pool.replicas + 1 for pool in trial.deployment.pools])
        spares.append(Spare(more, round(usd_per_hour(more), 6), trial.number))
    return min(spares, key=lambda spare: spare.usd_per_hour, default=None)
