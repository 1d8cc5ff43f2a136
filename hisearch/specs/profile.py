"""Kind ``LatencyProfile``: the constants of a latency estimator, with their evidence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hisearch.specs.base import Evidence, Fraction, NonNegative, Provenance, Strict


class Efficiency(Strict):
    """Attained share of peak for one operator family (compute and memory side), plus a fixed launch cost."""

    flops: Fraction
    bandwidth: Fraction
    launch_s: NonNegative = Field(0.0, description="Fixed cost per kernel of the family and layer.")


class EngineOverhead(Strict):
    """Host work per step that the device waits for."""

    step_s: NonNegative = Field(description="Per step: scheduling, input preparation, sampling synchronisation.")
    per_sequence_s: NonNegative = Field(0.0, description="Per sequence in the batch.")


class CollectiveTerms(Strict):
    """All-reduce as alpha-beta: ``seconds = alpha_s + volume / (bandwidth * efficiency)``."""

    alpha_s: NonNegative
    bandwidth: Fraction


class LatencyProfileSpec(Strict):
    """Constants of the roofline estimator."""

    estimator: Literal["roofline"] = "roofline"
    evidence: Evidence
    gemm: Efficiency
    prefill_attention: Efficiency
    decode_attention: Efficiency
    elementwise: Efficiency
    all_reduce: CollectiveTerms
    engines: dict[str, EngineOverhead] = Field(min_length=1)
    relative_error: NonNegative = Field(description="Stated error of one step's latency (0.2 = 20 %).")
    provenance: Provenance
