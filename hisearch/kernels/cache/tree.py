"""The prefix cache: runs of cached pages laid over the trace's prefix tree.

A cache tree's nodes are runs of whole pages. A node's place is given by its last page: the *trace node* (node of the
trace's prefix tree) in which that page completes. ``deepest_cached[v, s]`` is the deepest node of tree v with a page
that completes in trace node s. A page is never cached without its predecessors, so everything above the first trace
node with an entry is cached too. A look-up therefore walks up from a prompt's end only over what is *not* cached.

Two engines keep their free pages differently on top of this: ``queue`` (vLLM) and ``radix`` (SGLang).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import free_list
from hisearch.kernels.layout import sim as la

_take, _give = free_list(la.FREE_NODE, la.NODES_USED)


@kernel
def floor_page(sim, tokens):
    """``tokens`` rounded down to whole pages."""
    page = sim.config.page_tokens
    return tokens // page * page


@kernel
def acquire_node(sim):
    """Take an unused node record. The event loop ensures that there is one (``counters[NODES_LEFT]``)."""
    sim.counters[la.NODES_LEFT] -= 1
    d = _take(sim.nodes, sim.counters)
    node = sim.nodes[d]
    node.lock = 0
    node.children = 0
    node.next = -1
    node.prev = -1
    node.heap_slot = -1
    node.queued = 0
    node.hits = 0
    node.first = -1
    node.duplicate_block = -1
    return d


@kernel
def release_node(sim, d):
    """Give a node record back."""
    sim.counters[la.NODES_LEFT] += 1
    _give(sim.nodes, sim.counters, d)


@kernel
def visible_copy(sim, d):
    """The copy of the pages of ``d`` that look-ups find (see ``copies``)."""
    first = sim.nodes[d].first
    return d if first < 0 else first


@kernel
def match(sim, v, trace_node, limit):
    """Longest cached prefix of the path to ``trace_node``'s end, at most ``limit`` tokens (whole pages).

    Returns (tokens, node): the node holds the last matched page; it is the root where nothing matches.
    """
    deepest_cached = sim.deepest_cached
    nodes = sim.nodes
    s = trace_node
    while s > 0:
        d = deepest_cached[v, s]
        if d >= 0:
            tokens = min(nodes[d].end, floor_page(sim, sim.trace.end_tokens[s]), limit)
            while nodes[d].begin >= tokens:
                d = visible_copy(sim, nodes[d].parent)
            return tokens, d
        s = sim.trace.parent[s]
    return 0, v


@kernel
def _lay(sim, v, d, trace_node, begin, end):
    """Set ``deepest_cached`` to node ``d`` for the pages in (begin, end] on the path to ``trace_node``.

    Returns the trace node of the last page.
    """
    trace = sim.trace
    s = trace_node
    while trace.start_tokens[s] >= end:
        s = trace.parent[s]
    deepest = s
    while s > 0:
        top = floor_page(sim, min(end, trace.end_tokens[s]))
        if top <= begin:
            break
        if top > trace.start_tokens[s]:
            sim.deepest_cached[v, s] = d
        s = trace.parent[s]
    return deepest


@kernel
def insert(sim, v, parent, trace_node, begin, end):
    """Add a node under ``parent`` for the pages in (begin, end] on the path to ``trace_node``.

    Nothing below ``begin`` overlaps.
    """
    d = acquire_node(sim)
    node = sim.nodes[d]
    node.begin = begin
    node.end = end
    node.parent = parent
    sim.nodes[parent].children += 1
    node.trace_node = _lay(sim, v, d, trace_node, begin, end)
    return d


@kernel
def extend(sim, v, d, trace_node, end):
    """Lengthen the childless node ``d`` to ``end`` along the path to ``trace_node``."""
    node = sim.nodes[d]
    node.trace_node = _lay(sim, v, d, trace_node, node.end, end)
    node.end = end


@kernel
def split(sim, v, d, at):
    """Cut node ``d`` at ``at``; ``d`` keeps the lower part. Returns the new node of the upper part.

    A locked node's upper part is locked by its child, the lower part.
    """
    trace = sim.trace
    deepest_cached = sim.deepest_cached
    u = acquire_node(sim)
    upper = sim.nodes[u]
    lower = sim.nodes[d]
    upper.begin = lower.begin
    upper.end = at
    upper.parent = lower.parent
    upper.children = 1
    upper.lock = 1 if lower.lock > 0 else 0
    upper.tick = lower.tick
    s = lower.trace_node
    while trace.start_tokens[s] >= at:
        s = trace.parent[s]
    upper.trace_node = s
    while s > 0:
        top = floor_page(sim, trace.end_tokens[s])
        if top <= upper.begin:
            break
        if top <= at and deepest_cached[v, s] == d:
            deepest_cached[v, s] = u
        s = trace.parent[s]
    lower.begin = at
    lower.parent = u
    return u


@kernel
def hand_down(sim, v, d, child, at):
    """Give the pages of ``d`` beyond ``at`` to its only child, which replaces ``d`` if no page is left."""
    trace = sim.trace
    upper = sim.nodes[d]
    s = upper.trace_node
    while s > 0 and trace.start_tokens[s] >= at:
        if sim.deepest_cached[v, s] == d:
            sim.deepest_cached[v, s] = child
        s = trace.parent[s]
    # The trace node in which ``at`` lies may have pages on both sides of it.
    if sim.deepest_cached[v, s] == d and floor_page(sim, min(trace.end_tokens[s], upper.end)) > at:
        sim.deepest_cached[v, s] = child
    upper.trace_node = s
    upper.end = at
    sim.nodes[child].begin = at
    if at == upper.begin:
        sim.nodes[child].parent = upper.parent
        release_node(sim, d)


@kernel
def trim(sim, v, d, end):
    """Drop the pages of ``d`` beyond ``end`` (> its begin)."""
    trace = sim.trace
    node = sim.nodes[d]
    s = node.trace_node
    while trace.start_tokens[s] >= end:
        if sim.deepest_cached[v, s] == d:
            sim.deepest_cached[v, s] = -1
        s = trace.parent[s]
    # A trace node that begins above ``end`` may still have had only pages below it.
    node.trace_node = s
    node.end = end


@kernel
def remove(sim, v, d):
    """Take the childless node ``d`` out of the tree and give its record back."""
    trace = sim.trace
    node = sim.nodes[d]
    parent = node.parent
    s = node.trace_node
    while s > 0:
        start = trace.start_tokens[s]
        if sim.deepest_cached[v, s] == d:
            above = parent >= sim.trees.shape[0] and start < node.begin
            sim.deepest_cached[v, s] = visible_copy(sim, parent) if above else -1
        if start <= node.begin:
            break
        s = trace.parent[s]
    sim.nodes[parent].children -= 1
    release_node(sim, d)
