"""From LMCache's tiers to the kernels' arrays: a block table for each store, and its links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import TierPlan, TransferLaw

SCOPES = {"worker": hl.OF_WORKER, "node": hl.OF_NODE, "cluster": hl.OF_ALL}
_EVICTIONS = {"lru": la.LRU, "lfu": la.LFU, "fifo": la.FIFO, "mru": la.MRU}


@dataclass(frozen=True)
class ChunkStore:
    """One store.

    Attributes:
        tier: as ``WorkerPlan.tiers`` has it, from 0 on. plan: of the tier.
        first_worker, workers: the workers that share it.
        link: index of its write link, followed by its read link; -1: none.
    """

    tier: int
    plan: TierPlan
    first_worker: int
    workers: int
    link: int


def has_links(tier: int, plan: TierPlan) -> bool:
    """Whether a tier's stores have their own links; host memory of one worker is behind the worker's link alone."""
    return tier > 0 or plan.scope != "worker"


def is_networked(plan: WorkerPlan, tier: TierPlan) -> bool:
    """Whether the tier lies behind the nodes' networks."""
    return (
        tier.networked
        and tier.scope == "cluster"
        and plan.movement is not None
        and plan.movement.network_read is not None
    )


def stores(plan: WorkerPlan, workers: int) -> list[ChunkStore]:
    """All stores, tier by tier, in the order of the block tables."""
    rows: list[ChunkStore] = []
    link = 2 * workers
    for index, tier in enumerate(plan.tiers):
        sharing = plan.schedulers_sharing(tier, workers)
        linked = has_links(index, tier)
        for first in range(0, workers, sharing):
            rows.append(ChunkStore(index, tier, first, min(sharing, workers - first), link if linked else -1))
            link += 2 * linked
    return rows


def first_network(plan: WorkerPlan, workers: int) -> int:
    """Link index of the first node's network, after the links of the stores."""
    return 2 * workers + 2 * sum(store.link >= 0 for store in stores(plan, workers))


def link_laws(plan: WorkerPlan, workers: int) -> list[TransferLaw]:
    """Laws of the links after those of the workers: of the stores, then of the nodes' networks."""
    movement = plan.movement
    assert movement is not None
    laws = [law for store in stores(plan, workers) if store.link >= 0 for law in (store.plan.write, store.plan.read)]
    if any(is_networked(plan, tier) for tier in plan.tiers):
        assert movement.network_read is not None
        assert movement.network_write is not None
        laws += [movement.network_write, movement.network_read] * -(-workers // plan.schedulers_per_node)
    return laws


def arrays(plan: WorkerPlan, requests: int, workers: int, blocks: int, places: Sequence[int] = ()) -> dict[str, Any]:
    """The fields of ``layout.Sim`` for LMCache.

    Args:
        plan: one worker.
        requests: of the trace.
        workers: how many.
        blocks: chunks of all the trace's paths.
        places: for each worker, the one whose place on the node it takes; empty: itself.
    """
    all_stores = stores(plan, workers)
    tiers = len(plan.tiers)
    hosts = sum(store.tier == 0 for store in all_stores)
    capacities = np.array([store.plan.capacity_tokens // store.plan.page_tokens for store in all_stores])
    # Host memory holds cached chunks, and those being written to the stores behind it.
    fields = block_tables(capacities, blocks * tiers)
    tables, slots = fields["block_tables"], fields["blocks"].shape[1]
    tables["eviction"] = [_EVICTIONS[store.plan.eviction] for store in all_stores]
    tables["link"] = [store.link for store in all_stores]
    tables["scope"] = [SCOPES[store.plan.scope] for store in all_stores]
    tables["networked"] = [is_networked(plan, store.plan) for store in all_stores]
    worker_stores = np.empty((workers, tiers), np.int32)
    for v, store in enumerate(all_stores):
        worker_stores[store.first_worker : store.first_worker + store.workers, store.tier] = v
    place_of = np.arange(workers) if not len(places) else np.array(places[:workers])
    shared = [tier for tier, plan_of in enumerate(plan.tiers) if plan_of.scope != "worker"]
    worker_stores[:, shared] = worker_stores[place_of][:, shared]
    # A write takes space in its store and host memory; each chunk has one write at a time.
    writes = min(int(capacities[hosts:].max(initial=0)), int(capacities[:hosts].sum()), blocks) + 1
    connectors = np.zeros(workers, tl.CONNECTOR).view(np.recarray)
    connectors["network"] = first_network(plan, workers) + 2 * (place_of // plan.schedulers_per_node)
    counted = any(store.plan.eviction == "lfu" for store in all_stores)
    return {
        **fields,
        "connectors": connectors,
        "worker_stores": worker_stores,
        "matched_chunks_in": np.zeros((requests, tiers), np.int64),
        "groups": np.zeros((len(all_stores), slots) if counted else (1, 1), tl.GROUP).view(np.recarray),
        "writes": np.zeros((max(len(all_stores) - hosts, 1), writes), tl.WRITE).view(np.recarray),
    }


def block_tables(capacities: np.ndarray, blocks: int) -> dict[str, Any]:
    """Block tables of these capacities, for at most ``blocks`` blocks."""
    slots = min(int(capacities.max()), blocks) + 1
    tables = np.zeros(len(capacities), tl.BLOCK_TABLE).view(np.recarray)
    tables["capacity"] = capacities
    return {
        "block_tables": tables,
        "block_table_rows": np.zeros((len(tables), 3 * tl.LISTS), np.int32),
        "blocks": np.empty((len(tables), slots), tl.BLOCK).view(np.recarray),
        "buckets": np.empty((len(tables), 1 << slots.bit_length()), np.int32),
    }
