"""Models, accelerators and a profile that the tests of the latency floor share, built in Python."""

from __future__ import annotations

import datetime

from hisearch.specs.base import Price, Provenance
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, LinkSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import CollectiveTerms, Efficiency, LatencyProfileSpec
from hisearch.specs.models.model import MlaSpec, ModelSpec, MoeSpec

TODAY = datetime.date(2025, 1, 1)
FACTS = Provenance(source="published config.json or data sheet", as_of=TODAY)
MIB = 2**20


def model(name: str, **fields: object) -> ModelSpec:
    return ModelSpec.model_validate(
        {"huggingface_id": name, "max_context_tokens": 131072, "provenance": FACTS, "head_dim": 128, **fields}
    )


LLAMA_8B = model(
    "meta-llama/Llama-3.1-8B", layers=32, hidden_size=4096, attention_heads=32, kv_heads=8,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip
LLAMA_70B = model(
    "meta-llama/Llama-3.1-70B", layers=80, hidden_size=8192, attention_heads=64, kv_heads=8,
    intermediate_size=28672, vocab_size=128256,
)  # fmt: skip
QWEN3_32B = model(
    "Qwen/Qwen3-32B", layers=64, hidden_size=5120, attention_heads=64, kv_heads=8,
    intermediate_size=25600, vocab_size=151936, max_context_tokens=40960,
)  # fmt: skip
QWEN3_30B_A3B = model(
    "Qwen/Qwen3-30B-A3B", layers=48, hidden_size=2048, attention_heads=32, kv_heads=4, intermediate_size=6144,
    vocab_size=151936, moe=MoeSpec(experts=128, experts_per_token=8, expert_intermediate_size=768),
)  # fmt: skip
QWEN3_235B_FP8 = model(
    "Qwen/Qwen3-235B-A22B-FP8", layers=94, hidden_size=4096, attention_heads=64, kv_heads=4, intermediate_size=12288,
    vocab_size=151936, weight_dtype="fp8",
    moe=MoeSpec(experts=128, experts_per_token=8, expert_intermediate_size=1536),
)  # fmt: skip
GPT_OSS_120B = model(
    "openai/gpt-oss-120b", layers=36, hidden_size=2880, attention_heads=64, kv_heads=8, head_dim=64,
    intermediate_size=0, vocab_size=201088, weight_dtype="fp4", attention_stays_wide=True, sliding_window_tokens=128,
    moe=MoeSpec(experts=128, experts_per_token=4, expert_intermediate_size=2880),
)  # fmt: skip
DEEPSEEK_V3 = model(
    "deepseek-ai/DeepSeek-V3", layers=61, hidden_size=7168, attention_heads=128, kv_heads=128, intermediate_size=18432,
    vocab_size=129280, weight_dtype="fp8", attention="mla",
    mla=MlaSpec(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    moe=MoeSpec(
        experts=256, experts_per_token=8, expert_intermediate_size=2048, shared_experts=1,
        shared_intermediate_size=2048, leading_dense_layers=3,
    ),
)  # fmt: skip

MODELS = [LLAMA_8B, LLAMA_70B, QWEN3_32B, QWEN3_30B_A3B, QWEN3_235B_FP8, GPT_OSS_120B, DEEPSEEK_V3]


def accelerator(memory_mib: float, bandwidth: float, peak_flops: dict[str, float], link: float, **fields: object):
    return AcceleratorSpec.model_validate(
        {
            "memory_bytes": memory_mib * MIB,
            "memory_bandwidth_bytes_per_s": bandwidth,
            "peak_flops": peak_flops,
            "peer_link": LinkSpec(kind="nvlink", bandwidth_bytes_per_s=link, latency_s=1e-6),
            "host_link": LinkSpec(kind="pcie", bandwidth_bytes_per_s=55e9, latency_s=5e-6),
            "idle_w": 70.0,
            "active_w": 700.0,
            "price": Price(usd_per_hour=3.0, source="assumed", as_of=TODAY),
            "provenance": FACTS,
            **fields,
        }
    )


H100 = accelerator(81559, 3.35e12, {"bf16": 989e12, "fp8": 1979e12}, 450e9)
H200 = accelerator(143771, 4.8e12, {"bf16": 989e12, "fp8": 1979e12}, 450e9)
A100 = accelerator(81920, 2.039e12, {"bf16": 312e12, "int8": 624e12}, 300e9, idle_w=60.0, active_w=400.0)

PROFILE = LatencyProfileSpec(
    evidence="assumed",
    gemm=Efficiency(flops=0.7, bandwidth=0.82, launch_s=2e-6),
    prefill_attention=Efficiency(flops=0.5, bandwidth=0.7, launch_s=4e-6),
    decode_attention=Efficiency(flops=0.5, bandwidth=0.7, launch_s=4e-6),
    elementwise=Efficiency(flops=0.5, bandwidth=0.6, launch_s=1e-6),
    all_reduce=CollectiveTerms(alpha_s=8e-6, bandwidth=0.7),
    engines={
        "vllm": EngineOverhead(step_s=0.6e-3, per_sequence_s=2e-6),
        "sglang": EngineOverhead(step_s=0.5e-3, per_sequence_s=2e-6),
    },
    relative_error=0.3,
    provenance=FACTS,
)
VLLM = EngineSpec(name="vllm")
SGLANG = EngineSpec(name="sglang")
