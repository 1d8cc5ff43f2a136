"""What SGLang's tree keeps of a model besides full attention's KV (see ``sglang.components``).

That is KV of layers with a sliding window, or states of layers with linear attention; both have a pool of their own,
in *units*: pages, or states. A worker's tree has full attention's KV for all of its nodes, and the other for some.
"""

from __future__ import annotations

import numpy as np

#: Values of ``CONFIG.component``.
WINDOWS, STATES = 1, 2

#: The other pool of a tree.
POOL = np.dtype(
    [
        ("capacity", "i8"),  # units
        ("free", "i8"),
        ("evictable", "i8"),  # of the tree, that nobody holds
        ("head", "i4"),  # nodes that have some, by ``NODE.prev`` and ``NODE.next``: the newest access first
        ("tail", "i4"),
    ],
    align=True,
)

#: What a tree's node has of it.
NODE = np.dtype(
    [
        ("has", "i4"),  # 1: windows' KV for all of the node's tokens, or the state at its end
        ("lock", "i4"),  # requests that hold it
        ("prev", "i4"),
        ("next", "i4"),
    ],
    align=True,
)

#: What a request has of it.
REQUEST = np.dtype(
    [
        # Tokens that the tree's full attention had of it beyond the other; 0: no more, or put in since.
        ("branch_tokens", "i8"),
        ("freed_tokens", "i8"),  # windows: from its start, which are out of the window; a multiple of the page
        ("held_from", "i8"),  # windows: begin of the highest node whose window it holds
        ("prompt_steps", "i8"),  # windows: in which its prompt was computed
        ("tracked_tokens", "i8"),  # states: of its newest state that the tree may have; 0: none
        ("untracked_tokens", "i8"),  # states: up to which decodes have left none, at least those of its prompt
        ("slots", "i8"),  # states: that it has
    ],
    align=True,
)
