"""Lower priority values first, then by arrival.

TensorRT-LLM: by priority, requests become active (``trtllm.memory``).

SGLang: --enable-priority-scheduling --schedule-low-priority-values-first; without the latter higher values go first.
Every pass tries, full or not, since a waiting request might preempt running ones (``sglang.retraction``).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder

ORDER = QueueOrder("Lower priority values first.", engines=("vllm", "sglang", "trtllm"), flag="priority")


@kernel
def key(sim, r):
    """Its priority value, the most urgent first."""
    return sim.trace.priority[r] * sim.config.priority_sign
