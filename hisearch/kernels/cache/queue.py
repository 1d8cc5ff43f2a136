"""vLLM's free queue: free pages, cached or empty, in the order in which they will be taken.

The queue is a list of runs. A cached run (a tree node nobody holds) gives its last page first, as vLLM frees a
request's blocks from the last to the first. Pages without content are runs of trace node 0. ``TREE.free_pages`` is
the queue's length. TensorRT-LLM's host cache keeps its pages the same way (``trtllm.host``). They are pages of the same
tree in a queue of their own, whose record is that of tree ``workers + v``.

A request holds a path from its deepest node up to the root; ``NODE.lock`` counts the paths through a node. A path
follows the parents, with one exception. A look-up may find another copy of the same pages than the one below which a
node was computed (see ``copies``). There a *redirect* record (``REQUEST.redirect`` has the first) names the node with
which the path continues: ``parent`` is that node, ``end`` the depth at which it ends, ``next`` the next redirect
further up.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import copies, host_runs, tree
from hisearch.kernels.core.linked_list import linked_list
from hisearch.kernels.layout import sim as la


@kernel
def run_pages(sim, d):
    """Pages of node ``d``."""
    return (sim.nodes[d].end - sim.nodes[d].begin) // sim.config.page_tokens


_insert, _remove = linked_list()


@kernel
def unlink(sim, v, d):
    """Take ``d`` out of queue ``v``."""
    node = sim.nodes[d]
    cache = sim.trees[v]
    cache.head, cache.tail = _remove(sim.nodes, cache.head, cache.tail, d)
    node.next = -1
    node.prev = -1
    node.queued = 0


@kernel
def link_after(sim, v, d, before):
    """Put ``d`` into queue ``v`` behind ``before``; -1: at the front."""
    cache = sim.trees[v]
    cache.head, cache.tail = _insert(sim.nodes, cache.head, cache.tail, before, d)
    sim.nodes[d].queued = la.FREE if v < sim.config.workers else la.ON_HOST


@kernel
def push_empty(sim, v, pages):
    """Free ``pages`` pages without content, behind all others."""
    if pages <= 0:
        return
    cache = sim.trees[v]
    cache.free_pages += pages
    tail = cache.tail
    if tail >= 0 and sim.nodes[tail].trace_node == 0:
        sim.nodes[tail].end += pages * sim.config.page_tokens
        return
    link_after(sim, v, _empty_run(sim, pages), tail)


@kernel
def push_empty_first(sim, v, pages):
    """Free ``pages`` pages without content, before all others."""
    if pages <= 0:
        return
    cache = sim.trees[v]
    cache.free_pages += pages
    head = cache.head
    if head >= 0 and sim.nodes[head].trace_node == 0 and sim.nodes[head].hits == 0:
        sim.nodes[head].end += pages * sim.config.page_tokens
        return
    link_after(sim, v, _empty_run(sim, pages), -1)


@kernel
def push_read_first(sim, v, pages, r, begin):
    """``push_empty_first`` of pages that a copy may still read: those of request ``r`` behind ``begin`` tokens."""
    sim.trees[v].free_pages += pages
    d = _empty_run(sim, pages)
    node = sim.nodes[d]
    node.hits = 1
    node.tick = r
    node.serial = begin
    link_after(sim, v, d, -1)


@kernel
def mark_read(sim, v, d, redirect):
    """Mark the pages on the held path to ``d``: copies to host memory may read them when nobody holds them any more."""
    while d >= sim.trees.shape[0]:
        if redirect >= 0 and sim.nodes[redirect].end == sim.nodes[d].end:
            d = sim.nodes[redirect].parent
            redirect = sim.nodes[redirect].next
        sim.nodes[d].hits = 1
        d = sim.nodes[d].parent


@kernel
def touch(sim, v, d, begin):
    """Note in ``TREE.gone_head`` that the marked pages of ``d`` behind ``begin`` are given away, or hit."""
    if not host_runs.enough(sim, 1):
        return
    node = sim.nodes[d]
    u = host_runs.acquire(sim)
    touched = sim.runs[u]
    touched.begin = begin
    touched.end = node.end
    touched.trace_node = node.trace_node
    touched.owner = -1  # else whose pages they were, where no look-up finds them
    if node.trace_node == 0:
        touched.begin = node.serial
        touched.end = node.serial + node.end
        touched.owner = node.tick
    touched.next = sim.trees[v].gone_head
    sim.trees[v].gone_head = u
    if begin <= node.begin:
        node.hits = 0


@kernel
def touch_path(sim, v, d, redirect):
    """``touch`` all marked pages on the held path to ``d``."""
    while d >= sim.trees.shape[0]:
        if redirect >= 0 and sim.nodes[redirect].end == sim.nodes[d].end:
            d = sim.nodes[redirect].parent
            redirect = sim.nodes[redirect].next
        if sim.nodes[d].hits != 0:
            touch(sim, v, d, sim.nodes[d].begin)
        d = sim.nodes[d].parent


@kernel
def forget_touched(sim, v):
    """Give back the records of ``touch``."""
    u = sim.trees[v].gone_head
    sim.trees[v].gone_head = -1
    while u >= 0:
        after = sim.runs[u].next
        host_runs.release(sim, u)
        u = after


@kernel
def _empty_run(sim, pages):
    """A new run of ``pages`` pages without content, in no queue yet."""
    d = tree.acquire_node(sim)
    node = sim.nodes[d]
    node.trace_node = 0
    node.begin = 0
    node.end = pages * sim.config.page_tokens
    node.parent = -1
    return d


@kernel
def take(sim, v, pages):
    """Take ``pages`` pages from the front of the queue of tree ``v``, which must have them; their content is lost."""
    take_from(sim, v, v, pages)


@kernel
def take_from(sim, v, q, pages):
    """Take ``pages`` pages from the front of queue ``q``, which has pages of tree ``v``."""
    cache = sim.trees[q]
    cache.free_pages -= pages
    while pages > 0:
        d = cache.head
        if d < 0:
            sim.counters[la.FAULT] = la.OUT_OF_MEMORY
            return
        node = sim.nodes[d]
        node_pages = run_pages(sim, d)
        taken = min(node_pages, pages)
        pages -= taken
        if node.hits != 0:
            touch(sim, v, d, 0 if node.trace_node == 0 else node.end - taken * sim.config.page_tokens)
        if node.trace_node == 0:
            node.end -= taken * sim.config.page_tokens
            if taken == node_pages:
                unlink(sim, q, d)
                tree.release_node(sim, d)
        else:
            cache.evicted_tokens += taken * sim.config.page_tokens
            if taken < node_pages:
                if node.first < 0:
                    tree.trim(sim, v, d, node.end - taken * sim.config.page_tokens)
                    continue
                split(sim, v, d, node.end - taken * sim.config.page_tokens)
            unlink(sim, q, d)
            if node.children > 0:
                copies.become_tombstone(sim, v, d)
            else:
                copies.remove(sim, v, d)


@kernel
def _split_copy(sim, v, d, at):
    u = tree.split(sim, v, d, at)
    sim.nodes[u].lock = sim.nodes[d].lock
    sim.nodes[u].hits = sim.nodes[d].hits
    queued = sim.nodes[d].queued
    if queued > 0:
        link_after(sim, v if queued == la.FREE else sim.config.workers + v, u, d)
    sim.nodes[u].queued = queued
    return u


@kernel
def split(sim, v, d, at):
    """Cut node ``d``, and all other copies of its pages, at ``at``. Returns the upper node of ``d``.

    In the queue the upper part follows the lower one.
    """
    nodes = sim.nodes
    if nodes[d].first < 0:
        return _split_copy(sim, v, d, at)
    member = nodes[d].first
    first = -1
    before = -1
    upper = -1
    while member >= 0:
        u = _split_copy(sim, v, member, at)
        if member == d:
            upper = u
        if before < 0:
            first = u
        else:
            nodes[before].duplicate_block = u
            sim.trees[v].copies += 1
        nodes[u].first = first
        before = u
        member = nodes[member].duplicate_block
    return upper


@kernel
def queued_pages(sim, v, d, tokens):
    """Queued pages of the first ``tokens`` tokens on the path to node ``d``, which holds the last of them."""
    pages = 0
    while d >= sim.trees.shape[0]:
        node = sim.nodes[d]
        if node.lock == 0:
            pages += (min(node.end, tokens) - node.begin) // sim.config.page_tokens
        elif sim.trees[v].copies == 0:
            break
        d = tree.visible_copy(sim, node.parent)
    return pages


@kernel
def lock_node(sim, v, d):
    """Lock node ``d`` of HBM for one more path."""
    node = sim.nodes[d]
    if node.hits != 0:
        touch(sim, v, d, node.begin)
    node.lock += 1
    if node.lock == 1:
        unlink(sim, v, d)
        sim.trees[v].free_pages -= run_pages(sim, d)


@kernel
def unlock(sim, v, d, redirect):
    """Release a path: nodes that nobody holds any more join the back of the queue, deepest first."""
    nodes = sim.nodes
    cache = sim.trees[v]
    while d >= sim.trees.shape[0]:
        if redirect >= 0 and nodes[redirect].end == nodes[d].end:
            d = nodes[redirect].parent
            after = nodes[redirect].next
            tree.release_node(sim, redirect)
            redirect = after
        node = nodes[d]
        node.lock -= 1
        if node.lock == 0:
            link_after(sim, v, d, cache.tail)
            cache.free_pages += run_pages(sim, d)
        d = node.parent


@kernel
def hold(sim, v, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens and lock the match: (tokens, node, first redirect)."""
    nodes = sim.nodes
    tokens, d = tree.match(sim, v, trace_node, limit)
    if tokens > 0 and tokens < nodes[d].end:
        d = split(sim, v, d, tokens)
    deepest = d
    first_redirect = -1
    last_redirect = -1
    while d >= sim.trees.shape[0]:
        lock_node(sim, v, d)
        d = nodes[d].parent
        copy = tree.visible_copy(sim, d)
        if copy != d:
            redirect = tree.acquire_node(sim)
            nodes[redirect].end = nodes[copy].end
            nodes[redirect].parent = copy
            nodes[redirect].trace_node = -2
            nodes[redirect].next = -1
            if last_redirect >= 0:
                nodes[last_redirect].next = redirect
            else:
                first_redirect = redirect
            last_redirect = redirect
            d = copy
    return tokens, deepest, first_redirect


@kernel
def grow(sim, v, d, trace_node, begin, end):
    """Cache the pages in (begin, end] on the path to ``trace_node`` below the held ``d``; they were taken before.

    A childless node that only the caller holds is lengthened in place: its pages would be freed together in any case.

    Returns the node that is held now.
    """
    node = sim.nodes[d]
    alone = node.lock == 1 and node.children == 0 and node.first < 0
    if d >= sim.trees.shape[0] and alone and node.end == begin:
        tree.extend(sim, v, d, trace_node, end)
        return d
    child = tree.insert(sim, v, d, trace_node, begin, end)
    sim.nodes[child].lock = 1
    return child


@kernel
def duplicate(sim, v, d, trace_node, begin, end):
    """Add copies of the cached pages in (begin, end] on the path to ``trace_node`` below the held ``d``.

    The pages were taken before, and computed again although they were cached. Returns the node now held.
    """
    nodes = sim.nodes
    _, cached = tree.match(sim, v, trace_node, end)
    if end < nodes[cached].end:
        cached = split(sim, v, cached, end)
    deepest = -1
    below = -1
    while True:
        if nodes[cached].begin < begin:
            split(sim, v, cached, begin)
        copy = tree.acquire_node(sim)
        nodes[copy].begin = nodes[cached].begin
        nodes[copy].end = nodes[cached].end
        nodes[copy].trace_node = nodes[cached].trace_node
        nodes[copy].lock = 1
        copies.join(sim, v, copy, cached)
        if below < 0:
            deepest = copy
        else:
            nodes[below].parent = copy
            nodes[copy].children = 1
        below = copy
        if nodes[cached].begin == begin:
            break
        cached = tree.visible_copy(sim, nodes[cached].parent)
    nodes[below].parent = d
    nodes[d].children += 1
    return deepest


@kernel
def cached_runs(sim, v, trace_node, begin, end):
    """Upper bound of the nodes that ``duplicate`` would copy."""
    _, d = tree.match(sim, v, trace_node, end)
    runs = 1
    while sim.nodes[d].begin > begin:
        d = tree.visible_copy(sim, sim.nodes[d].parent)
        runs += 1
    return runs


@kernel
def reset(sim, v, pages):
    """Reset tree ``v`` to an empty cache of ``pages`` pages."""
    root = sim.nodes[v]
    root.begin = -1
    root.end = 0
    root.lock = 1
    root.parent = -1
    root.trace_node = -1
    root.first = -1
    root.queued = 0
    cache = sim.trees[v]
    cache.capacity_pages = pages
    cache.free_pages = 0
    cache.head = -1
    cache.tail = -1
    cache.copies = 0
    cache.gone_head = -1
    push_empty(sim, v, pages)
