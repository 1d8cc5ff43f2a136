"""Kind ``LatencyProfile``: the constants of a latency estimator, with their evidence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from hisearch.specs.base import EngineName, Evidence, Fraction, NonNegative, Positive, Provenance, Strict
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.laws import LawsSpec
from hisearch.specs.machines.regression import StepRegression


class Efficiency(Strict):
    """Attained share of peak for one operator family (compute and memory side), plus a fixed launch cost."""

    flops: Fraction = Field(description="Share of the peak arithmetic rate.")
    bandwidth: Fraction = Field(description="Share of the peak memory bandwidth.")
    launch_s: NonNegative = Field(0.0, description="Fixed cost per kernel of the family and layer.")


class CollectiveTerms(Strict):
    """Collectives that no table has: ``seconds = alpha_s + steps * latency_s + volume / (bandwidth * share)``.

    Latency and bandwidth are the peer link's; an all-reduce of n ranks takes 2 ceil(log2 n) steps.
    """

    alpha_s: NonNegative = Field(
        description="Start of one, or of a send between pipeline stages; with estimator tables, all that is fixed."
    )
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
