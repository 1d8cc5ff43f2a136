"""SGLang's inbox: with a receive interval, what comes is looked for only every so often.

Each pass counts towards the next look: one behind a step of decodes 1, one behind a prefill (mixed or not) 1,000. Where
the count reaches the interval the pass looks, before it forms a batch, and it begins anew. An engine without anything
to do passes so often that it looks at once. Source: ``SchedulerRecvSkipper`` and its documented weights
(``SGLANG_SCHEDULER_RECV_SKIPPER_WEIGHT_*``), SGLang 0.5.9.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import device
from hisearch.kernels.layout import sim as la

#: What a pass behind a step with prompts counts.
PREFILL_WEIGHT = 1000


@kernel
def hold(sim, w, r):
    """Request ``r`` has come."""
    worker = sim.workers[w]
    sim.requests[r].next = -1
    if worker.held_head < 0:
        worker.held_head = r
    else:
        sim.requests[worker.held_tail].next = r
    worker.held_tail = r


@kernel
def take(sim, w):
    """The request that came first, no longer held; -1: none is."""
    worker = sim.workers[w]
    r = worker.held_head
    if r >= 0:
        worker.held_head = sim.requests[r].next
    return r


@kernel
def looks(sim, w):
    """Count a pass; whether it looks."""
    worker = sim.workers[w]
    if worker.last != 0:
        worker.skipped += 1 if worker.last == la.DECODE_STEP else PREFILL_WEIGHT
        if worker.skipped < sim.config.receive_interval:
            return False
    worker.skipped = 0
    return True


@kernel
def passed(sim, w, passes):
    """Count that many passes behind steps of decodes, in which nothing was held when one of them looked."""
    if sim.config.receive_interval > 1:
        worker = sim.workers[w]
        worker.skipped = (worker.skipped + passes) % sim.config.receive_interval


@kernel
def steps_to_look(sim, w):
    """Decode steps from the pass that counted last, that pass's own included, to the pass that looks."""
    return sim.config.receive_interval - sim.workers[w].skipped


@kernel
def cut_fast_forward(sim, w, now):
    """Let the planned coast end with the first pass at or after ``now`` that looks."""
    worker = sim.workers[w]
    interval = sim.config.receive_interval
    formed, _ = device.formed_by(sim, w, now)
    steps = formed + (-(worker.skipped + formed)) % interval
    if steps < worker.fast_forward_steps:
        worker.fast_forward_steps = steps
        device.settle_fast_forward(sim, w)
