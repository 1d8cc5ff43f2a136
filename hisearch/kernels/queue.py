"""vLLM's free queue: free pages in the order in which they will be taken, cached ones and empty ones alike.

The queue is a list of runs. A cached run (a tree node nobody holds) gives its last page first, as vLLM frees a
request's blocks from the last to the first. Pages without content are runs of static node 0. ``TREE.free_pages`` is
the queue's length. The host tier keeps its pages the same way: there, nothing is ever held beyond one operation.
"""

from __future__ import annotations

from hisearch.kernels import tree
from hisearch.kernels.jit import kernel


@kernel
def run_pages(sim, d):
    """Pages of node ``d``."""
    return (sim.nodes[d].end - sim.nodes[d].begin) // sim.config.page_tokens


@kernel
def _unlink(sim, v, d):
    node = sim.nodes[d]
    store = sim.trees[v]
    if node.prev >= 0:
        sim.nodes[node.prev].next = node.next
    else:
        store.head = node.next
    if node.next >= 0:
        sim.nodes[node.next].prev = node.prev
    else:
        store.tail = node.prev
    node.next = -1
    node.prev = -1
    node.queued = 0


@kernel
def _link_after(sim, v, d, before):
    """Put ``d`` behind ``before``; -1: at the front."""
    node = sim.nodes[d]
    store = sim.trees[v]
    after = sim.nodes[before].next if before >= 0 else store.head
    node.prev = before
    node.next = after
    node.queued = 1
    if before >= 0:
        sim.nodes[before].next = d
    else:
        store.head = d
    if after >= 0:
        sim.nodes[after].prev = d
    else:
        store.tail = d


@kernel
def push_empty(sim, v, pages):
    """Free ``pages`` pages without content, behind all others."""
    if pages <= 0:
        return
    store = sim.trees[v]
    store.free_pages += pages
    tail = store.tail
    if tail >= 0 and sim.nodes[tail].static == 0:
        sim.nodes[tail].end += pages * sim.config.page_tokens
        return
    d = tree.acquire_node(sim)
    node = sim.nodes[d]
    node.static = 0
    node.begin = 0
    node.end = pages * sim.config.page_tokens
    node.parent = -1
    _link_after(sim, v, d, tail)


@kernel
def take(sim, v, pages):
    """Take ``pages`` pages from the front of the queue; their content is lost. There must be as many."""
    store = sim.trees[v]
    store.free_pages -= pages
    while pages > 0:
        d = store.head
        node = sim.nodes[d]
        here = run_pages(sim, d)
        taken = min(here, pages)
        pages -= taken
        if node.static == 0:
            node.end -= taken * sim.config.page_tokens
            if taken == here:
                _unlink(sim, v, d)
                tree.release_node(sim, d)
        else:
            store.evicted_tokens += taken * sim.config.page_tokens
            if taken == here:
                _unlink(sim, v, d)
                tree.remove(sim, v, d)
            else:
                tree.trim(sim, v, d, node.end - taken * sim.config.page_tokens)


@kernel
def split(sim, v, d, at):
    """Cut node ``d`` at ``at``; in the queue the upper part follows the lower one. Returns the upper node."""
    u = tree.split(sim, v, d, at)
    if sim.nodes[d].queued:
        _link_after(sim, v, u, d)
    return u


@kernel
def queued_pages(sim, d, tokens):
    """Pages that lie in the queue, of the first ``tokens`` on the path to node ``d``, which holds the last of them."""
    pages = 0
    while sim.nodes[d].lock == 0:
        node = sim.nodes[d]
        pages += (min(node.end, tokens) - node.begin) // sim.config.page_tokens
        d = node.parent
    return pages


@kernel
def lock(sim, v, d):
    """Hold node ``d`` and so all above it; those that nobody held leave the queue."""
    while True:
        node = sim.nodes[d]
        node.lock += 1
        if node.lock > 1:
            return
        _unlink(sim, v, d)
        sim.trees[v].free_pages -= run_pages(sim, d)
        d = node.parent


@kernel
def unlock(sim, v, d):
    """Let go of node ``d``; those that nobody holds any more join the back of the queue, deepest first."""
    while True:
        node = sim.nodes[d]
        node.lock -= 1
        if node.lock > 0:
            return
        _link_after(sim, v, d, sim.trees[v].tail)
        sim.trees[v].free_pages += run_pages(sim, d)
        d = node.parent


@kernel
def hold(sim, v, static, limit):
    """Match the path to ``static`` (at most ``limit`` tokens) and hold what was found. Returns (tokens, node)."""
    tokens, d = tree.match(sim, v, static, limit)
    if tokens > 0 and tokens < sim.nodes[d].end:
        d = split(sim, v, d, tokens)
    lock(sim, v, d)
    return tokens, d


@kernel
def grow(sim, v, d, static, begin, end):
    """Give the pages in (begin, end] on the path to ``static`` content below the held ``d``; return the node now held.

    The pages were taken before. A node that only the caller holds, and that has no children, is lengthened in place:
    its pages would be freed together in any case.
    """
    node = sim.nodes[d]
    if d >= sim.trees.shape[0] and node.lock == 1 and node.children == 0 and node.end == begin:
        tree.extend(sim, v, d, static, end)
        return d
    child = tree.insert(sim, v, d, static, begin, end)
    # The caller's hold on d passes to the child: d is now locked by its child instead.
    sim.nodes[child].lock = 1
    return child


@kernel
def store(sim, v, static, tokens):
    """Copy the first ``tokens`` (whole pages) of the path to ``static`` into cache ``v``, as far as it has room.

    They become the youngest.
    """
    found, d = hold(sim, v, static, tokens)
    room = sim.trees[v].free_pages * sim.config.page_tokens
    end = min(tokens, found + room)
    if end > found:
        take(sim, v, (end - found) // sim.config.page_tokens)
        d = grow(sim, v, d, static, found, end)
    unlock(sim, v, d)


@kernel
def reset(sim, v, pages):
    """An empty cache of ``pages`` pages."""
    root = sim.nodes[v]
    root.begin = -1
    root.end = 0
    root.lock = 1
    root.parent = -1
    root.static = -1
    cache = sim.trees[v]
    cache.capacity_pages = pages
    cache.free_pages = 0
    cache.head = -1
    cache.tail = -1
    push_empty(sim, v, pages)
