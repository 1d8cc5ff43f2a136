"""Which leaf of a cache goes first, in the order of its policy (``cache.evictions``).

Each cache has a heap. In order of recency a leaf that may go from now on is nearly always later in the order than all
others, or earlier: such leaves stand in a *line* instead, which they join and leave without a look at the others; only
who belongs in the middle of it is in the heap. Both are in the cache's places of ``evict_heap``: the line in the first
``line_places`` of them, in order from ``line_begin`` to before ``line_end``, with -1 where a leaf has left it, though
not at its ends; the heap behind them.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import (
    evictions,  # noqa: F401  (kernels are compiled from all of them)
    recency,
)
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.core.heap import indexed_heap

#: ``NODE.heap_slot`` of the leaf at place 0 of a line; smaller ones are places in a heap.
LINE = 1 << 30
#: Places of a line at first.
_LINE_PLACES = 8
#: Places from the end of a line that a leaf may join it at.
_LOOK_BACK = 8


#: Bits of the policies whose order is that of the last access.
_BY_RECENCY = EVICTIONS.mask(lambda policy: policy.recency)

_before_by_policy = dispatcher(EVICTIONS, "before", "sim, a, b")
_entering = dispatcher(EVICTIONS, "entering", "sim, d", otherwise="None")


@kernel
def _before(sim, policy, a, b):
    """True where leaf ``a`` is evicted before leaf ``b``."""
    if _BY_RECENCY >> policy & 1:
        return recency.older(sim, a, b)
    return _before_by_policy(policy, sim, a, b)


@kernel
def places(sim, v):
    """Places of cache ``v``'s line and heap."""
    cache = sim.trees[v]
    return sim.evict_heap[cache.first_place : cache.first_place + cache.places]


@kernel
def begin(sim, v, policy):
    """An empty order of cache ``v``'s leaves by ``policy``."""
    cache = sim.trees[v]
    cache.eviction = policy
    by_recency = _BY_RECENCY >> policy & 1
    cache.line_places = min(_LINE_PLACES, cache.places // 2) if by_recency else 0
    cache.line_begin = 0
    cache.line_end = 0
    cache.heap_size = 0


@kernel
def some(sim, v):
    """Whether any leaf of cache ``v`` may be evicted."""
    cache = sim.trees[v]
    return cache.line_begin < cache.line_end or cache.heap_size > 0


@kernel
def first(sim, v):
    """The leaf that goes first, or -1."""
    cache = sim.trees[v]
    top = sim.evict_heap[cache.first_place + cache.line_places] if cache.heap_size > 0 else -1
    if cache.line_begin == cache.line_end:
        return np.int64(top)
    d = sim.evict_heap[cache.first_place + cache.line_begin]
    if top >= 0 and _before(sim, cache.eviction, top, d):
        return np.int64(top)
    return np.int64(d)


@kernel
def _goes_before(order, a, b):
    return _before(order[0], order[1], a, b)


@kernel
def _note_slot(order, d, slot):
    order[0].nodes[d].heap_slot = slot


_sift, _push, _remove = indexed_heap(_goes_before, _note_slot)


@kernel
def _heap(sim, v):
    """Cache ``v``'s heap, behind its line."""
    return places(sim, v)[sim.trees[v].line_places :]


@kernel
def _stand(sim, v, d, place):
    """Leaf ``d`` stands at ``place`` of cache ``v``'s line."""
    sim.evict_heap[sim.trees[v].first_place + place] = d
    sim.nodes[d].heap_slot = LINE + place


@kernel
def _close_ranks(sim, v):
    """The line has reached the end of its room: it moves up to the front, and gets more where it fills half of that."""
    cache = sim.trees[v]
    row = places(sim, v)
    count = 0
    for place in range(cache.line_begin, cache.line_end):
        if row[place] >= 0:
            _stand(sim, v, row[place], count)
            count += 1
    cache.line_begin = 0
    cache.line_end = count
    if 2 * count <= cache.line_places:
        return
    room = min(2 * cache.line_places, row.shape[0] // 2)
    for slot in range(cache.heap_size - 1, -1, -1):
        row[room + slot] = row[cache.line_places + slot]
    cache.line_places = room


@kernel
def _joins_line(sim, v, d):
    """Put ``d`` into cache ``v``'s line, if its place is before all others, or with few behind it."""
    cache = sim.trees[v]
    if cache.line_begin == cache.line_end:
        cache.line_begin = 0
        cache.line_end = 1
        _stand(sim, v, d, 0)
        return True
    row = places(sim, v)
    place = cache.line_end
    if _before(sim, cache.eviction, d, row[place - 1]):
        if cache.line_begin > 0 and _before(sim, cache.eviction, d, row[cache.line_begin]):
            cache.line_begin -= 1
            _stand(sim, v, d, cache.line_begin)
            return True
        place -= 1
    while place > cache.line_begin:
        if place < cache.line_end - _LOOK_BACK:
            return False
        if row[place - 1] >= 0 and _before(sim, cache.eviction, row[place - 1], d):
            break
        place -= 1
    if cache.line_end == cache.line_places:
        _close_ranks(sim, v)
        place = cache.line_end
        if place == cache.line_places:
            return False
        while place > 0 and _before(sim, cache.eviction, d, row[place - 1]):
            place -= 1
    for other in range(cache.line_end, place, -1):
        if row[other - 1] >= 0:
            _stand(sim, v, row[other - 1], other)
        else:
            row[other] = -1
    cache.line_end += 1
    _stand(sim, v, d, place)
    return True


@kernel
def _place(sim, v, d):
    cache = sim.trees[v]
    if cache.line_places > 0 and _joins_line(sim, v, d):
        return
    cache.heap_size = _push((sim, cache.eviction), _heap(sim, v), cache.heap_size, d)


@kernel
def enter(sim, v, d):
    """Let ``d`` be evicted from cache ``v``."""
    _entering(sim.trees[v].eviction, sim, d)
    _place(sim, v, d)


@kernel
def withdraw(sim, v, d):
    """``d`` may not be evicted any more."""
    node = sim.nodes[d]
    slot = node.heap_slot
    if slot < 0:
        return
    cache = sim.trees[v]
    if slot >= LINE:
        node.heap_slot = -1
        row = places(sim, v)
        row[slot - LINE] = -1
        while cache.line_begin < cache.line_end and row[cache.line_begin] < 0:
            cache.line_begin += 1
        while cache.line_begin < cache.line_end and row[cache.line_end - 1] < 0:
            cache.line_end -= 1
        return
    cache.heap_size = _remove((sim, cache.eviction), _heap(sim, v), cache.heap_size, slot)


@kernel
def moved(sim, v, d):
    """The place of leaf ``d``, which may be evicted from cache ``v``, has changed."""
    cache = sim.trees[v]
    if cache.line_places > 0:
        withdraw(sim, v, d)
        _place(sim, v, d)
    else:
        _sift((sim, cache.eviction), _heap(sim, v), cache.heap_size, sim.nodes[d].heap_slot)
