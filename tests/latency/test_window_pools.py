"""SGLang's pools of full attention and of windows: which models have them, how they divide memory, where simulated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import GPT_OSS_120B, H100, LLAMA_8B

from hisearch.latency.device_memory.plan import DoesNotFit, MemoryPlan, plan_memory
from hisearch.latency.device_memory.window_pools import divide, simulated
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.windows import keeps_window_pool

GPT_OSS = GPT_OSS_120B.model_copy(update={"attention_sinks": True})
#: Windows without sinks and chunks, as in Gemma 3.
GEMMA_LIKE = LLAMA_8B.model_copy(update={"sliding_window_tokens": 1024, "sliding_window_layer_fraction": 0.75})


def planned(model: ModelSpec, *, tensor_parallel: int = 2, **engine: object) -> MemoryPlan:
    settings = EngineSpec.model_validate({"name": "sglang"} | engine)
    return plan_memory(
        model, H100, tensor_parallel=tensor_parallel, weight_dtype=None, kv_dtype="bf16", engine=settings
    )


def test_which_models_have_pools() -> None:
    chunks = GEMMA_LIKE.model_copy(update={"windows_are_chunks": True})
    assert keeps_window_pool("sglang", GPT_OSS)
    assert keeps_window_pool("sglang", chunks)
    assert not keeps_window_pool("sglang", GEMMA_LIKE)
    assert not keeps_window_pool("sglang", LLAMA_8B)
    assert not keeps_window_pool("vllm", GPT_OSS)


@given(
    spare=st.floats(1e9, 1e11), full=st.integers(1, 1 << 20), window=st.integers(1, 1 << 20),
    ratio=st.floats(0.01, 1.0), page=st.sampled_from([1, 16, 64]),
)  # fmt: skip
def test_pools_take_what_there_is(spare: float, full: int, window: int, ratio: float, page: int) -> None:
    engine = EngineSpec(name="sglang", swa_full_tokens_ratio=ratio, page_tokens=page)
    pools = divide(spare, full, window, engine, 127)
    assert pools.full % page == pools.windowed % page == 0
    assert pools.full * full + pools.windowed * window <= spare
    more = pools.full + page + 1
    assert more * full + more * ratio * window > spare
    assert pools.windowed <= pools.full * ratio < pools.windowed + page + 1


def test_the_ratio_moves_memory() -> None:
    small, usual = planned(GPT_OSS, swa_full_tokens_ratio=0.1), planned(GPT_OSS)
    assert small.window_pools is not None
    assert usual.window_pools is not None
    # Half of the layers have windows: a token of full attention takes 1.1 and 1.8 times its own bytes.
    assert small.kv_capacity_tokens / usual.kv_capacity_tokens == pytest.approx(1.8 / 1.1, rel=1e-4)
    assert usual.window_pools.windowed == pytest.approx(0.8 * usual.kv_capacity_tokens, abs=1)
    held = [plan.kv_bytes + plan.window_kv_bytes for plan in (small, usual)]
    assert held[0] == pytest.approx(held[1], rel=1e-6)
    # Long requests fill full attention's pool first, short ones the other.
    assert small.requests_tokens(50_000.0) == small.kv_capacity_tokens
    assert small.requests_tokens(200.0) == small.window_pools.windowed


def test_without_prefix_caching_the_pool_is_what_running_requests_fill() -> None:
    settings = ({"swa_full_tokens_ratio": 0.1, "overlap": True}, {"swa_full_tokens_ratio": 0.8, "overlap": False})
    plans = [planned(GPT_OSS, prefix_caching=False, **given) for given in settings]
    sizes = [plan.window_pools.windowed for plan in plans if plan.window_pools is not None]
    # 256 requests of a window, an interval and two pages, and two chunks under way with overlap.
    assert sizes == [(127 + 128 + 2) * 256 + 2 * 8192 + 1, (127 + 128 + 2) * 256 + 8192 + 1]


def test_other_windows_keep_all_kv() -> None:
    windowed, plain = planned(GEMMA_LIKE), planned(LLAMA_8B)
    assert windowed.kv_capacity_tokens == plain.kv_capacity_tokens
    assert windowed.kv_bytes_per_token_per_rank == plain.kv_bytes_per_token_per_rank
    assert windowed.window_kv_bytes == 0.0
    assert windowed.window_pools is None


def test_a_pool_below_a_window_does_not_start() -> None:
    with pytest.raises(DoesNotFit, match=r"which need more than 128 .*raise swa_full_tokens_ratio"):
        planned(GPT_OSS, swa_full_tokens_ratio=0.00001)


def test_where_the_pool_is_simulated() -> None:
    def pool(**fields: object) -> PoolSpec:
        return PoolSpec.model_validate({"accelerator": "h100-sxm", "engine": {"name": "sglang"}} | fields)

    assert simulated(pool(), GPT_OSS)
    assert not simulated(pool(), GEMMA_LIKE)
    assert not simulated(pool(engine={"name": "sglang", "version": "0.5.9"}), GPT_OSS)
    assert not simulated(pool(tiers=[{"medium": "ddr5", "gib": 64}]), GPT_OSS)
    assert not simulated(pool(role="prefill"), GPT_OSS)
    assert not simulated(pool(pipeline_parallel=2), GPT_OSS)
