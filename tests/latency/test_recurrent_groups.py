"""Blocks of states of Kimi Delta Attention and Mamba-2 in vLLM's pool, and SGLang's pools of them."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
from latency_catalogue import H200

from hisearch.latency.device_memory.constants import GIB
from hisearch.latency.device_memory.kv_groups import KvGroups, kv_groups_of
from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.device_memory.state_pools import grid_tokens, kernel_chunk
from hisearch.latency.parameters import layer_kv_bytes_per_token, layer_state_bytes, state_bytes_per_sequence_per_rank
from hisearch.latency.sharding import Parallelism, shard
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec

ENGINE = Path(__file__).parents[2] / ".engines" / "vllm-0.33.0" / "bin" / "python"
HOPPER, ADA = (H200.model_copy(update={"compute_capability": capability}) for capability in (9.0, 8.9))
K3, KIMI_LINEAR, NANO, SUPER, ULTRA = (
    Catalogue().get("Model", name).spec
    for name in (
        "kimi-k3", "kimi-linear-48b-a3b", "nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b",
        "nemotron-3-ultra-550b-a55b",
    )
)  # fmt: skip


def pool_of(tensor: int = 1, kv_dtype: str = "bf16", name: str = "vllm", **engine: object) -> PoolSpec:
    settings = {"accelerator": "a", "tensor_parallel": tensor, "kv_dtype": kv_dtype, "engine": {"name": name} | engine}
    return PoolSpec.model_validate(settings)


def groups_of(
    model: ModelSpec, accelerator: AcceleratorSpec = HOPPER, *, tensor: int = 1, **engine: object
) -> KvGroups:
    groups = kv_groups_of(pool_of(tensor, **engine), model, accelerator)  # type: ignore[arg-type]
    assert groups is not None
    return groups


def test_kimi_linear_has_the_blocks_and_requests_that_its_start_up_log_states() -> None:
    """vLLM of November 2025, two ranks, without prefix caching (github vllm-project/vllm, issue 28228).

    "Setting attention block size to 960 tokens", "Padding mamba page size by 1.89%", "Add 1 padding layers", "Available
    KV cache memory: 2.30 GiB", "GPU KV cache size: 75,840 tokens", "Maximum concurrency for 120,000 tokens ...: 2.48x".
    """
    groups = groups_of(KIMI_LINEAR, ADA, tensor=2, version="0.19.1", prefix_caching=False)
    assert (groups.page_tokens, groups.layers, groups.full, groups.states) == (960, 7, 1, 3)
    part = shard(KIMI_LINEAR, 2)
    page = 960 * layer_kv_bytes_per_token(KIMI_LINEAR, part, "bf16")
    assert 100 * (page / layer_state_bytes(KIMI_LINEAR, part) - 1) == pytest.approx(1.89, abs=0.006)
    blocks = int(2.30 * GIB // (groups.layers * page))
    assert blocks // groups.count * 960 == pytest.approx(75_840, abs=960)
    request = groups.full * math.ceil(120_000 / 960) + groups.states * groups.state_blocks
    assert blocks / request == pytest.approx(2.48, abs=0.02)


@pytest.mark.parametrize(
    ("model", "tensor", "page", "layers", "states"),
    [
        (K3, 8, 768, 24, 3),  # 814,080 bytes of a state, 1,152 of a token, multiples of 128 tokens
        (KIMI_LINEAR, 2, 1024, 7, 3),  # 64 tokens more than in 0.19.1
        (NANO, 1, 2096, 6, 4),
        (SUPER, 4, 2080, 8, 5),
        (ULTRA, 8, 2080, 12, 4),
    ],
)
def test_groups_beside_mla_and_of_mamba2(model: ModelSpec, tensor: int, page: int, layers: int, states: int) -> None:
    groups = groups_of(model, tensor=tensor)
    assert (groups.page_tokens, groups.layers, groups.full, groups.states) == (page, layers, 1, states)


def test_which_kernels_export_states() -> None:
    """Mamba-2's do everywhere, FlashKDA's on Hopper and Blackwell for a bounded decay; no page is larger for it."""
    assert groups_of(NANO, ADA).checkpoints
    assert groups_of(K3, HOPPER, tensor=8).checkpoints
    assert not groups_of(K3, ADA, tensor=8).checkpoints
    assert not groups_of(KIMI_LINEAR, HOPPER).checkpoints
    assert not groups_of(NANO, version="0.32.0").checkpoints
    assert groups_of(NANO, ADA).state_blocks == 3
    assert groups_of(K3, ADA, tensor=8).page_tokens == groups_of(K3, HOPPER, tensor=8).page_tokens


def test_mamba2_of_former_releases_is_set_aside_with_prefix_caching_alone() -> None:
    assert kv_groups_of(pool_of(version="0.19.1"), NANO, HOPPER) is None
    assert groups_of(NANO, version="0.19.1", prefix_caching=False).states == 4


def test_sglang_keeps_states_of_mamba2_at_its_own_chunks() -> None:
    """``chunk_size`` of its config.json, which SGLang reads as ``mamba_chunk_size``."""
    assert [kernel_chunk(model) for model in (NANO, K3)] == [128, 64]
    assert [grid_tokens(page, kernel_chunk(NANO)) for page in (1, 64, 256)] == [128, 128, 256]


def test_sglang_divides_memory_among_states_and_latents() -> None:
    pool = pool_of(4, name="sglang")
    plan = plan_memory(SUPER, H200, tensor_parallel=4, weight_dtype="fp8", kv_dtype="bf16", engine=pool.engine)
    assert plan.state_pools is not None
    state = state_bytes_per_sequence_per_rank(SUPER, Parallelism(4))
    assert plan.state_pools.taken_bytes == (plan.state_pools.states + 1) * state
    ratio = plan.state_pools.taken_bytes / (plan.kv_capacity_tokens * plan.kv_bytes_per_token_per_rank)
    assert ratio == pytest.approx(pool.engine.mamba_full_memory_ratio, rel=0.01)


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE.exists(), reason="vLLM 0.33.0 is not installed (make test-engines)")
def test_states_and_groups_are_those_of_vllm_s_own_code() -> None:
    script = Path(__file__).with_name("vllm_states.py")
    output = subprocess.run([str(ENGINE), str(script)], capture_output=True, text=True, check=True).stdout
    own = json.loads(output.splitlines()[-1])
    for name, model, tensor in (("kimi-k3", K3, 8), ("super", SUPER, 4)):
        groups = groups_of(model, tensor=tensor)
        assert own[name] == {
            "state_bytes": layer_state_bytes(model, shard(model, tensor)),
            "layers": groups.layers,
            "groups": groups.count,
            "states": groups.states,
        }
