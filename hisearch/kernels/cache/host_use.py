"""Order of use of the blocks in the host memory of vLLM's offloading manager: lru, or arc with its ghost lists.

The rules and their sources: ``tests.reference.vllm_offload_store``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cache import host_runs
from hisearch.kernels.layout import tiers as tl


@kernel
def _learn(sim, v, d):
    """ARC: adapt the target size of T1 to a use of ghost run ``d``."""
    store = sim.stores[v]
    recent = host_runs.size(sim, v, tl.RECENT_GHOSTS)
    frequent = host_runs.size(sim, v, tl.FREQUENT_GHOSTS)
    for _ in range(host_runs.length(sim, d)):
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
    host_runs.move(sim, v, d, to)


@kernel
def _use_now(sim, v, trace_node, end):
    """Move all blocks of the path before ``end``, which are used, to their new places, the last one first."""
    if not host_runs.enough(sim, 2):
        return
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if host_runs.low(sim, s) < end else -1
        while d >= 0:
            higher = sim.runs[d].higher
            if sim.runs[d].begin < end:
                if sim.runs[d].end > end:
                    d = host_runs.cut(sim, v, d, end)
                _touch_run(sim, v, d)
            d = higher
        s = sim.trace.parent[s]


@kernel
def settle(sim, v):
    """Apply the pending uses to the order of the store."""
    store = sim.stores[v]
    for k in range(store.uses):
        if sim.uses[v, k].end > 0:
            _use_now(sim, v, sim.uses[v, k].trace_node, sim.uses[v, k].end)
    store.uses = 0
    store.age += 1


@kernel
def _mark_used(sim, v, trace_node, begin, end):
    """Mark the path's blocks from ``begin`` to ``end`` as having a pending use."""
    s = trace_node
    while s > 0:
        d = sim.run_deepest_cached[v, s] if host_runs.low(sim, s) < end else -1
        while d >= 0 and sim.runs[d].end > begin:
            if sim.runs[d].begin < end:
                if sim.runs[d].end > end:
                    d = host_runs.cut(sim, v, d, end)
                sim.runs[d].age = sim.stores[v].age
            d = sim.runs[d].higher
        if sim.trace.start_tokens[s] <= begin * sim.offloading.block_tokens:
            break
        s = sim.trace.parent[s]


@kernel
def touch(sim, v, trace_node, new, end, r):
    """Note that ``r`` uses all blocks of its path before ``end``, the last first; those from ``new`` on are new.

    Under lru the order matters only once eviction reaches a used block. Until then uses are pending. Of a request that
    uses its path block by block, the last pending use stands for all. Blocks stored after a pending use were used when
    they were stored, by a use pending behind it.
    """
    if sim.offloading.arc:
        _use_now(sim, v, trace_node, end)
        return
    if not host_runs.enough(sim, 2):
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
    """Append a use of the path before ``end`` to the pending uses."""
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
    """``touch`` where ``r`` has a pending use and the new blocks belong to a run with a pending use."""
    sim.uses[v, sim.offloaded[r].use_at].end = 0
    _append(sim, v, trace_node, end, r)
