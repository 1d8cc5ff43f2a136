"""Earliest deadline first: arrival, and the TTFT target of the request's priority (``ttft_targets_s``).

SGLang's queue goes by it to the nanosecond, and preempts nothing for it. vLLM's waiting requests go by it as they go
by priority: the running request with the latest deadline is the first to be preempted. Requests whose priority has no
target go last, by arrival. Earliest deadline first meets all deadlines of one server that can be met (Liu and Layland
1973), if it may preempt; here running requests give way for memory alone.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder
from hisearch.kernels.traffic import lists

ORDER = QueueOrder(
    "Earliest deadline first, by arrival and ttft_targets_s; no release has it.", engines=("vllm", "sglang")
)

#: Later than any deadline, in seconds; in nanoseconds it is still a 64-bit integer.
_LATEST_S = 1e9


@kernel
def key(sim, r):
    """Its deadline in nanoseconds."""
    return np.int64(min(lists.deadline_s(sim, r), _LATEST_S) * 1e9)
