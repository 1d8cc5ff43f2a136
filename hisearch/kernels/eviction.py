"""Which leaf of a cache goes first: a heap for each cache, in the order of its policy.

    lru       last access               mru   the same, latest first
    fifo      creation                  filo  the same, latest first
    lfu       hits, then last access    slru  fewer than two hits, then the others, by last access
    priority  highest priority value among the requests that inserted it, lowest first, then last access

Of stores alone (see ``store_room``):

    clock     creation, but what was used since goes to the end of the line instead, once for each round
    tlru      what a next prompt's first token can do without, then the others, by last access
    gdsf      lowest value: what was evicted last, plus uses times the cost of computing a token again, then last access
    arc       last access, in each of its two lists
    belady    latest next use, of those with the same the deepest, then last access

With agents (see ``agents_due``):

    distance  due latest, then last access

The first in that order goes first; ties by age where the policy keeps the older, else by youth. Source: the strategies
of SGLang's ``mem_cache/evict_policy.py`` (0.5.9). Priority values are the requests' own: whichever way the queue is
ordered, the engine evicts the lowest first.
"""

from __future__ import annotations

import numpy as np

from hisearch.kernels import agents_due, foresight
from hisearch.kernels import layout as la
from hisearch.kernels.jit import kernel

#: slru protects nodes with so many hits.
PROTECTED_HITS = 2


@kernel
def _segment(sim, policy, d):
    """What comes before the last access in the policy's order."""
    if policy == la.LFU:
        return sim.nodes[d].hits
    if policy == la.TLRU:
        return np.int64(sim.nodes[d].end - sim.config.page_tokens < sim.hosted[d].spare_from)
    if policy == la.SLRU:
        return np.int64(sim.nodes[d].hits >= PROTECTED_HITS)
    return np.int64(sim.standings[d].priority)


@kernel
def _otherwise_before(sim, policy, a, b):
    """``_before`` for policies other than lru."""
    na = sim.nodes[a]
    nb = sim.nodes[b]
    if policy == la.DISTANCE:
        due = sim.agents.keys[a]
        other = sim.agents.keys[b]
        if due != other:
            return due > other
        return na.tick < nb.tick or (na.tick == nb.tick and na.serial < nb.serial)
    if policy == la.MRU:
        return na.tick > nb.tick or (na.tick == nb.tick and na.serial > nb.serial)
    if policy == la.FIFO or policy == la.CLOCK:
        return na.serial < nb.serial
    if policy == la.FILO:
        return na.serial > nb.serial
    if policy == la.GDSF:
        va = sim.hosted[a].value
        vb = sim.hosted[b].value
        if va != vb:
            return va < vb
        return na.tick < nb.tick or (na.tick == nb.tick and na.serial < nb.serial)
    if policy == la.BELADY:
        if foresight.later(sim, na.static, na.begin, nb.static, nb.begin):
            return True
        if foresight.later(sim, nb.static, nb.begin, na.static, na.begin):
            return False
        return na.tick < nb.tick or (na.tick == nb.tick and na.serial < nb.serial)
    ka = _segment(sim, policy, a)
    kb = _segment(sim, policy, b)
    if ka != kb:
        return ka < kb
    return na.tick < nb.tick or (na.tick == nb.tick and na.serial < nb.serial)


@kernel
def _before(sim, policy, a, b):
    """True where leaf ``a`` is evicted before leaf ``b``."""
    if policy != la.LRU and policy != la.ARC:
        return _otherwise_before(sim, policy, a, b)
    na = sim.nodes[a]
    nb = sim.nodes[b]
    if na.tick != nb.tick:
        return na.tick < nb.tick
    return na.serial < nb.serial


@kernel
def sift(sim, v, slot):
    """Restore the order of cache ``v``'s heap around ``slot``, whose leaf's place has changed."""
    heap = sim.evict_heap[v]
    size = sim.trees[v].heap_size
    policy = sim.trees[v].eviction
    d = heap[slot]
    while slot > 0:
        up = (slot - 1) >> 1
        if not _before(sim, policy, d, heap[up]):
            break
        heap[slot] = heap[up]
        sim.nodes[heap[slot]].heap_slot = slot
        slot = up
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _before(sim, policy, heap[down + 1], heap[down]):
            down += 1
        if not _before(sim, policy, heap[down], d):
            break
        heap[slot] = heap[down]
        sim.nodes[heap[slot]].heap_slot = slot
        slot = down
    heap[slot] = d
    sim.nodes[d].heap_slot = slot


@kernel
def enter(sim, v, d):
    """Let ``d`` be evicted from cache ``v``."""
    cache = sim.trees[v]
    if cache.eviction == la.DISTANCE:
        sim.agents.keys[d] = agents_due.due_of(sim, d)
    slot = cache.heap_size
    sim.evict_heap[v, slot] = d
    cache.heap_size = slot + 1
    sift(sim, v, slot)


@kernel
def withdraw(sim, v, d):
    """``d`` may not be evicted any more."""
    node = sim.nodes[d]
    slot = node.heap_slot
    if slot < 0:
        return
    cache = sim.trees[v]
    size = cache.heap_size - 1
    cache.heap_size = size
    node.heap_slot = -1
    if slot != size:
        sim.evict_heap[v, slot] = sim.evict_heap[v, size]
        sift(sim, v, slot)
