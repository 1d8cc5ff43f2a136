"""Prefix caches, of HBM, of host memory and of stores, and their nodes.

``Sim.nodes`` has records of several kinds. Most are nodes of a tree or runs of a store; the others use few fields, some
of them for other things:

    kind                  where                  begin, end        trace_node     others
    root of tree v        node v                 -1, 0             -1
    cached run            its tree; a queue too  depth in tokens   where it ends  as NODE says
    tombstone             its tree, copies       of former pages   where it ends  queued TOMBSTONE
    run of empty pages    a free queue           0, tokens         0              see below
    redirect              from REQUEST.redirect  -, of its copies  -2             parent: the copy to hold; next
    run of a store        store_runs             depth in tokens   where it lies  next, prev within its trace node
    an agent's object     agents.entry           0, 0              -1             parent: object; next: worker

Empty pages that a copy to host memory may still read (``queue.push_read_first``) have hits 1, the request whose pages
they were in tick, and how many tokens it has before them in serial.
"""

from __future__ import annotations

import numpy as np

#: A run of cached pages.
NODE = np.dtype(
    [
        ("begin", "i8"),  # depth in tokens, a multiple of P
        ("end", "i8"),
        ("tick", "i8"),  # radix: last access to it or to a removed node below it (nodes below count too: see radix)
        # radix: insertions that ended in it, or in a removed node below it; queue: 1 where a copy may read its pages
        ("hits", "i8"),
        ("serial", "i8"),  # radix: order of creation
        ("parent", "i4"),
        ("trace_node", "i4"),  # trace node in which its last page completes
        ("lock", "i4"),  # queue: requests that hold it; radix: requests that hold it directly + locked children
        ("children", "i4"),
        ("first", "i4"),  # the copy of its pages that look-ups find, -1: there is a single copy (see copies)
        ("duplicate_block", "i4"),  # the next copy of its pages
        ("next", "i4"),  # free-queue neighbours; in the free list: the next free record
        ("prev", "i4"),
        ("heap_slot", "i4"),  # place among the leaves that may be evicted (see eviction), -1 outside
        ("queued", "i4"),  # FREE or ON_HOST while in that free queue; TOMBSTONE
    ],
    align=True,
)

#: Further fields of a node of a radix cache, for some eviction orders and some orders of the waiting queue.
NODE_RANK = np.dtype(
    [
        ("rank", "i8"),  # order of creation among siblings; the upper part of a split node keeps its rank
        ("priority", "i4"),  # highest of the insertions that ended in it, or in a removed node below it
        ("weight", "i4"),  # waiting requests that match to it or below, while the queue is being sorted
    ],
    align=True,
)

#: One prefix cache and its memory.
TREE = np.dtype(
    [
        ("capacity_pages", "i8"),
        # Pages not held by a running request (queue); pages without content (radix).
        ("free_pages", "i8"),
        ("evictable_pages", "i8"),  # radix: unlocked pages in the tree; TensorRT-LLM's host cache: those with content
        ("evicted_tokens", "i8"),
        ("expired_tokens", "i8"),
        ("given_tokens", "i8"),  # store: moved to another store, which holds them instead
        ("stored_tokens", "i8"),  # written into it
        ("read_tokens", "i8"),  # read out of it
        ("demoted_tokens", "i8"),  # store: evicted to the store behind it
        ("peak_pages", "i8"),
        ("eviction", "i8"),
        ("worth", "f8"),  # gdsf: the greatest value evicted so far
        ("target", "f8"),  # store, arc: target size of T1 in pages, see ``cache.evictions``
        ("tick", "i8"),  # radix: accesses so far; store: operations
        ("began", "i8"),  # store: tick at which the present operation began
        ("serial", "i8"),  # radix: nodes made so far
        ("once_pages", "i8"),  # store, arc: size of T1
        ("tier", "i4"),  # store: row of Sim.store_tiers
        ("shadows", "i4"),  # store, arc: first of its additional trees
        ("head", "i4"),  # free queue
        ("tail", "i4"),
        ("first_place", "i8"),  # of its places in Sim.evict_heap
        ("places", "i8"),
        ("heap_size", "i4"),  # leaves that may be evicted, see eviction
        ("line_places", "i4"),
        ("line_begin", "i4"),
        ("line_end", "i4"),
        (
            "gone_head",
            "i4",
        ),  # store: evicted pages that the store behind it gets, see moves; queue: see ``queue.touch``
        ("gone_tail", "i4"),
        ("copies", "i4"),  # nodes beyond the first of each group of copies
    ],
    align=True,
)
