"""Memory of heads that draft tokens: against the sizes of published heads, and by hand."""

from __future__ import annotations

import pytest

from hisearch.latency.device_memory.draft_head import head_weight_bytes_per_rank
from hisearch.latency.device_memory.plan import MemoryPlan, plan_memory
from hisearch.latency.parameters import kv_bytes_per_token_per_rank
from hisearch.latency.sharding import Parallelism
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.documents.catalogue import Catalogue

CATALOGUE = Catalogue()
H200 = CATALOGUE.get("Accelerator", "h200").spec


def drafts(method, draft_tokens=1, **settings) -> SpeculationSpec:
    return SpeculationSpec(method=method, draft_tokens=draft_tokens, acceptance=[0.7] * draft_tokens, **settings)


def head_bytes(model: str, method, dtype, tensor: int = 1) -> float:
    return head_weight_bytes_per_rank(CATALOGUE.get("Model", model).spec, Parallelism(tensor), dtype, drafts(method))


def plan(model: str, speculation=None, tensor: int = 1, **engine) -> MemoryPlan:
    return plan_memory(
        CATALOGUE.get("Model", model).spec, H200, tensor_parallel=tensor, weight_dtype=None, kv_dtype="bf16",
        engine=EngineSpec(name="vllm", speculation=speculation, **engine),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "method", "dtype", "published", "off"),
    [
        # DeepSeek's README counts 14e9 parameters, with an embedding and a head (2 x 129,280 x 7,168) that are shared.
        ("deepseek-v3", "mtp", "fp8", 14e9 - 2 * 129_280 * 7168, 0.05),
        # lightseekorg/kimi-k2.5-eagle3-mla: 2e9 parameters in 16 bits, with an embedding that is shared.
        ("kimi-k2.5", "eagle3", "int4", 2 * (2e9 - 163_840 * 7168), 0.15),
        # yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: a file of 850 MB in 16 bits.
        ("llama-3.1-8b", "eagle3", "bf16", 850e6, 0.05),
    ],
)
def test_published_heads(model: str, method, dtype, published: float, off: float) -> None:
    assert head_bytes(model, method, dtype) == pytest.approx(published, rel=off)


def test_an_eagle_head_by_hand() -> None:
    """Llama-3.1-8B: 4,096 wide, 32 and 8 heads of 128, an FFN of 14,336; the projection is whole on each rank."""
    split = 4096 * (32 + 2 * 8) * 128 + 32 * 128 * 4096 + 3 * 4096 * 14_336
    for tensor in (1, 4):
        assert head_bytes("llama-3.1-8b", "eagle", "bf16", tensor) == 2 * (split / tensor + 2 * 4096 * 4096)


def test_n_grams_take_no_memory() -> None:
    assert head_bytes("llama-3.1-8b", "ngram", "bf16") == 0.0
    assert plan("llama-3.1-8b", drafts("ngram")) == plan("llama-3.1-8b")


def test_a_head_keeps_kv_as_a_layer_does() -> None:
    model = CATALOGUE.get("Model", "llama-3.1-8b").spec
    layer = kv_bytes_per_token_per_rank(model, 1, "bf16") / model.layers
    plain, drafting = plan("llama-3.1-8b"), plan("llama-3.1-8b", drafts("eagle3", draft_layers=2))
    assert drafting.kv_bytes_per_token_per_rank == pytest.approx((model.layers + 2) * layer)
    assert drafting.weights_bytes - plain.weights_bytes > 850e6
    assert drafting.kv_capacity_tokens < plain.kv_capacity_tokens * model.layers / (model.layers + 2)


def test_linear_attention_keeps_a_state_for_each_drafted_token() -> None:
    name = "qwen3.5-397b-a17b"
    plain, three = (plan(name, speculation, 8, max_running_requests=64) for speculation in (None, drafts("mtp", 3)))
    assert three.window_kv_bytes == pytest.approx(4 * plain.window_kv_bytes)
