"""The adaptive replacement cache (Megiddo and Modha 2003) in a store.

Notation
    C       capacity in pages; p the target size of T1, 0 … C
    T1, T2  pages of runs not used since they were made, and of the others
    B1, B2  pages evicted from them of late

Pages come one by one. One that is remembered moves p, by the ratio of B1 and B2, and goes to T2. Where no room is left
a page of T1 or T2 goes, as p says, from the end of the least recently used run: remembered from then on. After each
page as many are forgotten, the longest gone first, as |T1| + |B1| <= C and |T1| + |T2| + |B1| + |B2| <= 2 C ask for.

B1 and B2 are stores without content. A store's shadows, three trees from ``TREE.shadows`` on: T2's heap, B1 and B2.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction
from hisearch.kernels.cache import store_runs as runs
from hisearch.kernels.layout import sim as la

#: Trees that a store has beside its own.
SHADOWS = 3
_FREQUENT, _ONCE_GONE, _OFTEN_GONE = 0, 1, 2


@kernel
def reset(sim, v):
    """Nothing is held, nothing is remembered."""
    cache = sim.trees[v]
    for k in range(SHADOWS):
        shadow = sim.trees[cache.shadows + k]
        shadow.tier = cache.tier
        eviction.begin(sim, cache.shadows + k, la.LRU)
        shadow.capacity_pages = 2 * cache.capacity_pages + 1
        shadow.free_pages = shadow.capacity_pages


@kernel
def _remembered(sim, v, which):
    shadow = sim.trees[sim.trees[v].shadows + which]
    return shadow.capacity_pages - shadow.free_pages


@kernel
def recall(sim, v, s, begin):
    """The page behind ``begin`` in trace-tree node ``s`` comes. Returns where it is remembered: 0 nowhere, 1 B1, 2 B2.

    If it is, it is not any more, and the target moves.
    """
    cache = sim.trees[v]
    end = begin + sim.config.page_tokens
    once = _remembered(sim, v, _ONCE_GONE)
    often = _remembered(sim, v, _OFTEN_GONE)
    if runs.cut(sim, cache.shadows + _ONCE_GONE, s, begin, end) > 0:
        cache.target = min(float(cache.capacity_pages), cache.target + max(1.0, often / once))
        return _ONCE_GONE
    if runs.cut(sim, cache.shadows + _OFTEN_GONE, s, begin, end) > 0:
        cache.target = max(0.0, cache.target - max(1.0, once / often))
        return _OFTEN_GONE
    return 0


@kernel
def first_heap(sim, v, recalled):
    """The heap that a page should go from for one that was ``recalled`` from B1 or B2, or from neither."""
    cache = sim.trees[v]
    once = cache.once_pages
    if once >= 1 and (once > cache.target or (recalled == _OFTEN_GONE and once == cache.target)):
        return v
    return cache.shadows


@kernel
def remember(sim, v, d):
    """The last page of run ``d`` is about to go."""
    node = sim.nodes[d]
    g = sim.trees[v].shadows + (_OFTEN_GONE if node.hits > 0 else _ONCE_GONE)
    sim.trees[g].tick += 1
    runs.hold(sim, g, node.trace_node, node.end - sim.config.page_tokens, node.end, 0.0, 0, 0)


@kernel
def _forget_oldest(sim, v, which):
    g = sim.trees[v].shadows + which
    runs.trim(sim, g, eviction.first(sim, g), 1)


@kernel
def forget(sim, v):
    """Forget what is too much to remember."""
    cache = sim.trees[v]
    most = cache.capacity_pages
    while _remembered(sim, v, _ONCE_GONE) > 0 and cache.once_pages + _remembered(sim, v, _ONCE_GONE) > most:
        _forget_oldest(sim, v, _ONCE_GONE)
    known = most - cache.free_pages + _remembered(sim, v, _ONCE_GONE)
    while _remembered(sim, v, _OFTEN_GONE) > 0 and known + _remembered(sim, v, _OFTEN_GONE) > 2 * most:
        _forget_oldest(sim, v, _OFTEN_GONE)
