"""Kind ``Workload``: a trace file, or a generator of one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Count, NonNegative, NonNegativeInt, Positive, Provenance, Strict

TraceFormat = Literal[
    "auto", "hisearch", "mooncake", "azure", "burstgpt", "bailian", "sharegpt_lengths", "weka", "lmcache",
    "llmservingsim", "csv",
]  # fmt: skip


class TraceFileSpec(Strict):
    """Requests read from a file."""

    path: str
    format: TraceFormat = "auto"
    spread_arrivals_s: NonNegative = Field(0.0, description="Arrivals are quantised to this; spread them evenly, seeded.")
    limit: Count | None = Field(None, description="Keep the first requests only.")
    skip_bad: NonNegativeInt = 0
    columns: dict[str, str] = Field(default_factory=dict, description="csv: our field -> the file's column.")


class LengthSpec(Strict):
    """A distribution of token counts, truncated to ``[min_tokens, max_tokens]``."""

    distribution: Literal["lognormal", "pareto", "constant", "empirical"]
    mean_log: float | None = Field(None, description="lognormal: mean of ln(tokens).")
    sigma_log: Positive | None = Field(None, description="lognormal: standard deviation of ln(tokens).")
    scale_tokens: Positive | None = Field(None, description="pareto: smallest value; constant: the value.")
    shape: Positive | None = Field(None, description="pareto: tail index.")
    quantiles: list[tuple[float, float]] | None = Field(
        None, description="empirical: (probability, tokens) knots, linear in between."
    )
    min_tokens: Count = 1
    max_tokens: Count = 131072

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
                raise ValueError("quantiles need at least two (probability, tokens) pairs, probabilities rising in [0, 1]")
        return self


class ArrivalSpec(Strict):
    """Arrivals of *first* turns (open loop), or a closed loop of users."""

    process: Literal["poisson", "gamma", "weibull", "closed_loop"] = "poisson"
    rate_rps: Positive | None = Field(None, description="Sessions per second (open loop).")
    cv: Positive = Field(1.0, description="gamma, weibull: coefficient of variation of the gaps.")
    users: Count | None = Field(None, description="closed_loop: sessions in flight at any time.")
    diurnal_amplitude: Annotated[float, Field(ge=0, lt=1)] = 0.0
    diurnal_period_s: Positive = 86400.0

    @model_validator(mode="after")
    def _check(self) -> ArrivalSpec:
        if self.process == "closed_loop" and self.users is None:
            raise ValueError("closed_loop needs users")
        if self.process != "closed_loop" and self.rate_rps is None:
            raise ValueError(f"{self.process} needs rate_rps")
        return self


class ThinkSpec(Strict):
    """Time between an answer's end and the session's next request: lognormal by two of its percentiles."""

    p50_s: Positive
    p90_s: Positive
    max_s: Positive = 3600.0

    @model_validator(mode="after")
    def _check(self) -> ThinkSpec:
        if self.p90_s < self.p50_s:
            raise ValueError("p90_s is below p50_s")
        return self


class SessionSpec(Strict):
    """Turns of a conversation. A turn's prompt is all that was said before plus ``new_input``."""

    continue_probability: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=list, description="Chance of another turn after turn 1, 2, …; the last value repeats."
    )
    max_turns: Count = 64
    think: ThinkSpec | None = None
    new_input: LengthSpec | None = Field(None, description="User tokens of a follow-up; as first_input where absent.")

    @model_validator(mode="after")
    def _check(self) -> SessionSpec:
        if self.continue_probability and self.think is None:
            raise ValueError("continue_probability needs think")
        return self


class SharedPrefixSpec(Strict):
    """A system prompt that ``share`` of the sessions begin with."""

    name: str
    tokens: Count
    share: Annotated[float, Field(gt=0, le=1)]


class GeneratorSpec(Strict):
    """A seeded synthetic workload. Exactly one of ``requests`` and ``duration_s`` bounds it."""

    requests: Count | None = None
    duration_s: Positive | None = None
    arrivals: ArrivalSpec
    first_input: LengthSpec
    output: LengthSpec
    sessions: SessionSpec = SessionSpec()
    shared_prefixes: list[SharedPrefixSpec] = Field(default_factory=list)
    max_context_tokens: Count = Field(131072, description="A session ends before its prompt would exceed this.")
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> GeneratorSpec:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("give exactly one of requests and duration_s")
        if sum(p.share for p in self.shared_prefixes) > 1 + 1e-9:
            raise ValueError("shares of shared_prefixes add up to more than 1")
        return self


class WorkloadSpec(Strict):
    """Exactly one of ``file`` and ``generator``."""

    file: TraceFileSpec | None = None
    generator: GeneratorSpec | None = None
    provenance: Provenance | None = None

    @model_validator(mode="after")
    def _check(self) -> WorkloadSpec:
        if (self.file is None) == (self.generator is None):
            raise ValueError("give exactly one of file and generator")
        return self
