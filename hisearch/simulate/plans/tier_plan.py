"""The tiers below a worker's HBM, compiled: sizes in tokens, laws of transfers in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TransferLaw:
    """``seconds = base_s + tokens * s_per_token``, of one transfer in one direction."""

    base_s: float = 0.0
    s_per_token: float = 0.0


@dataclass(frozen=True)
class TierPlan:
    """One tier.

    Attributes:
        medium: name of its medium. kind: of the medium, ``MediumSpec.kind``.
        scope: "worker", "node" or "cluster": who shares a store of it.
        capacity_tokens: of one store, whole pages.
        page_tokens: unit of storage and transfer.
        eviction: policy.
        ttl_s: time to live after the last use; infinite if nothing expires.
        reclaim: "lazy", "periodic" or "pressure": when expired pages are dropped.
        reclaim_period_s: of "periodic".
        parameters: (name, value) of every parameter of an eviction policy; empty: their defaults.
        read, write: the medium itself, shared by all in its scope.
        query_s: time of a query to a store.
        networked: whether a store of scope "cluster" lies behind the nodes' networks; else it has its own fabric (CXL).
        bytes_per_token: over all storing ranks.
        energy_j_per_token: of moving it in or out.
        usd_per_hour_per_store: price.
    """

    medium: str
    scope: str
    capacity_tokens: int
    page_tokens: int
    eviction: str = "lru"
    ttl_s: float = math.inf
    reclaim: str = "lazy"
    reclaim_period_s: float = 60.0
    parameters: tuple[tuple[str, float], ...] = ()
    read: TransferLaw = TransferLaw()
    write: TransferLaw = TransferLaw()
    query_s: float = 0.0
    networked: bool = True
    bytes_per_token: float = 0.0
    energy_j_per_token: float = 0.0
    usd_per_hour_per_store: float = 0.0
    kind: str = "dram"


@dataclass(frozen=True)
class SharedLink:
    """What the ranks of neighbouring slots share on their way to host memory.

    slots: that share one of it. law: of a token's KV of one scheduler of the worker, in either direction. ports: KV
    between workers passes it too.
    """

    slots: int
    law: TransferLaw
    ports: bool = False


@dataclass(frozen=True)
class MovementPlan:
    """How KV moves between the tiers; the fields of ``specs.deployments.tiers.MovementSpec``, and the worker's links.

    parameters: of the write and the prefetch policy, by name; defaults are absent.
    host_read, host_write: between HBM and host memory, all ranks of the worker at once. network_read, network_write:
    the node's network, if a tier lies behind it. shared: what they share with others beyond host_read and host_write.
    layers: of the model, which a load-back loads one by one.
    writes_back_output: of a decode worker, whose single tier passes its output on to the storage of the prefill
    workers (see ``kernels.vllm.output_write_back``).
    own_processes: a worker of vLLM runs in processes of its own: LMCache's loads and saves do not hold the scheduler.
    jumps: an idle scheduler does not pass again before the next event. The engine does; some recordings of it do not.
    """

    kv_connector: str
    write_policy: str = "write_through"
    load_back_tokens: int = 10
    prefetch: str = "best_effort"
    prefetch_threshold_tokens: int = 256
    store_threshold: int = 0
    chunk_tokens: int = 256
    save_decode: bool = False
    hierarchy: str = "inclusive"
    parameters: tuple[tuple[str, Any], ...] = ()
    host_read: TransferLaw = TransferLaw()
    host_write: TransferLaw = TransferLaw()
    network_read: TransferLaw | None = None
    network_write: TransferLaw | None = None
    shared: tuple[SharedLink, ...] = ()
    layers: int = 1
    writes_back_output: bool = False
    own_processes: bool = False
    jumps: bool = False
