"""LMCache's tiers on random systems: capacity, conservation of bytes, bandwidth, and order, wherever a run stops."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.simulate.arrays import chunks as chunk_arrays
from hisearch.simulate.plans.tier_plan import TransferLaw
from hisearch.simulate.results.tier_series import tier_series
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.invariants import run_until
from tests.kernels.systems import System, examples, lmcache_systems, offload_systems, settled
from tests.reference.cluster import tree_path
from tests.reference.lmcache import LmcacheConfig, LmcacheTier
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.vllm_offload_store import OffloadConfig

LAW = CopyLaw(1e-4, 4e-6)


def slots_of(sim: la.Sim, v: int) -> list[int]:
    """The slots in the list of block table ``v``, in order, checked in both directions."""
    slots, before = [], -1
    slot = int(sim.block_table_rows[v, 3 * tl.RECENT + tl.HEAD])
    while slot >= 0:
        assert sim.blocks[v, slot].prev == before
        slots.append(slot)
        before, slot = slot, int(sim.blocks[v, slot].next)
    assert before == sim.block_table_rows[v, 3 * tl.RECENT + tl.TAIL]
    assert len(slots) == sim.block_table_rows[v, 3 * tl.RECENT + tl.SIZE]
    return slots


def _writes(sim: la.Sim, v: int) -> list[np.void]:
    """Pending writes to block table ``v``, checked for order."""
    ring = sim.writes[v - sim.offloading.stores]
    book = sim.block_tables[v]
    pending = [ring[(book.writes_head + k) % len(ring)] for k in range(book.writes)]
    ends = [write.end_s for write in pending]
    assert ends == sorted(ends)
    return pending


def check_block_tables(sim: la.Sim) -> None:
    """Law L3 and the block tables' own order."""
    writes = {v: _writes(sim, v) for v in range(int(sim.offloading.stores), len(sim.block_tables))}
    reading = Counter((int(write.host), int(write.host_slot)) for ring in writes.values() for write in ring)
    for v, book in enumerate(sim.block_tables):
        slots = slots_of(sim, v)
        assert len({int(sim.blocks[v, slot].key) for slot in slots}) == len(slots)
        assert all(sim.blocks[v, slot].pins >= 0 for slot in slots)
        if v < sim.offloading.stores:
            held = set(slots) | {slot for host, slot in reading if host == v}
            assert book.used == len(held) <= book.capacity
            assert all(sim.blocks[v, slot].users == (slot in slots) + reading[v, slot] for slot in held)
            assert book.stored - book.evicted == len(slots)
        else:
            assert book.used == len(slots) + len(writes[v]) <= book.capacity
            assert len({int(write.slot) for write in writes[v]}) == len(writes[v])
        assert (book.used if v < sim.offloading.stores else len(slots)) <= book.peak <= book.capacity
        if book.eviction == la.LFU:
            uses = [int(sim.blocks[v, slot]["count"]) for slot in slots]
            groups = [int(sim.blocks[v, slot].group) for slot in slots]
            assert uses == sorted(uses)
            assert len(set(zip(uses, groups, strict=True))) == len(set(uses)) == len(set(groups))


@examples(150)
@given(system=lmcache_systems(), stop=st.floats(0.0, 1.0))
def test_tiers_are_consistent_wherever_a_run_stops(system: System, stop: float) -> None:
    finished = run_until(system)
    check_block_tables(finished)
    assert not any(
        block.pins for v in range(len(finished.block_tables)) for block in finished.blocks[v, slots_of(finished, v)]
    )
    check_block_tables(run_until(system, stop * float(max(finished.workers["event_s"]))))


@examples(150)
@given(system=lmcache_systems())
def test_bytes_moved_are_the_bytes_accounted_for(system: System) -> None:
    result, plan, workers = settled(system), system.plan, system.workers
    stores = chunk_arrays.stores(plan, workers)
    links = result.links
    hbm_links = [links[2 * w : 2 * w + 2] for w in range(workers)]
    crossed = np.zeros(2, np.int64)
    in_host = sum(use.stored_tokens for use in result.stores if use.tier == 1)
    from_hbm = sum(hbm_links[w][0].tokens for w in range(workers))
    assert in_host == from_hbm + sum(use.read_tokens for use in result.stores if use.tier > 1)
    for store, use in zip(stores, (use for use in result.stores if use.tier), strict=True):
        assert (use.tier, use.first_worker, use.workers) == (store.tier + 1, store.first_worker, store.workers)
        mine = range(use.first_worker, use.first_worker + use.workers)
        if store.tier == 0:
            read = sum(hbm_links[w][1].tokens for w in mine)
            written = use.stored_tokens
            assert use.read_tokens == read
        else:
            written, read = links[store.link].tokens, links[store.link + 1].tokens
            assert use.stored_tokens <= written <= use.stored_tokens + use.capacity_tokens
            assert use.read_tokens == read
        if store.link >= 0:
            assert (links[store.link].tokens, links[store.link + 1].tokens) == (written, read)
        if chunk_arrays.is_networked(plan, store.plan):
            crossed += written, read
    network = links[chunk_arrays.first_network(plan, workers) :]
    assert [sum(link.tokens for link in network[back::2]) for back in (0, 1)] == crossed.tolist()
    for link, law in zip(links, _laws(system), strict=True):
        # Less what was left at the end.
        assert link.busy_s <= link.transfers * law.base_s + link.tokens * law.s_per_token + 1e-9
        assert link.busy_s <= result.observed_s + 1e-9
    hits = [sum(use.hit_tokens for use in result.stores if use.tier == 1 + k) for k in range(len(plan.tiers))]
    table = result.requests
    assert (hits[0], sum(hits[1:])) == (table.host_hit_tokens.sum(), table.storage_hit_tokens.sum())
    assert sum(result.tier_hit_tokens) == (table.hit_tokens.sum() + sum(hits))


def _laws(system: System) -> list[TransferLaw]:
    """Of all links; a worker's own memory moves at once."""
    plan, movement = system.plan, system.plan.movement
    assert movement is not None
    return [movement.host_write, movement.host_read] * system.workers + chunk_arrays.link_laws(plan, system.workers)


@examples(150)
@given(system=lmcache_systems() | offload_systems())
def test_series_follow_what_the_tiers_hold(system: System) -> None:
    result = settled(system, log=True)
    frame = tier_series(result)
    stores = [use for use in result.stores if use.tier]
    keys = [(use.tier, sum(other.tier == use.tier for other in stores[:k])) for k, use in enumerate(stores)]
    for key, use in zip(keys, stores, strict=True):
        mine = frame[(frame["tier"] == key[0]) & (frame["store"] == key[1])]
        assert (mine["capacity_tokens"] == use.capacity_tokens).all()
        assert mine["held_tokens"].between(0, use.peak_tokens).all()
        assert mine["time_s"].is_monotonic_increasing
        assert set(mine["first_worker"]) <= {use.first_worker}
        if system.offload is not None and len(mine):
            # A store only fills while a step is formed, and never empties.
            assert mine["held_tokens"].max() == use.peak_tokens
    assert set(zip(frame["tier"], frame["store"], strict=True)) <= set(keys)


@examples(150)
@given(system=lmcache_systems() | offload_systems())
def test_nothing_is_found_before_a_step_that_computed_it_has_ended(system: System) -> None:
    result, arrays = settled(system, log=True), system.trace.arrays
    table, log = result.requests, result.log
    assert log is not None
    contents = [PathContent(r, tree_path(arrays, int(node))) for r, node in enumerate(arrays.output_node)]
    unit = system.plan.tiers[0].page_tokens
    first_end_s: dict[Any, float] = {}
    for step in log.steps:
        for entry in log.entries[step["first_entry"] : step["first_entry"] + step["entries"]]:
            until = int(entry["computed"] + entry["tokens"])
            for k in range(int(entry["computed"]) // unit, until // unit):
                key = contents[int(entry["request"])].token((k + 1) * unit - 1)
                first_end_s[key] = min(first_end_s.get(key, math.inf), float(step["end_s"]))
    below_hbm = table.host_hit_tokens + table.storage_hit_tokens
    for r in np.flatnonzero(below_hbm):
        # Of a prompt that is there as a whole the last token is computed again, with the block that it is in.
        for k in range(int(table.hit_tokens[r]) // unit, -(-int(table.hit_tokens[r] + below_hbm[r]) // unit)):
            assert first_end_s[contents[r].token((k + 1) * unit - 1)] <= table.scheduled_s[r]


@pytest.mark.parametrize("kv_connector", ["offload", "lmcache"])
def test_threads_give_the_same_results_as_one_after_another(kv_connector: str) -> None:
    share = [LmcacheTier(2000, LAW, LAW, scope="node"), LmcacheTier(4000, LAW, LAW, "lfu", "cluster", networked=True)]
    tiers = LmcacheConfig(LAW, LAW, tuple(share), 16, network=LAW, workers_per_node=2)
    systems = [
        System(
            seed,
            EngineSpec(name="vllm", page_tokens=4, chunk_tokens=64, max_running_requests=6),
            capacity_tokens=400,
            workers=3,
            lmcache=tiers if kv_connector == "lmcache" else None,
            offload=OffloadConfig(2000, LAW, LAW) if kv_connector == "offload" else None,
        )
        for seed in range(6)
    ]
    alone = [_figures(system) for system in systems]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(_figures, systems)) == alone


def _figures(system: System) -> tuple[bytes, Any, Any]:
    result = settled(system)
    return result.requests.finish_s.tobytes(), result.stores, result.links
