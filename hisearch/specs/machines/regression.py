"""Whole steps of one deployment as a few coefficients, fitted to an engine's own log: ``estimator: regression``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Count, DType, EngineName, NonNegative, NonNegativeInt, Positive, Strict

#: Make-up of a step: prompt chunks alone, decodes alone, both.
Regime = Literal["prefill", "decode", "mixed"]


class RegimeError(Strict):
    """Absolute percentage errors on steps of one make-up that were left out of the fit (0.05 = 5 %)."""

    steps: Count = Field(description="Logged steps.")
    median: NonNegative = Field(description="Median.")
    p90: NonNegative = Field(description="90th percentile.")
    mean: NonNegative = Field(description="Mean.")


class StepRanges(Strict):
    """The most that a logged step had of anything; beyond, the law is a guess."""

    tokens: Count = Field(description="Tokens, decodes included.")
    sequences: Count = Field(description="Prompt chunks and decodes.")
    context_tokens: NonNegativeInt = Field(description="Context that its decodes read together.")
    cached_tokens: NonNegativeInt = Field(description="Tokens before a prompt chunk.")


class StepExcess(Strict):
    """Mean of the logged time beyond the law: pauses, mostly, which come back. Zero predicts undisturbed steps."""

    share: Annotated[float, Field(gt=-1)] = Field(0.0, description="Of any step, as a share of its seconds by the law.")
    prompt_share: float = Field(
        0.0, description="Besides, of a step with prompt chunks, as a share of step_s and token_s of their tokens."
    )


class StepRegression(Strict):
    """The law of one worker's steps (docs/latency.md), and on what it was fitted."""

    model: str = Field(min_length=1, description="Its name on Hugging Face, as the Model document says it.")
    accelerator: str = Field(min_length=1, description="What each rank ran on.")
    memory_bandwidth_bytes_per_s: Positive = Field(description="Of its sheet, by which it is told from others.")
    engine: EngineName = Field(description="Which serving engine.")
    engine_version: str = Field("", description="Its version; unknown where empty.")
    tensor_parallel: Count = Field(description="Ranks.")
    weight_dtype: DType = Field(description="Format of the weights as loaded.")
    kv_dtype: DType = Field(description="Format of the KV cache.")
    step_s: NonNegative = Field(description="Of any step.")
    per_sequence_s: NonNegative = Field(description="Per prompt chunk or decode.")
    tokens: Annotated[list[NonNegativeInt], Field(min_length=2)] = Field(
        description="Tokens of a step, rising from 0: knots of token_s."
    )
    token_s: Annotated[list[NonNegative], Field(min_length=2)] = Field(
        description="What so many tokens add: never less than fewer do, 0 for none."
    )
    prompt_s: NonNegative = Field(description="Of a step with prompt chunks.")
    pair_s: NonNegative = Field(description="Per pair of a prompt's token and one that it attends to.")
    cached_token_s: NonNegative = Field(description="Per token before a prompt chunk.")
    context_token_s: NonNegative = Field(description="Per token of context that decodes read.")
    skew_token_s: NonNegative = Field(
        description="Per token by which the longest context exceeds the mean, in steps of decodes alone."
    )
    excess: StepExcess = Field(
        default_factory=StepExcess, description="What steps took beyond the law in the mean, and are predicted with."
    )
    ranges: StepRanges = Field(description="What was logged.")
    errors: dict[Regime, RegimeError] = Field(
        min_length=1,
        description="By make-up of the step: cross-validated, runs of consecutive steps left out at a time.",
    )

    @model_validator(mode="after")
    def _check(self) -> StepRegression:
        if len(self.tokens) != len(self.token_s):
            raise ValueError("tokens and token_s need as many entries")
        if self.tokens[0] != 0 or self.tokens != sorted(set(self.tokens)):
            raise ValueError("tokens need to rise from 0")
        if self.token_s[0] != 0 or self.token_s != sorted(self.token_s):
            raise ValueError("token_s needs to rise from 0")
        return self
