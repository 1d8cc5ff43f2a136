"""What recordings of agents' sessions have in common: WEKA's and LMCache's.

An agent asks again only when it has its answer, so follow-ups are replayed closed-loop by default.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STARTS_UNKNOWN = "sessions' starts are not recorded: all start at 0 s; give file.arrivals to set them"

#: Block ids of a session are dense, and so many make a prompt of tens of millions of tokens: what has more is broken.
MAX_BLOCKS = 1 << 22


@dataclass
class Call:
    """One request of a session: its times from the session's start, its lengths, its blocks' ids."""

    at_s: float
    inputs: int
    outputs: int
    ids: np.ndarray
    busy_s: float
    think_s: float
    chain: int
    parent_chain: int
