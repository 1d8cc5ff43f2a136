"""A prefix cache of single pages by itself (``cachesim``).

Its arrays have the names of those of a pool (``layout.sim``), as far as eviction policies ask for them, so that the
kernels of ``cache.evictions`` are compiled for both. What one policy asks for lies in arrays of its own, whose memory
is not touched under others.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.kernels.core.handle import Array, Handle, Record

#: A page. Named as in ``NODE``; above: the page before it, -1 for none; trace_node: its item (see ``chains``); hits:
#: uses, the one that stored it included; end: for tlru alone; begin: 0, as no two leaves have the same next use.
PAGE = np.dtype(
    [("serial", "i8"), ("end", "i8")]
    + [(name, "i4") for name in ("begin", "tick", "hits", "heap_slot", "trace_node", "above", "children")]
    + [("resident", "?")],
    align=True,
)
#: For gdsf, tlru, and policies with two queues.
PAGE_HOSTED = np.dtype([("value", "f8"), ("dispensable_from", "i8"), ("queue", "i4")], align=True)
#: For priority.
PAGE_RANK = np.dtype([("priority", "i4")])
#: Ghost lists (in ghosts, -1: in none), and for ttl the pages that stand behind the same one, the first of those that
#: stand behind it, and its tokens.
PAGE_LINK = np.dtype([(name, "i4") for name in ("prev", "next", "ghosts", "behind", "tokens")])

#: Ends and number of pages of a list of those that have gone.
GHOSTS = np.dtype([("head", "i4"), ("tail", "i4"), ("pages", "i8")], align=True)

#: The cache; named as in ``TREE``. serial: order of storing of the next page.
PAGE_TREE = np.dtype(
    [(name, "i8") for name in ("capacity_pages", "free_pages", "once_pages", "eviction", "serial", "expired_tokens")]
    + [("worth", "f8"), ("target", "f8"), ("now_s", "f8")]
)
#: slack_tokens: tlru, what may be uncached of a next prompt less its new tokens. attention_tokens: gdsf, depth at which
#: attention costs a token as much as all else. ttl_s, infinite where nothing expires; reclaim; period_s.
PAGE_CONFIG = np.dtype(
    [("page_tokens", "i8"), ("slack_tokens", "i8"), ("reclaim", "i8")]
    + [(name, "f8") for name in ("attention_tokens", "ttl_s", "period_s")]
)
#: Ways of reclaiming what has expired.
LAZY, PERIODIC, PRESSURE = range(3)


class PageSim(Handle):
    """Settings and state of one cache, of P pages, under one policy, and what N requests bring.

    nodes, hosted, node_ranks, links (P,); trees (1,); ghosts (3,), of which 1 and 2 are used. leaves (2, N + 1), heaps
    of the pages that no resident page stands behind, of each queue; leaf_count (2,). users, users_next, users_end:
    requests that look up each item, in order (belady). time_s (N,), never falling (ttl); priority (N,).
    """

    FIELDS: ClassVar[dict[str, Any]] = {
        "config": Record(PAGE_CONFIG),
        "nodes": Array(PAGE, 1),
        "hosted": Array(PAGE_HOSTED, 1),
        "node_ranks": Array(PAGE_RANK, 1),
        "links": Array(PAGE_LINK, 1),
        "trees": Array(PAGE_TREE, 1),
        "ghosts": Array(GHOSTS, 1),
        "leaves": Array("i4", 2),
        "leaf_count": Array("i8", 1),
        "users": Array("i4", 1),
        "users_next": Array("i8", 1),
        "users_end": Array("i8", 1),
        "time_s": Array("f8", 1),
        "priority": Array("i4", 1),
    }
