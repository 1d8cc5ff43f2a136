"""Objects of agents in device memory other than KV, and their policy: section ``agents`` of a pool."""

from __future__ import annotations

import warnings
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from hisearch.specs.base import Count, DType, NonNegative, Positive, Strict
from hisearch.specs.errors import KeyedError, RenamedKeyWarning

AgentPolicyName = Literal["lru", "by_slot", "queued", "duration", "steps", "distance"]
DistanceSourceName = Literal["trace", "past", "last", "ewma", "survival", "oracle"]
#: Policies under which the engine's own eviction decides on KV.
OWN_KV_EVICTION: tuple[AgentPolicyName, ...] = ("lru", "by_slot")
#: Policies that a release of the engine has: SGLang's overlapped loading is a flag, by_slot was replaced by lru.
ENGINE_POLICIES: dict[str, tuple[AgentPolicyName, ...]] = {"sglang": ("lru", "queued"), "vllm": ("lru",)}
#: Engines for which agents' objects are simulated.
AGENT_ENGINES = ("sglang", "vllm")
TargetName = Literal["q", "k", "v", "o", "gate", "up", "down"]
ObjectScopeName = Literal["agent", "memory", "all"]


def _current_host(value: object) -> object:
    """A former name is read as before, with a note."""
    if value != "beside":
        return value
    text = "agents: host: beside is called 'separate' now; the former name will stop working in 2.0"
    warnings.warn(text, RenamedKeyWarning, stacklevel=2)
    return "separate"


HostName = Annotated[Literal["separate", "tier"], BeforeValidator(_current_host)]


class AdaptersSpec(Strict):
    """LoRA adapters: which agent has which is the workload's to say."""

    rank: Count = Field(16, description="Rank of the two factors, or the largest where the workload gives ranks.")
    targets: list[TargetName] = Field(
        default_factory=lambda: list(get_args(TargetName)),
        min_length=1,
        description="Matrices that they change; gate, up and down are those of dense feed-forward layers.",
    )
    dtype: DType = Field("bf16", description="Format.")


class AgentObjectSpec(Strict):
    """Another kind of object that calls need: a draft model, a retrieval index, a memory of embeddings."""

    name: str = Field(description="For the reader.")
    mib: Positive = Field(
        description="Size of one, or of the largest where the workload gives sizes, over all accelerators of a worker."
    )
    per: ObjectScopeName = Field(
        "agent",
        description="agent: each has one of its own; memory: each has the memory that the workload names, which "
        "several may share; all: one for all.",
    )


class AgentMemorySpec(Strict):
    """Objects that an agent's calls need in device memory; host memory or a disk has them, and they are never computed.

    Policies. lru: evicts the least recently used; a step loads what it misses before it computes (SGLang without
    --enable-lora-overlap-loading). by_slot: likewise, but evicts the first slot whose adapter the step's batch does not
    need, even if a running call then loads it again (SGLang before it had --lora-eviction-policy). queued: loads what
    waiting requests miss while others run (S-LoRA; SGLang with --enable-lora-overlap-loading). duration: likewise, and
    first evicts objects of agents that stay away so long that keeping them costs more memory x time than loading (after
    InferCept). steps: evicts those farthest away in whole steps, and loads those of the next step ahead (after KVFlow).
    distance: evicts the farthest, and loads ahead for predicted calls that are near; such loads give way to waiting
    calls.
    """

    policy: AgentPolicyName = Field(
        "lru",
        description="What is loaded when, and what goes; under SGLang KV pages alike but for lru and by_slot, vLLM "
        "evicts KV by last use.",
    )
    distance: DistanceSourceName = Field(
        "trace",
        description="duration, steps, distance: who says when an agent will call. trace: its hints, which are exact "
        "for the kind independent (an agent knows how long it will act) and for diffusion over a graph that loses "
        "nothing; past, last, ewma: the mean of the agent's own gaps between calls, the last one, their moving "
        "average; survival: the gaps of all agents that were longer than this one has been away; oracle: the trace "
        "itself, which no engine knows.",
    )
    adapters: AdaptersSpec | None = Field(None, description="LoRA adapters; none by default.")
    objects: list[AgentObjectSpec] = Field(default_factory=list, description="Other kinds.")
    slots: Count | None = Field(
        None,
        description="Room for so many objects of each kind that agents have of their own, in a pool taken off the KV "
        "pool; of adapters each of the rank above, whatever the workload says (SGLang max_loras_per_batch and "
        "max_lora_rank, vLLM max_loras and max_lora_rank). Absent, under SGLang: objects and KV share one pool.",
    )
    host: HostName = Field(
        "separate",
        description="Where objects lie in host memory, all from the beginning. separate: in memory of their own, "
        "as large as it takes, which no tier pays for; tier: in that of the first tier, of which KV has what they "
        "leave. SGLang keeps every adapter that it was given, in addition to its host pool: give the tier the size of "
        "both.",
    )
    host_gib: Positive | None = Field(
        None,
        description="host: tier, with a second tier that is a worker's or a node's own: GiB of the first that objects "
        "take at most, no fewer than slots do. Where they do not all fit, the second tier has all of them, of whose "
        "space KV has what they leave: what the first lacks is read into it one at a time, ahead of calls as loads "
        "are, and goes as objects go from device memory (SGLang's --max-loaded-loras). Absent: as many as it takes.",
    )
    ahead_s: NonNegative = Field(
        10.0, description="distance: objects of calls predicted within so many seconds are loaded ahead …"
    )
    ahead_frames: NonNegative = Field(1.0, description="… or within so many frames of the world, where there are any.")
    ahead_budget: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="steps, distance: share of the pool that what was loaded ahead and not used may take."
    )
    ahead_kv: bool = Field(
        True,
        description="steps, distance: KV that host memory alone has is loaded ahead too, up to the same share of the "
        "KV pool; without tiers there is none.",
    )
    preempt: bool = Field(True, description="distance: a load for a call interrupts one ahead of its call.")
    trust: Literal["tested", "always"] = Field(
        "tested",
        description="distance: tested: distances count only while they tell the order of calls better than last use "
        "does, and of objects that are loaded ahead one at a time waits for its call while fewer than half of the "
        "recent ones were used; always: whatever they are worth.",
    )
    noise: NonNegative = Field(0.0, description="Error of distances: standard deviation of their logarithm …")
    bias: Positive = Field(1.0, description="… and a factor on all of them.")

    @model_validator(mode="after")
    def _check(self) -> AgentMemorySpec:
        if self.adapters is None and not self.objects and self.slots is not None:
            raise ValueError("slots: there are no objects; give adapters or objects")
        if self.policy in ("lru", "by_slot", "queued") and (self.noise or self.bias != 1.0):
            raise ValueError(f"noise and bias: policy {self.policy} knows no distances")
        if self.host_gib is not None and self.host != "tier":
            raise ValueError("host_gib: objects lie outside the tiers; set host: tier")
        if self.policy == "by_slot" and (self.objects or self.adapters is None or self.slots is None):
            raise ValueError("policy by_slot is about adapters alone, in slots")
        return self


def check_agents(agents: AgentMemorySpec | None, *, engine: str, caching: bool, eviction: str, tiers: int) -> None:
    """Refuse what is not simulated together.

    Raises:
        KeyedError: with a key below the pool.
    """
    if agents is None:
        return
    if engine not in AGENT_ENGINES:
        known = " and ".join(AGENT_ENGINES)
        raise KeyedError(("agents",), f"agents' objects are simulated for the engines {known}, not {engine}")
    if engine == "vllm" and tiers:
        raise KeyedError(("agents",), "with KV tiers agents' objects are simulated for the engine sglang alone")
    if engine == "vllm" and agents.slots is None and (agents.adapters is not None or agents.objects):
        raise KeyedError(("agents", "slots"), "vLLM keeps adapters in a pool of their own; give slots")
    if not caching:
        raise KeyedError(("agents",), "needs engine.prefix_caching")
    if agents.policy == "by_slot" and engine != "sglang":
        raise KeyedError(("agents", "policy"), f"by_slot is SGLang's; {engine} evicts adapters by last use")
    if agents.policy not in OWN_KV_EVICTION and eviction != "lru":
        raise KeyedError(("agents", "policy"), f"{agents.policy} says what is evicted; leave engine.eviction at lru")
    if agents.host == "tier" and not tiers:
        raise KeyedError(("agents", "host"), "tier: the pool has no tier whose memory objects could share")
    if agents.host == "tier" and agents.adapters is None and not agents.objects:
        raise KeyedError(("agents", "host"), "tier: there are no objects; give adapters or objects")
    if agents.host_gib is not None and tiers < 2:
        raise KeyedError(("agents", "host_gib"), "the pool has no second tier for what the first does not hold")
    if tiers and agents.slots is None and (agents.adapters is not None or agents.objects):
        raise KeyedError(("agents", "slots"), "with KV tiers objects need a pool of their own; give slots")
