"""What the tiers and the links between them did in a simulation, up to its end.

The end is the horizon where it was reached, else when the last request ended: what is under way then has taken room
and waits for its link, and counts as moved only as far as it has come.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.simulate import under_way
from hisearch.simulate.arrays import chunks as chunk_arrays
from hisearch.simulate.arrays import tiers as tier_arrays
from hisearch.simulate.arrays.offload import kv_connector_of
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.result import LinkUse, StoreUse


def end_of_run_s(sim: la.Sim, last_event_s: float, stopped: bool) -> float:
    """Until when the tiers were looked at.

    Args:
        sim: as the run left it.
        last_event_s: of a worker.
        stopped: before every request had ended: at the horizon, or because the run was lost.
    """
    horizon_s = float(sim.fleet.config.horizon_s)
    if stopped:
        return horizon_s if math.isfinite(horizon_s) else last_event_s
    # The last request to come may have been rejected, long after all others had ended.
    return max(last_event_s, float(np.nanmax(sim.fleet.arrival_s, initial=0.0)))


def store_uses(plan: WorkerPlan, sim: la.Sim, end_s: float) -> tuple[StoreUse, ...]:
    """All stores, HBM first, at ``end_s`` (see ``end_of_run_s``); what groups of a worker have each is one store."""
    found = _by_scheduler(plan, sim, end_s)
    if plan.schedulers == 1:
        return found
    merged: dict[tuple[int, int, int], StoreUse] = {}
    for use in found:
        first = use.first_worker // plan.schedulers
        mine = replace(use, first_worker=first, workers=-(-(use.first_worker + use.workers) // plan.schedulers) - first)
        key = (mine.tier, mine.first_worker, mine.workers)
        merged[key] = _together(merged[key], mine) if key in merged else mine
    return tuple(merged.values())


def _together(a: StoreUse, b: StoreUse) -> StoreUse:
    """The sum of two groups' stores."""
    return replace(a, **{name: getattr(a, name) + getattr(b, name) for name in _SUMMED})


#: What adds up over the stores of a worker's attention groups, in tokens.
_SUMMED = (
    "capacity_tokens", "peak_tokens", "stored_tokens", "read_tokens", "evicted_tokens", "expired_tokens",
    "demoted_tokens", "hit_tokens",
)  # fmt: skip


def _by_scheduler(plan: WorkerPlan, sim: la.Sim, end_s: float) -> tuple[StoreUse, ...]:
    """All stores, with lanes in place of workers."""
    workers, page = int(sim.config.workers), int(sim.config.page_tokens)
    rows = [_store(sim, 0, w, w, 1, int(sim.workers[w].peak_pages), page) for w in range(workers)]
    if kv_connector_of(plan) == "lmcache":
        return (*rows, *_chunk_stores(plan, sim, end_s))
    if kv_connector_of(plan):
        return (*rows, *_offload_stores(sim, end_s))
    if not sim.config.host_pages:
        return tuple(rows)
    rows += [_host_pool(sim, w, page, end_s) for w in range(workers)]
    for index, tier in enumerate(sim.store_tiers, 2):
        sharing = int(tier.workers_per_store)
        # Workers that are back use the stores of the dead ones' nodes, but for those that were a worker's own.
        there = workers if tier.scope == hl.OF_WORKER else int(sim.hosts["place"].max()) + 1
        for k in range(math.ceil(there / sharing)):
            v = int(tier.first) + k
            mine = min(sharing, there - k * sharing)
            rows.append(_store(sim, index, v, k * sharing, mine, int(sim.trees[v].peak_pages), page))
    return tuple(rows)


def _store(
    sim: la.Sim,
    tier: int,
    v: int,
    first_worker: int,
    workers: int,
    peak_pages: int,
    page: int,
    late: tuple[int, int] = (0, 0),
) -> StoreUse:
    """Tree ``v`` as a store; ``late``: tokens too many that it counts as written, and as read."""
    tree = sim.trees[v]
    return StoreUse(
        tier,
        first_worker,
        workers,
        int(tree.capacity_pages) * page,
        peak_pages * page,
        int(tree.stored_tokens) - late[0],
        int(tree.read_tokens) - late[1],
        int(tree.evicted_tokens),
        int(tree.expired_tokens),
        int(tree.demoted_tokens),
    )


def _host_pool(sim: la.Sim, w: int, page: int, end_s: float) -> StoreUse:
    """Worker ``w``'s host memory under HiCache or TensorRT-LLM, or that of a decode worker of SGLang."""
    v = len(sim.trees) - int(sim.config.workers) + w
    coming, going = under_way.copies(sim, w, end_s)
    if sim.config.hicache:
        coming -= int(sim.hosts[w].fetched_tokens)
    return _store(sim, 1, v, w, 1, int(sim.trees[v].peak_pages), page, (coming, going))


def _offload_stores(sim: la.Sim, end_s: float) -> list[StoreUse]:
    """Those of vLLM's offloading connector."""
    workers, block = int(sim.config.workers), int(sim.offloading.block_tokens)
    sharing = int(sim.offloading.workers_per_store)
    rows = []
    for k, store in enumerate(sim.stores):
        mine = range(k * sharing, min((k + 1) * sharing, workers))
        stored = int(store.stored) * block - sum(under_way.offload_transfers(sim, w, end_s) for w in mine)
        read = sum(_arrived(sim, 2 * w + 1) for w in mine)
        sizes = (int(store.capacity) * block, int(store.peak) * block)
        rows.append(StoreUse(1, mine.start, len(mine), *sizes, stored, read, int(store.evicted) * block, 0))
    return rows


def _arrived(sim: la.Sim, k: int) -> int:
    """Tokens that came over link ``k``, which steps wait for: only the horizon cuts one."""
    return int(sim.links[k].tokens) - int(sim.links[k].beyond_tokens)


def _chunk_stores(plan: WorkerPlan, sim: la.Sim, end_s: float) -> list[StoreUse]:
    """Those of LMCache.

    All that is loaded comes through host memory: what stores behind it had goes into it, and out of it.
    """
    block = int(sim.offloading.block_tokens)
    rows = []
    for v, store in enumerate(chunk_arrays.stores(plan, int(sim.config.workers))):
        book = sim.block_tables[v]
        # Workers that are back use what they share where the dead ones did.
        mine = np.flatnonzero(sim.worker_stores[:, store.tier] == v).tolist()
        if not mine:
            continue
        if store.tier == 0:
            peak = int(book.peak)
            stored = sum(_arrived(sim, 2 * w) for w in mine) + int(book.fetched) * block
            read = sum(_arrived(sim, 2 * w + 1) for w in mine)
        else:
            written, new = under_way.chunk_writes(sim, v, end_s)
            peak = max(int(book.peak), int(under_way.chunks_held(sim, v)) + new)
            stored = (int(book.stored) + written) * block
            read = _arrived(sim, store.link + 1)
        rows.append(
            StoreUse(
                store.tier + 1,
                store.first_worker,
                len(mine),
                int(book.capacity) * block,
                peak * block,
                stored,
                read,
                int(book.evicted) * block,
                0,
                hit_tokens=int(book.hit_tokens),
            )
        )
    return rows


def link_uses(plan: WorkerPlan, sim: la.Sim, end_s: float) -> tuple[LinkUse, ...]:
    """All links, in the order of ``layout.Sim``, at ``end_s`` (see ``end_of_run_s``)."""
    if not sim.config.host_pages and not kv_connector_of(plan):
        return ()
    ways = _ways(plan, sim)
    return tuple(
        LinkUse(*ways[k // 2], k % 2 == 0, _busy_s(sim, k, end_s), int(link.tokens), int(link.transfers))
        for k, link in enumerate(sim.links)
    )


def _busy_s(sim: la.Sim, k: int, end_s: float) -> float:
    """Seconds of link ``k``'s work before the end.

    What comes behind the horizon is counted as it is sent. At a run's own end all has been sent by then, so that what
    is left follows without a gap.
    """
    link = sim.links[k]
    left_s = float(link.beyond_s) if end_s == sim.fleet.config.horizon_s else max(float(link.free_s) - end_s, 0.0)
    return max(float(link.busy_s) - left_s, 0.0)


def _ways(plan: WorkerPlan, sim: la.Sim) -> list[tuple[int, str, int]]:
    """(tier, path, index) of each pair of links."""
    workers = int(sim.config.workers)
    if kv_connector_of(plan) == "lmcache":
        return _chunk_ways(plan, workers)
    rows = [(1, "medium", w) for w in range(workers)]
    for index, tier in enumerate(sim.store_tiers, 2):
        rows += [(index, "medium", k) for k in range(int(tier.stores))]
    memories = _memory_ways(plan, workers)
    networked = [index for index, tier in enumerate(sim.store_tiers, 2) if tier.first_network >= 0]
    if sim.config.store_pool >= 0:
        # The storage is another pool's, behind this one's host memory.
        networked = [2]
    if networked:
        nodes = len(sim.links) // 2 - len(rows) - len(memories)
        rows += [(networked[0], "network", node) for node in range(nodes)]
    return rows + memories


def _memory_ways(plan: WorkerPlan, workers: int) -> list[tuple[int, str, int]]:
    """Of the links of host memory itself, where attention groups share it."""
    return [(1, "memory", k) for k in range(workers // plan.schedulers)] if tier_arrays.shares_memory(plan) else []


def _chunk_ways(plan: WorkerPlan, workers: int) -> list[tuple[int, str, int]]:
    nodes = math.ceil(workers / plan.schedulers_per_node)
    path = "host" if chunk_arrays.has_links(0, plan.tiers[0]) else "medium"
    rows = [(1, path, w) for w in range(workers)]
    for store in chunk_arrays.stores(plan, workers):
        if store.link >= 0:
            sharing = plan.schedulers_sharing(store.plan, workers)
            rows.append((store.tier + 1, "medium", store.first_worker // sharing))
    networked = [index for index, tier in enumerate(plan.tiers, 1) if chunk_arrays.is_networked(plan, tier)]
    rows += [(networked[0], "network", node) for node in range(nodes) if networked]
    return rows + _memory_ways(plan, workers)
