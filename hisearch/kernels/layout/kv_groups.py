"""Groups of KV blocks under vLLM: layers with full attention, with a sliding window, and with linear attention.

All groups take blocks of one pool. The windows of all groups that have one are equal. Pages are numbered from the
start of a request; each group of attention has a block for a page, unless the page is out of the group's window.
Groups of linear attention have blocks of states.
"""

from __future__ import annotations

import numpy as np

#: Most pages of a request with states: those in flight, of two steps, and of the state that these began with; each of
#: these may have exported another.
STATE_PLACES = 6

#: The groups of a pool's workers.
GROUPS = np.dtype(
    [
        ("full", "i8"),  # groups of full attention; they come first
        ("windowed", "i8"),
        ("states", "i8"),  # groups of linear attention; they come last
        ("checkpoints", "i8"),  # 1: chunks export the state at their last full page's end
        ("window_tokens", "i8"),
        ("admitted_pages", "i8"),  # most pages of a window that the check of a whole request counts
        (
            "retention_pages",
            "i8",
        ),  # look-ups find the window or state before each such page, and prompts' ends; -1: all
        ("ring_pages", "i8"),  # places for pages in a window's part of a table
        ("table_pages", "i8"),  # places for pages in a full group's part
    ],
    align=True,
)

#: A block of a worker's pool.
BLOCK = np.dtype(
    [
        ("key", "i8"),  # of the page and group that it holds (see ``vllm.groups.pool``), -1: look-ups do not find it
        ("prev", "i4"),  # neighbours in the free queue
        ("next", "i4"),
        ("chain", "i4"),  # the next with the same hash
        ("holders", "i4"),  # requests
        ("published", "i8"),  # of a state: the pass in which it was made findable, -1: none
    ],
    align=True,
)

#: What a worker has beside its pool.
POOL = np.dtype([("head", "i4"), ("tail", "i4"), ("free_tables", "i4"), ("passes", "i8")], align=True)

#: Blocks of a request that runs.
HELD = np.dtype(
    [
        ("pages", "i8"),  # pages from its start that it has or had blocks for
        ("first_windowed", "i8"),  # the first page with blocks in the window groups
        ("hashed", "i8"),  # leading pages that were offered to look-ups
        ("junction", "i8"),  # pages of the longest prefix that a group has cached, if others have less
        ("states", "i8"),  # pages with states, in the first places of a table's part for them
        ("table", "i4"),
    ],
    align=True,
)
