"""Kind ``Study``: the question, its workload, budget, limits and rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from hisearch.specs.base import Count, NonNegativeInt, Positive, Seed, Strict
from hisearch.specs.errors import KeyedError
from hisearch.specs.models.model import ModelSpec, WeightsName
from hisearch.specs.phrases import PhraseError
from hisearch.specs.storage_url import refuse_secrets
from hisearch.specs.studies.search_space import SearchSpaceSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.slo_phrase import is_phrase, parse_slo
from hisearch.specs.wording import SURE
from hisearch.specs.workloads.workload import WorkloadSpec

#: Objectives. Those of MAXIMISED are maximised, all else is minimised.
Objective = Literal[
    "ttft_p50", "ttft_p90", "ttft_p95", "ttft_p99", "ttfo_p50", "ttfo_p90", "ttfo_p95", "ttfo_p99",
    "tpot_p50", "tpot_p90", "tpot_p95", "tpot_p99", "itl_p50", "itl_p90", "itl_p95", "itl_p99",
    "e2e_p50", "e2e_p90", "e2e_p95", "e2e_p99",
    "goodput", "capacity", "usd_per_hour", "usd_per_million_tokens", "accelerators", "mean_w", "joules_per_token",
    "agents_per_accelerator", "usd_per_agent_hour",
]  # fmt: skip

#: The objective that is the price.
PRICE: Literal["usd_per_hour"] = "usd_per_hour"

MAXIMISED: frozenset[str] = frozenset({"goodput", "capacity", "agents_per_accelerator"})

CAPACITY = "capacity"
#: Objectives of populations of agents, whose load is the number of agents.
OF_AGENTS: frozenset[str] = frozenset({"agents_per_accelerator", "usd_per_agent_hour"})
#: Objectives of power and energy.
OF_ENERGY: frozenset[str] = frozenset({"mean_w", "joules_per_token"})
#: Objectives that take simulations at other loads.
AT_OTHER_LOADS: frozenset[str] = OF_AGENTS | {CAPACITY}


#: Largest factor on an arrival rate: beyond it all requests come at once.
MOST_LOAD = 1e6


class WorkloadRef(Strict):
    """Which workload, and at which load it is replayed."""

    trace: str | WorkloadSpec = Field(
        description="A catalogue name, a path to a workload YAML or a trace file, or inline."
    )
    load: Annotated[float, Field(gt=0, le=MOST_LOAD)] = Field(
        1.0, description="Factor on the arrival rate; think times stay as they are."
    )
    limit: Count | None = Field(None, description="Keep the first requests only.")
    skip_bad: NonNegativeInt = Field(0, description="Broken rows to leave out before the file is refused.")
    models: list[str] = Field(
        default_factory=list,
        description="Of a trace that names models keep only what asks for one of these names; empty: all of it.",
    )

    @model_serializer(mode="wrap")
    def _without_no_models(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        if not self.models:
            data.pop("models", None)
        return data


class BudgetSpec(Strict):
    """When to stop: whichever is reached first."""

    simulations: Count = Field(
        300,
        description="Every simulation counts, of slices and at other loads too. From 64 on, a tenth more may price "
        "alternatives.",
    )
    seconds: Positive = Field(
        600.0, description="Wall time, looked at between batches; results then depend on the machine."
    )
    usd: Positive | None = Field(
        None, description="Wall time at the price of this machine; needs machine_usd_per_hour."
    )
    machine_usd_per_hour: Positive | None = Field(None, description="Price of the machine that searches.")

    @model_validator(mode="after")
    def _check(self) -> BudgetSpec:
        if (self.usd is None) != (self.machine_usd_per_hour is None):
            missing = "machine_usd_per_hour" if self.machine_usd_per_hour is None else "usd"
            raise KeyedError((missing,), "usd and machine_usd_per_hour go together")
        return self

    @property
    def wall_s(self) -> float:
        """Seconds that may pass: the budget of seconds, or what the dollars buy, whichever is less."""
        return min(self.seconds, self._bought_s)

    @property
    def wall_key(self) -> str:
        """The key that sets ``wall_s``."""
        return "usd" if self._bought_s < self.seconds else "seconds"

    @property
    def _bought_s(self) -> float:
        if self.usd is None or self.machine_usd_per_hour is None:
            return math.inf
        return self.usd / self.machine_usd_per_hour * 3600.0


class LimitSpec(Strict):
    """A bound on a figure of a deployment, in addition to the SLO."""

    at_most: Positive | None = Field(None, description="Upper bound, of figures that are better when lower.")
    at_least: Positive | None = Field(None, description="Lower bound, of figures that are better when higher.")

    @model_validator(mode="after")
    def _check(self) -> LimitSpec:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("needs one of at_most and at_least")
        return self

    @property
    def bound(self) -> float:
        """The bound that is given."""
        return self.at_most if self.at_most is not None else self.at_least or 0.0


def check_limits(limits: Mapping[Objective, LimitSpec]) -> None:
    """Refuse limits on figures that cannot be limited, or on the wrong side.

    Raises:
        KeyedError: with the key, from ``limits`` on.
    """
    for name, limit in limits.items():
        if name in OF_AGENTS:
            raise KeyedError(("limits", name), "is an objective, no limit: ask for a larger society instead")
        if name == CAPACITY:
            message = "is an objective, no limit: to ask for 1.3 times the load write workload: {load: 1.3}"
            raise KeyedError(("limits", name), message)
        required, given = ("at_least", limit.at_least) if name in MAXIMISED else ("at_most", limit.at_most)
        if given is None:
            raise KeyedError(("limits", name), f"needs {required}")


#: Rules by which a deployment is recommended; see ``RecommendSpec``.
RuleName = Literal["cheapest", "best_value", "lowest_latency", "most_headroom", "least_energy"]


class RecommendSpec(Strict):
    """Which of the deployments that meet the SLO is recommended."""

    rule: RuleName = Field(
        "cheapest",
        description="cheapest; best_value: the knee of the front; lowest_latency: of the first latency objective, "
        "within usd_per_hour; most_headroom: the largest load that still meets the SLO; least_energy: the fewest "
        "joules per generated token (docs/confidence.md).",
    )
    usd_per_hour: Positive | None = Field(
        None, description="Most that may be spent; lowest_latency needs it, cheapest does not take it."
    )

    @model_validator(mode="after")
    def _check(self) -> RecommendSpec:
        if self.rule == "lowest_latency" and self.usd_per_hour is None:
            raise KeyedError(("usd_per_hour",), "rule lowest_latency needs the most that may be spent")
        if self.rule == "cheapest" and self.usd_per_hour is not None:
            raise KeyedError(("usd_per_hour",), "rule cheapest spends as little as it can; leave it out")
        return self


class ConfidenceSpec(Strict):
    """How sure a recommendation is: simulations beyond the budget's, under stated errors, resampled traffic, prices."""

    renamed: ClassVar[dict[str, str]] = {"contender_draws": "candidate_draws", "surer": "chance_constrained"}

    at_least: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None,
        description="Recommend the first deployment, in the order of recommend.rule, that meets the SLO with at least "
        "this probability; 0 for the rule's own choice. 0.9 where absent, if draws are made.",
    )
    level: Annotated[float, Field(gt=0, lt=1)] = Field(0.9, description="Of the intervals.")
    draws: NonNegativeInt = Field(64, description="Simulations of the recommended deployment; 0: none at all.")
    candidate_draws: NonNegativeInt = Field(
        8, description="Simulations of each runner-up, the first of the same draws."
    )
    fresh_draws: NonNegativeInt = Field(
        64,
        description="Of what was chosen by its probability: simulations under draws that did not choose it; 0: none.",
    )
    what_if: NonNegativeInt = Field(
        120, description="Most simulations for what would change the answer, the baseline and the other rules."
    )
    chance_constrained: NonNegativeInt = Field(
        160,
        description="With at_least: 0, where the recommendation meets the SLO with less than 90 %: most simulations to "
        "find the cheapest of what met it that does so with 90 % or more, whose price is then named; 0: none.",
    )
    search: NonNegativeInt = Field(
        600, description="Most simulations of dearer deployments and further replicas, to find one likely enough."
    )
    seconds: Positive = Field(
        300, description="No new simulation is started after this time; the only limit that depends on the machine."
    )
    correlation: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="Between the step-time errors of prefill, decode and mixed steps; an assumption."
    )
    assumed_price_error: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.25, description="Prices that are assumed and state no range may be off by this share either way."
    )

    @property
    def required(self) -> float | None:
        """Least probability of the recommendation; None where its rule alone decides."""
        if self.at_least is None:
            return SURE if self.draws else None
        return self.at_least or None


class AvailabilitySpec(Strict):
    """What may be away while the SLO holds."""

    replicas_down: NonNegativeInt = Field(
        0,
        description="Replicas of each pool that may be down at once, for an update, a drained node or a failure. Every "
        "simulation is of what is left; the price counts all.",
    )


def _slo_of(value: Any) -> Any:
    """What a phrase says, as plain data; anything else as it is."""
    if not isinstance(value, str) or not is_phrase(value):
        return value
    try:
        return parse_slo(value).model_dump()
    except PhraseError as error:
        raise ValueError(error.message) from None


class StudySpec(Strict):
    """The question: which deployment serves this workload within this SLO, at what price?"""

    model: str | ModelSpec = Field(
        description="What is served: a name, a path (of a Hugging Face config.json too), or inline."
    )
    huggingface_id: WeightsName | None = Field(
        None,
        description="What launch scripts serve, ORGANISATION/MODEL or a folder, where the model does not say (a "
        "config.json seldom does), or another checkpoint of it is to be served.",
    )
    workload: WorkloadRef = Field(description="The traffic.")
    slo: Annotated[str | SloSpec, BeforeValidator(_slo_of)] = Field(
        description="The SLO: a name, a path, inline, or a phrase: ttft p95 < 1s, tpot p95 < 50ms, rejected < 1%."
    )
    space: str | SearchSpaceSpec = Field(description="What may be chosen: a name, a path, or inline.")
    objectives: list[Objective] = Field(
        default=["ttft_p99", "goodput", "usd_per_hour"],
        min_length=1,
        max_length=4,
        description="Axes of the Pareto front, two to four; or capacity alone, for the largest rate that the "
        "accelerators of limits.accelerators carry (docs/capacity.md). Where "
        "none are given, the latency is at the percentile that the SLO states (of "
        "TTFT, or of its first term where it bounds no TTFT), or the next one that can be an objective. "
        "goodput, capacity and agents_per_accelerator are maximised, all else minimised. capacity, the largest factor "
        "on the arrival rate at which the SLO holds, takes about nine simulations a deployment; so do "
        "agents_per_accelerator and usd_per_agent_hour, of the largest population of the workload's kind "
        "that meets the SLO, in which capacity is a factor on the number of agents.",
    )
    limits: dict[Objective, LimitSpec] = Field(
        default_factory=dict,
        description="Bounds on figures of a deployment that are not part of the SLO, in the objectives' own units "
        "(seconds, dollars, watts, joules): {usd_per_hour: {at_most: 40}, mean_w: {at_most: 6000}}.",
    )
    availability: AvailabilitySpec = Field(AvailabilitySpec(), description="What may be down while the SLO holds.")
    budget: BudgetSpec = Field(BudgetSpec(), description="How long to search.")
    recommend: RecommendSpec = Field(RecommendSpec(), description="What to recommend.")
    confidence: ConfidenceSpec = Field(ConfidenceSpec(), description="How sure to be of it.")
    seed: Seed = Field(0, description="Of everything random.")
    storage: Annotated[str, AfterValidator(refuse_secrets)] | None = Field(
        None,
        description="PostgreSQL database for the trials, postgresql://USER@HOST:PORT/DATABASE, without a password; "
        "absent: study.db (SQLite) in the run folder.",
    )
    pins: dict[str, str] = Field(
        default_factory=dict,
        description="SHA-256 of catalogue entries, by 'Kind/name', and of the trace file, as 'trace'; "
        "loading refuses an entry that has changed. Written into resolved studies.",
    )

    @model_validator(mode="after")
    def _check(self) -> StudySpec:
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError("an objective is given twice")
        if len(self.objectives) < 2 and not self.asks_largest_rate:
            raise KeyedError(("objectives",), "expected two to four objectives, or [capacity] alone")
        check_limits(self.limits)
        if self.confidence.at_least and not self.confidence.draws:
            raise KeyedError(("confidence", "draws"), "at_least needs draws; expected at least 1")
        return self

    def with_objectives_of(self, slo: SloSpec) -> StudySpec:
        """The study with objectives that match ``slo``, unless it states its own."""
        if "objectives" in self.model_fields_set:
            return self
        terms = slo.common or slo.terms
        term = next((candidate for candidate in terms if candidate.metric == "ttft_s"), terms[0])
        stem = f"{term.metric.removesuffix('_s')}_p"
        offered = [name for name in get_args(Objective) if name.startswith(stem)]
        latency = next((name for name in offered if float(name.removeprefix(stem)) >= term.percentile), offered[-1])
        return self.model_copy(update={"objectives": [latency, *self.objectives[1:]]})

    @property
    def asks_largest_rate(self) -> bool:
        """Whether the largest rate of given accelerators is the one aim."""
        return self.objectives == [CAPACITY]

    @property
    def limits_by_name(self) -> dict[str, LimitSpec]:
        """The limits, their names as plain strings."""
        return dict(self.limits.items())
