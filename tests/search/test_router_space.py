"""Routers of a space: every policy with every combination of what it reads, each once."""

from __future__ import annotations

from typing import get_args

import pytest

from hisearch.base.policies import ROUTERS
from hisearch.search.model.deployments import parameters_of, router_configs
from hisearch.search.records.pool_dimensions import pool_dimensions
from hisearch.specs.deployments.routing import AdmissionSpec, RouterName, RouterSpec
from hisearch.specs.studies.search_space import RoutingSpace
from tests.search.fakes import make_deployment, make_problem


def test_every_policy_is_known_with_its_parameters() -> None:
    assert tuple(ROUTERS) == get_args(RouterName)
    assert set(ROUTERS.parameters()) | {"policy", "name", "version"} == set(RouterSpec.model_fields)


#: The default alone of every parameter, by its key in a search space.
ONE_VALUE_EACH = {
    parameter.search_key or parameter.name: [parameter.default]
    for policy in ROUTERS.values()
    for parameter in policy.parameters
}


@pytest.mark.parametrize("policy", get_args(RouterName))
def test_each_policy_is_there_once_with_its_usual_parameters(policy: RouterName) -> None:
    (router,) = RoutingSpace(policies=[policy], **ONE_VALUE_EACH).routers(policy)
    assert router == RouterSpec(policy=policy)
    assert set(router.parameters()) <= {parameter.name for parameter in ROUTERS[policy].parameters}


def test_parameters_without_effect_make_no_routing_configs() -> None:
    space = RoutingSpace(policies=["consistent_hash"], hash_key=["session", "prefix"], prefix_tokens=[128, 256])
    assert [router.parameters().get("prefix_tokens") for router in router_configs(space)] == [None, 128, 256]
    space = RoutingSpace(
        policies=["cache_aware"],
        **ONE_VALUE_EACH | {"max_tree_characters": [None, 1000], "eviction_interval_s": [30.0, 60.0]},
    )
    assert len(router_configs(space)) == 4


def test_thresholds_of_bucket_are_its_own() -> None:
    space = RoutingSpace(
        policies=["cache_aware", "bucket"],
        **ONE_VALUE_EACH | {"balance_abs_threshold": [4], "bucket_abs_threshold": [7, 8]},
    )
    assert [(r.policy, r.balance_abs_threshold) for r in router_configs(space)] == [
        ("cache_aware", 4), ("bucket", 7), ("bucket", 8),
    ]  # fmt: skip


def test_the_database_knows_every_value_that_a_parameter_may_have() -> None:
    space = make_problem().space
    routing = RoutingSpace(
        policies=["kv_aware", "cost_aware", "bucket"],
        staleness_s=[0.0, 1.0],
        admission=[AdmissionSpec(), AdmissionSpec(policy="queue_cap", requests_per_worker=9)],
    )
    known = pool_dimensions(space.model_copy(update={"routing": routing}))
    for router in router_configs(routing):
        for admission in routing.admission:
            deployment = make_deployment().model_copy(update={"router": router, "admission": admission})
            parameters = parameters_of(deployment)
            searched = {
                "router",
                *router.parameters(),
                *(("admission", *admission.parameters()) if admission.policy != "none" else ()),
            }
            assert searched <= set(known)
            assert all(parameters[name] in known[name] for name in searched)
