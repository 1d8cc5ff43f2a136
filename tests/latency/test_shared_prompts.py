"""Ranks that share each prompt's tokens (prefill context parallelism): work, bytes, step costs, memory, refusals."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.base.dtypes import F8
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory.plan import MemoryPlan, plan_memory
from hisearch.latency.estimator import compile_costs
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.operators import attention_pairs
from hisearch.latency.sharding import InvalidParallelism, Parallelism, shard
from hisearch.latency.step_cost import step_seconds
from hisearch.latency.workers.prompts import PromptRanks
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.parallelism import engine_problem
from hisearch.specs.models.model import ModelSpec
from tests.kernels.test_shared_prompts import sglang_lists, vllm_lists

CATALOGUE = Catalogue()
LINK_BYTES_PER_S, ALPHA_S = 4e11, 1e-5
#: An engine, a model whose prompts it shares, and how.
SHARING: list[tuple[EngineName, str]] = [
    ("vllm", "deepseek-v3"), ("vllm", "deepseek-v3.2"), ("sglang", "deepseek-v3.2"), ("sglang", "qwen3-235b-a22b"),
]  # fmt: skip


def model(name: str) -> ModelSpec:
    spec: ModelSpec = CATALOGUE.get("Model", name).spec
    return spec


def prompt_ranks(engine: EngineName, name: str, ranks: int) -> PromptRanks:
    split = Parallelism(8 // ranks, prefill_context=ranks).under(engine)
    return PromptRanks(model(name), shard(model(name), split.as_groups), engine, ranks)


def pairs_of_lists(engine: EngineName, name: str, new: int, cached: int, ranks: int) -> list[int]:
    """(query, key) pairs of each rank's tokens, one by one."""
    if engine == "vllm":
        lists = vllm_lists([new], 0, ranks)
    elif model(name).sparse_attention is not None:
        lists = [[(0, position) for position in range(rank, new, ranks)] for rank in range(ranks)]
    else:
        lists = sglang_lists([new], ranks)
    return [sum(cached + position + 1 for _, position in tokens) for tokens in lists]


@settings(deadline=None)
@given(
    which=st.sampled_from(SHARING),
    new=st.integers(1, 300),
    cached=st.integers(0, 900),
    ranks=st.sampled_from([2, 4, 8]),
)
def test_attention_is_that_of_each_ranks_tokens(
    which: tuple[EngineName, str], new: int, cached: int, ranks: int
) -> None:
    """Pairs of the rank with most of them, and as much work as before whatever the split."""
    engine, name = which
    by_hand = pairs_of_lists(engine, name, new, cached, ranks)
    assert sum(by_hand) == attention_pairs(np.array(new), np.array(cached))
    law = prompt_ranks(engine, name, ranks).chunk_s(attention_pairs, np.array([float(new)]), np.array([float(cached)]))
    if name == "deepseek-v3.2" and engine == "sglang":
        # Dealt in turns, ranks differ by less than a token's keys for each round.
        if new >= ranks:
            assert float(law[0]) * ranks == pytest.approx(sum(by_hand), rel=1e-12)
        return
    assert float(law[0]) == max(by_hand)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("cached", [0, 5000])
def test_blocks_from_both_ends_are_even(ranks: int, cached: int) -> None:
    for lists in (vllm_lists([4096], 0, ranks), sglang_lists([4096], ranks)):
        work = [sum(cached + position + 1 for _, position in tokens) for tokens in lists]
        assert max(work) == min(work)


def test_windows_of_sparse_attention_are_less_even() -> None:
    """Queries with fewer keys than they may read are those of the first block: its rank has less to do."""

    def law(new: F8, cached: F8) -> F8:
        return np.array([float(sum(min(c + i + 1, 2048) for i in range(int(n)))) for n, c in zip(new, cached)])  # noqa: B905

    longest = prompt_ranks("vllm", "deepseek-v3.2", 4).chunk_s(law, np.array([8192.0]), np.array([0.0]))
    by_hand = [sum(min(at + 1, 2048) for _, at in tokens) for tokens in vllm_lists([8192], 0, 4)]
    assert float(longest[0]) == max(by_hand) > sum(by_hand) / 4


def test_gathered_bytes_are_those_of_the_engine() -> None:
    """New KV of all ranks in 16 bits, every layer; hidden states once."""
    collectives, tokens = Collectives(None, LINK_BYTES_PER_S, ALPHA_S), 300.0

    def gather(elements: float, ranks: int) -> float:
        return ALPHA_S + (ranks - 1) * 2.0 * elements * tokens / LINK_BYTES_PER_S

    def seconds(engine: EngineName, name: str, ranks: int) -> float:
        return float(prompt_ranks(engine, name, ranks).gathered_s(collectives, np.array([tokens]))[0])

    hidden = gather(7168, 4)
    latents = 61 * (gather(512, 4) + gather(64, 4))
    assert seconds("vllm", "deepseek-v3", 4) == pytest.approx(hidden + latents, rel=1e-12)
    assert seconds("vllm", "deepseek-v3.2", 4) == pytest.approx(hidden + latents + 61 * gather(128, 4), rel=1e-12)
    at_once = 61 * (gather(576, 4) + gather(128, 4))
    assert seconds("sglang", "deepseek-v3.2", 4) == pytest.approx(hidden + at_once, rel=1e-12)
    # Two of four KV heads at TP 2; experts' sums stay whole: an all-reduce in place of a reduce-scatter on 8 ranks.
    heads, rest = 94 * gather(2 * 2 * 128, 4), 94 * 7 / 8 * 4 * 2.0 * 4096 * tokens / LINK_BYTES_PER_S
    assert seconds("sglang", "qwen3-235b-a22b", 4) == pytest.approx(gather(4096, 4) + heads + rest, rel=1e-12)


@cache
def costs(engine: EngineName, name: str, split: Parallelism, profile: str = "roofline") -> CompiledCosts:
    return compile_costs(
        profile, CATALOGUE.get("LatencyProfile", profile).spec, model(name), CATALOGUE.get("Accelerator", "h200").spec,
        tensor_parallel=split.tensor, parallelism=split.under(engine), weight_dtype=None, kv_dtype="bf16",
        engine=EngineSpec(name=engine), max_tokens=8192, max_sequences=256, max_context_tokens=2_000_000,
    )  # fmt: skip


def step_s(engine: EngineName, name: str, ranks: int, chunks: list[tuple[int, int]], decodes: list[int]) -> float:
    return step_seconds(costs(engine, name, Parallelism(8 // ranks, prefill_context=ranks)).seconds, chunks, decodes)


@pytest.mark.parametrize("profile", ["roofline", "auto"])
@pytest.mark.parametrize(("engine", "name"), SHARING)
def test_sharing_takes_no_longer_than_one_set_of_ranks_and_what_is_sent(
    engine: EngineName, name: str, profile: str
) -> None:
    """A long prompt behind nothing: two sets of four ranks against one of them, and every collective of the sharing."""
    split = Parallelism(4, prefill_context=2).under(engine)
    shared, alone = costs(engine, name, split, profile), costs(engine, name, Parallelism(4), profile)
    chunk = [(8192, 0)]
    sent = prompt_ranks(engine, name, 2).gathered_s(Collectives(None, 2e11, 1e-4), np.array([4096.0]))
    around = model(name).ffn_count * (2e-4 + 4.0 * 8192 * model(name).hidden_size / 2e11)
    single = step_seconds(alone.seconds, chunk, [])
    assert 0.5 * single < step_seconds(shared.seconds, chunk, []) < single
    assert step_seconds(shared.seconds, chunk, []) < 0.5 * single + float(sent[0]) + around + 0.1 * single


@pytest.mark.parametrize(("engine", "name"), SHARING)
def test_short_prompts_and_decodes_pay(engine: EngineName, name: str) -> None:
    assert step_s(engine, name, 8, [], [100]) > step_s(engine, name, 1, [], [100])
    assert step_s(engine, name, 8, [(17, 0)], []) > 0.9 * step_s(engine, name, 1, [(17, 0)], [])


def test_vllm_deals_decodes_in_turns_and_sglang_runs_all_everywhere() -> None:
    """Attention of 64 decodes on 8 ranks is that of 8, under vLLM; under SGLang a rank's is that of 64."""
    long, short = [30_000] * 64, [300] * 64

    def attention(engine: EngineName, split: Parallelism, scale: int = 1) -> float:
        seconds = costs(engine, "deepseek-v3.2" if engine == "sglang" else "deepseek-v3", split).seconds
        part = slice(0, 64 // scale)
        return step_seconds(seconds, [], long[part]) - step_seconds(seconds, [], short[part])

    shared = Parallelism(1, prefill_context=8)
    dealt = attention("vllm", shared)
    assert dealt == pytest.approx(attention("vllm", Parallelism(1, 8), 8), rel=1e-6)
    everywhere = attention("sglang", shared)
    assert everywhere == pytest.approx(attention("sglang", Parallelism(1, 8)), rel=1e-6)


@pytest.mark.parametrize(("engine", "name"), SHARING)
def test_tables_have_what_all_sets_of_ranks_draw(engine: EngineName, name: str) -> None:
    shared = costs(engine, name, Parallelism(2, prefill_context=4))
    assert shared.idle_w == costs(engine, name, Parallelism(8)).idle_w
    assert shared.lockstep is None
    assert shared.served is None
    assert any("no measurement of prompts shared by 4 ranks" in warning for warning in shared.warnings)
    chunk, groups = [(4096, 0)], costs(engine, name, Parallelism(2, 4))
    joules, of_group = step_seconds(shared.joules, chunk, []), step_seconds(groups.joules, [(1024, 1536)], [])
    # A quarter of the prompt on each of four sets, behind its mean context: as far as vLLM does not rebuild more.
    assert 0.8 * 4 * of_group < joules < 1.3 * 4 * of_group


def memory(engine: EngineName, name: str, split: Parallelism) -> MemoryPlan:
    return plan_memory(
        model(name), CATALOGUE.get("Accelerator", "h200").spec, tensor_parallel=split.tensor,
        parallelism=split.under(engine), weight_dtype=None, kv_dtype="bf16", engine=EngineSpec(name=engine),
    )  # fmt: skip


@pytest.mark.parametrize(("engine", "name"), SHARING)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_weights_are_those_of_attention_groups_and_kv_is_copied(engine: EngineName, name: str, ranks: int) -> None:
    shared = memory(engine, name, Parallelism(8 // ranks, prefill_context=ranks))
    groups = memory(engine, name, Parallelism(8 // ranks, ranks))
    assert shared.weights_bytes == groups.weights_bytes
    assert shared.kv_bytes_per_token_per_rank == groups.kv_bytes_per_token_per_rank
    assert shared.kv_capacity_tokens <= groups.kv_capacity_tokens * 1.1
    assert shared.kv_capacity_tokens < memory(engine, name, Parallelism(8)).kv_capacity_tokens * 1.01


def pool(**settings: Any) -> PoolSpec:
    given = {"accelerator": "h200", "tensor_parallel": 2, "prefill_context_parallel": 4, "engine": {"name": "vllm"}}
    return PoolSpec(**(given | settings))


def test_ranks_are_multiplied() -> None:
    split = pool(pipeline_parallel=2).parallelism
    assert (split.stage_ranks, split.ranks, split.short) == (8, 16, "TP 2 × PCP 4 × PP 2")
    assert pool(role="prefill").accelerators == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"role": "decode"}, "4 is not simulated in decode workers, which compute no prompts"),
        ({"tiers": [{"medium": "ddr5", "gib": 64}]}, "4 is not simulated with cache tiers"),
        ({"engine": {"name": "trtllm"}}, "prefill_context_parallel 4 is not simulated under TensorRT-LLM"),
        ({"engine": {"name": "vllm", "version": "0.32.0"}}, "simulated from vLLM 0.33.0 on, not of 0.32.0"),
        ({"engine": {"name": "sglang", "version": "0.5.22"}}, "from SGLang 0.5.23 on, not of 0.5.22"),
        ({"engine": {"name": "sglang", "mixed_chunk": True}}, "4 is not simulated with mixed_chunk"),
        ({"engine": {"name": "vllm", "cudagraph_mode": "full"}}, "4 is not simulated with cudagraph_mode full"),
        (
            {"engine": {"name": "vllm", "speculation": {"method": "mtp", "draft_tokens": 1}}},
            "4 is not simulated with drafted tokens",
        ),
        ({"lora": {"max_loras": 4}}, "4 is not simulated with adapters"),
    ],
)
def test_what_is_not_simulated_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool(**given)


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("gpt-oss-120b", Parallelism(4, prefill_context=2), "not simulated for models with sliding windows"),
        ("kimi-k3", Parallelism(8, prefill_context=2), "not simulated for models with linear attention"),
        ("deepseek-v4-pro", Parallelism(8, prefill_context=2), "not simulated for models with compressed attention"),
        ("deepseek-v3", Parallelism(4, 2, prefill_context=2), "not simulated together with attention_data_parallel 2"),
        (
            "deepseek-v3.2", Parallelism(4, decode_context=4, prefill_context=2),
            "not simulated together with decode_context_parallel 4",
        ),
        ("deepseek-v3", Parallelism(4, prefill_context=3), "tensor_parallel x prefill_context_parallel 12 does not"),
    ],
)  # fmt: skip
def test_splits_that_models_do_not_have(name: str, split: Parallelism, message: str) -> None:
    with pytest.raises(InvalidParallelism, match=message) as raised:
        shard(model(name), split)
    assert raised.value.key == "prefill_context_parallel"


@pytest.mark.parametrize(
    ("engine", "name", "ranks", "message"),
    [
        ("vllm", "qwen3-235b-a22b", 2, "vLLM shares prompts of models with MLA alone"),
        ("vllm", "kimi-k2.5", 2, "vLLM does not share prompts of models that take images"),
        ("sglang", "deepseek-v3", 2, "not simulated under SGLang for MLA without sparse attention"),
        ("sglang", "deepseek-v3.2", 4, "of sparse attention on at most 8 ranks of a stage, not on 16"),
        ("sglang", "qwen3-32b", 2, "simulated under SGLang for sparse attention and for Qwen3 with experts"),
    ],
)
def test_models_whose_prompts_engines_do_not_share(engine: EngineName, name: str, ranks: int, message: str) -> None:
    problem = engine_problem(engine, Parallelism(4, prefill_context=ranks).under(engine), model(name))
    assert problem is not None
    assert problem.key == "prefill_context_parallel"
    assert message in problem.message


def test_estimators_that_cannot_price_it_refuse_it() -> None:
    with pytest.raises(InvalidParallelism, match="8 is not priced by profile roofline") as raised:
        compile_costs(
            "roofline", CATALOGUE.get("LatencyProfile", "roofline").spec, model("deepseek-v3"),
            CATALOGUE.get("Accelerator", "npu-8x128x128").spec, tensor_parallel=1,
            parallelism=Parallelism(1, prefill_context=8).under("vllm"), weight_dtype=None, kv_dtype="bf16",
            engine=EngineSpec(name="vllm"), max_tokens=2048, max_sequences=16, max_context_tokens=100_000,
        )  # fmt: skip
    assert raised.value.key == "prefill_context_parallel"
