"""Degrees of parallelism of a pool and of a search space: refusals with their keys, and counts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.parallelism import (
    Parallelism,
    SplitProblem,
    engine_problem,
    nodes_per_worker,
    nodes_used,
    slots_problem,
    split_problems,
    workers_per_node,
)
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.studies.search_space import ExecutionSpace

CATALOGUE = Catalogue()
MOE: ModelSpec = CATALOGUE.get("Model", "deepseek-v3").spec
DENSE: ModelSpec = CATALOGUE.get("Model", "qwen3-32b").spec
HOST = CATALOGUE.get("Host", "hgx-h100-8").spec
TRAY = CATALOGUE.get("Host", "gb200-nvl72-tray").spec


def pool(engine: str = "sglang", **fields: object) -> PoolSpec:
    return PoolSpec.model_validate({"accelerator": "h100-sxm", "engine": {"name": engine}, **fields})


def test_a_pool_without_degrees_is_one_accelerator_a_worker() -> None:
    plain = PoolSpec(accelerator="h100-sxm", engine=EngineSpec(name="vllm"), replicas=3)
    assert plain.parallelism == Parallelism()
    assert plain.accelerators == 3


def test_a_worker_has_the_product_of_its_degrees() -> None:
    wide = pool(
        tensor_parallel=2, attention_data_parallel=4, expert_parallel=8, pipeline_parallel=3, replicas=2
    ).parallelism
    assert wide == Parallelism(tensor=2, attention_data=4, expert=8, pipeline=3)
    assert (wide.stage_ranks, wide.ranks, wide.group_ranks) == (8, 24, 6)
    assert str(wide) == "tensor_parallel 2, attention_data_parallel 4, expert_parallel 8, pipeline_parallel 3"
    assert wide.short == "TP 2 × DP 4 × PP 3, EP 8"


@pytest.mark.parametrize(
    ("engine", "degrees", "key"),
    [
        ("vllm", {"tensor_parallel": 8, "expert_parallel": 4}, "expert_parallel"),
        ("trtllm", {"tensor_parallel": 2, "attention_data_parallel": 4}, "attention_data_parallel"),
    ],
)
def test_what_an_engine_has_no_option_for_is_refused_by_key(engine: str, degrees: dict[str, int], key: str) -> None:
    with pytest.raises(ValidationError, match=f"{key}: "):
        pool(engine, **degrees)


def test_data_parallel_engines_of_a_dense_model_are_copies_under_vllm() -> None:
    groups = Parallelism(1, attention_data=4)
    problem = engine_problem("vllm", groups, DENSE)
    assert problem is not None
    assert problem.key == "attention_data_parallel"
    assert "use replicas" in problem.message
    assert engine_problem("vllm", groups, MOE) is None
    assert engine_problem("sglang", groups, DENSE) is None


@pytest.mark.parametrize(
    ("model", "split", "problem"),
    [
        (
            DENSE,
            Parallelism(3),
            SplitProblem("tensor_parallel", "tensor_parallel 3 does not divide attention_heads 64"),
        ),
        (
            MOE,
            Parallelism(1, attention_data=5),
            SplitProblem(
                "attention_data_parallel",
                "tensor_parallel x attention_data_parallel 5 does not divide intermediate_size 18432",
            ),
        ),
        (
            MOE,
            Parallelism(8, expert=3),
            SplitProblem("expert_parallel", "expert_parallel 3 does not divide the 8 ranks of a stage"),
        ),
        (
            DENSE,
            Parallelism(1, pipeline=65),
            SplitProblem("pipeline_parallel", "pipeline_parallel 65 exceeds the 64 layers of the model"),
        ),
    ],
)
def test_the_first_thing_that_does_not_come_out_even(
    model: ModelSpec, split: Parallelism, problem: SplitProblem
) -> None:
    assert next(split_problems(model, split)) == problem


def test_a_stage_stays_within_a_host_and_a_pipeline_need_not() -> None:
    assert slots_problem(Parallelism(8, pipeline=4), "hgx", HOST) is None
    tall = slots_problem(Parallelism(16), "hgx", HOST)
    wide = slots_problem(Parallelism(4, attention_data=4), "hgx", HOST)
    assert tall is not None
    assert tall.key == "tensor_parallel"
    assert wide is not None
    assert wide.key == "attention_data_parallel"


@pytest.mark.parametrize(
    ("split", "workers", "share", "each", "used"),
    [
        (Parallelism(2), 5, 4, 1, 2),
        (Parallelism(2, pipeline=4), 3, 1, 1, 3),
        (Parallelism(8, pipeline=4), 3, 1, 4, 12),
        (Parallelism(3, pipeline=3), 2, 1, 2, 4),
    ],
)
def test_workers_fill_hosts_stage_by_stage(split: Parallelism, workers: int, share: int, each: int, used: int) -> None:
    assert workers_per_node(split, HOST) == share
    assert nodes_per_worker(split, HOST) == each
    assert nodes_used(split, workers, HOST) == used


def test_a_space_combines_its_degrees() -> None:
    space = ExecutionSpace(accelerators=["h200"], engines=["sglang"], tensor_parallel=[1, 8], pipeline_parallel=[1, 2])
    assert space.splits == [
        Parallelism(1),
        Parallelism(1, pipeline=2),
        Parallelism(8),
        Parallelism(8, pipeline=2),
    ]


@pytest.mark.parametrize(
    ("split", "hosts", "problem"),
    [
        (Parallelism(4), 1, None),
        (Parallelism(8), 2, None),
        (Parallelism(1, attention_data=72), 18, None),
        (Parallelism(8, pipeline=3), 6, None),
        (Parallelism(2, pipeline=4), 2, None),
        (Parallelism(6), 2, SplitProblem("tensor_parallel", "tensor_parallel 6 fills no whole hosts of 4 accelerator")),
        (
            Parallelism(1, attention_data=128),
            32,
            SplitProblem("attention_data_parallel", "a stage of 128 ranks exceeds the 72 accelerators that peer links"),
        ),
    ],
)
def test_a_stage_takes_whole_hosts_that_peer_links_join(
    split: Parallelism, hosts: int, problem: SplitProblem | None
) -> None:
    refusal = slots_problem(split, "tray", TRAY)
    assert (refusal is None) == (problem is None)
    if refusal is not None and problem is not None:
        assert refusal.key == problem.key
        assert refusal.message.startswith(problem.message)
    assert nodes_per_worker(split, TRAY) == hosts
    assert nodes_used(split, 3, TRAY) == (3 * hosts if split.ranks >= 4 else hosts)
    assert workers_per_node(split, TRAY) == 1


def test_a_peer_domain_is_of_whole_hosts() -> None:
    assert (HOST.reach, TRAY.reach) == (8, 72)
    with pytest.raises(ValidationError, match="must be whole hosts of 4 accelerators, got 70"):
        type(TRAY).model_validate(TRAY.model_dump() | {"peer_domain": 70})


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("deepseek-r1", True), ("kimi-k2", True), ("qwen3-235b-a22b", True), ("mimo-v2-flash", True),
        ("gpt-oss-120b", False), ("minimax-m2.5", False), ("llama-4-maverick", False), ("qwen3-32b", False),
    ],
)  # fmt: skip
def test_two_batch_overlap_of_models_whose_layers_have_none_is_refused(name: str, has: bool) -> None:
    model: ModelSpec = CATALOGUE.get("Model", name).spec
    problem = engine_problem("sglang", Parallelism(1, 8, 8, all_to_all=True), model, halves=True)
    assert (problem is None) == has
    if problem is not None:
        assert problem.key == "engine.experts.two_batch_overlap"
