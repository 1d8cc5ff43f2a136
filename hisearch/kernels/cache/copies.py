"""Several copies of the same pages, as vLLM keeps them.

Two requests that compute the same block hold one block each, both findable: a look-up takes the one that was hashed
first among those that are left. A *group* is the nodes that cover the same pages; all have the same boundaries. Its
first node, ``NODE.first`` of every member, is the one that ``tree.deepest_cached`` shows and that look-ups find; the
others follow in order of hashing (``NODE.duplicate_block``).

A copy may be taken while nodes are left below it, whose holders hold another copy of its pages: it becomes a *ghost*,
without pages, that keeps its children's way up until they are gone. Ghosts stand behind the copies in the group.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.layout import sim as la


@kernel
def join(sim, v, d, first):
    """Add node ``d`` as the last copy of the pages of ``first``."""
    nodes = sim.nodes
    if nodes[first].first < 0:
        nodes[first].first = first
    nodes[d].first = first
    size = 2
    last = first
    while nodes[last].duplicate_block >= 0 and nodes[nodes[last].duplicate_block].queued != la.GHOST:
        last = nodes[last].duplicate_block
        size += 1
    nodes[d].duplicate_block = nodes[last].duplicate_block
    nodes[last].duplicate_block = d
    sim.trees[v].copies += 1
    sim.counters[la.LARGEST_GROUP] = max(sim.counters[la.LARGEST_GROUP], size)


@kernel
def _promote(sim, v, old, new):
    """Look-ups find ``new`` from now on, no longer ``old``."""
    nodes = sim.nodes
    s = nodes[old].trace_node
    while s > 0:
        if tree.floor_page(sim, sim.trace.end_tokens[s]) <= nodes[old].begin:
            break
        if sim.deepest_cached[v, s] == old:
            sim.deepest_cached[v, s] = new
        s = sim.trace.parent[s]
    member = new
    while member >= 0:
        nodes[member].first = new
        member = nodes[member].duplicate_block


@kernel
def leave(sim, v, d):
    """Take ``d`` out of its group."""
    nodes = sim.nodes
    first = nodes[d].first
    if first == d:
        first = nodes[d].duplicate_block
        _promote(sim, v, d, first)
    else:
        before = first
        while nodes[before].duplicate_block != d:
            before = nodes[before].duplicate_block
        nodes[before].duplicate_block = nodes[d].duplicate_block
    nodes[d].first = -1
    nodes[d].duplicate_block = -1
    if nodes[first].duplicate_block < 0:
        nodes[first].first = -1
    sim.trees[v].copies -= 1


@kernel
def become_ghost(sim, v, d):
    """The pages of copy ``d`` are gone, nodes below it are not."""
    nodes = sim.nodes
    nodes[d].queued = la.GHOST
    first = nodes[d].first
    if nodes[d].duplicate_block < 0:
        return
    if first == d:
        first = nodes[d].duplicate_block
        _promote(sim, v, d, first)
    else:
        before = first
        while nodes[before].duplicate_block != d:
            before = nodes[before].duplicate_block
        nodes[before].duplicate_block = nodes[d].duplicate_block
    last = first
    while nodes[last].duplicate_block >= 0:
        last = nodes[last].duplicate_block
    nodes[last].duplicate_block = d
    nodes[d].duplicate_block = -1
    nodes[d].first = first


@kernel
def remove(sim, v, d):
    """Take the childless node ``d``, a copy or the only one, out of the tree, and ghosts that only it kept."""
    while True:
        parent = sim.nodes[d].parent
        if sim.nodes[d].first >= 0:
            leave(sim, v, d)
        tree.remove(sim, v, d)
        if sim.nodes[parent].queued != la.GHOST or sim.nodes[parent].children > 0:
            return
        d = parent
