"""vLLM with drafted tokens: the step rule of ``entry``, each step formed by itself; see ``step``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.engine import device, log, schedulers
from hisearch.kernels.engine.cost import add_energy, batch_cost
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, lists
from hisearch.kernels.vllm import entry as vllm
from hisearch.kernels.vllm import memory, step
from hisearch.kernels.vllm.drafts import step as drafts_step


@kernel
def begin_pass(sim, w):
    """Schedule the running requests. Returns (budget left, preempted)."""
    worker = sim.workers[w]
    log.forget_lost(sim)
    worker.batch_size = 0
    worker.lost_head = -1
    return drafts_step.serve_running(sim, w)


@kernel
def form(sim, w, now):
    """Form the next batch at ``now``, launch it and set the worker's next event."""
    budget, preempted = begin_pass(sim, w)
    if not preempted:
        drafts_step.admit_waiting(sim, w, now, budget)
    set_out(sim, w, now, preempted)


@kernel
def set_out(sim, w, now, preempted):
    """Launch the batch formed at ``now``, or go idle."""
    worker = sim.workers[w]
    step.note_peak(sim, w)
    if worker.batch_size == 0:
        vllm.stand_by(sim, w, now, preempted)
    elif sim.config.scheduler_kind == la.LOCKSTEP:
        schedulers.hold_back(sim, w, sim.batch[w], worker.batch_size, 0, 0, 0, 0)
    else:
        launch(sim, w, now)


@kernel
def launch(sim, w, now):
    """Launch the batch formed at ``now`` as a step, and account for it."""
    worker = sim.workers[w]
    batch = sim.batch[w]
    add_energy(sim, w, batch, worker.batch_size, 0, 0, 0, 0)
    device_s, host_s = batch_cost(sim.seconds, sim.requests, batch, worker.batch_size, 0, 0, 0, 0)
    device.launch(sim, w, now, max(device_s, host_s))
    if sim.config.log:
        for k in range(worker.batch_size):
            log.entry(sim, batch[k], drafts_step.assumed(sim, w, batch[k]), sim.requests[batch[k]].chunk)
        log.step(sim, w, la.ANY_STEP, now, worker.newest_start_s, worker.newest_end_s)
    worker.endings_old = worker.endings_new
    worker.endings_new = -1
    for k in range(worker.batch_size):
        decodes = drafts_step.decodes(sim, batch[k])
        made = drafts_step.account(sim, w, batch[k], worker.newest_end_s)
        if sim.config.log:
            log.output(sim, k, made, decodes)
    device.await_next(sim, w, now, True)


@kernel
def complete(sim, w, now):
    """Take in the results of the oldest outstanding step at ``now``."""
    worker = sim.workers[w]
    r = vllm.take_in(sim, w)
    drafts_step.publish_processed(sim, w)
    while r >= 0:
        after = sim.requests[r].next_aside
        if sim.requests[r].status == la.DRAINED:
            lists.stop_waiting(sim, w, r)
        else:
            if sim.config.role == fl.PREFILL and sim.fleet.trace.output_tokens[r] > 1:
                sim.requests[r].away = 1
            else:
                drafts_step.release(sim, w, r)
            lists.stop_running(sim, w, r)
            worker.draining -= 1
        lists.note_finished(sim, w, r, now)
        r = after


@kernel
def let_go(sim, w, r, now):
    """Free the pages of ``r``, whose KV has been sent, for waiting requests."""
    if sim.requests[r].away:
        sim.requests[r].away = 0
        drafts_step.release(sim, w, r)
        heaps.wake(sim, w, now)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        vllm.receive(sim, w, r, now)
    elif op == Op.LAUNCH_LOCKSTEP:
        launch(sim, w, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.RELEASE_KV:
        let_go(sim, w, r, now)
    elif op == Op.RESET:
        queue.reset(sim, w, sim.config.capacity_pages)
    return 0
