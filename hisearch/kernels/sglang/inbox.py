"""SGLang's inbox: with a receive interval, the scheduler polls for new requests only at intervals.

Each pass counts towards the next poll: 1 after a decode step, 1,000 after a prefill (mixed or not). When the count
reaches the interval, the pass polls before it forms a batch, and the count restarts. A pass after one without a batch
counts 1; an engine without a batch passes at once again while requests are in the inbox. Source:
``SchedulerRecvSkipper`` and its documented weights (``SGLANG_SCHEDULER_RECV_SKIPPER_WEIGHT_*``), SGLang 0.5.9.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.engine import device
from hisearch.kernels.layout import sim as la

#: Weight of a pass after a step with prompts.
PREFILL_WEIGHT = 1000

_enqueue = fifo()


@kernel
def hold(sim, w, r):
    """Put the arrived request ``r`` into the inbox."""
    worker = sim.workers[w]
    worker.held_head, worker.held_tail = _enqueue(sim.requests, worker.held_head, worker.held_tail, r)


@kernel
def take(sim, w):
    """Take the earliest request out of the inbox; -1: it is empty."""
    worker = sim.workers[w]
    r = worker.held_head
    if r >= 0:
        worker.held_head = sim.requests[r].next
    return r


@kernel
def looks(sim, w):
    """Count a pass. Returns whether it polls the inbox."""
    worker = sim.workers[w]
    worker.skipped += PREFILL_WEIGHT if worker.last == la.PREFILL_STEP or worker.last == la.MIXED_STEP else 1
    if worker.skipped < sim.config.receive_interval:
        return False
    worker.skipped = 0
    return True


@kernel
def passed(sim, w, passes):
    """Count ``passes`` passes after decode steps whose polls found the inbox empty."""
    if sim.config.receive_interval > 1:
        worker = sim.workers[w]
        worker.skipped = (worker.skipped + passes) % sim.config.receive_interval


@kernel
def steps_to_look(sim, w):
    """Decode steps from the last counted pass, its own included, to the next polling pass."""
    return sim.config.receive_interval - sim.workers[w].skipped


@kernel
def cut_fast_forward(sim, w, now):
    """End the planned fast-forward with the first polling pass at or after ``now``."""
    worker = sim.workers[w]
    interval = sim.config.receive_interval
    formed, _ = device.formed_by(sim, w, now)
    steps = formed + (-(worker.skipped + formed)) % interval
    if steps < worker.fast_forward_steps:
        worker.fast_forward_steps = steps
        device.settle_fast_forward(sim, w)
