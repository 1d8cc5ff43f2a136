"""Terms of every law, with round figures, for tests."""

from __future__ import annotations

from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.machines.laws import (
    CollectiveCurve,
    CollectiveCurves,
    DecodeTerms,
    GemmTerms,
    LawsSpec,
    MoeTerms,
    PrefillTerms,
)

SHEET = Sheet(multiprocessors=100, flops=1e15, bytes_per_s=3e12)

GEMM = GemmTerms(
    source="round figures", launch_s=2e-6, fill_s=3e-6, fill_depth=1000, bandwidth=0.9, flops=0.8,
    tile_losses=(0.1, 0.2, 0.3), wave_s=1e-6, quantisation=0.5, sharpness=4, ranges={"n": (128, 65536)},
)  # fmt: skip
PREFILL = PrefillTerms(
    source="round figures", launch_s=10e-6, flops=0.6, rate_64=0.7, rate_256=1.1, bandwidth=0.6, pad_tokens=100,
    tile_s=2e-6, longest_share=0.8, sharpness=2,
)  # fmt: skip
DECODE = DecodeTerms(
    source="round figures", launch_s=8e-6, fill_s=10e-6, fill_tokens=5000, bandwidth=0.9, rate_64=1, rate_256=1,
    flops=0.4, unit_s=1e-6, serial_token_s=0, sharpness=2, cache_bytes=4e7, cache_speedup=3,
)  # fmt: skip
MOE = MoeTerms(
    source="round figures", launch_s=30e-6, bandwidth=0.8, flops=0.5, small_tile_loss=0.3, wave_s=1e-6,
    quantisation=0.5, permute_bandwidth=0.5, route_bandwidth=2, sharpness=3,
)  # fmt: skip
CURVE = CollectiveCurve(ranks=2, payload_bytes=[1e3, 1e6, 1e9], seconds=[5e-6, 20e-6, 5e-3])
LAWS = LawsSpec(
    accelerator="h100-sxm", engine="vllm", engine_version="0", multiprocessors=132,
    memory_bandwidth_bytes_per_s=3.35e12, flops=989.4e12, gemm={"bf16": GEMM, "fp8_block": GEMM},
    prefill_attention={"bf16": PREFILL}, decode_attention={"bf16": DECODE}, mla_prefill={"bf16": PREFILL},
    mla_decode={"bf16": DECODE}, moe={"bf16": MOE},
    collectives=CollectiveCurves(source="round figures", all_reduce=[CURVE, CURVE.model_copy(update={"ranks": 8})]),
)  # fmt: skip
