"""What fresh knowledge of the recommended router would be worth, in one more simulation and a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hisearch.base.policies import ROUTERS
from hisearch.score.terms import TermCheck
from hisearch.search.confidence.answer import Conclusion
from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.conclusion_words import sentences
from hisearch.search.confidence.fresh_knowledge import find_fresh_knowledge, with_fresh_knowledge
from hisearch.search.model.job import Evaluation
from hisearch.search.model.trial import Recommendation
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.routing import RouterSpec
from tests.search.fakes import make_deployment, make_trial
from tests.search.test_confidence import uncertainty


def behind(replicas: int = 2, **router: Any) -> DeploymentSpec:
    return make_deployment(replicas=replicas).model_copy(update={"router": RouterSpec.model_validate(router)})


def evaluated(deployment: DeploymentSpec) -> Evaluation:
    """A deployment whose figures depend on the age of its router's knowledge alone."""
    age_s = getattr(deployment.router, ROUTERS[deployment.router.policy].age)
    check = TermCheck("ttft_p99", 1.0 + age_s, 2.0)
    return Evaluation({"hit_rate": 0.5 - age_s, "usd_per_hour": 4.0}, (check,), check.holds)


def make_assessor() -> Assessor:
    return Assessor(
        uncertainty(1), lambda deployment, _draw: evaluated(deployment),
        what_if=lambda deployment, _factors, _load: evaluated(deployment),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("router", "setting"),
    [
        ({"policy": "power_of_two"}, "load_poll_s"),
        ({"policy": "endpoint_picker"}, "metrics_refresh_s"),
        ({"policy": "kv_aware", "staleness_s": 2.0}, "staleness_s"),
        ({"policy": "dynamo_kv", "staleness_s": 0.5}, "staleness_s"),
    ],
)
def test_what_is_old_becomes_new(router: dict[str, Any], setting: str) -> None:
    fresh = with_fresh_knowledge(behind(**router))
    assert fresh is not None
    deployment, freshened = fresh
    assert freshened == setting
    assert getattr(deployment.router, setting) == 0.0
    assert deployment.router.policy == router["policy"]


def test_a_router_that_knows_caches_by_what_it_sent_is_told_them() -> None:
    fresh = with_fresh_knowledge(behind(policy="dynamo_kv", block_tracking="approximate", router_ttl_s=77.0))
    assert fresh is not None
    router, setting = fresh[0].router, fresh[1]
    assert (router.block_tracking, router.staleness_s, setting) == ("events", 0.0, "router_ttl_s")


@pytest.mark.parametrize("router", [{"policy": "round_robin"}, {"policy": "kv_aware"}, {"policy": "cache_aware"}])
def test_what_is_of_now_is_not_simulated_again(router: dict[str, Any]) -> None:
    assert with_fresh_knowledge(behind(**router)) is None


def test_a_single_worker_needs_no_knowledge() -> None:
    assert with_fresh_knowledge(behind(replicas=1, policy="power_of_two")) is None


def test_the_sentence_has_both_figures() -> None:
    stale = behind(policy="kv_aware", staleness_s=0.25)
    best = replace(make_trial(1, 1.25, 5.0, 4.0, hit_rate=0.25), deployment=stale)
    fresh = find_fresh_knowledge(make_assessor(), best)
    assert fresh is not None
    (said,) = sentences(Conclusion(Recommendation(best, "cheapest", ""), fresh=fresh))["settings"]
    assert said == (
        "Its router knows its workers as of up to 0.25 s ago (staleness_s of kv_aware). With knowledge of now "
        "TTFT p99 would be 1.00 s instead of 1.25 s, and prefix cache hits 50 % instead of 25 %."
    )
