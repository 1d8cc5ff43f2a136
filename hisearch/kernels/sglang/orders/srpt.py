"""Shortest predicted remaining first: prompt tokens to compute, and declared output tokens still to come.

Shortest remaining processing time minimises the mean time in system of one server that may preempt (Schrage 1968).
Here it orders the waiting queue alone. A retracted request has the outputs that it made among its prompt. What is
cached is not known before a look-up, so that cached tokens count.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder

ORDER = QueueOrder("Shortest predicted remaining first: prompt and declared output tokens; no release has it.")


@kernel
def key(sim, r):
    """Known tokens, and those that it may still generate."""
    return sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r]
