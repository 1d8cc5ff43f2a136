"""Splits beyond tensor parallelism: what a rank holds, what a step costs."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.estimator import compile_costs
from hisearch.latency.parameters import kv_bytes_per_token_per_rank, weight_bytes_per_rank
from hisearch.latency.sharding import InvalidParallelism, Parallelism, parallelism_of, shard
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec

CATALOGUE = Catalogue()
MOE: ModelSpec = CATALOGUE.get("Model", "deepseek-v3").spec
DENSE: ModelSpec = CATALOGUE.get("Model", "qwen3-32b").spec
H200 = CATALOGUE.get("Accelerator", "h200").spec
ROOFLINE = CATALOGUE.get("LatencyProfile", "roofline").spec
ENGINE = EngineSpec(name="vllm", chunk_tokens=1024, max_running_requests=128)


def compiled(model: ModelSpec, split: Parallelism) -> CompiledCosts:
    return compile_costs(
        "roofline", ROOFLINE, model, H200, tensor_parallel=split.tensor, parallelism=split, weight_dtype=None,
        kv_dtype="bf16", engine=ENGINE, max_tokens=1024, max_sequences=128, max_context_tokens=100_000,
    )  # fmt: skip


def test_tensor_parallelism_alone_is_the_same_either_way() -> None:
    plain = compile_costs(
        "roofline", ROOFLINE, DENSE, H200, tensor_parallel=4, weight_dtype=None, kv_dtype="bf16", engine=ENGINE,
        max_tokens=1024, max_sequences=128, max_context_tokens=100_000,
    )  # fmt: skip
    assert compiled(DENSE, Parallelism(tensor=4)) is plain


def test_a_rank_of_every_split_holds_its_share_of_the_experts() -> None:
    for split in (Parallelism(8), Parallelism(8, expert=8), Parallelism(2, attention_data=4, expert=4)):
        rank_shard = shard(MOE, split)
        assert MOE.moe is not None
        held = rank_shard.experts * rank_shard.expert_intermediate
        assert held * split.stage_ranks == MOE.moe.experts * MOE.moe.expert_intermediate_size


def test_attention_groups_replicate_attention_and_keep_their_own_kv() -> None:
    grouped, plain = Parallelism(1, attention_data=8, expert=8), Parallelism(8, expert=8)
    assert shard(MOE, grouped).heads == 8 * shard(MOE, plain).heads
    assert weight_bytes_per_rank(MOE, grouped, "fp8") > weight_bytes_per_rank(MOE, plain, "fp8")
    assert kv_bytes_per_token_per_rank(MOE, grouped, "bf16") == kv_bytes_per_token_per_rank(MOE, plain, "bf16")


def test_stages_share_the_layers() -> None:
    single_stage, two_stages = Parallelism(4), Parallelism(4, pipeline=2)
    assert (
        kv_bytes_per_token_per_rank(DENSE, two_stages, "bf16")
        == kv_bytes_per_token_per_rank(DENSE, single_stage, "bf16") / 2
    )
    assert weight_bytes_per_rank(DENSE, two_stages, "bf16") < 0.6 * weight_bytes_per_rank(DENSE, single_stage, "bf16")
    rooms = [
        plan_memory(
            DENSE, H200, tensor_parallel=4, parallelism=split, weight_dtype=None, kv_dtype="bf16", engine=ENGINE
        ).kv_capacity_tokens
        for split in (single_stage, two_stages)
    ]
    assert rooms[1] > 2 * rooms[0]


def test_a_pass_through_two_stages_adds_one_activation_transfer() -> None:
    single_stage, two_stages = compiled(DENSE, Parallelism(4)), compiled(DENSE, Parallelism(4, pipeline=2))
    hand_over = two_stages.seconds.token_s - single_stage.seconds.token_s
    assert np.all(hand_over[1:] > 0)
    assert np.all(hand_over[1:] < 0.05 * single_stage.seconds.token_s[1:])
    np.testing.assert_array_equal(single_stage.seconds.decode_s, two_stages.seconds.decode_s)
    assert two_stages.idle_w == 2 * single_stage.idle_w


def test_tokens_of_all_groups_pass_the_experts() -> None:
    """At 128 tokens a group nearly all experts are read in both cases; only the groups' own attention differs."""
    grouped = compiled(MOE, Parallelism(1, attention_data=8, expert=8)).seconds
    plain = compiled(MOE, Parallelism(8, expert=8)).seconds
    assert grouped.token_s[128] > plain.token_s[128]
    assert grouped.token_s[128] < 8 * plain.token_s[128]


@pytest.mark.parametrize(
    ("model", "split", "message"),
    [
        (DENSE, Parallelism(4, expert=2), "no experts"),
        (MOE, Parallelism(8, expert=3), "expert_parallel 3 does not divide the 8 ranks"),
        (MOE, Parallelism(3), "tensor_parallel 3 does not divide attention_heads"),
        (DENSE, Parallelism(1, pipeline=65), "pipeline_parallel 65 exceeds the 64 layers"),
    ],
)
def test_impossible_splits_are_refused(model: ModelSpec, split: Parallelism, message: str) -> None:
    with pytest.raises(InvalidParallelism, match=message):
        shard(model, split)


def test_contradicting_arguments_are_refused() -> None:
    with pytest.raises(InvalidParallelism, match="tensor_parallel 2 is not the 4"):
        parallelism_of(2, Parallelism(4))
