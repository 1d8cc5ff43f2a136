"""TensorRT-LLM with drafted tokens: the step rule of ``trtllm.entry``, step by step; see ``verifying``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.engine import device, drafts, log, ordered, schedulers
from hisearch.kernels.engine.cost import add_energy, batch_cost
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import sim as la
from hisearch.kernels.trtllm import entry as plain
from hisearch.kernels.trtllm import memory, ranks, shares
from hisearch.kernels.trtllm.drafts import verifying

_choose_together = ranks.chosen_together(verifying.choose)


@kernel
def form(sim, w, now):
    """Form the next batch at ``now``, launch it and set the worker's next event."""
    worker = sim.workers[w]
    in_lockstep = sim.config.scheduler_kind == la.LOCKSTEP
    if in_lockstep and worker.skips_pass:
        return
    if not in_lockstep:
        log.forget_lost(sim)
        verifying.choose(sim, w)
        shares.hold_back(sim, w)
    verifying.start(sim, w, now)
    plain.note_peak(sim, w)
    if worker.batch_size == 0:
        device.await_next(sim, w, now, False)
    elif in_lockstep:
        schedulers.hold_back(sim, w, sim.batch[w], worker.batch_size, 0, 0, 0, 0)
    else:
        _launch(sim, w, now)


@kernel
def _log(sim, w):
    worker = sim.workers[w]
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        request = sim.requests[r]
        decodes = request.chunk_kind == la.LISTED_DECODE
        log.entry(sim, r, verifying.known_computed(sim, w, r) if decodes else request.computed, request.chunk)


@kernel
def _launch(sim, w, now):
    """Launch the batch formed at ``now`` as a step, and account for it."""
    worker = sim.workers[w]
    batch = sim.batch[w]
    if sim.config.log:
        _log(sim, w)
    for k in range(worker.batch_size):
        request = sim.requests[batch[k]]
        if request.chunk_kind == la.LISTED_DECODE:
            # What it reads, all earlier steps ended.
            request.computed = sim.trace.input_tokens[batch[k]] + request.generated - 1
    add_energy(sim, w, batch, worker.batch_size, 0, 0, 0, 0)
    device_s, host_s = batch_cost(sim.seconds, sim.requests, batch, worker.batch_size, 0, 0, 0, 0)
    end_s = device.launch(sim, w, now, max(device_s, host_s))
    if sim.config.log:
        log.step(sim, w, la.ANY_STEP, now, worker.newest_start_s, end_s)
    row = 2 * w + worker.launched_step % 2
    launch = sim.launches[row]
    launch.chunks = 0
    launch.entries = worker.batch_size
    for k in range(worker.batch_size):
        decodes = sim.requests[batch[k]].chunk_kind == la.LISTED_DECODE
        launch.chunks += not decodes
        sim.prompts[row, k] = batch[k]
        made = verifying.account(sim, w, batch[k], end_s)
        if sim.config.log:
            log.output(sim, k, made, decodes)
    device.await_next(sim, w, now, True)


@kernel
def complete(sim, w, now):
    """Take in the results of the oldest outstanding step at ``now``."""
    worker = sim.workers[w]
    step_number = worker.launched_step - worker.outstanding + 1
    device.retire(sim, w)
    # All DP ranks answer their requests then.
    first = schedulers.leader(sim, w)
    for rank in range(first, first + sim.config.schedulers):
        sim.workers[rank].responded_step = sim.workers[rank].launched_step
    row = 2 * w + step_number % 2
    launch = sim.launches[row]
    worker.endings_new = -1
    for k in range(launch.entries):
        r = sim.prompts[row, k]
        request = sim.requests[r]
        if request.outcome == la.IN_FLIGHT and request.status == la.VERIFYING and drafts.ends_with(sim, r, step_number):
            ordered.add_ending(sim, w, r)
    verifying.end_requests(sim, w, worker.endings_new, now)
    for k in range(launch.chunks, launch.entries):
        verifying.give_back_rejected(sim, w, sim.prompts[row, k], step_number)
    plain.store_chunks(sim, w)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        plain.receive(sim, w, r, now)
    elif op == Op.CHOOSE_TOGETHER:
        log.forget_lost(sim)
        _choose_together(sim, w)
    elif op == Op.LAUNCH_LOCKSTEP:
        _launch(sim, w, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.RESET:
        queue.reset(sim, w, sim.config.capacity_pages)
        ranks.reset(sim, w)
    return 0
