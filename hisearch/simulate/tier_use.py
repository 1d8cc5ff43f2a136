"""What the tiers and the links between them did in a simulation."""

from __future__ import annotations

import math

from hisearch.kernels import layout as la
from hisearch.simulate import chunk_arrays
from hisearch.simulate.offload_arrays import mover_of
from hisearch.simulate.plan import WorkerPlan
from hisearch.simulate.result import LinkUse, StoreUse


def store_uses(plan: WorkerPlan, sim: la.Sim) -> tuple[StoreUse, ...]:
    """All stores, HBM first."""
    workers, page = int(sim.config.workers), int(sim.config.page_tokens)
    rows = [_store(sim, 0, w, w, 1, int(sim.workers[w].peak_pages), page) for w in range(workers)]
    if mover_of(plan):
        return (*rows, *_connector_stores(plan, sim))
    if not sim.config.host_pages:
        return tuple(rows)
    pools = len(sim.trees) - workers
    rows += [_store(sim, 1, pools + w, w, 1, int(sim.trees[pools + w].peak_pages), page) for w in range(workers)]
    for index, tier in enumerate(sim.store_tiers, 2):
        sharing = int(tier.workers_per_store)
        for k in range(int(tier.stores)):
            v = int(tier.first) + k
            mine = min(sharing, workers - k * sharing)
            rows.append(_store(sim, index, v, k * sharing, mine, int(sim.trees[v].peak_pages), page))
    return tuple(rows)


def _store(sim: la.Sim, tier: int, v: int, first_worker: int, workers: int, peak_pages: int, page: int) -> StoreUse:
    tree = sim.trees[v]
    return StoreUse(
        tier,
        first_worker,
        workers,
        int(tree.capacity_pages) * page,
        peak_pages * page,
        int(tree.stored_tokens),
        int(tree.read_tokens),
        int(tree.evicted_tokens),
        int(tree.expired_tokens),
        int(tree.demoted_tokens),
    )


def _connector_stores(plan: WorkerPlan, sim: la.Sim) -> list[StoreUse]:
    """The stores of vLLM's offloading connector, or of LMCache."""
    workers, block = int(sim.config.workers), int(sim.offloading.block_tokens)
    if mover_of(plan) == "lmcache":
        return [
            StoreUse(
                store.tier + 1,
                store.first_worker,
                store.workers,
                int(book.capacity) * block,
                int(book.peak) * block,
                int(book.stored) * block,
                int(book.read) * block,
                int(book.evicted) * block,
                0,
                hit_tokens=int(book.hit_tokens),
            )
            for store, book in zip(chunk_arrays.stores(plan, workers), sim.ledgers, strict=True)
        ]
    sharing = int(sim.offloading.workers_per_store)
    rows = []
    for k, store in enumerate(sim.stores):
        mine = range(k * sharing, min((k + 1) * sharing, workers))
        read = sum(int(sim.links[2 * w + 1].tokens) for w in mine)
        sizes = (int(store.capacity) * block, int(store.peak) * block, int(store.stored) * block)
        rows.append(StoreUse(1, mine.start, len(mine), *sizes, read, int(store.evicted) * block, 0))
    return rows


def link_uses(plan: WorkerPlan, sim: la.Sim) -> tuple[LinkUse, ...]:
    """All links, in the order of ``layout.Sim``."""
    if not sim.config.host_pages and not mover_of(plan):
        return ()
    ways = _ways(plan, sim)
    return tuple(
        LinkUse(*ways[k // 2], k % 2 == 0, float(link.busy_s), int(link.tokens), int(link.transfers))
        for k, link in enumerate(sim.links)
    )


def _ways(plan: WorkerPlan, sim: la.Sim) -> list[tuple[int, str, int]]:
    """(tier, path, index) of each pair of links."""
    workers = int(sim.config.workers)
    if mover_of(plan) == "lmcache":
        return _chunk_ways(plan, workers)
    rows = [(1, "medium", w) for w in range(workers)]
    for index, tier in enumerate(sim.store_tiers, 2):
        rows += [(index, "medium", k) for k in range(int(tier.stores))]
    networked = [index for index, tier in enumerate(sim.store_tiers, 2) if tier.first_network >= 0]
    if networked:
        rows += [(networked[0], "network", node) for node in range(len(sim.links) // 2 - len(rows))]
    return rows


def _chunk_ways(plan: WorkerPlan, workers: int) -> list[tuple[int, str, int]]:
    nodes = math.ceil(workers / plan.workers_per_node)
    path = "host" if chunk_arrays.has_links(0, plan.tiers[0]) else "medium"
    rows = [(1, path, w) for w in range(workers)]
    for store in chunk_arrays.stores(plan, workers):
        if store.link >= 0:
            sharing = plan.workers_sharing(store.plan, workers)
            rows.append((store.tier + 1, "medium", store.first_worker // sharing))
    networked = [index for index, tier in enumerate(plan.tiers, 1) if chunk_arrays.is_networked(plan, tier)]
    return rows + [(networked[0], "network", node) for node in range(nodes) if networked]
