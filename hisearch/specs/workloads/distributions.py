"""Distributions that workloads are drawn from: token counts and times."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Count, NonNegative, Positive, Strict


class LengthSpec(Strict):
    """A distribution of token counts, rounded, and clipped to ``[min_tokens, max_tokens]``."""

    distribution: Literal["lognormal", "pareto", "constant", "empirical"] = Field(
        description="Which of the parameters below are needed."
    )
    mean_log: float | None = Field(None, description="lognormal: mean of ln(tokens).")
    sigma_log: NonNegative | None = Field(
        None, description="lognormal: standard deviation of ln(tokens); 0: every draw is exp(mean_log)."
    )
    scale_tokens: Positive | None = Field(None, description="pareto: smallest value; constant: the value.")
    shape: Positive | None = Field(None, description="pareto: tail index.")
    quantiles: list[tuple[float, float]] | None = Field(
        None, description="empirical: [probability, tokens] knots, linear in between."
    )
    min_tokens: Count = Field(1, description="Shorter draws are raised to it.")
    max_tokens: Count = Field(131072, description="Longer draws are cut to it.")

    @model_validator(mode="after")
    def _check(self) -> LengthSpec:
        needed = {
            "lognormal": ("mean_log", "sigma_log"), "pareto": ("scale_tokens", "shape"),
            "constant": ("scale_tokens",), "empirical": ("quantiles",),
        }[self.distribution]  # fmt: skip
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"distribution {self.distribution} needs {name}")
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        if self.quantiles is not None:
            flat = [p for p, _ in self.quantiles]
            if len(flat) < 2 or flat != sorted(flat) or flat[0] < 0 or flat[-1] > 1:
                raise ValueError(
                    "quantiles needs two or more [probability, tokens] pairs, probabilities rising in [0, 1]"
                )
            tokens = [value for _, value in self.quantiles]
            if tokens != sorted(tokens):
                raise ValueError("quantiles: tokens must not fall as the probability rises")
        return self


class ThinkSpec(Strict):
    """Time between a response's end and the session's next request: lognormal by two of its percentiles."""

    p50_s: Positive = Field(description="Median.")
    p90_s: Positive = Field(description="90th percentile.")
    max_s: Positive = Field(3600.0, description="Longer draws are cut to it.")

    @model_validator(mode="after")
    def _check(self) -> ThinkSpec:
        if self.p90_s < self.p50_s:
            raise ValueError("p90_s is below p50_s")
        return self
