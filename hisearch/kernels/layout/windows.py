"""SGLang's second KV pool, of layers with a sliding window (see ``sglang.windows``).

A worker's tree has KV of full attention for all of its pages, and of the layers with a window for some of them.
"""

from __future__ import annotations

import numpy as np

#: The window layers' pool of a tree. Its pages are as many tokens as those of full attention's pool.
POOL = np.dtype(
    [
        ("capacity_pages", "i8"),
        ("free_pages", "i8"),
        ("evictable_pages", "i8"),  # of the tree, in nodes whose window nobody holds
        ("head", "i4"),  # nodes with window KV, by ``NODE.prev`` and ``NODE.next``: the newest access first
        ("tail", "i4"),
    ],
    align=True,
)

#: What a tree's node has of it.
NODE = np.dtype(
    [
        ("has_kv", "i4"),  # 1: window KV for all of the node's tokens; 0: for none of them
        ("lock", "i4"),  # requests that hold the node's window
        ("prev", "i4"),
        ("next", "i4"),
    ],
    align=True,
)

#: What a request has of it.
REQUEST = np.dtype(
    [
        ("freed_tokens", "i8"),  # from its start, which are out of the window; a multiple of the page
        ("held_from", "i8"),  # begin of the highest node whose window it holds
        # Tokens that the tree's full attention had of it beyond the window layers; 0: no more, or put in since.
        ("branch_tokens", "i8"),
        ("prompt_steps", "i8"),  # in which its prompt was computed
    ],
    align=True,
)
