"""Kind ``LatencyProfile``: the constants of a latency estimator, with their evidence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hisearch.specs.base import Evidence, Fraction, NonNegative, Provenance, Strict


class Efficiency(Strict):
    """Attained share of peak for one operator family (compute and memory side), plus a fixed launch cost."""

    flops: Fraction = Field(description="Share of the peak arithmetic rate.")
    bandwidth: Fraction = Field(description="Share of the peak memory bandwidth.")
    launch_s: NonNegative = Field(0.0, description="Fixed cost per kernel of the family and layer.")


class EngineOverhead(Strict):
    """Host work of an engine: what a step waits for, and what a prompt passes on its way to the scheduler."""

    step_s: NonNegative = Field(description="Per step: scheduling, input preparation, sampling synchronisation.")
    per_sequence_s: NonNegative = Field(0.0, description="Per sequence in the batch.")
    per_prompt_s: NonNegative = Field(
        0.0, description="Per prompt chunk in the batch: its metadata, and kernels launched outside CUDA graphs."
    )
    request_s: NonNegative = Field(
        0.0, description="Front end, per request: HTTP, queues between processes. In `validate silicon` alone so far."
    )
    prompt_token_s: NonNegative = Field(0.0, description="Front end, per token of the prompt: tokenisation. Likewise.")


class EngineTerms(EngineOverhead):
    """Host work of an engine, and of versions of it that differ."""

    versions: dict[str, EngineOverhead] = Field(
        default_factory=dict, description="By version, as measurements name it; `validate silicon` looks it up."
    )

    def of_version(self, version: str) -> EngineOverhead:
        """The terms of ``version``; the engine's own where it has none."""
        own = EngineOverhead.model_validate(self.model_dump(exclude={"versions"}))
        return self.versions.get(version, own)


class CollectiveTerms(Strict):
    """All-reduce as alpha-beta: ``seconds = alpha_s + volume / (bandwidth * efficiency)``."""

    alpha_s: NonNegative = Field(description="Fixed cost of one all-reduce.")
    bandwidth: Fraction = Field(description="Share of the peer link's bandwidth.")


class LatencyProfileSpec(Strict):
    """Constants of the roofline estimator."""

    estimator: Literal["roofline"] = Field(
        "roofline", description="Law that the constants belong to (docs/latency.md)."
    )
    evidence: Evidence = Field(description="How the constants are known; reports repeat it.")
    gemm: Efficiency = Field(description="Matrix products.")
    prefill_attention: Efficiency = Field(description="Attention of prompt chunks.")
    decode_attention: Efficiency = Field(description="Attention of decodes.")
    elementwise: Efficiency = Field(description="Norms, rotary embedding, activation.")
    all_reduce: CollectiveTerms = Field(description="Of tensor parallelism.")
    engines: dict[str, EngineTerms] = Field(min_length=1, description="Host work by engine: vllm, sglang, trtllm.")
    relative_error: NonNegative = Field(description="Stated error of one step's latency (0.2 = 20 %).")
    provenance: Provenance = Field(description="Where the facts come from.")
