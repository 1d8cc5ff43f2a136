"""Shuffled by each pass, by a stream of the worker's own."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder
from hisearch.kernels.core import rng

ORDER = QueueOrder("Shuffled.", every_pass=True, flag="random")


@kernel
def sort(sim, w, count):
    """Fisher and Yates, from the end."""
    row = sim.queue_order[0]
    for last in range(count - 1, 0, -1):
        other = rng.below(sim.shuffle_rng[w : w + 1], last + 1)
        held = row[last]
        row[last] = row[other]
        row[other] = held
