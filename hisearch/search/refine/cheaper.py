"""Candidates of stage 1 that no simulation reached, and that may still be cheaper than the recommendation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.search.model.candidates import Cluster, Kept
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.refine.local_search import MayServe
from hisearch.search.stages.ending import unseen
from hisearch.search.stages.execution import replicas_needed
from hisearch.search.stages.shortlist import configs_of, deployment
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import PRICE

#: Share of a replica within which a price counts as a whole number of them.
_ROUNDING = 1e-9


def limit_usd(problem: Problem, best: Trial) -> float:
    """Dollars per hour that a better deployment must stay below; infinite where price is no objective."""
    return price_of(best) if PRICE in problem.objectives else math.inf


def cheaper_candidates(
    problem: Problem, kept: Sequence[Kept], trials: Sequence[Trial], best: Trial, may_serve: MayServe
) -> list[DeploymentSpec]:
    """Each unsimulated candidate with as many replicas as cost less than ``best``, if that may meet the SLO.

    Left out is what needs more replicas even if it is faster by its estimate's error, and what ``may_serve`` refuses.
    """
    limit = limit_usd(problem, best)
    specs = [_below(problem, candidate, limit) for candidate in unseen(kept, trials)]
    return list(may_serve(trials, [spec for spec in specs if spec is not None]))


def _below(problem: Problem, candidate: Kept, limit: float) -> DeploymentSpec | None:
    """A candidate with the most replicas below a price, or None; of several pools, the counts of the estimate."""
    faster = 1 + candidate.margin
    if isinstance(candidate, Cluster):
        least_usd, counts = candidate.usd_per_hour / faster, candidate.counts
    else:
        usd, most = candidate.usd_per_hour / candidate.replicas, candidate.max_replicas
        rate = candidate.estimate.capacity_rps * faster
        least_usd = usd * replicas_needed(problem, rate, most)
        bounded = usd > 0 and math.isfinite(limit)
        below = math.ceil(limit / usd - _ROUNDING) - 1 if bounded else candidate.replicas
        counts = (min(max(below, 1), most),)
    return deployment(problem, candidate, counts, configs_of(problem, candidate)[0]) if least_usd < limit else None
