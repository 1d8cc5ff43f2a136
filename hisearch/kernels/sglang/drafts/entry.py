"""SGLang with drafted tokens: the step rule of ``sglang.entry``, each step formed by itself; see ``decode``."""

from __future__ import annotations

import math

from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix
from hisearch.kernels.engine import device, drafts, log
from hisearch.kernels.engine.cost import add_energy, batch_cost
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import arrivals, drafted, idle, memory, running, stalls
from hisearch.kernels.sglang import decode as sglang_decode
from hisearch.kernels.sglang import entry as plain
from hisearch.kernels.sglang import log as step_log
from hisearch.kernels.sglang.drafts import decode
from hisearch.kernels.sglang.prefill import form_prefill
from hisearch.kernels.traffic import heaps, lists


@kernel
def _next_batch(sim, w, now, last):
    """Form a batch after one of kind ``last`` (0: the last pass formed none); returns its kind, or 0."""
    worker = sim.workers[w]
    if worker.chunked >= 0:
        memory.keep_unfinished(sim, w, worker.chunked, True)
    if last == la.PREFILL_STEP:
        decode.join_last_prefill(sim, w)
    if worker.finished_pending > 0:
        running.filter_finished(sim, w)
        worker.full = 0
    kind = form_prefill(sim, w, now, 0, 0)
    if kind == 0 and decode.form_decode(sim, w):
        kind = la.DECODE_STEP
    return kind


@kernel
def form(sim, w, now):
    """One pass at ``now``: form the next batch, launch it, and set the worker's next event."""
    worker = sim.workers[w]
    if now > worker.moment_s:
        worker.moment_s = now
        worker.moments += 1
    log.forget_lost(sim)
    if sim.config.receive_interval > 1:
        arrivals.poll_inbox(sim, w, now)
    kind = _next_batch(sim, w, now, worker.last)
    if kind == 0 and (worker.last == 0 or not sim.config.overlap):
        if idle.is_empty(sim, w):
            worker.ratio = sglang_decode.initial_ratio(sim)
        # This pass may have cleared the full mark; the engine passes again and again.
        worker.last = 0
        for _ in range(idle.PASSES + sim.config.receive_interval - 2):
            if kind == 0 and worker.waiting > 0:
                if worker.held_head >= 0:
                    arrivals.poll_inbox(sim, w, now)
                kind = _next_batch(sim, w, now, 0)
    worker.last = kind
    if kind > 0:
        plain.note_peak(sim, w)
        launch(sim, w, now, kind)
        return
    device.await_next(sim, w, now, False)
    if worker.phase == la.IDLE and worker.held_head >= 0:
        heaps.form_at(sim, w, now)


@kernel
def _log(sim, w, row, size, kind):
    if kind == la.PREFILL_STEP:
        step_log.prompts(sim, sim.prompts[row], size)
        return
    for k in range(size):
        r = sim.prompts[row, k]
        log.entry(sim, r, drafted.known_computed(sim, w, r), sim.requests[r].chunk)


@kernel
def launch(sim, w, now, kind):
    """Launch the batch formed at ``now`` as a step, and account for it."""
    worker = sim.workers[w]
    row = running.newest(sim, w) ^ 1
    entries = sim.prompts[row]
    size = worker.batch_size
    if sim.config.log:
        _log(sim, w, row, size, kind)
    if kind == la.DECODE_STEP:
        for k in range(size):
            decode.place(sim, entries[k])
            worker.decode_tokens += sim.requests[entries[k]].chunk
    else:
        worker.chunked = -1
    add_energy(sim, w, entries, size, 0, 0, 0, 0)
    device_s, host_s = batch_cost(sim.seconds, sim.requests, entries, size, 0, 0, 0, 0)
    prompts = size if kind == la.PREFILL_STEP else 0
    stall_s = stalls.compile_seconds(sim, w, entries, prompts, 0)
    end_s = device.launch(sim, w, now, max(device_s, host_s) + stall_s)
    if sim.config.log:
        log.step(sim, w, kind, now, worker.newest_start_s, end_s)
    for k in range(size):
        r = entries[k]
        request = sim.requests[r]
        if kind == la.PREFILL_STEP:
            request.computed += request.chunk
            request.prompt_step = worker.launched_step
        made = 0
        if request.chunk_kind == la.PROMPT_GOES_ON:
            worker.chunked = r
        else:
            made = decode.account(sim, w, r, end_s)
        if sim.config.log:
            log.output(sim, k, made, kind == la.DECODE_STEP)
    launch = sim.launches[row]
    launch.kind = kind
    launch.chunks = size
    launch.partial = worker.chunked if kind == la.PREFILL_STEP else -1
    device.await_next(sim, w, now, True)


@kernel
def complete(sim, w, now):
    """Take in the results of the oldest outstanding step at ``now``."""
    worker = sim.workers[w]
    step_number = worker.launched_step - worker.outstanding + 1
    device.retire(sim, w)
    row = 2 * w + (step_number & 1)
    launch = sim.launches[row]
    for k in range(launch.chunks):
        r = sim.prompts[row, k]
        request = sim.requests[r]
        # A request that was retracted meanwhile has no newest step.
        if r == launch.partial or request.outcome == la.FINISHED or request.sampled_step < step_number:
            continue
        if launch.kind == la.PREFILL_STEP and math.isnan(request.first_token_s):
            lists.note_first_token(sim, r, now)
        if drafts.ends_with(sim, r, step_number):
            decode.finish(sim, w, r, now)
        elif launch.kind == la.PREFILL_STEP:
            memory.keep_unfinished(sim, w, r, False)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        arrivals.receive(sim, w, r, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.RESET:
        radix.reset(sim, w, sim.config.capacity_pages)
        sim.workers[w].ratio = sglang_decode.initial_ratio(sim)
        sim.workers[w].draining_head = -1
        sim.workers[w].preempted_head = -1
        sim.workers[w].moment_s = -1.0
    return 0
