"""Order of use of the blocks that host memory of vLLM's offloading manager holds: lru, or arc with its ghosts.

The rules and their sources: ``validate.restatement.vllm_offload_store``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cache import host_runs as runs
from hisearch.kernels.layout import tiers as tl


@kernel
def _learn(sim, v, d):
    """ARC: a ghost was asked for."""
    store = sim.stores[v]
    recent = runs.size(sim, v, tl.RECENT_GHOSTS)
    frequent = runs.size(sim, v, tl.FREQUENT_GHOSTS)
    for _ in range(runs.length(sim, d)):
        if sim.runs[d].list == tl.RECENT_GHOSTS:
            store.target = min(store.target + max(1.0, frequent / recent), np.float64(store.capacity))
        else:
            store.target = max(store.target - max(1.0, recent / frequent), 0.0)


@kernel
def _touch_run(sim, v, d):
    run = sim.runs[d]
    to = run.list
    if sim.offloading.arc:
        if to == tl.RECENT and run.owner < 0:
            to = tl.FREQUENT
        elif to > tl.FREQUENT:
            _learn(sim, v, d)
    runs.move(sim, v, d, to)


@kernel
def _use_now(sim, v, trace_node, end):
    """Put all blocks of the path before ``end`` where they belong now that they are used, the last one first."""
    if not runs.enough(sim, 2):
        return
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if runs.low(sim, s) < end else -1
        while d >= 0:
            higher = sim.runs[d].higher
            if sim.runs[d].begin < end:
                if sim.runs[d].end > end:
                    d = runs.cut(sim, v, d, end)
                _touch_run(sim, v, d)
            d = higher
        s = sim.trace.parent[s]


@kernel
def settle(sim, v):
    """Bring the order of the store up to date with the uses that wait."""
    store = sim.stores[v]
    for k in range(store.uses):
        if sim.uses[v, k].end > 0:
            _use_now(sim, v, sim.uses[v, k].trace_node, sim.uses[v, k].end)
    store.uses = 0
    store.age += 1


@kernel
def _mark_used(sim, v, trace_node, begin, end):
    """A use of the path's blocks from ``begin`` to ``end`` waits."""
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if runs.low(sim, s) < end else -1
        while d >= 0 and sim.runs[d].end > begin:
            if sim.runs[d].begin < end:
                if sim.runs[d].end > end:
                    d = runs.cut(sim, v, d, end)
                sim.runs[d].age = sim.stores[v].age
            d = sim.runs[d].higher
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]


@kernel
def touch(sim, v, trace_node, new, end, r):
    """Request ``r`` uses all blocks of its path before ``end``, the last one first; those from ``new`` on just came in.

    Under lru the order matters only once eviction comes to a block that was used. Until then uses wait, and of a
    request that uses its path block by block the last one stands for all. Blocks that came in after a use that waits
    were used when they came, which waits behind it.
    """
    if sim.offloading.arc:
        _use_now(sim, v, trace_node, end)
        return
    if not runs.enough(sim, 2):
        return
    store = sim.stores[v]
    offloaded = sim.offloaded[r]
    if store.uses == sim.uses.shape[1]:
        settle(sim, v)
    begin = 0
    if offloaded.use_age == store.age and sim.uses[v, offloaded.use_at].end <= end:
        begin = min(sim.uses[v, offloaded.use_at].end, new)
        sim.uses[v, offloaded.use_at].end = 0
    _mark_used(sim, v, trace_node, begin, end)
    _append(sim, v, trace_node, end, r)


@kernel
def _append(sim, v, trace_node, end, r):
    """The use of the path before ``end`` waits behind all others."""
    store = sim.stores[v]
    offloaded = sim.offloaded[r]
    offloaded.use_age = store.age
    offloaded.use_at = store.uses
    use = sim.uses[v, store.uses]
    use.end = end
    use.trace_node = trace_node
    store.uses += 1


@kernel
def move_last(sim, v, trace_node, end, r):
    """``touch`` where a use of ``r`` waits already, and what it did not reach is part of a run whose use waits."""
    sim.uses[v, sim.offloaded[r].use_at].end = 0
    _append(sim, v, trace_node, end, r)
