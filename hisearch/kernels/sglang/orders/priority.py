"""Lower priority values first, then by arrival.

SGLang: --enable-priority-scheduling --schedule-low-priority-values-first; its default is higher values first. Every
pass tries, full or not, since a waiting request might preempt running ones. It does where their values differ by more
than 10 (--priority-scheduling-preemption-threshold), which is not simulated.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder

ORDER = QueueOrder("Lower priority values first.", engines=("vllm", "sglang"), flag="priority")


@kernel
def key(sim, r):
    """Its priority value."""
    return sim.trace.priority[r]
