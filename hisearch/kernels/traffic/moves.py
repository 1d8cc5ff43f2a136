"""Pages that move from one store of a chain to another: pages demoted by a store, and each worker's queue of moves."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la


@kernel
def _acquire(sim):
    """Take an unused record; -1 if there is none, which voids the run."""
    m = sim.counters[la.FREE_MOVE]
    if m >= 0:
        sim.counters[la.FREE_MOVE] = sim.moves[m].next
        return m
    m = sim.counters[la.MOVES_USED]
    if m >= sim.moves.shape[0]:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return -1
    sim.counters[la.MOVES_USED] = m + 1
    return m


@kernel
def release(sim, m):
    """Give a record back."""
    sim.moves[m].next = sim.counters[la.FREE_MOVE]
    sim.counters[la.FREE_MOVE] = m


@kernel
def _new(sim, trace_node, begin, end, to, priority):
    m = _acquire(sim)
    if m < 0:
        return m
    move = sim.moves[m]
    move.trace_node = trace_node
    move.begin = begin
    move.end = end
    move.to = to
    move.priority = priority
    move.next = -1
    return m


@kernel
def note_demoted(sim, v, trace_node, begin, end, priority):
    """Record that store ``v`` evicts the pages in (begin, end] of trace node ``trace_node`` to another store."""
    cache = sim.trees[v]
    last = cache.gone_tail
    if cache.gone_head >= 0 and sim.moves[last].trace_node == trace_node and sim.moves[last].begin == end:
        sim.moves[last].begin = begin
        return
    m = _new(sim, trace_node, begin, end, 1, priority)
    if m < 0:
        return
    if cache.gone_head >= 0:
        sim.moves[last].next = m
    else:
        cache.gone_head = m
    cache.gone_tail = m


@kernel
def _append(sim, w, m):
    server = sim.servers[hl.SERVERS * w + hl.CONNECTOR_SERVER]
    if server.head >= 0:
        sim.moves[server.tail].next = m
    else:
        server.head = m
    server.tail = m


@kernel
def add(sim, w, trace_node, begin, end, to, priority):
    """Append a move to worker ``w``'s queue."""
    m = _new(sim, trace_node, begin, end, to, priority)
    if m >= 0:
        _append(sim, w, m)


@kernel
def adopt(sim, w, v):
    """Append the moves of pages that store ``v`` has evicted to worker ``w``'s queue."""
    cache = sim.trees[v]
    m = cache.gone_head
    cache.gone_head = -1
    while m >= 0:
        after = sim.moves[m].next
        sim.moves[m].next = -1
        _append(sim, w, m)
        m = after
