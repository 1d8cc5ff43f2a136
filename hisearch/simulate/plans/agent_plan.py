"""What a worker's agents need beside KV, compiled: pages, seconds, policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["lru", "by_slot", "queued", "duration", "steps", "distance"]
SourceName = Literal["trace", "past", "oracle"]


@dataclass(frozen=True)
class KindPlan:
    """A kind of object.

    Attributes:
        name: for the reader.
        per: "adapter": one for each adapter of the trace; "agent": one for each agent; "all": one that all share.
        pages: of the KV pool, or as large, that one takes in HBM.
        load_s: time that it takes from host memory over the worker's link, alone.
        bytes_per_rank: its size.
        read_s: time that it takes from the disk, alone; 0: it is on none.
    """

    name: str
    per: str
    pages: int
    load_s: float
    bytes_per_rank: float
    read_s: float = 0.0


@dataclass(frozen=True)
class AgentPlan:
    """How a worker treats agents.

    Attributes:
        policy, source: names of ``specs.deployments.agent_memory``.
        kinds: of objects.
        pool_pages: of a pool of their own; 0: they share the KV pool.
        ahead_s, ahead_steps: how soon an agent must be due to be loaded for.
        budget_pages: most that has been loaded ahead and not been used, of objects.
        kv_share: likewise of KV from host memory, as a share of the KV pool; 0: none is loaded ahead.
        preempt: whether a load for a call interrupts one ahead of its call.
        tested: whether distances count only while they tell the order better than last use.
        noise, bias: error of distances.
        link_latency_s, link_bytes_per_s: of each rank's link to host memory, over which they come; 0: unknown.
        in_tier: whether objects lie in the first tier's memory, of which KV has what they leave; else beside it.
        host_pages: of that memory, most that they take, the second tier having them all where they do not fit; 0: as
            many as it takes.
        disk_latency_s, disk_bytes_per_s: of reading from the second tier.
    """

    policy: PolicyName
    source: SourceName = "trace"
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
