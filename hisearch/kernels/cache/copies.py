"""Duplicate blocks: several copies of the same pages, as vLLM keeps them.

Two requests that compute the same block hold one block each, and both can be found. A look-up takes the one hashed
first among those left. A *group* is the nodes that cover the same pages, with the same boundaries. Its first node,
``NODE.first`` of every member, is in ``Sim.deepest_cached`` and found by look-ups. The others follow in order of
hashing (``NODE.duplicate_block``).

A copy may be evicted while it has children, whose holders hold another copy of its pages. It becomes a *tombstone*
without pages (``TOMBSTONE``), which keeps its children's path to the root until they are gone. Tombstones come after
the copies in the group.

In the picture requests 1 and 2 computed the same pages (0, 64]: copies A and B, A first. Request 2 computed C below
B. A look-up of request 3 finds A, then C. It holds C and, by a *redirect* record (see ``queue``), A instead of B::

    tokens   0         64       128
      root --+--- A                     group: A, then B by duplicate_block; both have first A
             |      <~~~~.              deepest_cached: A and C
             `--- B ---- C              request 3: node C, redirect (end 64, parent A)

             `---(B)---- C              request 2 ends and B's pages are taken: B is a tombstone, for C is below it
                                        request 3 ends and C's pages are taken: ``remove`` takes B with C
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.layout import sim as la


@kernel
def join(sim, v, d, first):
    """Add node ``d`` as the last duplicate of ``first``."""
    nodes = sim.nodes
    if nodes[first].first < 0:
        nodes[first].first = first
    nodes[d].first = first
    size = 2
    last = first
    while nodes[last].duplicate_block >= 0 and nodes[nodes[last].duplicate_block].queued != la.TOMBSTONE:
        last = nodes[last].duplicate_block
        size += 1
    nodes[d].duplicate_block = nodes[last].duplicate_block
    nodes[last].duplicate_block = d
    sim.trees[v].copies += 1
    sim.counters[la.LARGEST_GROUP] = max(sim.counters[la.LARGEST_GROUP], size)


@kernel
def _promote(sim, v, old, new):
    """Let look-ups find ``new`` instead of ``old``."""
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
def become_tombstone(sim, v, d):
    """Make copy ``d``, whose pages are gone, a tombstone: nodes below it remain."""
    nodes = sim.nodes
    nodes[d].queued = la.TOMBSTONE
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
    """Take the childless node ``d``, a copy or the only one, out of the tree, and tombstones that only it needed."""
    while True:
        parent = sim.nodes[d].parent
        if sim.nodes[d].first >= 0:
            leave(sim, v, d)
        tree.remove(sim, v, d)
        if sim.nodes[parent].queued != la.TOMBSTONE or sim.nodes[parent].children > 0:
            return
        d = parent
