"""Peak arithmetic of an accelerator, by format."""

from __future__ import annotations

from hisearch.specs.base import DType
from hisearch.specs.machines.hardware import AcceleratorSpec


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
