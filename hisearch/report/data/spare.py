"""One more replica: what it costs that the SLO holds while a replica is updated, drained or lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from hisearch.report.data.confidence import Confidence
from hisearch.search.model.deployments import resized
from hisearch.search.model.trial import Trial
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.document import Document
from hisearch.specs.studies.search_space import SearchSpaceSpec
from hisearch.specs.wording import SURE


@dataclass(frozen=True)
class Spare:
    """A deployment with one more replica of each pool than one that meets the SLO, which is what is left without it.

    of_trial: number of that one, whose figures and probability hold while a replica is away. within_space: whether the
    search might have tried it.
    """

    deployment: DeploymentSpec
    usd_per_hour: float
    of_trial: int
    within_space: bool = True


def likely_spare(
    trials: Sequence[Trial],
    best: Trial,
    known: Confidence | None,
    usd_per_hour: Callable[[DeploymentSpec], float],
    space: Document[SearchSpaceSpec],
) -> Spare:
    """The cheapest spare of the recommendation ``best``, and of what is known to hold the SLO with 90 % or more."""
    chances = {} if known is None else {t.number: known.chance_of(t.number, best.number) for t in trials}
    sure = [t for t in trials if t.meets_slo and (chance := chances.get(t.number)) and chance.value >= SURE]
    spare = cheapest_spare([best, *sure], usd_per_hour)
    assert spare is not None  # of one trial at least
    replicas = sum(pool.replicas for pool in spare.deployment.pools)
    return replace(spare, within_space=replicas <= space.spec.execution.max_replicas)


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
