"""From vLLM's tiers to the kernels' arrays: block numbers, block tables, connectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.simulate.arrays import chunks as chunk_arrays
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.traces.compiled import TraceArrays

#: Most blocks whose look-ups are counted; see ``kernels.cache.host_blocks``.
TRACKED_BLOCKS = 64_000
#: Most uses of a store that wait to be settled; see ``kernels.cache.host_blocks``.
USES = 4096
#: Thresholds below this count nothing.
LEAST_THRESHOLD = 2


def kv_connector_of(plan: WorkerPlan) -> str:
    """The KV connector of vLLM's tiers: "offload", "lmcache", or "" for none."""
    if plan.engine.name != "vllm" or plan.movement is None or plan.tiers[0].capacity_tokens < plan.tiers[0].page_tokens:
        return ""
    return plan.movement.kv_connector


def by_chunk(plan: WorkerPlan) -> bool:
    """Whether ``offloads_by_chunk`` holds of vLLM's offloading, as of no worker of several attention groups."""
    return kv_connector_of(plan) == "offload" and rules_in_force("vllm", plan.engine.version)["offloads_by_chunk"]


def engine_entry(engine: int, kv_connector: str | None, by_chunk: bool) -> int:
    """Code of the engine entry for an engine with this KV connector.

    kv_connector: None or "": none. by_chunk: whether ``offloads_by_chunk`` holds of vLLM's offloading.
    """
    if engine != la.VLLM or not kv_connector:
        return engine
    if kv_connector == "lmcache":
        return la.VLLM_LMCACHE
    return la.VLLM_CHUNK_OFFLOAD if by_chunk else la.VLLM_OFFLOAD


def arrays(
    plan: WorkerPlan, trace: TraceArrays, workers: int, record_limit: int, places: Sequence[int] = ()
) -> dict[str, Any]:
    """The fields of ``layout.Sim`` for vLLM's tiers; of length 1 without tiers.

    Args:
        plan: one worker.
        trace: compiled.
        workers: how many.
        record_limit: capacity for concurrent transfers to the host, and for runs of blocks.
        places: for each worker, the one whose place on the node it takes; empty: itself.
    """
    kv_connector = kv_connector_of(plan)
    fields = _empty_fields()
    if plan.groups is not None:
        return fields | _block_keys(trace, plan.engine.page_size)
    if not kv_connector:
        return fields
    size = plan.tiers[0].page_tokens
    stores = math.ceil(workers / plan.schedulers_sharing(plan.tiers[0], workers))
    keys = _block_keys(trace, size)
    fields |= keys | {
        "offloading": _settings(plan, stores, workers),
        "offloaded": _records(len(trace.arrival_s), tl.OFFLOADED),
        "connectors": _records(workers, tl.CONNECTOR),
    }
    blocks = int(np.diff(keys["node_blocks"], axis=1).sum())
    if kv_connector == "lmcache":
        return fields | chunk_arrays.arrays(plan, len(trace.arrival_s), workers, blocks, places)
    if by_chunk(plan):
        return fields | _chunks(plan, stores, workers, record_limit, blocks, len(trace.arrival_s))
    return fields | _runs(plan, stores, workers, record_limit, len(trace.parent)) | _counts(plan, stores, blocks)


def _block_keys(trace: TraceArrays, size: int) -> dict[str, Any]:
    """Fields that number the blocks of ``size`` tokens of all paths."""
    bounds = np.stack([trace.start_tokens // size, trace.end_tokens // size], axis=1).astype(np.int64)
    settings = _records(1, tl.OFFLOADING)
    settings["block_tokens"] = size
    return {
        "offloading": settings,
        "block_base": np.concatenate([[0], np.cumsum(bounds[:, 1] - bounds[:, 0])[:-1]]).astype(np.int64),
        "node_blocks": bounds,
        "path": np.empty((2, int(trace.end_tokens.max(initial=0)) // size + 1), np.int64),
    }


def _threshold(plan: WorkerPlan) -> int:
    """Look-ups after which a block is stored; 0: all are."""
    assert plan.movement is not None
    threshold = plan.movement.store_threshold
    return threshold if threshold >= LEAST_THRESHOLD else 0


def _settings(plan: WorkerPlan, stores: int, workers: int) -> Any:
    assert plan.movement is not None
    settings = _records(1, tl.OFFLOADING)
    settings["kv_connector"] = {"offload": tl.OFFLOAD, "lmcache": tl.LMCACHE}[plan.movement.kv_connector]
    if by_chunk(plan):
        settings["kv_connector"] = tl.CHUNK_OFFLOAD
    settings["block_tokens"] = plan.tiers[0].page_tokens
    settings["stores"] = stores
    settings["workers_per_store"] = plan.schedulers_sharing(plan.tiers[0], workers)
    settings["arc"] = plan.tiers[0].eviction == "arc"
    settings["threshold"] = _threshold(plan)
    settings["save_decode"] = plan.movement.save_decode
    settings["own_processes"] = plan.movement.own_processes
    return settings


def _runs(plan: WorkerPlan, stores: int, workers: int, record_limit: int, nodes: int) -> dict[str, Any]:
    """Stores of vLLM's offloading manager, and the connector's state."""
    tier = plan.tiers[0]
    store = _records(stores, tl.STORE)
    store["capacity"] = tier.capacity_tokens // tier.page_tokens
    return {
        "notes": _records(2 * workers, tl.NOTES),
        "transfers": np.empty(record_limit, tl.TRANSFER).view(np.recarray),
        "stores": store,
        "runs": np.empty(record_limit, tl.RUN).view(np.recarray),
        "run_rows": np.zeros((stores, 3 * tl.LISTS), np.int64),
        "run_deepest_cached": np.empty((stores, nodes), np.int32),
        "uses": np.empty((stores, USES), tl.USE).view(np.recarray),
        "next_filling": np.empty(tier.page_tokens, np.int32),
    }


def _chunks(
    plan: WorkerPlan, stores: int, workers: int, record_limit: int, blocks: int, requests: int
) -> dict[str, Any]:
    """As ``_runs``, where ``offloads_by_chunk`` holds: block tables of each store, and one for counts of offers."""
    tier = plan.tiers[0]
    store = _records(stores, tl.STORE)
    store["capacity"] = capacity = tier.capacity_tokens // tier.page_tokens
    ghosts = 2 * capacity if tier.eviction == "arc" else 0
    # Under lru each request that is served has a place in the order too.
    places = 0 if ghosts else min(requests, record_limit)
    capacities = [min(capacity + ghosts, blocks) + places] * stores
    if _threshold(plan):
        capacities += [TRACKED_BLOCKS] * stores
    return chunk_arrays.block_tables(np.array(capacities), blocks + places) | {
        "notes": _records(3 * workers, tl.NOTES),
        "transfers": np.empty(record_limit, tl.TRANSFER).view(np.recarray),
        "stores": store,
        "runs": np.empty(record_limit, tl.RUN).view(np.recarray),
        "run_rows": np.zeros((stores, 3 * tl.LISTS), np.int64),
    }


def _counts(plan: WorkerPlan, stores: int, blocks: int) -> dict[str, Any]:
    """Counts of look-ups, if there is a threshold."""
    return chunk_arrays.block_tables(np.full(stores, TRACKED_BLOCKS), blocks) if _threshold(plan) else {}


def _records(count: int, dtype: np.dtype[Any]) -> Any:
    return np.zeros(count, dtype).view(np.recarray)


def _empty_fields() -> dict[str, Any]:
    return {
        "offloading": _records(1, tl.OFFLOADING),
        "offloaded": _records(1, tl.OFFLOADED),
        "fresh": _records(1, tl.OFFLOADED),
        "connectors": _records(1, tl.CONNECTOR),
        "notes": _records(1, tl.NOTES),
        "transfers": _records(1, tl.TRANSFER),
        "stores": _records(1, tl.STORE),
        "runs": _records(1, tl.RUN),
        "run_rows": np.zeros((1, 1), np.int64),
        "run_deepest_cached": np.zeros((1, 1), np.int32),
        "uses": _records(1, tl.USE).reshape(1, 1),
        "next_filling": np.zeros(1, np.int32),
        "block_tables": _records(1, tl.BLOCK_TABLE),
        "block_table_rows": np.zeros((1, 3 * tl.LISTS), np.int32),
        "blocks": _records(1, tl.BLOCK).reshape(1, 1),
        "buckets": np.zeros((1, 1), np.int32),
        "block_base": np.zeros(1, np.int64),
        "node_blocks": np.zeros((1, 2), np.int64),
        "path": np.zeros((2, 1), np.int64),
        "writes": _records(1, tl.WRITE).reshape(1, 1),
        "groups": _records(1, tl.GROUP).reshape(1, 1),
        "worker_stores": np.zeros((1, 1), np.int32),
        "matched_chunks_in": np.zeros((1, 1), np.int64),
    }
