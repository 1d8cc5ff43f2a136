"""SGLang's radix cache on top of ``tree``: unlocked leaves are evicted whole, lowest priority first.

Every match and every insertion is one later tick, and each node on its way has that tick as its time of access. Since
a way to a node leads through all above it, a node's true time is the latest of its own and of all nodes ever below it:
only the deepest node of a way is marked, and a node that goes hands its mark up. The same holds for hit counts, by
sums, and for priorities, by maxima. What is exact in a leaf without children is all that eviction looks at.

Order of eviction by policy, the first to go first; ties by age where the policy keeps the older, else by youth:

    lru       last access               mru   the same, latest first
    fifo      creation                  filo  the same, latest first
    lfu       hits, then last access    slru  fewer than two hits, then the others, by last access
    priority  highest priority value among the requests that inserted it, lowest first, then last access

Hits are counted with a host tier only, as in the engine, so that without one lfu and slru are lru. Source: the
strategies of SGLang's ``mem_cache/evict_policy.py`` (0.5.9). Priority values are the requests' own: whichever way the
queue is ordered, the engine evicts the lowest first.

``TREE.free_pages`` are pages without content; ``evictable_pages`` those of nodes that nobody holds.
"""

from __future__ import annotations

import numpy as np

from hisearch.kernels import layout as la
from hisearch.kernels import tree
from hisearch.kernels.jit import kernel

#: slru protects nodes with so many hits.
PROTECTED_HITS = 2


@kernel
def _pages(sim, d):
    return (sim.nodes[d].end - sim.nodes[d].begin) // sim.config.page_tokens


@kernel
def _stands(sim):
    """True where nodes have standings."""
    return sim.config.eviction == la.BY_PRIORITY or sim.config.schedule == la.DFS_WEIGHT


@kernel
def _segment(sim, d):
    """What comes before the last access in the policy's order."""
    if sim.config.eviction == la.LFU:
        return sim.nodes[d].hits
    if sim.config.eviction == la.SLRU:
        return np.int64(sim.nodes[d].hits >= PROTECTED_HITS)
    return np.int64(sim.standings[d].priority)


@kernel
def _otherwise_before(sim, a, b):
    """``_before`` for policies other than lru."""
    na = sim.nodes[a]
    nb = sim.nodes[b]
    policy = sim.config.eviction
    if policy == la.MRU:
        return na.tick > nb.tick or (na.tick == nb.tick and na.serial > nb.serial)
    if policy == la.FIFO:
        return na.serial < nb.serial
    if policy == la.FILO:
        return na.serial > nb.serial
    ka = _segment(sim, a)
    kb = _segment(sim, b)
    if ka != kb:
        return ka < kb
    return na.tick < nb.tick or (na.tick == nb.tick and na.serial < nb.serial)


@kernel
def _before(sim, a, b):
    """True where leaf ``a`` is evicted before leaf ``b``."""
    if sim.config.eviction != la.LRU:
        return _otherwise_before(sim, a, b)
    na = sim.nodes[a]
    nb = sim.nodes[b]
    if na.tick != nb.tick:
        return na.tick < nb.tick
    return na.serial < nb.serial


@kernel
def _sift(sim, v, slot):
    heap = sim.evict_heap[v]
    size = sim.trees[v].heap_size
    d = heap[slot]
    while slot > 0:
        up = (slot - 1) >> 1
        if not _before(sim, d, heap[up]):
            break
        heap[slot] = heap[up]
        sim.nodes[heap[slot]].heap_slot = slot
        slot = up
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _before(sim, heap[down + 1], heap[down]):
            down += 1
        if not _before(sim, heap[down], d):
            break
        heap[slot] = heap[down]
        sim.nodes[heap[slot]].heap_slot = slot
        slot = down
    heap[slot] = d
    sim.nodes[d].heap_slot = slot


@kernel
def _offer(sim, v, d):
    """Let ``d`` be evicted if it is an unlocked leaf."""
    node = sim.nodes[d]
    if node.lock > 0 or node.children > 0 or node.heap_slot >= 0:
        return
    cache = sim.trees[v]
    slot = cache.heap_size
    sim.evict_heap[v, slot] = d
    cache.heap_size = slot + 1
    _sift(sim, v, slot)


@kernel
def _withdraw(sim, v, d):
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
        _sift(sim, v, slot)


@kernel
def _mark(sim, v, d):
    """``d`` was accessed now."""
    if d < sim.trees.shape[0]:
        return
    node = sim.nodes[d]
    node.tick = sim.trees[v].tick
    if node.heap_slot >= 0:
        _sift(sim, v, node.heap_slot)


@kernel
def walk(sim, v, static, limit):
    """Match the path to ``static`` up to ``limit`` tokens (whole pages), splitting the node in which the match ends.

    Returns (tokens, node whose end is the match's end).
    """
    cache = sim.trees[v]
    cache.tick += 1
    tokens, d = tree.match(sim, v, static, limit)
    if tokens == 0:
        return 0, v
    _mark(sim, v, d)
    if tokens < sim.nodes[d].end:
        lower = d
        d = tree.split(sim, v, d, tokens)
        sim.nodes[d].serial = cache.serial
        if _stands(sim):
            sim.standings[d] = sim.standings[lower]
        cache.serial += 1
    return tokens, d


@kernel
def _note_insertion(sim, v, d, priority):
    """An insertion ended in node ``d``."""
    node = sim.nodes[d]
    if _stands(sim):
        sim.standings[d].priority = max(sim.standings[d].priority, priority)
    if sim.config.host_pages > 0:
        node.hits += 1
    if node.heap_slot >= 0:
        _sift(sim, v, node.heap_slot)


@kernel
def insert(sim, v, static, tokens, priority):
    """Add the first ``tokens`` (whole pages) of the path to ``static`` for a request of that priority.

    Return (tokens present before, deepest node).
    """
    present, d = walk(sim, v, static, tokens)
    if present < tokens:
        cache = sim.trees[v]
        _withdraw(sim, v, d)
        d = tree.insert(sim, v, d, static, present, tokens)
        node = sim.nodes[d]
        node.serial = cache.serial
        node.tick = cache.tick
        if _stands(sim):
            standing = sim.standings[d]
            standing.rank = cache.serial
            standing.priority = priority
            standing.weight = 0
        cache.serial += 1
        cache.evictable_pages += _pages(sim, d)
        _offer(sim, v, d)
    if d >= sim.trees.shape[0] and sim.config.eviction != la.LRU:
        _note_insertion(sim, v, d, priority)
    return present, d


@kernel
def lock(sim, v, d):
    """Hold node ``d`` and so all above it."""
    while True:
        node = sim.nodes[d]
        node.lock += 1
        if node.lock > 1:
            return
        _withdraw(sim, v, d)
        sim.trees[v].evictable_pages -= _pages(sim, d)
        d = node.parent


@kernel
def unlock(sim, v, d):
    """Let go of node ``d``."""
    while True:
        node = sim.nodes[d]
        node.lock -= 1
        if node.lock > 0:
            return
        sim.trees[v].evictable_pages += _pages(sim, d)
        _offer(sim, v, d)
        d = node.parent


@kernel
def make_room(sim, v, pages):
    """Where fewer than ``pages`` are free, evict at least that many, not the difference, as far as there are any."""
    cache = sim.trees[v]
    if cache.free_pages >= pages:
        return
    gone = 0
    while gone < pages and cache.heap_size > 0:
        d = sim.evict_heap[v, 0]
        node = sim.nodes[d]
        here = _pages(sim, d)
        parent = node.parent
        above = sim.nodes[parent]
        above.tick = max(above.tick, node.tick)
        above.hits += node.hits
        if _stands(sim):
            sim.standings[parent].priority = max(sim.standings[parent].priority, sim.standings[d].priority)
        _withdraw(sim, v, d)
        tree.remove(sim, v, d)
        if parent >= sim.trees.shape[0]:
            _offer(sim, v, parent)
        gone += here
    cache.free_pages += gone
    cache.evictable_pages -= gone
    cache.evicted_tokens += gone * sim.config.page_tokens


@kernel
def reset(sim, v, pages):
    """An empty cache of ``pages`` pages."""
    root = sim.nodes[v]
    root.begin = -1
    root.end = 0
    root.lock = 1
    root.children = 0
    root.parent = -1
    root.static = -1
    root.tick = 0
    root.hits = 0
    root.heap_slot = -1
    cache = sim.trees[v]
    cache.capacity_pages = pages
    cache.free_pages = pages
    cache.head = -1
    cache.tail = -1
