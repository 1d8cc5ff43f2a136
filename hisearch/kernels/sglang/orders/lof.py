"""Longest declared output first."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder

ORDER = QueueOrder("Longest declared output first.", flag="lof")


@kernel
def key(sim, r):
    """Declared output tokens, the most first."""
    return -sim.trace.max_output_tokens[r]
