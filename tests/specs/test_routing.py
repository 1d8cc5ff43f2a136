"""Routers and admission: no parameter is ignored without a word."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from hisearch.base.policies import ADMISSIONS, EVICTIONS, ROUTERS
from hisearch.specs.deployments.routing import AdmissionSpec, RouterSpec
from hisearch.specs.deployments.tiers import TierSpec
from hisearch.specs.studies.search_space import RoutingSpace, SearchSpaceSpec

_EXECUTION = {"accelerators": ["h200"], "engines": ["vllm"]}


@pytest.mark.parametrize("policy", ROUTERS)
def test_a_parameter_of_another_policy_is_refused(policy: str) -> None:
    unread = sorted(ROUTERS.unread(policy))
    assert unread
    for name in unread:
        parameter = ROUTERS.parameters()[name]
        values = parameter.choices or (
            (7,) if parameter.at_most is None else (parameter.at_least or 0.25, parameter.at_most)
        )
        value = next(value for value in values if value != parameter.default)
        with pytest.raises(ValidationError, match=f"{name}: needs policy: .*; policy is {policy}"):
            RouterSpec.model_validate({"policy": policy, name: value})


def test_the_default_of_a_parameter_of_another_policy_is_let_pass() -> None:
    complete = {name: parameter.default for name, parameter in ROUTERS.parameters().items()}
    assert RouterSpec.model_validate(complete | {"policy": "round_robin"}) == RouterSpec()


def test_a_parameter_without_effect_is_refused() -> None:
    with pytest.raises(ValidationError, match="router_ttl_s: has no effect without block_tracking: approximate"):
        RouterSpec.model_validate({"policy": "dynamo_kv", "router_ttl_s": 5.0})
    RouterSpec.model_validate({"policy": "dynamo_kv", "router_ttl_s": 5.0, "block_tracking": "approximate"})


def test_admission_refuses_a_limit_that_it_would_not_look_at() -> None:
    name, parameter = next(iter(ADMISSIONS.parameters().items()))
    assert parameter.default != 3
    with pytest.raises(ValidationError, match=f"{name}: needs policy: .*; policy is none"):
        AdmissionSpec.model_validate({name: 3})


@pytest.mark.parametrize("policy", ROUTERS)
def test_documents_have_the_policys_own_parameters_and_read_as_they_were(policy: str) -> None:
    router = RouterSpec.model_validate({"policy": policy})
    dumped = router.model_dump(mode="json")
    assert set(dumped) - {"policy", "name", "version"} == {p.name for p in ROUTERS[policy].parameters}
    assert RouterSpec.model_validate(dumped) == router


def test_a_space_refuses_values_that_no_policy_would_read() -> None:
    routing = {"policies": ["dynamo_kv"], "overlap_weight": [0.25, 4.0]}
    message = re.escape("routing.overlap_weight: none of the policies dynamo_kv has it; it needs kv_aware.")
    with pytest.raises(ValidationError, match=f"{message} Did you mean dynamo_overlap_weight"):
        SearchSpaceSpec.model_validate({"execution": _EXECUTION, "routing": routing})


@pytest.mark.parametrize(
    "pools",
    [
        {"mixed": {"policies": ["cost_aware"]}},
        {"disaggregated": {"fabrics": ["ib-ndr-400"], "decode_policies": ["cost_aware"]}},
    ],
)
def test_parameters_of_a_shapes_own_policies_are_read(pools: dict[str, object]) -> None:
    fields = {"execution": _EXECUTION, "routing": {"policies": ["round_robin"], "fill_requests": [3]}}
    SearchSpaceSpec.model_validate(fields | {"pools": pools})
    with pytest.raises(ValidationError, match=re.escape("routing.fill_requests: none of the policies round_robin")):
        SearchSpaceSpec.model_validate(fields)


def test_a_list_is_tried_where_its_parameter_has_effect() -> None:
    space = RoutingSpace.model_validate(
        {"policies": ["dynamo_kv"], "block_tracking": ["events", "approximate"], "router_ttl_s": [60.0, 240.0]}
    )
    tried = {(router.block_tracking, router.router_ttl_s) for router in space.routers("dynamo_kv")}
    assert tried == {("events", 120.0), ("approximate", 60.0), ("approximate", 240.0)}


def test_a_version_that_yaml_takes_for_a_number_asks_for_quotes() -> None:
    from hisearch.specs.validation_messages import describe

    with pytest.raises(ValidationError) as raised:
        RouterSpec.model_validate({"version": 0.3})
    assert describe(raised.value.errors()[0]) == "expected text, got the number 0.3; write it in quotes"


def test_a_default_that_is_stated_by_itself_under_another_policy_is_refused() -> None:
    """Else a sweep over a parameter that nothing reads would seem to work at its default."""
    with pytest.raises(ValidationError, match="cache_threshold: needs policy: cache_aware; policy is round_robin"):
        RouterSpec.model_validate({"policy": "round_robin", "cache_threshold": 0.3})


@pytest.mark.parametrize("eviction", [name for name, policy in EVICTIONS.items() if policy.stores])
def test_tiers_written_whole_read_as_they_were(eviction: str) -> None:
    """A tier states the parameters of all evictions, of which tlru has most."""
    tier = TierSpec.model_validate({"medium": "ddr5", "gib": 1.0, "eviction": eviction})
    assert TierSpec.model_validate(tier.model_dump()) == tier
