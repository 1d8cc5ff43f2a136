"""HiCache's memory: free pages in HBM and on the host, eviction, and copies to the host; see ``hicache``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import WRITE_POLICIES
from hisearch.kernels.cache import eviction, objects, radix, tree
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import links

#: Bits of the policies that copy a node when it is evicted.
_AT_EVICTION = WRITE_POLICIES.mask(lambda policy: policy.at_eviction)


@kernel
def writes_at_eviction(sim):
    """Whether nodes are copied to the host when they are evicted, not when they are hit."""
    return _AT_EVICTION >> sim.tiers.write_policy & 1 != 0


@kernel
def copy(sim, w, back, tokens):
    """Copy ``tokens`` tokens' KV to worker ``w``'s host memory now, or back (``back`` 1); returns when it ends.

    The copy takes the worker's link, and what it shares on the way to host memory.
    """
    return links.send_to_host(sim, w, back, sim.workers[w].now_s, tokens)


@kernel
def _forget(sim, w, d):
    """Remove the childless host-only node ``d`` from the tree."""
    node = sim.nodes[d]
    p = node.parent
    cut_off = not hicache_nodes.is_root(sim, p) and sim.hosted[p].where == 0
    if not cut_off and hicache_nodes.on_host_alone(sim, p):
        sim.nodes[p].tick = max(sim.nodes[p].tick, node.tick)
    if cut_off:
        s = node.trace_node
        while s > 0 and sim.trace.end_tokens[s] > node.begin:
            if sim.deepest_cached[w, s] == d:
                sim.deepest_cached[w, s] = -1
            s = sim.trace.parent[s]
        sim.nodes[p].children -= 1
        tree.release_node(sim, d)
        if sim.nodes[p].children == 0:
            tree.release_node(sim, p)
        return
    tree.remove(sim, w, d)
    if not hicache_nodes.is_root(sim, p):
        hicache_nodes.offer_host(sim, w, p)


@kernel
def evict_from_host(sim, w):
    """Evict the host's next victim; returns the number of pages freed."""
    v = hicache_nodes.host_pool(sim, w)
    pool = sim.trees[v]
    d = eviction.first(sim, v)
    eviction.withdraw(sim, v, d)
    pages = radix.pages_of(sim, d)
    objects.left_host(sim, w, d)
    _forget(sim, w, d)
    pool.free_pages += pages
    pool.evicted_tokens += pages * sim.config.page_tokens
    return pages


@kernel
def evict_host(sim, w, pages):
    """Evict from the host until at least ``pages`` are freed or nothing evictable is left."""
    evicted = 0
    while evicted < pages and eviction.some(sim, hicache_nodes.host_pool(sim, w)):
        evicted += evict_from_host(sim, w)


@kernel
def take_host(sim, w, pages):
    """Take pages of host memory; if too few are free, evict first what is missing, or before 0.5.17 ``pages``."""
    pool = sim.trees[hicache_nodes.host_pool(sim, w)]
    if pool.free_pages < pages:
        evict_host(sim, w, pages - pool.free_pages if sim.config.evicts_shortfall else pages)
    if pool.free_pages < pages:
        return False
    pool.free_pages -= pages
    pool.peak_pages = max(pool.peak_pages, pool.capacity_pages - pool.free_pages)
    return True


@kernel
def copy_to_host(sim, w, d):
    """Begin to copy ``d`` to the host if memory can be allocated; it counts as copied from now on.

    Where copies are merged it begins with the next ``copies.begin_writing``.
    """
    pages = radix.pages_of(sim, d)
    if not take_host(sim, w, pages):
        return False
    tokens = pages * sim.config.page_tokens
    sim.hosted[d].where |= hl.ON_HOST
    if sim.config.merges_copies and not writes_at_eviction(sim):
        sim.hosted[d].at_s = la.FOREVER_S
        sim.hosts[w].writing_tokens += tokens
    else:
        sim.hosted[d].at_s = copy(sim, w, 0, tokens)
    sim.trees[hicache_nodes.host_pool(sim, w)].stored_tokens += tokens
    return True


@kernel
def _drop(sim, w, d):
    """Remove ``d``, which is only in HBM, from the tree and cut off the nodes below it."""
    node = sim.nodes[d]
    p = node.parent
    hicache_nodes.lose_child(sim, w, p, d)
    if node.children == 0:
        tree.remove(sim, w, d)
        return
    s = node.trace_node
    while s > 0:
        start = sim.trace.start_tokens[s]
        sim.deepest_cached[w, s] = p if not hicache_nodes.is_root(sim, p) and start < node.begin else -1
        if start <= node.begin:
            break
        s = sim.trace.parent[s]
    sim.nodes[p].children -= 1
    node.parent = -1
    sim.hosted[d].where = 0


@kernel
def drop_with_children(sim, w, d):
    """Remove ``d``, which has no host copy, and the host-only nodes below it, unless one of these is in use."""
    pool = sim.trees[hicache_nodes.host_pool(sim, w)]
    while sim.nodes[d].children > 0:
        # Host-only leaves that are not in use stand in the host's order of eviction.
        leaf = _free_leaf_below(sim, w, d)
        if leaf < 0:
            return False
        eviction.withdraw(sim, hicache_nodes.host_pool(sim, w), leaf)
        pool.free_pages += radix.pages_of(sim, leaf)
        _forget(sim, w, leaf)
    _drop(sim, w, d)
    return True


@kernel
def _free_leaf_below(sim, w, d):
    """A host-only leaf below ``d`` that is not in use; -1: none."""
    v = hicache_nodes.host_pool(sim, w)
    cache = sim.trees[v]
    for place in range(cache.line_begin, cache.line_places + cache.heap_size):
        if cache.line_end <= place < cache.line_places:
            continue
        leaf = sim.evict_heap[cache.first_place + place]
        above = leaf
        while above >= 0 and not hicache_nodes.is_root(sim, above) and above != d:
            above = sim.nodes[above].parent
        if leaf >= 0 and above == d:
            return leaf
    return -1


@kernel
def leave_to_host(sim, w, d):
    """Drop the HBM copy of ``d``, which is withdrawn from eviction; its host copy stays."""
    sim.hosted[d].where = hl.ON_HOST
    hicache_nodes.lose_child(sim, w, sim.nodes[d].parent, d)
    hicache_nodes.offer_host(sim, w, d)
    objects.left_hbm(sim, w, d)


@kernel
def ensure_free_pages(sim, w, pages):
    """If fewer than ``pages`` of HBM are free, evict as many as are missing, before release 0.5.17 ``pages``.

    With write_back the scheduler waits for the copies of evicted nodes.
    """
    cache = sim.trees[w]
    if cache.free_pages >= pages:
        return
    wanted = pages - cache.free_pages if sim.config.evicts_shortfall else pages
    evicted = 0
    copied = -1
    refused = -1
    while evicted < wanted and eviction.some(sim, w):
        d = eviction.first(sim, w)
        eviction.withdraw(sim, w, d)
        hosted = sim.hosted[d]
        node_pages = radix.pages_of(sim, d)
        if hosted.where & hl.ON_HOST:
            leave_to_host(sim, w, d)
        elif not writes_at_eviction(sim):
            _drop(sim, w, d)
        elif copy_to_host(sim, w, d):
            if sim.config.merges_copies:
                # Each copy is waited for; the next one may evict it from the host.
                sim.workers[w].now_s = max(sim.workers[w].now_s, hosted.at_s)
                leave_to_host(sim, w, d)
                evicted += node_pages
                continue
            # Counts as in HBM until the copies end: the next copy could evict a host-only node.
            hicache_nodes.lose_child(sim, w, sim.nodes[d].parent, d)
            hosted.below = copied
            copied = d
        elif sim.config.merges_copies and drop_with_children(sim, w, d):
            pass
        else:
            hosted.below = refused
            refused = d
            continue
        evicted += node_pages
    cache.free_pages += evicted
    cache.evictable_pages -= evicted
    cache.evicted_tokens += evicted * sim.config.page_tokens
    if copied >= 0:
        # The copy sent last ends last.
        sim.workers[w].now_s = max(sim.workers[w].now_s, sim.hosted[copied].at_s)
    while copied >= 0:
        sim.hosted[copied].where = hl.ON_HOST
        hicache_nodes.offer_host(sim, w, copied)
        objects.left_hbm(sim, w, copied)
        copied = sim.hosted[copied].below
    while refused >= 0:
        radix.offer(sim, w, refused)
        refused = sim.hosted[refused].below
