"""Memory that a worker's agents need besides KV, compiled: pages, seconds, policy."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.specs.deployments.agent_memory import AgentPolicyName, DistanceSourceName


@dataclass(frozen=True)
class KindPlan:
    """A kind of object.

    Attributes:
        name: label.
        per: "adapter", "memory": one for each adapter or memory of the trace; "agent": one for each agent; "all": one
            shared by all.
        pages: that an object takes in HBM, of the KV pool's page size.
        load_s: unloaded time of a load from host memory over the worker's link.
        bytes_per_rank: its size.
        read_s: unloaded time of a read from the disk; 0: not on disk.
        rank: of an adapter as large as this; 0: no adapter, or of any rank.
        whole_bytes: its size where no rank holds a part; 0: unknown.
    """

    name: str
    per: str
    pages: int
    load_s: float
    bytes_per_rank: float
    read_s: float = 0.0
    rank: int = 0
    whole_bytes: float = 0.0


@dataclass(frozen=True)
class AgentPlan:
    """How a worker treats agents.

    Attributes:
        policy, source: names of ``specs.deployments.agent_memory``.
        kinds: of objects.
        pool_pages: of a separate pool for objects; 0: they share the KV pool.
        ahead_s, ahead_steps: how close an agent's predicted call must be to load ahead of it.
        budget_pages: limit on objects that are loaded ahead and not used yet.
        kv_share: the same limit on KV from host memory, as a share of the KV pool; 0: none is loaded ahead.
        preempt: whether a load for a call interrupts one ahead of its call.
        tested: whether distances count only while they predict the order better than last use.
        noise, bias: error of distances.
        link_latency_s, link_bytes_per_s: of each rank's link to host memory, which loads use; 0: unknown.
        in_tier: whether objects take memory of the first tier from KV; else they have separate memory.
        host_pages: limit on objects in that memory; if they exceed it, the second tier has them all. 0: no limit.
        disk_latency_s, disk_bytes_per_s: of reading from the second tier.
    """

    policy: AgentPolicyName
    source: DistanceSourceName = "trace"
    kinds: tuple[KindPlan, ...] = ()
    pool_pages: int = 0
    ahead_s: float = 10.0
    ahead_steps: float = 1.0
    budget_pages: int = 0
    kv_share: float = 0.0
    preempt: bool = True
    tested: bool = True
    noise: float = 0.0
    bias: float = 1.0
    link_latency_s: float = 0.0
    link_bytes_per_s: float = 0.0
    in_tier: bool = False
    host_pages: int = 0
    disk_latency_s: float = 0.0
    disk_bytes_per_s: float = 0.0
