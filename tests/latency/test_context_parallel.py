"""Ranks that share each sequence's KV (decode context parallelism): what fits, what a step costs, what is refused."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.latency.device_memory.plan import MemoryPlan, plan_memory
from hisearch.latency.estimator import compile_costs
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.sharding import InvalidParallelism, Parallelism, shard
from hisearch.latency.step_cost import step_seconds
from hisearch.latency.workers.context import ContextExchange
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec
from tests.engines.environments import ENGINES

CATALOGUE = Catalogue()
LINK_BYTES_PER_S, ALPHA_S = 4e11, 1e-5

#: Asks vLLM how many tokens of KV it keeps in so many bytes: argv holds a layer's shape, the ranks and the bytes.
CAPACITY = """
import json, sys
import torch
from hisearch.record.vllm_scheduler import _model
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
try:
    from vllm.v1.core.kv_cache_planning import get_global_kv_cache_groups, get_kv_cache_configs
except ImportError:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    get_global_kv_cache_groups = None
case = json.loads(sys.argv[1])
config = VllmConfig(
    model_config=_model(), device_config=DeviceConfig(device="cpu"), cache_config=CacheConfig(block_size=case["block"]),
    scheduler_config=SchedulerConfig(max_model_len=8192, is_encoder_decoder=False),
)
config.parallel_config.decode_context_parallel_size = case["ranks"]
config.parallel_config.prefill_context_parallel_size = case["prompts"]
if hasattr(config.cache_config, "kv_cache_layout"):
    config.cache_config.kv_cache_layout = "LBNHC"
kind = MLAAttentionSpec if case["mla"] else FullAttentionSpec
spec = kind(block_size=case["block"], num_kv_heads=case["heads"], head_size=case["width"], dtype=torch.bfloat16)
layers = {f"layer{index}": spec for index in range(case["layers"])}
groups = [get_global_kv_cache_groups(config, [layers])] if get_global_kv_cache_groups else []
tokens = []
for spare in case["bytes"]:
    config.cache_config.num_gpu_blocks_override = None
    (made,) = get_kv_cache_configs(config, [layers], [spare], *groups)
    size = case["block"] * case["ranks"]
    if hasattr(kv_cache_utils, "resolve_kv_cache_block_sizes"):
        size, _ = kv_cache_utils.resolve_kv_cache_block_sizes(made, config)
    tokens.append(made.num_blocks * size)
print(json.dumps(tokens))
"""


def model(name: str) -> ModelSpec:
    spec: ModelSpec = CATALOGUE.get("Model", name).spec
    return spec


def memory(name: str, split: Parallelism, **settings: Any) -> MemoryPlan:
    engine = EngineSpec(name=settings.pop("engine", "vllm"), **settings)
    return plan_memory(
        model(name), CATALOGUE.get("Accelerator", "h200").spec, tensor_parallel=split.tensor, parallelism=split,
        weight_dtype=None, kv_dtype="bf16", engine=engine,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("title", "name", "tensor", "ranks", "prompts"),
    [
        *((title, name, 8, ranks, 1) for title in ("vllm-0.33.0", "vllm-0.19.1")
          for name, ranks in (("deepseek-v3", 8), ("deepseek-v3", 2), ("qwen3-235b-a22b", 2))),
        ("vllm-0.33.0", "deepseek-v3", 2, 1, 4),
    ],
)  # fmt: skip
def test_the_engine_keeps_as_many_tokens(title: str, name: str, tensor: int, ranks: int, prompts: int) -> None:
    engine, served = ENGINES[title], model(name)
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {title}; run `make test-engines`, or set {engine.variable} to its Python")
    split = Parallelism(tensor, decode_context=ranks, prefill_context=prompts)
    plan = memory(name, split, page_tokens=64)
    part, bytes_of_block = shard(served, split), 64 * ranks * plan.kv_bytes_per_token_per_rank
    mla = served.mla
    case = {
        "block": 64, "ranks": ranks, "prompts": prompts, "layers": served.layers, "mla": mla is not None,
        "heads": 1 if mla else part.kv_heads,
        "width": mla.kv_lora_rank + mla.qk_rope_head_dim if mla else served.head_dim,
        "bytes": [int(plan.kv_bytes), int(plan.kv_bytes) - 1, int(plan.kv_bytes + bytes_of_block)],
    }  # fmt: skip
    answer = subprocess.run(
        [engine.python(), "-c", CAPACITY, json.dumps(case)], capture_output=True, text=True, check=True
    )
    block = 64 * ranks
    assert json.loads(answer.stdout.splitlines()[-1]) == [
        plan.kv_capacity_tokens, plan.kv_capacity_tokens - block, plan.kv_capacity_tokens + block,
    ]  # fmt: skip


@settings(deadline=None)
@given(
    ranks=st.sampled_from([1, 2, 4, 8]), page=st.sampled_from([16, 32, 64]), engine=st.sampled_from(["vllm", "sglang"])
)
def test_capacity_is_that_of_all_ranks(ranks: int, page: int, engine: str) -> None:
    """As many blocks, each of as many tokens as ranks hold; a rank's bytes do not change."""
    alone = memory("deepseek-v3", Parallelism(8), page_tokens=page, engine=engine)
    shared = memory("deepseek-v3", Parallelism(8, decode_context=ranks), page_tokens=page, engine=engine)
    assert shared.kv_capacity_tokens == ranks * alone.kv_capacity_tokens
    assert shared.kv_bytes == alone.kv_bytes
    assert shared.weights_bytes == alone.weights_bytes


def exchange(name: str, ranks: int, engine: str = "vllm") -> ContextExchange:
    served = model(name)
    return ContextExchange(
        served, shard(served, Parallelism(8, decode_context=ranks)), engine,  # type: ignore[arg-type]
        Collectives(None, LINK_BYTES_PER_S, ALPHA_S), 1000.0, lambda moved: moved * 1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_exchanged_bytes_are_those_of_the_engine(engine: str, ranks: int) -> None:
    """DeepSeek-V3 at TP 8: 16 heads a rank, a latent of 512 and 64 rotary elements, 61 layers."""
    queries, heads, sent = 96.0, 16 * ranks, (ranks - 1) / ranks
    outputs, lse = 2.0 * heads * 512 * queries, 4.0 * heads * queries
    sizes = [2.0 * heads * 576 * queries]
    sizes += [ranks * lse, outputs] if engine == "vllm" else [outputs + lse]
    by_hand = sum(ALPHA_S + sent * size / LINK_BYTES_PER_S for size in sizes) + 2.0 * outputs * 1e-12
    seconds = exchange("deepseek-v3", ranks, engine).queries_s(np.array([queries]))
    assert seconds == pytest.approx(61 * by_hand, rel=1e-12)


def test_a_chunk_gathers_what_is_cached() -> None:
    latents, queries = exchange("deepseek-v3", 8), exchange("qwen3-30b-a3b", 2)
    new, cached = np.array([100.0]), np.array([0.0, 5000.0])
    gathered = ALPHA_S + 7 / 8 * 1000.0 * 5000.0 / LINK_BYTES_PER_S
    assert latents.cached_s(new, cached) == pytest.approx([0.0, 61 * gathered])
    assert queries.cached_s(new, cached) == pytest.approx([0.0, float(queries.queries_s(new)[0])])
    sparse = exchange("deepseek-v3.2", 8)
    short, long = sparse.cached_s(new, np.array([1000.0, 5000.0]))
    assert short == pytest.approx(61 * (ALPHA_S + 7 / 8 * 1000.0 * 1000.0 / LINK_BYTES_PER_S))
    candidates = ALPHA_S + 7 / 8 * 8 * 8.0 * 2048 * 100.0 / LINK_BYTES_PER_S
    assert long == pytest.approx(float(latents.queries_s(new)[0]) + 61 * candidates)


def step_s(
    name: str, profile: str, ranks: int, decodes: list[int], engine: str = "vllm", accelerator: str = "h200"
) -> float:
    costs = compile_costs(
        profile, CATALOGUE.get("LatencyProfile", profile).spec, model(name),
        CATALOGUE.get("Accelerator", accelerator).spec, tensor_parallel=8,
        parallelism=Parallelism(8, decode_context=ranks), weight_dtype=None, kv_dtype="bf16",
        engine=EngineSpec(name=engine, page_tokens=64), max_tokens=2048, max_sequences=256,
        max_context_tokens=8_000_000,
    )  # fmt: skip
    return step_seconds(costs.seconds, [], decodes)


@pytest.mark.parametrize("profile", ["roofline", "auto"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_long_contexts_gain_and_short_ones_pay(profile: str, engine: str) -> None:
    long, short = [100_000] * 32, [100]
    assert step_s("deepseek-v3", profile, 8, long, engine) < 0.9 * step_s("deepseek-v3", profile, 1, long, engine)
    assert step_s("deepseek-v3", profile, 8, short, engine) > step_s("deepseek-v3", profile, 1, short, engine)


@pytest.mark.parametrize(("name", "ranks"), [("deepseek-v3", 8), ("deepseek-v3.2", 4), ("qwen3-30b-a3b", 2)])
def test_ranks_read_their_part_alone(name: str, ranks: int) -> None:
    """What a step gains per token of context tends to (r - 1) / r of the bytes: arithmetic is as much as before."""
    contexts = [[20_000] * 64, [60_000] * 64]
    alone, shared = ([step_s(name, "roofline", r, c) for c in contexts] for r in (1, ranks))
    assert 0.0 < shared[1] - shared[0] < alone[1] - alone[0]


def pool(**settings: Any) -> PoolSpec:
    given = {"accelerator": "h200", "tensor_parallel": 8, "decode_context_parallel": 8, "engine": {"name": "vllm"}}
    return PoolSpec(**(given | settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"role": "decode"}, "8 is not simulated in decode workers"),
        ({"tiers": [{"medium": "ddr5", "gib": 64}]}, "8 is not simulated with cache tiers"),
        ({"engine": {"name": "trtllm"}}, "decode_context_parallel 8 is not simulated under TensorRT-LLM"),
        ({"engine": {"name": "vllm", "version": "0.18.0"}}, "simulated from vLLM 0.19.1 on, not of 0.18.0"),
        ({"engine": {"name": "sglang", "version": "0.5.22"}}, "from SGLang 0.5.23 on, not of 0.5.22"),
        (
            {"engine": {"name": "vllm", "speculation": {"method": "mtp", "draft_tokens": 1}}},
            "8 is not simulated with drafted tokens",
        ),
    ],
)
def test_what_is_not_simulated_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool(**settings)


@pytest.mark.parametrize(
    ("name", "tensor", "ranks", "message"),
    [
        ("deepseek-v3", 8, 3, "3 does not divide tensor_parallel 8"),
        ("qwen3-30b-a3b", 8, 4, "more than the copies of a KV head: tensor_parallel 8 makes 2 of each of kv_heads 4"),
        ("qwen3-32b", 8, 2, "tensor_parallel 8 makes 1 of each of kv_heads 8"),
        ("gpt-oss-120b", 8, 2, "not simulated for models with sliding windows"),
        ("kimi-k3", 8, 8, "not simulated for models with linear attention"),
        ("deepseek-v4-pro", 8, 8, "not simulated for models with .* attention"),
    ],
)
def test_splits_that_models_do_not_have(name: str, tensor: int, ranks: int, message: str) -> None:
    with pytest.raises(InvalidParallelism, match=message) as raised:
        shard(model(name), Parallelism(tensor, decode_context=ranks))
    assert raised.value.key == "decode_context_parallel"


def test_estimators_that_cannot_price_it_refuse_it() -> None:
    with pytest.raises(InvalidParallelism, match="8 is not priced by profile roofline") as raised:
        step_s("deepseek-v3", "roofline", 8, [100], accelerator="npu-8x128x128")
    assert raised.value.key == "decode_context_parallel"
