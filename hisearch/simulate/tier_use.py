"""What the tiers and the links between them did in a simulation."""

from __future__ import annotations

from hisearch.kernels import layout as la
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
    """The stores of vLLM's offloading connector, or LMCache's host memory and disks."""
    workers, sharing, block = (
        int(value) for value in (sim.config.workers, sim.offloading.workers_per_store, sim.offloading.block_tokens)
    )
    stores = int(sim.offloading.stores)
    lmcache = mover_of(plan) == "lmcache"
    rows = []
    for tier in range(1, 1 + len(plan.tiers)):
        for k in range(stores):
            book = sim.ledgers[(tier - 1) * stores + k] if lmcache else sim.stores[k]
            mine = range(k * sharing, min((k + 1) * sharing, workers))
            links = [2 * w + 1 for w in mine] if tier == 1 else [2 * workers + 2 * k + 1]
            read = sum(int(sim.links[link].tokens) for link in links)
            sizes = (int(book.capacity) * block, int(book.peak) * block, int(book.stored) * block)
            rows.append(StoreUse(tier, mine.start, len(mine), *sizes, read, int(book.evicted) * block, 0))
    return rows


def link_uses(plan: WorkerPlan, sim: la.Sim) -> tuple[LinkUse, ...]:
    """All links, in the order of ``layout.Sim``."""
    if not sim.config.host_pages and not mover_of(plan):
        return ()
    workers = int(sim.config.workers)
    # (tier, path) of each pair of links, and which of them it is.
    pairs = [(1, "medium", w) for w in range(workers)]
    if sim.offloading.disk:
        pairs += [(2, "medium", k) for k in range(int(sim.offloading.stores))]
    for index, tier in enumerate(sim.store_tiers, 2):
        pairs += [(index, "medium", k) for k in range(int(tier.stores))]
    networked = [index for index, tier in enumerate(sim.store_tiers, 2) if tier.first_network >= 0]
    if networked:
        pairs += [(networked[0], "network", node) for node in range(len(sim.links) // 2 - len(pairs))]
    rows = []
    for k, link in enumerate(sim.links):
        tier_index, path, index = pairs[k // 2]
        busy_s, tokens, transfers = float(link.busy_s), int(link.tokens), int(link.transfers)
        rows.append(LinkUse(tier_index, path, index, k % 2 == 0, busy_s, tokens, transfers))
    return tuple(rows)
