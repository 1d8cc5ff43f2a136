"""Longest declared output first; with priority scheduling among requests of the same priority."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder

ORDER = QueueOrder("Longest declared output first.", flag="lof")


@kernel
def key(sim, r):
    """Declared output tokens, the most first."""
    urgency = sim.trace.priority[r] * sim.config.priority_sign if sim.config.preempts else 0
    return (urgency << 32) - sim.trace.max_output_tokens[r]
