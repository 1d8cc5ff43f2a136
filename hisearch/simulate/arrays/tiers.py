"""From a worker's tiers to the kernels' arrays."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hisearch.base.policies import EVICTIONS, PREFETCHES, WRITE_POLICIES
from hisearch.kernels.cache import foresight
from hisearch.kernels.cache.store_queues import SHADOWS
from hisearch.kernels.layout import hicache as hl
from hisearch.simulate.arrays import chunks as chunk_arrays
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.specs.machines.parallelism import scheduler_ranks
from hisearch.traces.compiled import TraceArrays

_RECLAIMS = {"lazy": hl.LAZY, "periodic": hl.PERIODIC, "pressure": hl.PRESSURE}

#: Share of what the host pool has beyond HBM that a worker's fetches may occupy together (HiCache).
_FETCH_SHARE = 0.8


def storage_of(plan: WorkerPlan) -> tuple[TierPlan, ...]:
    """HiCache's storage tiers, nearest first."""
    hicache = plan.movement is not None and plan.movement.kv_connector == "hicache"
    return plan.tiers[1:] if hicache else ()


def fetches_by_hits(plan: WorkerPlan) -> bool:
    """Whether host memory is taken for what storage has, not for what is looked for; with agents it is not restated."""
    return plan.agents is None and rules_in_force("sglang", plan.engine.version)["fetches_by_hits"]


def by_priority(plan: WorkerPlan) -> bool:
    """Whether a store evicts by the requests' priorities."""
    return any(EVICTIONS[tier.eviction].priorities for tier in storage_of(plan))


def arrays(plan: WorkerPlan, trace: TraceArrays, workers: int, node_limit: int) -> dict[str, Any]:
    """The arrays of ``layout.Sim`` that say what the tiers of HiCache are, and the links of all KV connectors.

    ``node_limit``: runs that stores may hold, each of which may move.
    """
    storage = storage_of(plan)
    links = link_array(plan, workers)
    return {
        "tiers": tier_record(plan),
        "store_tiers": _store_tier_records(plan, workers),
        "moves": np.zeros(node_limit if len(storage) > 1 else 1, hl.MOVE).view(np.recarray),
        # For each request, and for each worker's fetch ahead of a call: one, and those that servers still have.
        "fetches": np.zeros(10 * (len(trace.arrival_s) + workers) if storage else 1, hl.FETCH).view(np.recarray),
        "lookups": np.zeros(len(trace.arrival_s) if storage else 1, hl.LOOKUP).view(np.recarray),
        "links": links,
        **_shared(plan, len(links), workers),
        **_user_arrays(plan, trace),
    }


def store_trees(plan: WorkerPlan, workers: int) -> int:
    """Trees of all stores, and those that they have beside their own."""
    adaptive = sum(_stores(tier, plan, workers) for tier in storage_of(plan) if EVICTIONS[tier.eviction].queues)
    return _store_count(plan, workers) + SHADOWS * adaptive


def store_pages(plan: WorkerPlan) -> list[int]:
    """Pages of a store of each storage tier, nearest first."""
    return [tier.capacity_tokens // tier.page_tokens for tier in storage_of(plan)]


def _store_count(plan: WorkerPlan, workers: int) -> int:
    """Stores of all storage tiers."""
    return sum(_stores(tier, plan, workers) for tier in storage_of(plan))


def _stores(tier: TierPlan, plan: WorkerPlan, workers: int) -> int:
    return math.ceil(workers / plan.schedulers_sharing(tier, workers))


def tier_record(plan: WorkerPlan) -> Any:
    """What holds for all tiers, shape (1,)."""
    record = np.zeros(1, hl.TIERS).view(np.recarray)
    movement = plan.movement
    if movement is None:
        return record
    record["write_policy"] = WRITE_POLICIES.code(movement.write_policy)
    record["prefetch"] = PREFETCHES.code(movement.prefetch)
    for registry in (WRITE_POLICIES, PREFETCHES):
        for name, value in registry.given_values(movement.parameters).items():
            record[name] = value
    record["load_back_tokens"] = movement.load_back_tokens
    record["jumps"] = movement.jumps
    record["workers_per_node"] = plan.schedulers_per_node
    storage = storage_of(plan)
    if not storage:
        return record
    host_tokens = plan.tiers[0].capacity_tokens
    record["storage"] = len(storage)
    record["exclusive"] = len(storage) > 1 and movement.hierarchy == "exclusive"
    record["fetch_threshold"] = movement.prefetch_threshold_tokens
    share, pool = (0.5, host_tokens) if fetches_by_hits(plan) else (_FETCH_SHARE, host_tokens - plan.kv_capacity_tokens)
    record["fetch_limit_tokens"] = int(share * pool)
    record["priorities"] = by_priority(plan)
    record["query_s"] = max(tier.query_s for tier in storage)
    return record


def _store_tier_records(plan: WorkerPlan, workers: int) -> Any:
    """The settings of each storage tier, shape (tiers,); the trees and links are in the order of ``layout.Sim``."""
    storage = storage_of(plan)
    records = np.zeros(len(storage), hl.STORE_TIER).view(np.recarray)
    tree = workers
    shadow = workers + _store_count(plan, workers)
    networks = 2 * (workers + _store_count(plan, workers))
    for record, tier, pages in zip(records, storage, store_pages(plan), strict=True):
        stores = _stores(tier, plan, workers)
        record["first"] = tree
        record["stores"] = stores
        record["workers_per_store"] = plan.schedulers_sharing(tier, workers)
        record["scope"] = chunk_arrays.SCOPES[tier.scope]
        record["first_shadow"] = shadow
        record["first_link"] = 2 * tree
        record["first_network"] = networks if _networked(tier, plan.movement) else -1
        record["pages"] = pages
        record["eviction"] = EVICTIONS.code(tier.eviction)
        for name, value in EVICTIONS.given_values(tier.parameters).items():
            record[name] = value
        record["reclaim"] = _RECLAIMS[tier.reclaim]
        record["reclaim_period_s"] = tier.reclaim_period_s
        record["ttl_s"] = tier.ttl_s
        tree += stores
        shadow += SHADOWS * stores if EVICTIONS[tier.eviction].queues else 0
    return records


def _user_arrays(plan: WorkerPlan, trace: TraceArrays) -> dict[str, Any]:
    """Requests by the trace-tree nodes that their prompts lead through, where a store asks (an oracle).

    Returns:
        ``users``: requests, those of one node in the trace's order; ``users_next``, ``users_end``: where each node's
        begin and end.
    """
    if not any(EVICTIONS[tier.eviction].next_use for tier in storage_of(plan)):
        return {"users": np.empty(0, np.int32), "users_next": np.empty(0, np.int64), "users_end": np.empty(0, np.int64)}
    counts = np.zeros(len(trace.parent), np.int64)
    foresight.count_users(trace.prompt_node, trace.parent, counts)
    ends = np.cumsum(counts)
    users = np.empty(int(ends[-1]), np.int32)
    foresight.list_users(trace.prompt_node, trace.parent, users, ends - counts)
    return {"users": users, "users_next": ends - counts, "users_end": ends}


def _networked(storage: TierPlan, movement: MovementPlan | None) -> bool:
    return (
        storage.scope == "cluster" and storage.networked and movement is not None and movement.network_read is not None
    )


def _both(a: TransferLaw, b: TransferLaw) -> TransferLaw:
    """A transfer through one behind the other: latencies add up, the slower one sets the pace."""
    return TransferLaw(a.base_s + b.base_s, max(a.s_per_token, b.s_per_token))


def shares_memory(plan: WorkerPlan) -> bool:
    """Whether attention groups share the bandwidth of their worker's host memory, which has links of its own then."""
    return plan.movement is not None and plan.schedulers > 1 and plan.tiers[0].scope == "worker"


class SharedLevel(NamedTuple):
    """Links of one kind that schedulers share on the way to host memory: their laws, and which one each takes (W,).

    path: as in ``LinkUse``. ports: KV between workers passes them too.
    """

    path: str
    into: TransferLaw
    out: TransferLaw
    index: Any
    ports: bool = False

    @property
    def links(self) -> int:
        """How many."""
        return int(self.index.max(initial=-1)) + 1


def shared_levels(plan: WorkerPlan, workers: int) -> list[SharedLevel]:
    """What ``workers`` schedulers share on the way to host memory, nearest first; without copies, to the network."""
    own, split = np.arange(workers), plan.split
    worker = own // plan.schedulers
    levels: list[SharedLevel] = []
    if shares_memory(plan):
        levels.append(SharedLevel("memory", plan.tiers[0].write, plan.tiers[0].read, worker))
    ranks = scheduler_ranks(split)
    for link in plan.ports if plan.movement is None else plan.movement.shared:
        node, place = worker // plan.workers_per_node, worker % plan.workers_per_node
        slot = place * split.ranks + (own % plan.schedulers) * ranks * (split.attention_data > 1)
        # A worker that fills a node has its resources alone; those of its ranks are alike.
        per_node = -(-(plan.workers_per_node * split.ranks) // link.slots)
        levels.append(SharedLevel("shared", link.law, link.law, node * per_node + slot // link.slots, link.ports))
    return levels


def _shared(plan: WorkerPlan, links: int, workers: int) -> dict[str, Any]:
    """Link into what scheduler w shares on each level, shape (W, levels); out is next. They lie behind all others.

    Returns:
        ``shared``: by its copies; ``ports``: by KV between workers.
    """
    shared, ports, first = [], [], links
    for level in reversed(shared_levels(plan, workers)):
        first -= 2 * level.links
        shared += [first + 2 * level.index] if plan.movement is not None else []
        ports += [first + 2 * level.index] if level.ports else []
    return {
        name: np.ascontiguousarray(np.array(rows[::-1], np.int32).reshape(len(rows), workers).T)
        for name, rows in (("shared", shared), ("ports", ports))
    }


def link_array(plan: WorkerPlan, workers: int) -> Any:
    """All links, in the order of ``layout.Sim``."""
    laws = _laws(plan, workers)
    for level in shared_levels(plan, workers):
        laws += [level.into, level.out] * level.links
    links = np.zeros(len(laws), hl.LINK).view(np.recarray)
    links["base_s"] = [law.base_s for law in laws]
    links["s_per_token"] = [law.s_per_token for law in laws]
    return links


def _laws(plan: WorkerPlan, workers: int) -> list[TransferLaw]:
    """Of all links but those that schedulers share."""
    movement = plan.movement
    if movement is None:
        # What agents' objects travel on; how long they take is their own.
        return [TransferLaw()] * (2 * workers)
    host = plan.tiers[0]
    laws = [_both(movement.host_write, host.write), _both(movement.host_read, host.read)] * workers
    if movement.kv_connector == "lmcache":
        if chunk_arrays.has_links(0, host):
            laws = [movement.host_write, movement.host_read] * workers
        laws += chunk_arrays.link_laws(plan, workers)
    storage = storage_of(plan)
    for tier in storage:
        laws += [tier.write, tier.read] * _stores(tier, plan, workers)
    if any(_networked(tier, movement) for tier in storage) or (plan.writes_back_output and movement.network_write):
        assert movement.network_read is not None
        assert movement.network_write is not None
        laws += [movement.network_write, movement.network_read] * math.ceil(workers / plan.schedulers_per_node)
    return laws
