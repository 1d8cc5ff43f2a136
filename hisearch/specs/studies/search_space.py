"""Kind ``SearchSpace``: what the three stages may choose from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from hisearch.base.policies import ROUTERS
from hisearch.specs.base import Count, DType, EngineName, Fraction, NonNegative, NonNegativeInt, Positive, Strict
from hisearch.specs.deployments.agent_memory import (
    AGENT_ENGINES,
    AdaptersSpec,
    AgentObjectSpec,
    AgentPolicyName,
    DistanceSourceName,
    HostName,
)
from hisearch.specs.deployments.deployment import EvictionName
from hisearch.specs.deployments.engine import SCHEDULES, CapacityPolicyName, ScheduleName
from hisearch.specs.deployments.engine_settings import SWA_FULL_TOKENS_RATIO, has_order
from hisearch.specs.deployments.routing import AdmissionSpec, RouterName, RouterSpec
from hisearch.specs.deployments.speculation import METHODS, SpeculationSpec, drafts_of_engine
from hisearch.specs.deployments.tiers import (
    HierarchyName,
    KvConnectorName,
    PrefetchName,
    TierEvictionName,
    WritePolicyName,
)
from hisearch.specs.errors import KeyedError
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.machines.hardware import HostSpec, ScopeName
from hisearch.specs.machines.parallelism import Parallelism
from hisearch.specs.models.experts import ExpertsSpec
from hisearch.specs.policies import check_lists, effective, lists_model
from hisearch.specs.studies.pool_space import PoolsSpace


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
    expert_parallel: list[Count] = Field([1], min_length=1, description="Sets of a stage's ranks with other experts.")
    decode_context_parallel: list[Count] = Field([1], min_length=1, description="Ranks that share each sequence's KV.")
    prefill_context_parallel: list[Count] = Field([1], min_length=1, description="Sets of ranks that share prompts.")
    weight_dtypes: list[DType] = Field(
        default_factory=list, description="Formats of the weights; empty: the model's own alone."
    )
    kv_dtypes: list[DType] = Field(default=["bf16"], min_length=1, description="Formats of the KV cache.")
    chunk_tokens: list[Count] = Field(default=[2048, 8192], min_length=1, description="Token budgets of a step.")
    max_running_requests: list[Count] = Field(default=[64, 256], min_length=1, description="Batch limits of a worker.")
    capacity_policies: list[CapacityPolicyName] = Field(
        default=["guaranteed_no_evict"], min_length=1, description="TensorRT-LLM: as an Engine's capacity_policy."
    )
    schedules: list[ScheduleName] = Field(
        default=["fcfs"],
        min_length=1,
        description="As an Engine's schedule, each under the engines that have it: where requests of a trace have "
        "priorities, priority lets urgent ones ahead. edf takes its deadlines from the SLO's TTFT terms.",
    )
    swa_full_tokens_ratios: list[Fraction] = Field(
        default=[SWA_FULL_TOKENS_RATIO],
        min_length=1,
        description="SGLang, for models whose windows it keeps apart: as an Engine's swa_full_tokens_ratio.",
    )
    speculation: list[SpeculationSpec | None] = Field(
        default=[None],
        min_length=1,
        description="As an Engine's speculation, tried under the engines that have it; null for none.",
    )
    experts: list[ExpertsSpec] = Field(
        default=[ExpertsSpec()], min_length=1, description="As an Engine's experts: load, exchange of tokens, copies."
    )
    versions: dict[EngineName, str] = Field(
        default_factory=dict,
        description="Release of an engine that runs, as its version; the newest known where absent.",
    )
    api_servers: Count | None = Field(None, description="As an Engine's: processes in front of a worker.")
    sglang_page_tokens: Count | None = Field(
        None,
        description="Tokens per KV page under SGLang; where absent 64 for models with sparse attention, else 1. Tiers "
        "move whole pages, of 64 tokens as a rule.",
    )
    devices: list[DevicesSpec | None] = Field(
        default=[None],
        min_length=1,
        description="As a Pool's: device mixes, operator maps, ratios, places of experts and weights; null for none.",
    )
    max_replicas: Count = Field(32, description="Most workers of a deployment.")
    max_accelerators: Count = Field(64, description="Most accelerators of a deployment.")

    @property
    def splits(self) -> list[Parallelism]:
        """Every combination of the degrees, in the order of the lists."""
        degrees = (self.tensor_parallel, self.attention_data_parallel, self.expert_parallel, self.pipeline_parallel)
        splits = itertools.product(*degrees, self.decode_context_parallel, self.prefill_context_parallel)
        return [Parallelism(tp, dp, ep, pp, decode_context=d, prefill_context=p) for tp, dp, ep, pp, d, p in splits]

    def speculations(self, engine: EngineName) -> list[SpeculationSpec | None]:
        """What drafts an engine's tokens, of what is simulated under it; ``[None]`` where nothing is."""
        version = self.versions.get(engine, "")
        return [drafts for drafts in self.speculation if drafts_of_engine(engine, version, drafts)] or [None]

    def schedules_of(self, engine: EngineName) -> list[str]:
        """Orders of the waiting queue that an engine's release has; fcfs where it has none of the space's."""
        version, known = self.versions.get(engine, ""), SCHEDULES[engine]
        orders = (name for name in dict.fromkeys(self.schedules) if name in known)
        return [name for name in orders if has_order(engine, version, name)] or ["fcfs"]

    def engine_settings(self, engine: EngineName, has_window_pool: bool) -> list[dict[str, Any]]:
        """Every combination of an engine's batch limits and policies, with what is fixed: keys of an ``EngineSpec``.

        ``has_window_pool``: whether the engine keeps the model's windows in a pool of their own.
        """
        lists: dict[str, list[Any]] = {
            "chunk_tokens": self.chunk_tokens,
            "max_running_requests": self.max_running_requests,
        }
        if engine == "trtllm":
            lists["capacity_policy"] = list(self.capacity_policies)
        lists["schedule"] = self.schedules_of(engine)
        if self.experts != [ExpertsSpec()]:
            lists["experts"] = list(self.experts)
        if has_window_pool:
            lists["swa_full_tokens_ratio"] = self.swa_full_tokens_ratios
        fixed = {"name": engine, "version": self.versions.get(engine, ""), "api_servers": self.api_servers}
        return [fixed | dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]

    @model_validator(mode="after")
    def _check(self) -> ExecutionSpace:
        for index, drafts in enumerate(self.speculation):
            if drafts is not None and not any(drafts.method in METHODS[engine] for engine in self.engines):
                raise KeyedError(("speculation", index, "method"), f"no engine of the space has {drafts.method}")
        return self


class _RouterPolicies(Strict):
    policies: list[RouterName] = Field(
        default=["round_robin", "power_of_two", "cache_aware"], min_length=1, description="As a Router's policy."
    )


if TYPE_CHECKING:

    class _RouterLists(_RouterPolicies):
        def __getattr__(self, name: str) -> Any: ...

else:
    _RouterLists = lists_model("_RouterLists", ROUTERS, _RouterPolicies, like="a Router")


class RoutingSpace(_RouterLists):
    """Stage 2: router policies and their parameters."""

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
        declared = ROUTERS[policy].parameters
        names = [parameter.name for parameter in declared]
        lists = [getattr(self, parameter.search_key or parameter.name) for parameter in declared]
        routers: dict[str, RouterSpec] = {}
        for combination in itertools.product(*lists):
            values = effective(ROUTERS[policy], dict(zip(names, combination, strict=True)))
            routers.setdefault(repr(values), RouterSpec.model_validate({"policy": policy} | values))
        return list(routers.values())


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
    """Choices of one tier. What an engine's KV connector does not have is left out for it."""

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

    renamed: ClassVar[dict[str, str]] = {"movers": "kv_connectors"}

    kv_connectors: list[KvConnectorName] = Field(
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
    host: HostName = Field("separate", description="As Agents's host, of workers with tiers.")
    host_gib: list[Positive | None] = Field(
        default=[None],
        min_length=1,
        description="As Agents's host_gib, of workers with two tiers; null: as many as it takes.",
    )
    adapters: AdaptersSpec | None = Field(None, description="As Agents's adapters.")
    objects: list[AgentObjectSpec] = Field(default_factory=list, description="As Agents's objects.")

    @model_validator(mode="after")
    def _check(self) -> AgentMemorySpace:
        if "by_slot" in self.policies and (self.adapters is None or self.objects or None in self.slots):
            raise ValueError("policies: by_slot is about adapters alone, in slots")
        if self.host != "tier" and any(self.host_gib):
            raise ValueError("host_gib: objects lie outside the tiers; set host: tier")
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
        description="Nearest first; by default {media: [ddr5], gib: [0, 128, 256, 512]}, the medium being the hosts' "
        "main memory. Empty: no tiers.",
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

    def in_memory_of(self, hosts: Iterable[HostSpec]) -> CacheSpace:
        """With tiers in the main memory that the hosts have, where the space states no tiers."""
        media = list(dict.fromkeys(host.dram for host in hosts))
        if "tiers" in self.model_fields_set or not media:
            return self
        tiers = [tier.model_copy(update={"media": media}) for tier in self.tiers]
        return CacheSpace.model_construct(_fields_set=self.model_fields_set, **(dict(self) | {"tiers": tiers}))


class SearchSpaceSpec(Strict):
    """What the three stages may choose from."""

    execution: ExecutionSpace = Field(description="Stage 1.")
    routing: RoutingSpace = Field(RoutingSpace(), description="Stage 2.")
    cache: CacheSpace = Field(CacheSpace(), description="Stage 3.")
    pools: PoolsSpace = Field(
        PoolsSpace(), description="One pool of equal workers, disaggregated prefill and decode, unequal workers."
    )
    profile: str = Field(
        "auto",
        description="Name or path of the LatencyProfile that prices steps; auto takes that of accelerator and engine.",
    )
    exportable: bool = Field(
        False,
        description="Try only what `hisearch export` can write: policies of routers and settings of engines that no "
        "command line has are left out. What Dynamo or llm-d alone lack is not known here: their READMEs say it.",
    )

    @model_validator(mode="after")
    def _check(self) -> SearchSpaceSpec:
        self._check_agents()
        for shape in ("disaggregated", "mixed"):
            if self.cache.agents is not None and getattr(self.pools, shape) is not None:
                raise KeyedError(("pools", shape), "agents' objects are simulated in deployments of one pool")
        mixed, disaggregated = self.pools.mixed, self.pools.disaggregated
        policies = dict.fromkeys(self.routing.policies)
        policies |= dict.fromkeys(mixed.policies if mixed is not None else ())
        policies |= dict.fromkeys(disaggregated.decode_policies if disaggregated is not None else ())
        check_lists(self.routing, ROUTERS, list(policies), "routing")
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
