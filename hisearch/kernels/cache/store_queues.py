"""Stores with two queues that remember what has gone: the mechanism of arc and s3fifo.

Runs enter the first queue and move into the second one when their policy says so. Pages come and go one by one. One
that goes may be remembered in one of two lists, which are stores without content. One that is recalled enters the
second queue.

A store's shadows, three trees from ``TREE.shadows`` on: the heap of the second queue, and the two lists.
``HOSTED.queue`` says in which queue a run is, and ``TREE.once_pages`` how many pages the first one has.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import eviction, store_runs
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.layout import sim as la

#: Trees that a store has beside its own.
SHADOWS = 3
#: Lists of pages that have gone: trees from ``TREE.shadows`` on.
_FIRST, _SECOND = 1, 2

_recalled = dispatcher(EVICTIONS, "recalled", "sim, v, which, n1, n2", otherwise="None")
_first_queue = dispatcher(EVICTIONS, "first_queue", "sim, v, recalled", otherwise="0")
_remembered_in = dispatcher(EVICTIONS, "remembered_in", "sim, d", otherwise="0")
_forgets = dispatcher(EVICTIONS, "forgets", "sim, v, n1, n2", otherwise="0")


@kernel
def reset(sim, v):
    """Nothing is held, nothing is remembered."""
    cache = sim.trees[v]
    for k in range(SHADOWS):
        shadow = sim.trees[cache.shadows + k]
        shadow.tier = cache.tier
        eviction.begin(sim, cache.shadows + k, cache.eviction if k == 0 else la.LRU)
        shadow.capacity_pages = 2 * cache.capacity_pages + 1
        shadow.free_pages = shadow.capacity_pages


@kernel
def _remembered(sim, v, which):
    shadow = sim.trees[sim.trees[v].shadows + which]
    return shadow.capacity_pages - shadow.free_pages


@kernel
def recall(sim, v, s, begin):
    """The page behind ``begin`` in trace-tree node ``s`` comes, and is remembered no more.

    Returns which list remembered it: 1 or 2, or 0 for none.
    """
    cache = sim.trees[v]
    end = begin + sim.config.page_tokens
    n1 = _remembered(sim, v, _FIRST)
    n2 = _remembered(sim, v, _SECOND)
    for which in (_FIRST, _SECOND):
        if store_runs.cut(sim, cache.shadows + which, s, begin, end) > 0:
            _recalled(cache.eviction, sim, v, which, n1, n2)
            return which
    return 0


@kernel
def first_heap(sim, v, recalled):
    """The heap that a page should go from for one that was ``recalled`` from a list, or from neither."""
    return v if _first_queue(sim.trees[v].eviction, sim, v, recalled) == 0 else sim.trees[v].shadows


@kernel
def remember(sim, v, d):
    """The last page of run ``d`` is about to go."""
    which = _remembered_in(sim.trees[v].eviction, sim, d)
    if which == 0:
        return
    node = sim.nodes[d]
    g = sim.trees[v].shadows + which
    sim.trees[g].tick += 1
    store_runs.hold(sim, g, node.trace_node, node.end - sim.config.page_tokens, node.end, 0.0, 0, 0)


@kernel
def forget(sim, v):
    """Forget what is too much to remember, the longest gone first."""
    cache = sim.trees[v]
    while True:
        which = _forgets(cache.eviction, sim, v, _remembered(sim, v, _FIRST), _remembered(sim, v, _SECOND))
        if which == 0:
            return
        g = cache.shadows + which
        store_runs.trim(sim, g, eviction.first(sim, g), 1)
