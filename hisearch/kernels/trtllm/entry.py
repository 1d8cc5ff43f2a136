"""TensorRT-LLM's in-flight batching (PyTorch backend): decodes first, then contexts as the capacity policy admits.

Sources: NVIDIA's documentation of TensorRT-LLM ("Scheduler", "KV Cache System", "Useful Runtime Options", "Overlap
Scheduler") and the sources of its capacity scheduler, micro-batch scheduler, KV cache manager, eviction policy and
PyExecutor. No recording of the engine checks the rules; ``docs/simulator.md`` lists them and the deviations. What
changed from release to release: ``base.engine_rules``.

A step's effects on its requests are accounted for at its launch. Its results, taken in at its end, are the ends of
requests and the chunks of prompts that become reusable.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.engine import decode_log, device, gaps, log, ordered, schedulers, visible
from hisearch.kernels.engine.cost import add_energy, batch_cost
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, lists, thinking
from hisearch.kernels.trtllm import gathering, host, memory, ranks, shares, step

_choose_together = ranks.chosen_together(step.choose)


@kernel
def form(sim, w, now):
    """Form the next batch at ``now``, launch it and set the worker's next event."""
    worker = sim.workers[w]
    if sim.config.scheduler_kind == la.LOCKSTEP:
        _form_in_lockstep(sim, w, now)
        return
    if sim.config.gather_s > 0.0 and not gathering.goes_on(sim, w, now):
        return
    log.forget_lost(sim)
    steady = step.choose(sim, w)
    steady = not shares.hold_back(sim, w) and steady
    step.start(sim, w, now)
    note_peak(sim, w)
    if worker.batch_size == 0 and worker.decoding == 0:
        if worker.paused and worker.outstanding == 0:
            heaps.form_at(sim, w, now)
        else:
            _await_next(sim, w, now, False)
        return
    limit = 1
    if (
        steady
        and sim.config.gather_s == 0.0
        and worker.draining == 0
        and worker.outstanding == sim.config.overlap
        and not _copies_last(sim, w, now)
    ):
        limit = _fast_forward_limit(sim, w)
    if limit > 1:
        worker.fast_forward_s = now
        device.plan_fast_forward(sim, w, now, limit)
    else:
        _launch(sim, w, now)


@kernel
def _await_next(sim, w, now, launched):
    """Set the worker's next event after a pass at ``now``, which may have come later than the oldest step's end."""
    device.await_next(sim, w, now, launched)
    worker = sim.workers[w]
    if sim.config.gather_s > 0.0 and worker.phase == la.STEPPING and worker.event_s < now:
        heaps.event_set(sim, w, now)


@kernel
def note_peak(sim, w):
    """Update the peak of the pages that requests hold."""
    worker = sim.workers[w]
    cache = sim.trees[worker.cache_id]
    worker.peak_pages = max(worker.peak_pages, cache.capacity_pages - cache.free_pages)


@kernel
def _form_in_lockstep(sim, w, now):
    """Form rank ``w``'s batch of what ``ranks.choose_together`` chose."""
    worker = sim.workers[w]
    if worker.skips_pass:
        return
    step.start(sim, w, now)
    note_peak(sim, w)
    if worker.batch_size > 0 or worker.decoding > 0:
        schedulers.hold_back(sim, w, sim.batch[w], worker.batch_size, *lists.decodes(sim, w))
    elif worker.paused and worker.outstanding == 0:
        worker.look_s = now


@kernel
def _copies_last(sim, w, now):
    """Whether copies between HBM and the host delay the step just formed."""
    worker = sim.workers[w]
    return worker.load_back_s > max(now, worker.newest_end_s)


@kernel
def _fast_forward_limit(sim, w):
    """Steps, including the one just formed, in which all decode, none ends before the last and pages suffice.

    The pages need no copy to the host, for which their step would wait. No request starts meanwhile: the first waiting
    one was refused for want of pages or budget, which do not grow before an end.
    """
    worker = sim.workers[w]
    if sim.config.schedulers > 1 or worker.batch_size > 0 or worker.prompts_head >= 0:
        return 1
    if sim.launches[_row(sim, w)].chunks > 0:
        return 1
    limit = sim.requests[sim.finish_heap[w, 0]].finish_clock - worker.clock
    return 1 + lists.steps_within_pages(sim, w, 1, host.undisturbed_pages(sim, w), limit - 1)


@kernel
def _row(sim, w):
    """Row of the newest launched step in ``launches`` and ``prompts``."""
    return 2 * w + sim.workers[w].launched_step % 2


@kernel
def _launch(sim, w, now):
    """Launch the batch just formed as a single step, which begins when its copies have ended."""
    worker = sim.workers[w]
    batch = sim.batch[w]
    decodes = lists.decodes(sim, w)
    device_s, host_s = batch_cost(sim.seconds, sim.requests, batch, worker.batch_size, *decodes)
    seconds = max(device_s, host_s)
    add_energy(sim, w, batch, worker.batch_size, *decodes)
    before = worker.newest_end_s
    end = device.launch(sim, w, max(now, worker.load_back_s), seconds)
    delayed = gathering.delays_results(sim)
    if not delayed:
        gaps.add(sim, end - before, worker.decoding)
    if sim.config.log:
        _log_batch(sim, w)
        log.step(sim, w, la.ANY_STEP, now, worker.newest_start_s, end)
        worker.logged_step = sim.counters[la.LOG_STEPS] - 1
    worker.endings_old = worker.endings_new
    worker.endings_new = -1
    worker.decode_tokens += worker.decoding
    sim.launches[_row(sim, w)].entries = worker.decoding
    lists.advance_clock(sim, w, 1)
    if sim.config.thinks and not delayed:
        thinking.note_decoded(sim, w, worker.clock, end)
    _drain(sim, w)
    row = _row(sim, w)
    sim.launches[row].chunks = 0
    for k in range(worker.batch_size):
        if sim.requests[batch[k]].chunk_kind == la.LISTED_DECODE:
            worker.decode_tokens += 1
            continue
        sim.prompts[row, sim.launches[row].chunks] = batch[k]
        sim.launches[row].chunks += 1
        _account_chunk(sim, w, batch[k], end)
    _await_next(sim, w, now, True)


@kernel
def advance_prompt(sim, w, r):
    """Account for a chunk of ``r`` in the newest step. Returns whether it ends the prompt."""
    request = sim.requests[r]
    request.computed += request.chunk
    if request.chunk_kind == la.PROMPT_GOES_ON:
        if request.status == la.ADMITTED:
            request.status = la.PROMPT
            ordered.add_prompt(sim, w, r)
        return False
    if request.status == la.PROMPT:
        ordered.remove_prompt(sim, w, r)
    request.prompt_tokens = request.computed
    request.ended_step = sim.workers[w].launched_step
    return True


@kernel
def _account_chunk(sim, w, r, end):
    """Account for a chunk of ``r`` in the step that ends at ``end``."""
    request = sim.requests[r]
    if not advance_prompt(sim, w, r):
        return
    request.generated += 1
    if not gathering.delays_results(sim):
        gathering.note_sampled(sim, w, r, end)
    if request.generated == sim.trace.output_tokens[r]:
        _await_end(sim, w, r)
        return
    request.status = la.DECODING
    lists.join_decode(sim, w, r)


@kernel
def _drain(sim, w):
    """Take requests whose last token the newest step makes out of the decodes."""
    worker = sim.workers[w]
    while worker.finish_heap_size > 0 and sim.requests[sim.finish_heap[w, 0]].finish_clock == worker.clock:
        r = sim.finish_heap[w, 0]
        lists.leave_decode(sim, w, r)
        _await_end(sim, w, r)


@kernel
def _await_end(sim, w, r):
    """Let ``r``, whose last token the newest step makes, end with that step's results."""
    sim.requests[r].status = la.DRAINING
    sim.requests[r].late_tokens = 0
    sim.workers[w].draining += 1
    ordered.add_ending(sim, w, r)


@kernel
def complete(sim, w, now):
    """Take in the results of the oldest outstanding step, or of a fast-forward, at ``now``."""
    worker = sim.workers[w]
    if worker.phase == la.FAST_FORWARDING:
        steps = worker.fast_forward_steps
        if sim.config.log:
            decode_log.fast_forward_steps(sim, w)
        gaps.count_fast_forward(sim, w)
        if sim.config.thinks:
            visible.note_fast_forward(sim, w, steps)
        device.finish_fast_forward(sim, w)
        memory.take_decode_pages(sim, w, now, lists.pages_over(sim, w, 1, steps - 1) - worker.fast_forward_pages)
        worker.allocated_pages += worker.fast_forward_pages
        worker.fast_forward_pages = 0
        note_peak(sim, w)
        lists.advance_clock(sim, w, steps)
        sim.launches[_row(sim, w)].chunks = 0
        _drain(sim, w)
        if sim.config.overlap:
            return
    else:
        device.retire(sim, w)
    if worker.outstanding > 0:
        ending = worker.endings_old
        worker.endings_old = -1
    else:
        ending = worker.endings_new
        worker.endings_new = -1
    _end_requests(sim, w, ending, now)
    store_chunks(sim, w)


@kernel
def _end_requests(sim, w, r, now):
    """End ``r`` and all requests after it in its list of endings."""
    worker = sim.workers[w]
    while r >= 0:
        request = sim.requests[r]
        memory.release(sim, w, r, request.computed + request.late_tokens, request.computed)
        lists.stop_running(sim, w, r)
        worker.draining -= 1
        worker.active_tokens -= sim.trace.input_tokens[r]
        lists.note_finished(sim, w, r, now)
        r = request.next_aside


@kernel
def store_chunks(sim, w):
    """Store the prompts of which the step just taken in computed a chunk, except those paused or ended meanwhile."""
    worker = sim.workers[w]
    step = worker.launched_step - worker.outstanding
    row = 2 * w + step % 2
    for k in range(sim.launches[row].chunks):
        r = sim.prompts[row, k]
        request = sim.requests[r]
        if request.outcome == la.IN_FLIGHT and request.status != la.WAITING:
            memory.store(sim, w, r, _findable_tokens(sim, r, step), False)


@kernel
def _findable_tokens(sim, r, step):
    """Tokens of ``r``'s prompt that can be found after the results of ``step``, the newest known ones.

    The last token that the engine knows of is not counted. While the end of the prompt is in flight that is the
    prompt's last.
    """
    request = sim.requests[r]
    if request.status == la.PROMPT:
        return request.computed if sim.config.stores_computed else memory.known_tokens(sim, r) - 1
    return request.prompt_tokens - (request.ended_step > step)


@kernel
def receive(sim, w, r, now):
    """Queue request ``r`` at ``now``; end a fast-forward early if ``r`` might start in it.

    By priority also if ``r`` becomes active in it, and stays before more urgent ones that come later.
    """
    if sim.config.scheduler_kind == la.LOCKSTEP:
        ranks.receive(sim, w, r)
        return
    worker = sim.workers[w]
    memory.queue_up(sim, w, r)
    if sim.config.gather_s > 0.0:
        gathering.receive(sim, w, now)
    if worker.phase == la.IDLE:
        heaps.form_at(sim, w, now)
    elif (
        worker.phase == la.FAST_FORWARDING
        and (not worker.full or sim.config.schedule == la.PRIORITY)
        and worker.running + worker.waiting <= sim.config.max_running
    ):
        device.cut_fast_forward(sim, w, now)


@kernel
def _log_batch(sim, w):
    """Log the step just formed: contexts, then decodes."""
    for k in range(sim.workers[w].batch_size):
        r = sim.batch[w, k]
        if sim.requests[r].chunk_kind != la.LISTED_DECODE:
            log.entry(sim, r, sim.requests[r].computed, sim.requests[r].chunk)
    r = sim.workers[w].running_head
    while r >= 0:
        if sim.requests[r].status == la.DECODING:
            decode_log.decode(sim, w, r, 0)
        elif sim.requests[r].status == la.DRAINING and sim.requests[r].late_tokens:
            log.entry(sim, r, sim.requests[r].computed, 1)
        r = sim.requests[r].next


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        receive(sim, w, r, now)
    elif op == Op.CHOOSE_TOGETHER:
        log.forget_lost(sim)
        _choose_together(sim, w)
    elif op == Op.LAUNCH_LOCKSTEP:
        _launch(sim, w, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op != Op.RELEASE_KV:
        queue.reset(sim, w, sim.config.capacity_pages)
        host.reset(sim, w)
        ranks.reset(sim, w)
    return 0
