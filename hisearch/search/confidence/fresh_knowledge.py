"""What fresh knowledge would be worth: the recommendation again with a router that sees its workers as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hisearch.base.policies import ROUTERS
from hisearch.score.terms import TermCheck
from hisearch.search.confidence.assessment import Assessor
from hisearch.search.model.job import Evaluation
from hisearch.search.model.trial import Trial
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Simulations for it.
SIMULATIONS = 1


@dataclass(frozen=True)
class FreshKnowledge:
    """The recommendation with knowledge of now.

    setting: parameter of the router that says how old its knowledge is, ``age_s``. term: the tightest of the
    recommendation, None where it has none; fresh_term: the same with fresh knowledge.
    """

    policy: str
    setting: str
    age_s: float
    term: TermCheck | None
    fresh_term: TermCheck | None
    hit_rate: float
    fresh_hit_rate: float


def with_fresh_knowledge(deployment: DeploymentSpec) -> tuple[DeploymentSpec, str] | None:
    """The deployment with a front router whose knowledge is of now, and the setting that says so.

    None where its knowledge is of now already, or it has a single worker to choose.
    """
    router = deployment.router
    setting = ROUTERS[router.policy].age
    fresh: dict[str, Any] = {setting: 0.0}
    approximates = ROUTERS[router.policy].approximates
    if approximates is not None and getattr(router, approximates[0]) != approximates[1]:
        fresh[approximates[0]], setting = approximates[1:]
    in_front = sum(pool.replicas for pool in deployment.pools if pool.role != "decode")
    if not setting or getattr(router, setting) == 0.0 or in_front < 2 or deployment.routers:
        return None
    return deployment.model_copy(update={"router": router.model_copy(update=fresh)}), setting


def find_fresh_knowledge(assessor: Assessor, best: Trial) -> FreshKnowledge | None:
    """Simulate a recommendation once more with fresh knowledge; None where that is what it has, or it fails."""
    fresh = with_fresh_knowledge(best.deployment)
    if fresh is None:
        return None
    deployment, setting = fresh
    evaluation = assessor.supposing(deployment, {})
    if evaluation.error:
        return None
    router = best.deployment.router
    terms = [check for check in best.slo if isinstance(check, TermCheck) and check.margin is not None]
    term = min(terms, key=lambda check: check.margin or 0.0, default=None)
    return FreshKnowledge(
        router.policy,
        setting,
        getattr(router, setting),
        term,
        _same_term(evaluation, term),
        best.metrics["hit_rate"],
        evaluation.metrics["hit_rate"],
    )


def _same_term(evaluation: Evaluation, term: TermCheck | None) -> TermCheck | None:
    named = [check for check in evaluation.slo if isinstance(check, TermCheck) and check.value_s is not None]
    return next((check for check in named if term and (check.label, check.model) == (term.label, term.model)), None)
