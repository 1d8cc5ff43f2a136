"""From a worker's tiers to the kernels' arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hisearch.kernels import hicache_layout as hl
from hisearch.kernels import layout as la
from hisearch.simulate import chunk_arrays
from hisearch.simulate.plan import WorkerPlan
from hisearch.simulate.tier_plan import MovementPlan, TierPlan, TransferLaw

_WRITE_HITS = {"write_back": 0, "write_through": 1, "write_through_selective": 2}
_FETCH_POLICIES = {"best_effort": hl.BEST_EFFORT, "wait_complete": hl.WAIT_COMPLETE, "timeout": hl.TIMEOUT}
_RECLAIMS = {"lazy": hl.LAZY, "periodic": hl.PERIODIC, "pressure": hl.PRESSURE}
EVICTIONS = {
    "lru": la.LRU, "lfu": la.LFU, "fifo": la.FIFO, "mru": la.MRU, "filo": la.FILO, "slru": la.SLRU,
    "priority": la.BY_PRIORITY, "clock": la.CLOCK, "tlru": la.TLRU, "gdsf": la.GDSF,
}  # fmt: skip

#: Share of what the host pool has beyond HBM that a worker's fetches may occupy together (HiCache).
_FETCH_SHARE = 0.8


def workers_sharing(tier: TierPlan, plan: WorkerPlan, workers: int) -> int:
    """Workers to a store of ``tier``."""
    return plan.workers_sharing(tier, workers)


def store_count(plan: WorkerPlan, workers: int) -> int:
    """Stores of the storage tier."""
    storage = storage_of(plan)
    return 0 if storage is None else math.ceil(workers / workers_sharing(storage, plan, workers))


def storage_of(plan: WorkerPlan) -> TierPlan | None:
    """HiCache's storage tier, where there is one."""
    hicache = plan.movement is not None and plan.movement.mover == "hicache"
    return plan.tiers[1] if hicache and len(plan.tiers) > 1 else None


def tier_record(plan: WorkerPlan, workers: int) -> Any:
    """The settings of the tiers, shape (1,)."""
    record = np.zeros(1, hl.TIERS).view(np.recarray)
    movement = plan.movement
    if movement is None:
        return record
    record["write_hits"] = _WRITE_HITS[movement.write_policy]
    record["load_back_tokens"] = movement.load_back_tokens
    record["workers_per_node"] = plan.workers_per_node
    record["ttl_s"] = math.inf
    storage = storage_of(plan)
    if storage is None:
        return record
    host_tokens = plan.tiers[0].capacity_tokens
    record["storage"] = 1
    record["workers_per_store"] = workers_sharing(storage, plan, workers)
    record["fetch_policy"] = _FETCH_POLICIES[movement.prefetch]
    record["fetch_threshold"] = movement.prefetch_threshold_tokens
    record["fetch_limit_tokens"] = int(_FETCH_SHARE * (host_tokens - plan.kv_capacity_tokens))
    record["network"] = _networked(storage, movement)
    record["query_s"] = storage.query_s
    record["timeout_base_s"] = movement.prefetch_timeout_base_s
    record["timeout_s_per_ki_token"] = movement.prefetch_timeout_s_per_ki_token
    record["ttl_s"] = storage.ttl_s
    record["reclaim"] = _RECLAIMS[storage.reclaim]
    record["reclaim_period_s"] = storage.reclaim_period_s
    record["store_pages"] = storage.capacity_tokens // storage.page_tokens
    record["store_eviction"] = EVICTIONS[storage.eviction]
    record["tail_tokens"] = storage.tail_tokens
    record["turn_tokens"] = storage.turn_tokens
    return record


def _networked(storage: TierPlan, movement: MovementPlan) -> bool:
    return storage.scope == "cluster" and storage.networked and movement.network_read is not None


def _both(a: TransferLaw, b: TransferLaw) -> TransferLaw:
    """A transfer through one behind the other: latencies add up, the slower one sets the pace."""
    return TransferLaw(a.base_s + b.base_s, max(a.s_per_token, b.s_per_token))


def link_array(plan: WorkerPlan, workers: int) -> Any:
    """All links, in the order of ``layout.Sim``."""
    movement = plan.movement
    if movement is None:
        return np.zeros(1, hl.LINK).view(np.recarray)
    host = plan.tiers[0]
    laws = [_both(movement.host_write, host.write), _both(movement.host_read, host.read)] * workers
    if movement.mover == "lmcache":
        if chunk_arrays.has_links(0, host):
            laws = [movement.host_write, movement.host_read] * workers
        laws += chunk_arrays.link_laws(plan, workers)
    storage = storage_of(plan)
    if storage is not None:
        laws += [storage.write, storage.read] * store_count(plan, workers)
        if _networked(storage, movement):
            assert movement.network_read is not None
            assert movement.network_write is not None
            laws += [movement.network_write, movement.network_read] * math.ceil(workers / plan.workers_per_node)
    links = np.zeros(len(laws), hl.LINK).view(np.recarray)
    links["base_s"] = [law.base_s for law in laws]
    links["s_per_token"] = [law.s_per_token for law in laws]
    return links
