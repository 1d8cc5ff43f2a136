"""Runs of blocks in the lists of a store: found by trace node, cut and joined.

Within a run, and so in its list, the deepest block comes first. The runs of a trace node are also linked, deepest
first; ``run_deepest_cached`` has the first.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import free_list, linked_list
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl

_take, _give = free_list(la.FREE_RUN, la.RUNS_USED)


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
def acquire(sim):
    """An unused record; the caller has ensured that there is one."""
    sim.counters[la.RUNS_LEFT] -= 1
    return _take(sim.runs, sim.counters)


@kernel
def release(sim, d):
    """Give record ``d``, which is in no list, back."""
    _give(sim.runs, sim.counters, d)
    sim.counters[la.RUNS_LEFT] += 1


_insert_run, _remove_run = linked_list()
_insert_higher, _remove_higher = linked_list("deeper", "higher")


@kernel
def _link(sim, v, d, k, before):
    """Put run ``d`` into list ``k`` behind the run ``before``; -1: at the front."""
    ends = sim.run_rows[v][3 * k :]
    sim.runs[d].list = k
    ends[tl.HEAD], ends[tl.TAIL] = _insert_run(sim.runs, ends[tl.HEAD], ends[tl.TAIL], before, d)


@kernel
def _unlink(sim, v, d):
    ends = sim.run_rows[v][3 * sim.runs[d].list :]
    ends[tl.HEAD], ends[tl.TAIL] = _remove_run(sim.runs, ends[tl.HEAD], ends[tl.TAIL], d)


@kernel
def _deepest_cached(sim, v, d, deeper):
    """Link run ``d`` behind the run ``deeper`` of its trace node, -1: as the deepest."""
    heads = sim.run_deepest_cached[v]
    s = sim.runs[d].trace_node
    heads[s], _ = _insert_higher(sim.runs, heads[s], -1, deeper, d)


@kernel
def _give_back(sim, v, d):
    """Forget run ``d``, which is in no list."""
    run = sim.runs[d]
    heads = sim.run_deepest_cached[v]
    heads[run.trace_node], _ = _remove_higher(sim.runs, heads[run.trace_node], -1, d)
    release(sim, d)


@kernel
def insert(sim, v, s, begin, end, deeper):
    """Insert a run at the end of the first list: blocks ``begin`` to ``end`` of node ``s``, between two of its runs."""
    d = acquire(sim)
    run = sim.runs[d]
    run.begin = begin
    run.end = end
    run.protected_by = 0
    run.trace_node = s
    run.users = 0
    run.owner = -1
    run.age = 0
    _deepest_cached(sim, v, d, deeper)
    _link(sim, v, d, tl.RECENT, sim.run_rows[v, 3 * tl.RECENT + tl.TAIL])
    sim.run_rows[v, 3 * tl.RECENT + tl.SIZE] += end - begin
    return d


@kernel
def cut(sim, v, d, at):
    """Cut run ``d`` before block ``at``; it keeps the deeper part. Returns the new run of the higher part."""
    u = acquire(sim)
    run = sim.runs[d]
    upper = sim.runs[u]
    upper.begin = run.begin
    upper.end = at
    upper.protected_by = run.protected_by
    upper.trace_node = run.trace_node
    upper.users = run.users
    upper.owner = run.owner
    upper.age = run.age
    run.begin = at
    _link(sim, v, u, run.list, d)
    _deepest_cached(sim, v, u, d)
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


@kernel
def cut_out(sim, v, d, begin, end):
    """Cut the part of run ``d`` within (begin, end) out as a run of its own; returns it."""
    if sim.runs[d].end > end:
        d = cut(sim, v, d, end)
    if sim.runs[d].begin < begin:
        cut(sim, v, d, begin)
    return d
