"""Kind ``Workload``: a trace file, a generator of one, or a population of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hisearch.base.policies import TRACE_FORMATS
from hisearch.specs.base import Count, NonNegative, NonNegativeInt, Positive, Provenance, Strict
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.specs.workloads.distributions import LengthSpec, ThinkSpec

if TYPE_CHECKING:
    TraceFormat: TypeAlias = str
else:
    TraceFormat = Literal["auto", *TRACE_FORMATS]

_WITHOUT_STARTS = ", ".join(name for name, declared in TRACE_FORMATS.items() if not declared.records_starts)

#: How follow-ups are replayed: as the format is best known (docs/traces.md), at their recorded times, or ``think_s``
#: after their predecessor's last token.
FollowUps = Literal["auto", "open_loop", "closed_loop"]


#: Of an adapter that a trace names: more than any model's hidden size.
LARGEST_RANK = 2**20


#: Shares that add up to 1 within this do so, rounded as they are written.
_ROUNDING = 1e-9


class ArrivalSpec(Strict):
    """Arrivals of *first* turns (open loop), or a closed loop of users."""

    process: Literal["poisson", "gamma", "weibull", "closed_loop"] = Field(
        "poisson", description="Law of the gaps between sessions, or a fixed number of users."
    )
    rate_rps: Positive | None = Field(None, description="Sessions per second; needed but for closed_loop.")
    cv: Positive = Field(1.0, description="gamma, weibull: coefficient of variation of the gaps.")
    users: Count | None = Field(None, description="closed_loop: sessions in flight at any time; needed there.")
    diurnal_amplitude: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Swing of the rate around its mean, as a sine; 0.5: from half of it to one and a half."
    )
    diurnal_period_s: Positive = Field(86400.0, description="Period of that sine.")

    @model_validator(mode="after")
    def _check(self) -> ArrivalSpec:
        if self.process == "closed_loop" and self.users is None:
            raise ValueError("closed_loop needs users")
        if self.process != "closed_loop" and self.rate_rps is None:
            raise ValueError(f"{self.process} needs rate_rps")
        return self


class TraceFileSpec(Strict):
    """Requests read from a file."""

    path: str = Field(
        description="A relative path is tried from this document's folder and from the working directory."
    )
    format: TraceFormat = Field("auto", description="auto: told by the content. See docs/traces.md.")
    spread_arrivals_s: NonNegative | None = Field(
        None,
        description="Arrivals are quantised to this; spread them evenly, seeded. Absent: Mooncake's 3 s where "
        "detected, else none; 0: as recorded.",
    )
    limit: Count | None = Field(None, description="Keep the first requests only.")
    skip_bad: NonNegativeInt = Field(0, description="Broken rows to leave out before the file is refused.")
    columns: dict[str, str] = Field(default_factory=dict, description="csv: our field -> the file's column.")
    adapters: dict[str, Annotated[int, Field(ge=0, le=LARGEST_RANK)]] = Field(
        default_factory=dict,
        description="Names that are LoRA adapters, among the models that calls and logs ask for or in the column "
        "adapter of a table, and their ranks; 0: as the deployment says.",
    )
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = Field(
        "auto",
        description="Unit of times that are numbers, in tables and logs. auto: told by their size where they count "
        "from 1970, or by the column's name; else seconds.",
    )
    follow_ups: FollowUps = Field(
        "auto",
        description="open_loop: at their recorded times; closed_loop: think_s after their predecessor's last token; "
        "auto: as the format is best known (docs/traces.md).",
    )
    arrivals: ArrivalSpec | None = Field(
        None, description=f"When sessions start, for formats that do not record it ({_WITHOUT_STARTS})."
    )
    think: ThinkSpec | None = Field(None, description="Think times, for formats that do not record them.")
    history: bool = Field(
        False,
        description="Prompts of a conversation begin with the turn before them, its answer included, where they are "
        "long enough. For files that count tokens and name sessions, and say nothing of what prompts share.",
    )
    cancelled: Literal["keep", "leave_out"] = Field(
        "keep",
        description="Requests that were cancelled, by a table's or log's column. keep: with the tokens generated until "
        "then, which took the engine its time; those without any are left out.",
    )
    max_tokens: Count | None = Field(
        None,
        description="Leave out requests with more tokens, prompt and declared output together, and the turns after "
        "them: no model with a smaller window serves them.",
    )
    max_output_tokens: Count | None = Field(
        None, description="Limit that clients declare; a request's own output length where absent or larger."
    )


class SessionSpec(Strict):
    """Turns of a conversation. A turn's prompt is the conversation so far plus ``new_input``.

    Without ``think`` a follow-up arrives with its predecessor's last token.
    """

    continue_probability: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=list, description="Chance of another turn after turn 1, 2, …; the last value repeats."
    )
    max_turns: Count = Field(64, description="A session ends after so many.")
    think: ThinkSpec | None = Field(None, description="Time between turns; none where absent.")
    new_input: LengthSpec | None = Field(None, description="User tokens of a follow-up; as first_input where absent.")


class ThinkingSpec(Strict):
    """Tokens that a model makes before its answer, and that the client does not see."""

    tokens: LengthSpec = Field(description="Of a request that thinks; its output tokens come behind them.")
    share: Annotated[float, Field(gt=0, le=1)] = Field(description="Share of the requests that think.")
    history: Literal["dropped", "kept"] = Field(
        "dropped",
        description="Whether later prompts of a session hold the thinking. dropped: as chat templates of Qwen3, "
        "DeepSeek-R1 and gpt-oss do; an answer behind thinking is then computed anew, as its KV was made after other "
        "tokens. kept: prompts begin with all that came before.",
    )


class GeneratedGrammarsSpec(Strict):
    """Outputs that follow a grammar, such as a JSON schema, by a Zipf law of grammars."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(description="Share of the requests whose output follows one.")
    grammars: Count = Field(1, description="Grammars in all; each class that states its own has others.")
    zipf: NonNegative = Field(
        1.0, description="The k-th most popular has a share in proportion to k to the power -zipf; 0: all are alike."
    )
    compile_s: NonNegative | None = Field(
        None, description="Seconds that each takes to compile; as the deployment says where absent."
    )


class SharedPrefixSpec(Strict):
    """A system prompt that ``share`` of the sessions begin with."""

    name: str = Field(description="For the reader.")
    tokens: Count = Field(description="Its length in tokens.")
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        description="Share of the sessions; all shares add up to 1 at most."
    )


class TrafficClassSpec(Strict):
    """A class of a generator's traffic: sessions whose requests have a priority and a tenant in common.

    Whatever it leaves out is as the generator says, shared prefixes and their content included.
    """

    name: Annotated[
        str, Field(min_length=1, description="For the reader; seeds its draws, which no other class moves.")
    ]
    share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Share of the sessions that the generator's arrivals start; all shares add up to 1."
    )
    arrivals: ArrivalSpec | None = Field(
        None, description="Instead of share: when its own sessions start, beside those of others; not in a closed loop."
    )
    priority: NonNegativeInt = Field(0, description="Of its requests; lower goes first.")
    tenants: Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
        [0], description="Each session is of one of these, drawn; a number that is given twice has twice as many."
    )
    first_input: LengthSpec | None = Field(None, description="Prompt tokens of a first turn after its shared prefix.")
    output: LengthSpec | None = Field(None, description="Output tokens of every turn.")
    sessions: SessionSpec | None = Field(None, description="Follow-up turns.")
    shared_prefixes: list[SharedPrefixSpec] | None = Field(None, description="System prompts of its own.")
    structured: GeneratedGrammarsSpec | None = Field(None, description="Structured output, by grammars of its own.")

    @model_validator(mode="after")
    def _check(self) -> TrafficClassSpec:
        if (self.share is None) == (self.arrivals is None):
            raise ValueError("give exactly one of share and arrivals")
        if self.arrivals is not None and self.arrivals.process == "closed_loop":
            raise ValueError("arrivals: a class in a closed loop of its own has no clock that others could go by")
        return self


class GeneratedAdaptersSpec(Strict):
    """LoRA adapters that generated sessions ask for, by a Zipf law."""

    count: Count = Field(description="Adapters in all.")
    zipf: NonNegative = Field(
        1.0, description="The k-th most popular has a share in proportion to k to the power -zipf; 0: all are alike."
    )
    base_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of the sessions that ask for the base model."
    )
    ranks: list[Annotated[int, Field(ge=1, le=LARGEST_RANK)]] = Field(
        default_factory=list, description="Ranks that the adapters have in turn; the deployment's where absent."
    )


class GeneratorSpec(Strict):
    """A seeded synthetic workload. Exactly one of ``requests`` and ``duration_s`` bounds it.

    Both cut by *nominal* time: a follow-up's is its session's start plus all think times before it, as if responses
    took no time. ``requests`` keeps that many from the beginning, ``duration_s`` those before that time.
    """

    requests: Count | None = Field(None, description="Keep the first so many.")
    duration_s: Positive | None = Field(None, description="Keep those before it.")
    arrivals: ArrivalSpec | None = Field(
        None, description="When sessions start; needed unless every class has arrivals of its own."
    )
    first_input: LengthSpec = Field(description="Prompt tokens of a first turn after its shared prefix.")
    output: LengthSpec = Field(description="Output tokens of every turn, those of section thinking not included.")
    thinking: ThinkingSpec | None = Field(None, description="Tokens ahead of the output; none where absent.")
    sessions: SessionSpec = Field(SessionSpec(), description="Follow-up turns; none by default.")
    shared_prefixes: list[SharedPrefixSpec] = Field(
        default_factory=list, description="System prompts; sessions left over begin with none."
    )
    max_context_tokens: Count = Field(
        131072, description="A session ends before prompt and output would exceed this; a first turn is cut to it."
    )
    max_input_tokens: Count | None = Field(
        None, description="A session ends before its prompt would exceed this, as with clients that drop old turns."
    )
    max_output_tokens: Count | None = Field(
        None, description="Limit that clients declare; a request's own output length where absent or larger."
    )
    adapters: GeneratedAdaptersSpec | None = Field(None, description="LoRA adapters of the sessions; none by default.")
    structured: GeneratedGrammarsSpec | None = Field(
        None, description="Requests whose output follows a grammar; none by default."
    )
    warm_up_s: NonNegative = Field(
        0.0,
        description="Sessions start this long before the trace, so that it begins in the middle of conversations, as a "
        "recording of a running service does. A turn whose predecessor came before the trace arrives by the clock.",
    )
    classes: list[TrafficClassSpec] = Field(
        default_factory=list, description="Classes of traffic; where absent all requests have priority 0 and tenant 0."
    )
    seed: NonNegativeInt = Field(0, description="Mixed with the study's.")

    @model_validator(mode="after")
    def _check(self) -> GeneratorSpec:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("give exactly one of requests and duration_s")
        self._check_classes()
        prefixes = [self.shared_prefixes, *(each.shared_prefixes or [] for each in self.classes)]
        if any(sum(p.share for p in of_class) > 1 + _ROUNDING for of_class in prefixes):
            raise ValueError("shares of shared_prefixes add up to more than 1")
        longest = max((p.tokens for of_class in prefixes for p in of_class), default=0)
        if longest + 2 > self.max_context_tokens:
            raise ValueError(f"a shared prefix of {longest} tokens leaves no room in max_context_tokens")
        if self.max_input_tokens is not None and longest + 1 > self.max_input_tokens:
            raise ValueError(f"a shared prefix of {longest} tokens leaves no room in max_input_tokens")
        if self.users is not None:
            if self.requests is None:
                raise ValueError("closed_loop has no clock of its own: bound it by requests, not duration_s")
            if self.warm_up_s or any(process.diurnal_amplitude for process in self.processes):
                raise ValueError("closed_loop has no clock of its own: warm_up_s and diurnal_amplitude do not apply")
        return self

    def _check_classes(self) -> None:
        shares = [each.share for each in self.classes if each.share is not None]
        own = len(self.classes) - len(shares)
        if len({each.name for each in self.classes}) < len(self.classes):
            raise ValueError(f"two classes have one name: {', '.join(each.name for each in self.classes)}")
        if self.arrivals is None and (shares or not own):
            raise ValueError("arrivals is needed, unless every class has arrivals of its own")
        if self.arrivals is not None and self.classes and not shares:
            raise ValueError("arrivals: every class has arrivals of its own; leave these out, or give a class a share")
        if shares and abs(sum(shares) - 1.0) > _ROUNDING:
            raise ValueError(f"shares of classes add up to {sum(shares):g}, not to 1")
        if self.users is not None and own:
            raise ValueError("arrivals of a class: users in a closed loop have no clock that others could go by")
        if len({process.diurnal_period_s for process in self.processes if process.diurnal_amplitude}) > 1:
            raise ValueError("diurnal_period_s differs between classes: their traffic has no common rhythm")

    @property
    def processes(self) -> list[ArrivalSpec]:
        """All arrival processes: its own, and those of classes."""
        return [each for each in (self.arrivals, *(of.arrivals for of in self.classes)) if each is not None]

    @property
    def users(self) -> int | None:
        """Of a closed loop; None where arrivals have a clock."""
        return self.arrivals.users if self.arrivals is not None and self.arrivals.process == "closed_loop" else None

    @property
    def diurnal_period_s(self) -> float:
        """Period of the swing of its rate; 0 where it has none."""
        return max((each.diurnal_period_s for each in self.processes if each.diurnal_amplitude > 0), default=0.0)

    @model_serializer(mode="wrap")
    def _without_no_classes(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        if not self.classes:
            data.pop("classes", None)
        return data


class WorkloadSpec(Strict):
    """Exactly one of ``file``, ``generator`` and ``agents``."""

    file: TraceFileSpec | None = Field(None, description="Requests read from a file.")
    generator: GeneratorSpec | None = Field(None, description="Requests drawn from distributions.")
    agents: AgentWorkloadSpec | None = Field(None, description="Requests of a population of agents.")
    ignore_eos: bool = Field(
        False,
        description="Whether clients have the engine ignore end-of-sequence tokens, as benchmarks do: outputs end by "
        "their limit, which the engine knows. Else they end by such a token, unless the trace has limits and an output "
        "fills its own.",
    )
    provenance: Provenance | None = Field(None, description="Where the facts come from.")

    @model_validator(mode="after")
    def _check(self) -> WorkloadSpec:
        if sum(source is not None for source in (self.file, self.generator, self.agents)) != 1:
            raise ValueError("give exactly one of file, generator and agents")
        return self
