"""Two queues and the pages that went from them (arc), for a cache of pages; for stores see ``cache.store_queues``.

Pages come and go one by one. One that goes is remembered in one of two lists, in order of eviction; one that is
recalled enters the second queue. Of the queue that the policy chooses the first leaf goes, of the other one where that
has none.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cachesim import pages
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.core.linked_list import linked_list

_recalled = dispatcher(pages.POLICIES, "recalled", "sim, v, which, n1, n2", otherwise="None")
_first_queue = dispatcher(pages.POLICIES, "first_queue", "sim, v, recalled", otherwise="0")
_remembered_in = dispatcher(pages.POLICIES, "remembered_in", "sim, d", otherwise="0")
_forgets = dispatcher(pages.POLICIES, "forgets", "sim, v, n1, n2", otherwise="0")
_insert, _remove = linked_list()


@kernel
def _take_out(sim, b):
    ghosts = sim.ghosts[sim.links[b].ghosts]
    head, tail = _remove(sim.links, ghosts.head, ghosts.tail, b)
    ghosts.head = head
    ghosts.tail = tail
    ghosts.pages -= 1
    sim.links[b].ghosts = -1


@kernel
def recall(sim, b):
    """Page ``b`` comes and is remembered no more; returns which list remembered it, 0 for none."""
    which = sim.links[b].ghosts
    if which <= 0:
        return 0
    _recalled(sim.trees[0].eviction, sim, 0, which, sim.ghosts[1].pages, sim.ghosts[2].pages)
    _take_out(sim, b)
    return np.int64(which)


@kernel
def make_room(sim, recalled):
    """Evict a page where none is free, for one that was ``recalled`` from a list, or from none."""
    cache = sim.trees[0]
    if cache.free_pages > 0:
        return
    first = _first_queue(cache.eviction, sim, 0, recalled)
    b = np.int64(sim.leaves[first if sim.leaf_count[first] > 0 else 1 - first, 0])
    which = _remembered_in(cache.eviction, sim, b)
    pages.drop(sim, b)
    if which > 0:
        ghosts = sim.ghosts[which]
        head, tail = _insert(sim.links, ghosts.head, ghosts.tail, ghosts.tail, b)
        ghosts.head = head
        ghosts.tail = tail
        ghosts.pages += 1
        sim.links[b].ghosts = which


@kernel
def forget(sim):
    """Forget what is too much to remember, the longest gone first."""
    while True:
        which = _forgets(sim.trees[0].eviction, sim, 0, sim.ghosts[1].pages, sim.ghosts[2].pages)
        if which == 0:
            return
        _take_out(sim, sim.ghosts[which].head)
