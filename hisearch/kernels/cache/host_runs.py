"""Runs of blocks in the lists of a store: found by trace node, cut and joined.

Within a run, and so in its list, the deepest block comes first. The runs of a trace node are also linked, deepest
first; ``run_deepest_cached`` has the first.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl


@kernel
def low(sim, s):
    """The first block of trace node ``s``."""
    return sim.node_blocks[s, 0]


@kernel
def high(sim, s):
    """One past the last block of trace node ``s``."""
    return sim.node_blocks[s, 1]


@kernel
def length(sim, d):
    """Blocks of run ``d``."""
    return sim.runs[d].end - sim.runs[d].begin


@kernel
def size(sim, v, k):
    """Blocks in list ``k``."""
    return sim.run_rows[v, 3 * k + tl.SIZE]


@kernel
def first(sim, v, k):
    """The first run of list ``k``, or -1."""
    return sim.run_rows[v, 3 * k + tl.HEAD]


@kernel
def enough(sim, runs):
    """Whether ``runs`` records are left; if not, the simulation run is void."""
    if sim.counters[la.RUNS_LEFT] < runs:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return False
    return True


@kernel
def _acquire(sim):
    counters = sim.counters
    counters[la.RUNS_LEFT] -= 1
    d = counters[la.FREE_RUN]
    if d >= 0:
        counters[la.FREE_RUN] = sim.runs[d].next
    else:
        d = counters[la.RUNS_USED]
        counters[la.RUNS_USED] = d + 1
    return d


@kernel
def _link(sim, v, d, k, before):
    """Put run ``d`` into list ``k`` behind the run ``before``; -1: at the front."""
    run = sim.runs[d]
    rows = sim.run_rows[v]
    after = sim.runs[before].next if before >= 0 else rows[3 * k + tl.HEAD]
    run.list = k
    run.prev = before
    run.next = after
    if before >= 0:
        sim.runs[before].next = d
    else:
        rows[3 * k + tl.HEAD] = d
    if after >= 0:
        sim.runs[after].prev = d
    else:
        rows[3 * k + tl.TAIL] = d


@kernel
def _unlink(sim, v, d):
    run = sim.runs[d]
    row = 3 * run.list
    if run.prev >= 0:
        sim.runs[run.prev].next = run.next
    else:
        sim.run_rows[v, row + tl.HEAD] = run.next
    if run.next >= 0:
        sim.runs[run.next].prev = run.prev
    else:
        sim.run_rows[v, row + tl.TAIL] = run.prev


@kernel
def _deepest_cached(sim, v, d, deeper, higher):
    """Link run ``d`` between two others of its trace node, either of which may be -1."""
    run = sim.runs[d]
    run.deeper = deeper
    run.higher = higher
    if deeper >= 0:
        sim.runs[deeper].higher = d
    else:
        sim.run_deepest_cached[v, run.trace_node] = d
    if higher >= 0:
        sim.runs[higher].deeper = d


@kernel
def _give_back(sim, v, d):
    """Forget run ``d``, which is in no list."""
    run = sim.runs[d]
    if run.deeper >= 0:
        sim.runs[run.deeper].higher = run.higher
    else:
        sim.run_deepest_cached[v, run.trace_node] = run.higher
    if run.higher >= 0:
        sim.runs[run.higher].deeper = run.deeper
    run.next = sim.counters[la.FREE_RUN]
    sim.counters[la.FREE_RUN] = d
    sim.counters[la.RUNS_LEFT] += 1


@kernel
def insert(sim, v, s, begin, end, deeper, higher):
    """Insert a run at the end of the first list: blocks ``begin`` to ``end`` of node ``s``, between two of its runs."""
    d = _acquire(sim)
    run = sim.runs[d]
    run.begin = begin
    run.end = end
    run.mark = 0
    run.trace_node = s
    run.users = 0
    run.owner = -1
    run.age = 0
    _deepest_cached(sim, v, d, deeper, higher)
    _link(sim, v, d, tl.RECENT, sim.run_rows[v, 3 * tl.RECENT + tl.TAIL])
    sim.run_rows[v, 3 * tl.RECENT + tl.SIZE] += end - begin
    return d


@kernel
def cut(sim, v, d, at):
    """Cut run ``d`` before block ``at``; it keeps the deeper part. Returns the new run of the higher part."""
    u = _acquire(sim)
    run = sim.runs[d]
    upper = sim.runs[u]
    upper.begin = run.begin
    upper.end = at
    upper.mark = run.mark
    upper.trace_node = run.trace_node
    upper.users = run.users
    upper.owner = run.owner
    upper.age = run.age
    run.begin = at
    _link(sim, v, u, run.list, d)
    _deepest_cached(sim, v, u, d, run.higher)
    return u


@kernel
def _alike(sim, d, tail):
    """Whether run ``d``, to be put behind run ``tail``, can join it."""
    a = sim.runs[d]
    b = sim.runs[tail]
    return a.trace_node == b.trace_node and a.end == b.begin and a.owner == b.owner and a.users == b.users


@kernel
def move(sim, v, d, k):
    """Put run ``d`` at the end of list ``k``; it joins the last run there if it continues it."""
    run = sim.runs[d]
    rows = sim.run_rows[v]
    if rows[3 * k + tl.TAIL] == d:
        return
    blocks = run.end - run.begin
    rows[3 * run.list + tl.SIZE] -= blocks
    rows[3 * k + tl.SIZE] += blocks
    _unlink(sim, v, d)
    tail = rows[3 * k + tl.TAIL]
    if tail >= 0 and _alike(sim, d, tail):
        sim.runs[tail].begin = run.begin
        _give_back(sim, v, d)
    else:
        _link(sim, v, d, k, tail)


@kernel
def drop(sim, v, d):
    """Forget run ``d``."""
    sim.run_rows[v, 3 * sim.runs[d].list + tl.SIZE] -= length(sim, d)
    _unlink(sim, v, d)
    _give_back(sim, v, d)


@kernel
def trim(sim, v, d, count):
    """Forget the ``count`` deepest blocks of run ``d``, fewer than all."""
    sim.run_rows[v, 3 * sim.runs[d].list + tl.SIZE] -= count
    sim.runs[d].end -= count


@kernel
def extend(sim, v, d, count):
    """Add the ``count`` blocks below run ``d`` to it."""
    sim.run_rows[v, 3 * sim.runs[d].list + tl.SIZE] += count
    sim.runs[d].end += count


@kernel
def reset(sim):
    """Remove all runs."""
    sim.counters[la.FREE_RUN] = -1
    sim.counters[la.RUNS_LEFT] = sim.runs.shape[0]
    sim.run_deepest_cached[:] = -1
    for v in range(sim.offloading.stores):
        sim.stores[v].age = 1
        sim.stores[v].evictable = sim.stores[v].capacity
        for k in range(tl.LISTS):
            sim.run_rows[v, 3 * k + tl.HEAD] = -1
            sim.run_rows[v, 3 * k + tl.TAIL] = -1
            sim.run_rows[v, 3 * k + tl.SIZE] = 0
