"""vLLM for models with several groups of KV blocks: the step rule of ``entry``, each step formed by itself.

Blocks leave windows while requests decode, so that the order in which blocks are reused changes with every step.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.engine import log, schedulers
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import entry as vllm
from hisearch.kernels.vllm import memory, step
from hisearch.kernels.vllm.groups import memory as groups_memory
from hisearch.kernels.vllm.groups import step as groups_step


@kernel
def form(sim, w, now):
    """Form the next batch at ``now``, launch it and set the worker's next event."""
    worker = sim.workers[w]
    sim.kv_pools[worker.cache_id].passes += 1
    log.forget_lost(sim)
    worker.batch_size = 0
    worker.lost_head = -1
    budget, preempted = groups_step.serve_running(sim, w)
    if not preempted:
        groups_step.admit_waiting(sim, w, now, budget)
    step.note_peak(sim, w)
    if worker.batch_size == 0 and worker.decoding == 0:
        alone = worker.outstanding == 0 and schedulers.running(sim, w) == 0 and not preempted
        if alone and worker.waiting > 0:
            # The pool is free, and the first in the queue does not fit: nothing that comes will change that.
            sim.counters[la.FAULT] = la.STUCK
        vllm.stand_by(sim, w, now, preempted)
    elif sim.config.scheduler_kind == la.LOCKSTEP:
        vllm.hold_back(sim, w)
    else:
        vllm.launch(sim, w, now, now)


@kernel
def complete(sim, w, now):
    """Take in the results of the oldest outstanding step at ``now``."""
    worker = sim.workers[w]
    r = vllm.take_in(sim, w)
    while r >= 0:
        after = sim.requests[r].next_aside
        if sim.requests[r].status == la.DRAINED:
            lists.stop_waiting(sim, w, r)
        else:
            groups_memory.release(sim, w, r, memory.final_tokens(sim, r))
            lists.stop_running(sim, w, r)
            worker.draining -= 1
        lists.note_finished(sim, w, r, now)
        r = after


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        vllm.receive(sim, w, r, now)
    elif op == Op.LAUNCH_LOCKSTEP:
        vllm.launch(sim, w, now, now)
    elif op == Op.NEVER_FITS:
        return 1 if groups_memory.never_fits(sim, r) else 0
    elif op == Op.RESET:
        queue.reset(sim, w, sim.config.capacity_pages)
        groups_memory.reset(sim, w)
    return 0
