"""Pages that move from one store of a chain to another: pages demoted by a store, and each worker's queue of moves."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import fifo, free_list
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la

_enqueue = fifo()
_acquire, _release = free_list(la.FREE_MOVE, la.MOVES_USED)


@kernel
def release(sim, m):
    """Give a record back."""
    _release(sim.moves, sim.counters, m)


@kernel
def _new(sim, trace_node, begin, end, to, priority):
    """A record of a move, in no queue; -1 if there is none, which voids the run."""
    m = _acquire(sim.moves, sim.counters)
    if m < 0:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return m
    move = sim.moves[m]
    move.trace_node = trace_node
    move.begin = begin
    move.end = end
    move.to = to
    move.priority = priority
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
    cache.gone_head, cache.gone_tail = _enqueue(sim.moves, cache.gone_head, cache.gone_tail, m)


@kernel
def _append(sim, w, m):
    server = sim.servers[hl.SERVERS * w + hl.CONNECTOR_SERVER]
    server.head, server.tail = _enqueue(sim.moves, server.head, server.tail, m)


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
        _append(sim, w, m)
        m = after
