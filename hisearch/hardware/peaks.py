"""Peaks of an accelerator: arithmetic by format, and the bandwidth that its memory has for data."""

from __future__ import annotations

from hisearch.specs.base import DType
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.laws import LawsSpec

#: What in-band error correction leaves of a memory: nvidia-smi's total of GDDR6 cards is 15/16 with it (46,068 of
#: 49,140 MiB). That it takes as much bandwidth is shown by cards of one chip, with it and without: tokens/s by the
#: sheet's bandwidth are 0.931 (A40 to RTX A6000) and 0.928 (L40S to RTX 6000 Ada) in 16-bit decodes of one sequence
#: (github XiongjieDai/GPU-Benchmarks-on-LLM-Inference, Llama-3-8B, 1,024 tokens, May 2024).
WITHOUT_ECC_BITS = 15.0 / 16.0


def sheet_peaks(accelerator: AcceleratorSpec) -> dict[DType, float]:
    """Peak FLOP/s by format; bf16, fp16 and fp32 fall back on one another."""
    peaks: dict[DType, float] = dict(accelerator.peak_flops)
    sixteen = peaks.get("bf16", peaks.get("fp16", peaks.get("fp32")))
    if sixteen is None:
        raise ValueError(f"peak_flops needs bf16, fp16 or fp32; it has {', '.join(sorted(peaks))}")
    for dtype in ("bf16", "fp16"):
        peaks.setdefault(dtype, sixteen)
    peaks.setdefault("fp32", sixteen / 2.0)
    return peaks


def data_bandwidth(accelerator: AcceleratorSpec, laws: LawsSpec) -> float:
    """Peak bytes/s of device memory, of which kernels attain the shares that ``laws`` were fitted with.

    Without in-band error correction memory moves more data than that of an accelerator that was measured with it.
    Where either side does not say, both are taken to be alike.
    """
    own, measured = accelerator.in_band_ecc, laws.in_band_ecc
    share = 1.0 if own is None or measured is None else WITHOUT_ECC_BITS ** (int(own) - int(measured))
    return share * accelerator.memory_bandwidth_bytes_per_s
