"""Kinds ``SearchSpace`` and ``Study``: what may be chosen, and for what."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hisearch.specs.agent_memory import (
    AGENT_ENGINES,
    AdaptersSpec,
    AgentObjectSpec,
    AgentPolicyName,
    DistanceSourceName,
    HostName,
)
from hisearch.specs.base import Count, DType, EngineName, Fraction, NonNegative, NonNegativeInt, Positive, Seed, Strict
from hisearch.specs.deployment import EvictionName
from hisearch.specs.devices import DevicesSpec
from hisearch.specs.errors import KeyedError
from hisearch.specs.hardware import ScopeName
from hisearch.specs.model import ModelSpec
from hisearch.specs.parallelism import Parallelism
from hisearch.specs.pool_space import PoolsSpace
from hisearch.specs.routing import ROUTER_PARAMETERS, AdmissionSpec, HashKeyName, RouterName, RouterSpec
from hisearch.specs.slo import SloSpec
from hisearch.specs.storage_url import refuse_secrets
from hisearch.specs.tiers import HierarchyName, MoverName, PrefetchName, TierEvictionName, WritePolicyName
from hisearch.specs.workload import WorkloadSpec

#: Objectives. Those of MAXIMISED are maximised, all else is minimised.
Objective = Literal[
    "ttft_p50", "ttft_p90", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p90", "tpot_p95", "tpot_p99",
    "itl_p50", "itl_p90", "itl_p95", "itl_p99", "e2e_p50", "e2e_p90", "e2e_p95", "e2e_p99",
    "goodput", "capacity", "usd_per_hour", "usd_per_million_tokens", "accelerators", "mean_w", "joules_per_token",
    "agents_per_accelerator", "usd_per_agent_hour",
]  # fmt: skip

MAXIMISED: frozenset[str] = frozenset({"goodput", "capacity", "agents_per_accelerator"})

CAPACITY = "capacity"
#: Objectives of societies of agents, whose load is their number.
OF_AGENTS: frozenset[str] = frozenset({"agents_per_accelerator", "usd_per_agent_hour"})
#: Objectives that take simulations at other loads.
AT_OTHER_LOADS: frozenset[str] = OF_AGENTS | {CAPACITY}


class ExecutionSpace(Strict):
    """Stage 1: accelerators, engines, parallelism, formats, batch limits."""

    accelerators: list[str] = Field(min_length=1, description="Names or paths of Accelerators.")
    engines: list[EngineName] = Field(min_length=1, description="Serving engines.")
    tensor_parallel: list[Count] = Field(
        default=[1, 2, 4, 8],
        min_length=1,
        description="Ranks of an attention group; splits that a model, an engine or a host cannot take drop out.",
    )
    pipeline_parallel: list[Count] = Field(default=[1], min_length=1, description="Stages of a worker.")
    attention_data_parallel: list[Count] = Field(
        default=[1], min_length=1, description="Attention groups of a stage, which share its FFNs."
    )
    expert_parallel: list[Count] = Field(
        default=[1], min_length=1, description="Sets of a stage's ranks that hold different experts."
    )
    weight_dtypes: list[DType] = Field(
        default_factory=list, description="Formats of the weights; empty: the model's own alone."
    )
    kv_dtypes: list[DType] = Field(default=["bf16"], min_length=1, description="Formats of the KV cache.")
    chunk_tokens: list[Count] = Field(default=[2048, 8192], min_length=1, description="Token budgets of a step.")
    max_running_requests: list[Count] = Field(default=[64, 256], min_length=1, description="Batch limits of a worker.")
    sglang_page_tokens: Count = Field(
        1, description="Tokens per KV page under SGLang; tiers move whole pages, of 64 tokens as a rule."
    )
    devices: list[DevicesSpec | None] = Field(
        default=[None],
        min_length=1,
        description="As a Pool's: device mixes, operator maps, ratios of attention and FFN, places of experts and "
        "weights; null for none.",
    )
    max_replicas: Count = Field(32, description="Most workers of a deployment.")
    max_accelerators: Count = Field(64, description="Most accelerators of a deployment.")

    @property
    def splits(self) -> list[Parallelism]:
        """Every combination of the degrees, in the order of the lists."""
        return [
            Parallelism(tensor, groups, experts, stages)
            for tensor, groups, experts, stages in itertools.product(
                self.tensor_parallel, self.attention_data_parallel, self.expert_parallel, self.pipeline_parallel
            )
        ]


class RoutingSpace(Strict):
    """Stage 2: router policies and their parameters."""

    policies: list[RouterName] = Field(
        default=["round_robin", "power_of_two", "cache_aware"], min_length=1, description="As a Router's policy."
    )
    cache_threshold: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default=[0.3, 0.5], min_length=1, description="cache_aware: as a Router's."
    )
    balance_abs_threshold: list[NonNegativeInt] = Field(
        default=[16, 64], min_length=1, description="cache_aware: as a Router's."
    )
    balance_rel_threshold: list[Annotated[float, Field(ge=1)]] = Field(
        default=[1.5], min_length=1, description="cache_aware: as a Router's."
    )
    max_tree_tokens: list[Count | None] = Field(
        default=[None], min_length=1, description="cache_aware: as a Router's; null: never trimmed."
    )
    eviction_interval_s: list[Positive] = Field(
        default=[120.0], min_length=1, description="cache_aware with max_tree_tokens: as a Router's."
    )
    bucket_abs_threshold: list[NonNegativeInt] = Field(
        default=[64], min_length=1, description="bucket: a Router's balance_abs_threshold."
    )
    bucket_rel_threshold: list[Annotated[float, Field(ge=1)]] = Field(
        default=[1.5], min_length=1, description="bucket: a Router's balance_rel_threshold."
    )
    bucket_window_s: list[Positive] = Field(default=[5.0], min_length=1, description="bucket: as a Router's.")
    hash_key: list[HashKeyName] = Field(
        default=["session"], min_length=1, description="consistent_hash: as a Router's."
    )
    prefix_tokens: list[Count] = Field(
        default=[256], min_length=1, description="consistent_hash by prefix: as a Router's."
    )
    load_factor: list[Annotated[float, Field(ge=1)]] = Field(
        default=[1.25], min_length=1, description="consistent_hash: as a Router's."
    )
    overlap_weight: list[Positive] = Field(default=[1.0], min_length=1, description="kv_aware: as a Router's.")
    staleness_s: list[NonNegative] = Field(default=[0.0], min_length=1, description="kv_aware: as a Router's.")
    fill_requests: list[Count] = Field(default=[8], min_length=1, description="cost_aware: as a Router's.")
    admission: list[AdmissionSpec] = Field(
        default=[AdmissionSpec()],
        min_length=1,
        description="As a Deployment's admission; the first one is what replicas are sized with.",
    )
    extra_replicas: list[NonNegativeInt] = Field(
        default=[0, 1, 2], min_length=1, description="Replicas beyond the fewest that stage 1 expects to suffice."
    )

    def routers(self, policy: RouterName) -> list[RouterSpec]:
        """The policy with every combination of its parameters, each once, in the order of the lists."""
        names = ROUTER_PARAMETERS[policy]
        lists = [getattr(self, _BUCKET_LISTS.get(name, name) if policy == "bucket" else name) for name in names]
        found: dict[str, RouterSpec] = {}
        for values in itertools.product(*lists):
            router = RouterSpec.model_validate({"policy": policy} | dict(zip(names, values, strict=True)))
            found.setdefault(repr(router.parameters()), router)
        return list(found.values())


#: Parameter of a bucket router -> its list, where cache_aware has a parameter of that name as well.
_BUCKET_LISTS = {"balance_abs_threshold": "bucket_abs_threshold", "balance_rel_threshold": "bucket_rel_threshold"}


#: Sizes that a range stands for: so many for each doubling, or so many steps; whole GiB from this size on.
_SIZES_PER_DOUBLING = 2
_EVEN_STEPS = 16
_WHOLE_FROM_GIB = 16.0


class GibRange(Strict):
    """Sizes from low to high: two for every doubling, or 17 evenly spaced ones where log is false."""

    low: Positive = Field(description="Smallest size.")
    high: Positive = Field(description="Largest size.")
    log: bool = Field(True, description="Steps of equal factors; else of equal size.")

    @model_validator(mode="after")
    def _check(self) -> GibRange:
        if self.low >= self.high:
            raise KeyedError(("high",), f"must be greater than low {self.low:g}, got {self.high:g}")
        return self

    def sizes(self) -> list[float]:
        """Ascending; whole GiB between the bounds, but for small ones."""
        steps = max(round(_SIZES_PER_DOUBLING * math.log2(self.high / self.low)), 1) if self.log else _EVEN_STEPS
        shares = [step / steps for step in range(1, steps)]
        if self.log:
            between = [self.low * (self.high / self.low) ** share for share in shares]
        else:
            between = [self.low + (self.high - self.low) * share for share in shares]
        rounded = [float(round(size)) if size >= _WHOLE_FROM_GIB else size for size in between]
        return sorted({self.low, self.high, *(size for size in rounded if self.low < size < self.high)})


class TierSpace(Strict):
    """Choices of one tier. What an engine's mover does not have is left out for it."""

    media: list[str] = Field(min_length=1, description="Names or paths of Media.")
    gib: list[NonNegative] | GibRange = Field(
        description="Sizes of one store, listed or as a range; 0 is neither this tier nor those behind it."
    )
    scope: list[ScopeName] = Field(
        default_factory=list, description="Who shares a store, as a Tier's; empty: the medium's own scope."
    )
    eviction: list[TierEvictionName] = Field(default=["lru"], min_length=1, description="As a Tier's.")
    ttl_s: list[Positive | None] = Field(
        default=[None], min_length=1, description="As a Tier's, null for none; expired entries are reclaimed lazily."
    )

    @model_validator(mode="after")
    def _check(self) -> TierSpace:
        if not self.sizes():
            raise KeyedError(("gib",), "needs 1 or more entries, got 0")
        return self

    def sizes(self) -> list[float]:
        """Ascending, each once."""
        return self.gib.sizes() if isinstance(self.gib, GibRange) else sorted(set(self.gib))


class MovementSpace(Strict):
    """Choices of a Movement."""

    movers: list[MoverName] = Field(
        default_factory=list, description="Those that an engine has; its default where it has none of them."
    )
    write_policy: list[WritePolicyName] = Field(default=["write_through"], min_length=1, description="HiCache.")
    prefetch: list[PrefetchName] = Field(
        default=["best_effort"], min_length=1, description="HiCache with a storage tier."
    )
    prefetch_threshold_tokens: list[Count] = Field(
        default=[256], min_length=1, description="HiCache with a storage tier."
    )
    hierarchy: list[HierarchyName] = Field(
        default=["inclusive"], min_length=1, description="HiCache with two storage tiers."
    )


class AgentMemorySpace(Strict):
    """Choices of a pool's section agents; what is not searched is as it says there."""

    policies: list[AgentPolicyName] = Field(
        default=["lru", "distance"], min_length=1, description="As Agents's policy."
    )
    slots: list[Count | None] = Field(
        default=[None],
        min_length=1,
        description="As Agents's slots; null, a shared pool, needs a worker without tiers.",
    )
    ahead_s: list[NonNegative] = Field(
        default=[10.0], min_length=1, description="Policy distance: as Agents's ahead_s."
    )
    distance: DistanceSourceName = Field("trace", description="As Agents's distance.")
    host: HostName = Field("beside", description="As Agents's host, of workers with tiers.")
    adapters: AdaptersSpec | None = Field(None, description="As Agents's adapters.")
    objects: list[AgentObjectSpec] = Field(default_factory=list, description="As Agents's objects.")

    @model_validator(mode="after")
    def _check(self) -> AgentMemorySpace:
        if "by_slot" in self.policies and (self.adapters is None or self.objects or None in self.slots):
            raise ValueError("policies: by_slot is about adapters alone, in slots")
        return self

    @property
    def has_objects(self) -> bool:
        """Whether agents need anything beside KV."""
        return self.adapters is not None or bool(self.objects)


_TIERS = "write tiers: [{media: [ddr5], gib: [0, 128, 256]}]"


class CacheSpace(Strict):
    """Stage 3: memory for KV and the tiers below it."""

    replaced: ClassVar[dict[str, str]] = {
        "host_gib_per_worker": f"replaced by tiers; {_TIERS}",
        "host_medium": f"replaced by the media of tiers; {_TIERS}",
    }

    memory_fraction: tuple[Fraction, Fraction] = Field(
        (0.85, 0.92), description="Range, lower and upper bound, of an Engine's memory_fraction."
    )
    eviction: list[EvictionName] = Field(
        default=["lru", "lfu"],
        min_length=1,
        description="SGLang with tiers: as an Engine's eviction; without tiers, and in other engines, lru alone.",
    )
    tiers: list[TierSpace] = Field(
        default=[TierSpace(media=["ddr5"], gib=[0.0, 128.0, 256.0, 512.0])],
        max_length=3,
        description="Nearest first; by default {media: [ddr5], gib: [0, 128, 256, 512]}. Empty: no tiers.",
    )
    movement: MovementSpace = Field(MovementSpace(), description="How KV moves between them.")
    agents: AgentMemorySpace | None = Field(
        None, description="What agents need in device memory beside KV, under SGLang or vLLM."
    )

    @model_validator(mode="after")
    def _check(self) -> CacheSpace:
        if self.memory_fraction[0] > self.memory_fraction[1]:
            raise ValueError("memory_fraction: the lower bound exceeds the upper")
        tiered = bool(self.tiers) and self.tiers[0].sizes()[-1] > 0
        if self.agents is not None and self.agents.has_objects and tiered and not any(self.agents.slots):
            raise KeyedError(("agents", "slots"), "workers with tiers need a number; null is for those without")
        return self


class SearchSpaceSpec(Strict):
    """What the three stages may choose from."""

    execution: ExecutionSpace = Field(description="Stage 1.")
    routing: RoutingSpace = Field(RoutingSpace(), description="Stage 2.")
    cache: CacheSpace = Field(CacheSpace(), description="Stage 3.")
    pools: PoolsSpace = Field(
        PoolsSpace(), description="One pool of equal workers, prefill and decode apart, unequal workers."
    )
    profile: str = Field(
        "auto",
        description="Name or path of the LatencyProfile that prices steps; auto takes that of accelerator and engine.",
    )

    @model_validator(mode="after")
    def _check(self) -> SearchSpaceSpec:
        self._check_agents()
        for shape in ("apart", "mixed"):
            if self.cache.agents is not None and getattr(self.pools, shape) is not None:
                raise KeyedError(("pools", shape), "agents' objects are simulated in deployments of one pool")
        return self

    def _check_agents(self) -> None:
        """Refuse engines under which agents' objects are not simulated, or not as the space has them."""
        agents, engines = self.cache.agents, self.execution.engines
        if agents is None:
            return
        others = [engine for engine in engines if engine not in AGENT_ENGINES]
        if others:
            known = " and ".join(AGENT_ENGINES)
            message = f"agents' objects are simulated for the engines {known}, not {', '.join(others)}"
            raise KeyedError(("cache", "agents"), message)
        if "vllm" in engines and self.cache.tiers:
            raise KeyedError(
                ("cache", "tiers"), "beside agents' objects tiers are simulated for the engine sglang alone"
            )
        if "vllm" in engines and None in agents.slots and agents.has_objects:
            raise KeyedError(("cache", "agents", "slots"), "the engine vllm needs numbers")


class WorkloadRef(Strict):
    """Which workload, and how fast it is replayed."""

    trace: str | WorkloadSpec = Field(
        description="A catalogue name, a path to a workload YAML or a trace file, or inline."
    )
    load: Positive = Field(1.0, description="Factor on the arrival rate; think times stay as they are.")
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

    simulations: Count = Field(300, description="Every simulation counts, of slices and at other loads too.")
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
    """What a deployment must keep to beside the SLO: one bound."""

    at_most: Positive | None = Field(None, description="Upper bound, of figures that are better when lower.")
    at_least: Positive | None = Field(None, description="Lower bound, of figures that are better when higher.")

    @model_validator(mode="after")
    def _check(self) -> LimitSpec:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("needs one of at_most and at_least")
        return self

    @property
    def bound(self) -> float:
        """The one that is given."""
        return self.at_most if self.at_most is not None else self.at_least or 0.0


def check_limits(limits: Mapping[Objective, LimitSpec]) -> None:
    """Refuse limits on what is none, or on the wrong side.

    Raises:
        KeyedError: with the key, from ``limits`` on.
    """
    for name, limit in limits.items():
        if name in OF_AGENTS:
            raise KeyedError(("limits", name), "is an objective, no limit: ask for a larger society instead")
        if name == CAPACITY:
            message = "is an objective, no limit: to ask for 1.3 times the load write workload: {load: 1.3}"
            raise KeyedError(("limits", name), message)
        wanted, given = ("at_least", limit.at_least) if name in MAXIMISED else ("at_most", limit.at_most)
        if given is None:
            raise KeyedError(("limits", name), f"needs {wanted}")


#: Rules by which a deployment is recommended; see ``RecommendSpec``.
RuleName = Literal["cheapest", "best_value", "lowest_latency", "most_headroom"]


class RecommendSpec(Strict):
    """Which of the deployments that meet the SLO is recommended."""

    rule: RuleName = Field(
        "cheapest",
        description="cheapest; best_value: the knee of the front; lowest_latency: of the first latency objective, "
        "within usd_per_hour; most_headroom: the largest load that still meets the SLO (docs/confidence.md).",
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

    at_least: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Recommend the first deployment, in the order of recommend.rule, that meets the SLO with at least "
        "this probability; null for the rule's own choice.",
    )
    level: Annotated[float, Field(gt=0, lt=1)] = Field(0.9, description="Of the intervals.")
    draws: NonNegativeInt = Field(64, description="Simulations of the recommended deployment; 0: none at all.")
    contender_draws: NonNegativeInt = Field(
        8, description="Simulations of each runner-up, the first of the same draws."
    )
    fresh_draws: NonNegativeInt = Field(
        64,
        description="With at_least: simulations of what was chosen under draws that it was not chosen by; 0: none.",
    )
    what_if: NonNegativeInt = Field(
        120, description="Most simulations for what would change the answer, the baseline and the other rules."
    )
    search: NonNegativeInt = Field(
        600, description="With at_least: most simulations of dearer deployments and further replicas."
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


class StudySpec(Strict):
    """The question: which deployment serves this workload within this SLO, at what price?"""

    model: str | ModelSpec = Field(
        description="What is served: a name, a path (of a Hugging Face config.json too), or inline."
    )
    workload: WorkloadRef = Field(description="The traffic.")
    slo: str | SloSpec = Field(description="The promise: a name, a path, or inline.")
    space: str | SearchSpaceSpec = Field(description="What may be chosen: a name, a path, or inline.")
    objectives: list[Objective] = Field(
        default=["ttft_p99", "goodput", "usd_per_hour"],
        min_length=2,
        max_length=4,
        description="Axes of the Pareto front; goodput, capacity and agents_per_accelerator are maximised, all else "
        "minimised. capacity, the largest factor on the arrival rate at which the SLO holds, takes about seven "
        "simulations a deployment; so do agents_per_accelerator and usd_per_agent_hour, of the largest society of the "
        "workload's kind that meets the SLO, in which capacity is a factor on the number of agents.",
    )
    limits: dict[Objective, LimitSpec] = Field(
        default_factory=dict,
        description="Bounds on figures of a deployment that are no promise to its users, in the objectives' own units "
        "(seconds, dollars, watts, joules): {usd_per_hour: {at_most: 40}, mean_w: {at_most: 6000}}.",
    )
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
        check_limits(self.limits)
        if self.confidence.at_least is not None and not self.confidence.draws:
            raise KeyedError(("confidence", "draws"), "at_least needs draws; expected at least 1")
        return self

    @property
    def limits_by_name(self) -> dict[str, LimitSpec]:
        """The limits, their names as plain strings."""
        return dict(self.limits.items())
