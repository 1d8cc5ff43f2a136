"""Usage of the tiers and of the links between them up to the end of a simulation.

The end is the horizon if it was reached, else the end of the last request. Transfers under way at the end occupy space
and links; only their transferred tokens count as moved.
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
from hisearch.simulate.results.uses import LinkUse, StoreUse


def end_of_run_s(sim: la.Sim, last_event_s: float, stopped: bool) -> float:
    """End of the time over which tier usage is counted.

    Args:
        sim: as the run left it.
        last_event_s: time of the last worker event.
        stopped: whether the run ended before every request: at the horizon, or by its stop criterion.
    """
    horizon_s = float(sim.fleet.config.horizon_s)
    if stopped:
        return horizon_s if math.isfinite(horizon_s) else last_event_s
    # The last arrival may have been rejected long after all others had ended.
    return max(last_event_s, float(np.nanmax(sim.fleet.arrival_s, initial=0.0)))


def store_uses(plan: WorkerPlan, sim: la.Sim, end_s: float) -> tuple[StoreUse, ...]:
    """All stores, HBM first, at ``end_s`` (see ``end_of_run_s``); those of a worker's DP ranks are merged."""
    uses = _by_scheduler(plan, sim, end_s)
    if plan.schedulers == 1:
        return uses
    merged: dict[tuple[int, int, int], StoreUse] = {}
    for use in uses:
        first = use.first_worker // plan.schedulers
        worker_use = replace(
            use, first_worker=first, workers=-(-(use.first_worker + use.workers) // plan.schedulers) - first
        )
        key = (worker_use.tier, worker_use.first_worker, worker_use.workers)
        merged[key] = _sum(merged[key], worker_use) if key in merged else worker_use
    return tuple(merged.values())


def _sum(a: StoreUse, b: StoreUse) -> StoreUse:
    """The sum of the stores of two DP ranks."""
    return replace(a, **{name: getattr(a, name) + getattr(b, name) for name in _SUMMED})


#: Fields that are summed over the stores of a worker's DP ranks, in tokens.
_SUMMED = (
    "capacity_tokens", "peak_tokens", "stored_tokens", "read_tokens", "evicted_tokens", "expired_tokens",
    "demoted_tokens", "hit_tokens",
)  # fmt: skip


def _by_scheduler(plan: WorkerPlan, sim: la.Sim, end_s: float) -> tuple[StoreUse, ...]:
    """All stores, by scheduler instead of worker."""
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
        # Replacement workers use the stores of the dead workers' nodes, except stores of worker scope.
        users = workers if tier.scope == hl.OF_WORKER else int(sim.hosts["place"].max()) + 1
        for k in range(math.ceil(users / sharing)):
            v = int(tier.first) + k
            served = min(sharing, users - k * sharing)
            rows.append(_store(sim, index, v, k * sharing, served, int(sim.trees[v].peak_pages), page))
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
    """Tree ``v`` as a store; ``late``: surplus tokens that it counts as written, and as read."""
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
        served = range(k * sharing, min((k + 1) * sharing, workers))
        copies = [under_way.offload_transfers(sim, w, end_s) for w in served]
        coming = sum(sent for sent, _ in copies)
        stored = int(store.stored) * block - coming - sum(to_come for _, to_come in copies)
        read = sum(_arrived_tokens(sim, 2 * w + 1) for w in served)
        sizes = (int(store.capacity) * block, int(store.peak) * block)
        evicted = int(store.evicted) * block
        use = StoreUse(1, served.start, len(served), *sizes, stored, read, evicted, 0, coming_tokens=coming)
        rows.append(use)
    return rows


def _arrived_tokens(sim: la.Sim, k: int) -> int:
    """Tokens that arrived over link ``k``. Steps wait for its transfers: only the horizon cuts one."""
    return int(sim.links[k].tokens) - int(sim.links[k].beyond_tokens)


def _chunk_stores(plan: WorkerPlan, sim: la.Sim, end_s: float) -> list[StoreUse]:
    """Those of LMCache.

    All loads pass through host memory: chunks from stores behind it are written into it and read out of it.
    """
    block = int(sim.offloading.block_tokens)
    rows = []
    for v, store in enumerate(chunk_arrays.stores(plan, int(sim.config.workers))):
        table = sim.block_tables[v]
        # Replacement workers use the shared stores of the dead ones.
        served = np.flatnonzero(sim.worker_stores[:, store.tier] == v).tolist()
        if not served:
            continue
        if store.tier == 0:
            peak = int(table.peak)
            stored = sum(_arrived_tokens(sim, 2 * w) for w in served) + int(table.fetched) * block
            read = sum(_arrived_tokens(sim, 2 * w + 1) for w in served)
        else:
            written, new = under_way.chunk_writes(sim, v, end_s)
            peak = max(int(table.peak), int(under_way.chunks_held(sim, v)) + new)
            stored = (int(table.stored) + written) * block
            read = _arrived_tokens(sim, store.link + 1)
        rows.append(
            StoreUse(
                store.tier + 1,
                store.first_worker,
                len(served),
                int(table.capacity) * block,
                peak * block,
                stored,
                read,
                int(table.evicted) * block,
                0,
                hit_tokens=int(table.hit_tokens),
            )
        )
    return rows


def link_uses(plan: WorkerPlan, sim: la.Sim, end_s: float) -> tuple[LinkUse, ...]:
    """All links, in the order of ``layout.Sim``, at ``end_s`` (see ``end_of_run_s``); without tiers those shared."""
    first = 0
    if sim.config.host_pages or kv_connector_of(plan):
        paths = _link_paths(plan, sim)
    else:
        paths, first = _memory_paths(plan, int(sim.config.workers)), 2 * int(sim.config.workers)
    return tuple(
        LinkUse(*paths[k // 2], k % 2 == 0, _busy_s(sim, first + k, end_s), int(link.tokens), int(link.transfers))
        for k, link in enumerate(sim.links[first:])
    )


def _busy_s(sim: la.Sim, k: int, end_s: float) -> float:
    """Seconds of link ``k``'s work before the end.

    Work beyond the horizon is counted at its send. At the end of a full run all transfers have been sent, so the
    remaining work follows without a gap.
    """
    link = sim.links[k]
    left_s = float(link.beyond_s) if end_s == sim.fleet.config.horizon_s else max(float(link.free_s) - end_s, 0.0)
    return max(float(link.busy_s) - left_s, 0.0)


def _link_paths(plan: WorkerPlan, sim: la.Sim) -> list[tuple[int, str, int]]:
    """(tier, path, index) of each pair of links."""
    workers = int(sim.config.workers)
    if kv_connector_of(plan) == "lmcache":
        return _chunk_paths(plan, workers)
    rows = [(1, "medium", w) for w in range(workers)]
    for index, tier in enumerate(sim.store_tiers, 2):
        rows += [(index, "medium", k) for k in range(int(tier.stores))]
    memories = _memory_paths(plan, workers)
    networked = [index for index, tier in enumerate(sim.store_tiers, 2) if tier.first_network >= 0]
    if sim.config.store_pool >= 0:
        # The storage belongs to another pool, behind this pool's host memory.
        networked = [2]
    if networked:
        nodes = len(sim.links) // 2 - len(rows) - len(memories)
        rows += [(networked[0], "network", node) for node in range(nodes)]
    return rows + memories


def _memory_paths(plan: WorkerPlan, workers: int) -> list[tuple[int, str, int]]:
    """(tier, path, index) of what is shared on the way to host memory: by DP ranks, then by slots."""
    levels = tier_arrays.shared_levels(plan, workers)
    return [(1, level.path, k) for level in levels for k in range(level.links)]


def _chunk_paths(plan: WorkerPlan, workers: int) -> list[tuple[int, str, int]]:
    nodes = math.ceil(workers / plan.schedulers_per_node)
    path = "host" if chunk_arrays.has_links(0, plan.tiers[0]) else "medium"
    rows = [(1, path, w) for w in range(workers)]
    for store in chunk_arrays.stores(plan, workers):
        if store.link >= 0:
            sharing = plan.schedulers_sharing(store.plan, workers)
            rows.append((store.tier + 1, "medium", store.first_worker // sharing))
    networked = [index for index, tier in enumerate(plan.tiers, 1) if chunk_arrays.is_networked(plan, tier)]
    rows += [(networked[0], "network", node) for node in range(nodes) if networked]
    return rows + _memory_paths(plan, workers)
