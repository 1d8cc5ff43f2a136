"""Kind ``Workload``: a trace file, or a generator of one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Count, NonNegative, NonNegativeInt, Positive, Provenance, Strict

TraceFormat = Literal[
    "auto", "hisearch", "mooncake", "azure", "burstgpt", "bailian", "sharegpt_lengths", "weka", "lmcache",
    "llmservingsim", "csv",
]  # fmt: skip

#: How follow-ups are replayed: as the format is best known (docs/traces.md), at their recorded times, or ``think_s``
#: after their predecessor's last token.
FollowUps = Literal["auto", "open_loop", "closed_loop"]


class LengthSpec(Strict):
    """A distribution of token counts, rounded, and clipped to ``[min_tokens, max_tokens]``."""

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
                raise ValueError(
                    "quantiles needs two or more [probability, tokens] pairs, probabilities rising in [0, 1]"
                )
            tokens = [value for _, value in self.quantiles]
            if tokens != sorted(tokens):
                raise ValueError("quantiles: tokens must not fall as the probability rises")
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


class TraceFileSpec(Strict):
    """Requests read from a file."""

    path: str
    format: TraceFormat = "auto"
    spread_arrivals_s: NonNegative | None = Field(
        None,
        description="Arrivals are quantised to this; spread them evenly, seeded. Absent: Mooncake's 3 s where "
        "detected, else none; 0: as recorded.",
    )
    limit: Count | None = Field(None, description="Keep the first requests only.")
    skip_bad: NonNegativeInt = 0
    columns: dict[str, str] = Field(default_factory=dict, description="csv: our field -> the file's column.")
    follow_ups: FollowUps = "auto"
    arrivals: ArrivalSpec | None = Field(
        None, description="When sessions start, for formats that do not record it (sharegpt_lengths, weka, lmcache)."
    )
    think: ThinkSpec | None = Field(None, description="Think times, for formats that do not record them.")
    max_output_tokens: Count | None = Field(
        None, description="Limit that clients declare; a request's own output length where absent or larger."
    )


class SessionSpec(Strict):
    """Turns of a conversation. A turn's prompt is all that was said before plus ``new_input``.

    Without ``think`` a follow-up arrives with its predecessor's last token.
    """

    continue_probability: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=list, description="Chance of another turn after turn 1, 2, …; the last value repeats."
    )
    max_turns: Count = 64
    think: ThinkSpec | None = None
    new_input: LengthSpec | None = Field(None, description="User tokens of a follow-up; as first_input where absent.")


class SharedPrefixSpec(Strict):
    """A system prompt that ``share`` of the sessions begin with."""

    name: str
    tokens: Count
    share: Annotated[float, Field(gt=0, le=1)]


class GeneratorSpec(Strict):
    """A seeded synthetic workload. Exactly one of ``requests`` and ``duration_s`` bounds it.

    Both cut by *nominal* time: a follow-up's is its session's start plus all think times before it, as if answers took
    no time. ``requests`` keeps the first so many, ``duration_s`` those before it.
    """

    requests: Count | None = None
    duration_s: Positive | None = None
    arrivals: ArrivalSpec
    first_input: LengthSpec = Field(description="Prompt tokens of a first turn after its shared prefix.")
    output: LengthSpec
    sessions: SessionSpec = SessionSpec()
    shared_prefixes: list[SharedPrefixSpec] = Field(default_factory=list)
    max_context_tokens: Count = Field(
        131072, description="A session ends before prompt and output would exceed this; a first turn is cut to it."
    )
    max_input_tokens: Count | None = Field(
        None, description="A session ends before its prompt would exceed this, as with clients that drop old turns."
    )
    max_output_tokens: Count | None = Field(
        None, description="Limit that clients declare; a request's own output length where absent or larger."
    )
    warm_up_s: NonNegative = Field(
        0.0,
        description="Sessions start this long before the trace, so that it begins in the middle of conversations, as a "
        "recording of a running service does. A turn whose predecessor came before the trace arrives by the clock.",
    )
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> GeneratorSpec:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("give exactly one of requests and duration_s")
        if sum(p.share for p in self.shared_prefixes) > 1 + 1e-9:
            raise ValueError("shares of shared_prefixes add up to more than 1")
        longest = max((p.tokens for p in self.shared_prefixes), default=0)
        if longest + 2 > self.max_context_tokens:
            raise ValueError(f"a shared prefix of {longest} tokens leaves no room in max_context_tokens")
        if self.max_input_tokens is not None and longest + 1 > self.max_input_tokens:
            raise ValueError(f"a shared prefix of {longest} tokens leaves no room in max_input_tokens")
        if self.arrivals.process == "closed_loop":
            if self.requests is None:
                raise ValueError("closed_loop has no clock of its own: bound it by requests, not duration_s")
            if self.warm_up_s or self.arrivals.diurnal_amplitude:
                raise ValueError("closed_loop has no clock of its own: warm_up_s and diurnal_amplitude do not apply")
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
