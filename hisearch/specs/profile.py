"""Kind ``LatencyProfile``: the constants of a latency estimator, with their evidence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Count, EngineName, Evidence, Fraction, NonNegative, Positive, Provenance, Strict
from hisearch.specs.laws import LawsSpec
from hisearch.specs.regression import StepRegression
from hisearch.specs.versions import nearest_version


class Efficiency(Strict):
    """Attained share of peak for one operator family (compute and memory side), plus a fixed launch cost."""

    flops: Fraction = Field(description="Share of the peak arithmetic rate.")
    bandwidth: Fraction = Field(description="Share of the peak memory bandwidth.")
    launch_s: NonNegative = Field(0.0, description="Fixed cost per kernel of the family and layer.")


class HostTimes(Strict):
    """Host work of an engine: what a step waits for, and what a prompt passes on its way to the scheduler."""

    step_s: NonNegative = Field(description="Per step: scheduling, input preparation, sampling synchronisation.")
    layer_s: NonNegative = Field(
        0.0,
        description="Per layer of any step, beyond its operators: gaps between kernels inside a CUDA graph, and small "
        "kernels that no law knows.",
    )
    per_sequence_s: NonNegative = Field(0.0, description="Per sequence in the batch.")
    prompt_layer_s: NonNegative = Field(
        0.0,
        description="Per layer of a step with one prompt chunk, which no CUDA graph holds: kernels launched one by "
        "one, metadata. With k equal chunks a k-th of it is seen: the device's own work hides more.",
    )
    request_s: NonNegative = Field(
        0.0, description="Front end, per request: HTTP, queues between processes. In `validate silicon` alone so far."
    )
    prompt_token_s: NonNegative = Field(0.0, description="Front end, per token of the prompt: tokenisation. Likewise.")


class EngineOverhead(HostTimes):
    """Host work of an engine, what CUDA graphs pad, and versions of it whose host work differs."""

    graph_batches: list[Count] = Field(
        default_factory=list,
        description="Tokens of a step for which CUDA graphs exist, rising: smaller steps are padded to the next one.",
    )
    eager_layer_s: NonNegative = Field(
        0.0, description="Per layer, in steps beyond the largest CUDA graph: gaps between kernels launched one by one."
    )
    launch_share: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0,
        description="Share of the kernels' fitted launch times that a step sees, with estimator scaled; less where a "
        "kernel is launched before the one ahead has ended (programmatic dependent launch).",
    )
    version: str = Field("", description="Of the engine that the figures are of; of none in particular where empty.")
    evidence: Evidence = Field("assumed", description="How the figures are known.")
    versions: dict[str, HostTimes] = Field(
        default_factory=dict,
        description="Of other versions, as measurements name them, for `validate silicon`.",
    )

    @model_validator(mode="after")
    def _check(self) -> EngineOverhead:
        if self.graph_batches != sorted(set(self.graph_batches)):
            raise ValueError("graph_batches need to rise")
        return self

    def of_version(self, version: str) -> EngineOverhead:
        """With the host work of ``version``, else of a version of the same release; as it is where none is known."""
        name = nearest_version(version, self.versions)
        return self if name is None else self.with_times(self.versions[name])

    def with_times(self, times: HostTimes) -> EngineOverhead:
        """With ``times`` in place of its own."""
        return self.model_copy(update={name: getattr(times, name) for name in HostTimes.model_fields})


class CollectiveTerms(Strict):
    """All-reduce as alpha-beta: ``seconds = alpha_s + volume / (bandwidth * efficiency)``."""

    alpha_s: NonNegative = Field(description="Fixed cost of one all-reduce.")
    bandwidth: Fraction = Field(description="Share of the peer link's bandwidth.")


class ProfileChoice(Strict):
    """The profile of an accelerator under an engine."""

    engine: EngineName = Field(description="Which serving engine.")
    accelerator: str = Field(min_length=1, description="Name of an Accelerator; another with the same sheet is it too.")
    profile: str = Field(min_length=1, description="Name of the LatencyProfile.")


class AicNames(Strict):
    """What aiconfigurator-core calls things."""

    systems: dict[str, str] = Field(
        min_length=1, description="Its systems by Accelerator; another accelerator with the same sheet is it too."
    )
    models: dict[str, str] = Field(
        default_factory=dict, description="Its models by huggingface_id, where it has another name for them."
    )
    versions: dict[EngineName, str] = Field(
        default_factory=dict, description="Of its tables, by engine; those that it calls current where absent."
    )


class CorrectionSpec(Strict):
    """Factors on what the estimator says, as a measurement of the deployment asks for them (`hisearch verify`)."""

    host: Positive = Field(1.0, description="On host work: per step and per sequence.")
    prefill: Positive = Field(
        1.0, description="On what grows with the tokens of a step, and on the attention of prompt chunks."
    )
    decode: Positive = Field(
        1.0,
        description="On what a step of one token takes (reading the weights, launching kernels), on the attention of "
        "decodes and on sampling.",
    )


class LatencyProfileSpec(Strict):
    """Constants of a latency estimator. Every one has the roofline's, for what it has nothing better for.

    With choices, estimator auto takes the profile of the accelerator and engine at hand, and is the roofline elsewhere.
    """

    estimator: Literal["roofline", "scaled", "tables", "regression", "aic", "auto", "devices"] = Field(
        "roofline", description="Law that the constants belong to (docs/latency.md)."
    )
    evidence: Evidence = Field(description="How the constants are known; reports repeat it.")
    gemm: Efficiency = Field(description="Matrix products.")
    prefill_attention: Efficiency = Field(description="Attention of prompt chunks.")
    decode_attention: Efficiency = Field(description="Attention of decodes.")
    elementwise: Efficiency = Field(description="Norms, rotary embedding, activation.")
    all_reduce: CollectiveTerms = Field(description="Of tensor parallelism.")
    gather: CollectiveTerms | None = Field(
        None, description="All-gather and reduce-scatter; as all_reduce where absent."
    )
    operators: str | None = Field(
        None,
        description="Measured operators: with estimator tables a folder (docs/latency.md states the form), with "
        "estimator devices a CSV of latencies (docs/hardware.md).",
    )
    engines: dict[str, EngineOverhead] = Field(min_length=1, description="Host work by engine: vllm, sglang, trtllm.")
    laws: LawsSpec | None = Field(None, description="Fitted laws of operator families; with estimator scaled.")
    regressions: list[StepRegression] = Field(
        default_factory=list, description="Laws of whole steps, of one worker each; with estimator regression."
    )
    aic: AicNames | None = Field(None, description="Names, with estimator aic (aiconfigurator-core, extra aic).")
    choices: list[ProfileChoice] = Field(
        default_factory=list, description="Profiles of accelerators under engines; with estimator auto."
    )
    corrections: CorrectionSpec | None = Field(None, description="Factors on the times of all of the above.")
    relative_error: NonNegative = Field(description="Stated error of one step's latency (0.2 = 20 %).")
    provenance: Provenance = Field(description="Where the facts come from.")

    @model_validator(mode="after")
    def _check(self) -> LatencyProfileSpec:
        if (self.estimator == "scaled") != (self.laws is not None):
            raise ValueError("estimator: scaled needs a laws section, and only then")
        if (self.estimator == "regression") != bool(self.regressions):
            raise ValueError("estimator: regression needs regressions, and only then")
        if (self.estimator == "aic") != (self.aic is not None):
            raise ValueError("estimator: aic needs an aic section, and only then")
        if (self.estimator == "auto") != bool(self.choices):
            raise ValueError("estimator: auto needs choices, and only then")
        return self
