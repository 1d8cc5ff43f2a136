"""vLLM v1's step rule: one token budget, running requests first, then waiting ones.

Scheduling by arrival (fcfs) or by priority, synchronous or asynchronous (see ``device``). A step's effects on its
requests are accounted for at its launch, when its duration is known. Only ends of requests wait for its results.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.engine import (
    decode_log,
    device,
    engine_calls,
    gaps,
    grammar,
    log,
    lora,
    ordered,
    schedulers,
    visible,
)
from hisearch.kernels.engine.cost import add_energy, batch_cost
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import fair_share, heaps, lists, thinking
from hisearch.kernels.vllm import fair_order, memory, output_write_back, step, waiting


@kernel
def begin_pass(sim, w):
    """Schedule the running requests. Returns (budget left, preempted)."""
    worker = sim.workers[w]
    log.forget_lost(sim)
    worker.batch_size = 0
    worker.lost_head = -1
    return step.serve_running(sim, w)


@kernel
def form(sim, w, now):
    """Form the next batch at ``now``, launch it and set the worker's next event."""
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.PASS, w, 0, now)
    budget, preempted = begin_pass(sim, w)
    if not preempted:
        _admit_waiting(sim, w, now, budget)
    set_out(sim, w, now, preempted)


@kernel
def _admit_waiting(sim, w, now, budget):
    """Admit from the head of the queue until one does not fit, going by some (see ``waiting``)."""
    worker = sim.workers[w]
    if worker.waiting == 0:
        return
    if sim.config.counts_service and budget > 0 and schedulers.running(sim, w) < sim.config.max_running:
        fair_order.sort_waiting(sim, w)
    adapters = sim.config.serves_adapters
    goes_by = sim.config.goes_by
    if goes_by:
        waiting.begin_pass(sim, w, now)
    r = worker.waiting_head
    while r >= 0 and budget > 0 and schedulers.running(sim, w) < sim.config.max_running:
        after = sim.requests[r].next
        if goes_by and waiting.goes_by(sim, w, r, now):
            r = after
            continue
        if sim.config.objects and not engine_calls.call_engine(sim.config.objects, sim, al.READY, w, r, now):
            r = after
            continue
        tokens = step.admit(sim, w, r, now, budget)
        if tokens == 0:
            return
        if sim.config.objects:
            engine_calls.call_engine(sim.config.objects, sim, al.HOLD, w, r, now)
            engine_calls.call_engine(sim.config.objects, sim, al.LOAD, w, r, now)
        if adapters:
            lora.count(sim, w, r)
        budget -= tokens
        r = after


@kernel
def set_out(sim, w, now, preempted):
    """Launch the batch formed at ``now``, or a fast-forward of undisturbed decode steps, or go idle."""
    worker = sim.workers[w]
    step.note_peak(sim, w)
    if worker.batch_size == 0 and worker.decoding == 0:
        stand_by(sim, w, now, preempted)
        return
    if sim.config.scheduler_kind == la.LOCKSTEP:
        hold_back(sim, w)
        return
    limit = step.fast_forward_limit(sim, w, preempted)
    if sim.config.goes_by and waiting.prepare_step(sim, w):
        limit = 1
    if limit > 1:
        worker.fast_forward_s = now
        device.plan_fast_forward(sim, w, now, limit)
        if sim.config.compiles_grammars:
            waiting.pass_when_ready(sim, w, now)
    else:
        launch(sim, w, now, now)


@kernel
def stand_by(sim, w, now, preempted):
    """Pass again at once where the pass at ``now``, which formed no batch, preempted; else wait."""
    if sim.config.objects:
        # Requests that this pass passed over may wait for loads that nothing else would begin.
        engine_calls.call_engine(sim.config.objects, sim, al.PASS, w, 0, now)
    resume_skipped(sim, w)
    if preempted and sim.workers[w].outstanding == 0 and sim.config.scheduler_kind != la.LOCKSTEP:
        heaps.form_at(sim, w, now)
    else:
        device.await_next(sim, w, now, False)
        if sim.config.compiles_grammars:
            waiting.pass_when_ready(sim, w, now)


@kernel
def hold_back(sim, w):
    """Hold the batch just formed until those of the other DP ranks are formed."""
    worker = sim.workers[w]
    schedulers.hold_back(sim, w, sim.batch[w], worker.batch_size, *lists.decodes(sim, w))


@kernel
def price(sim, w):
    """Seconds that the batch just formed takes to compute; adds its energy to the worker's."""
    worker = sim.workers[w]
    batch = sim.batch[w]
    decodes = lists.decodes(sim, w)
    add_energy(sim, w, batch, worker.batch_size, *decodes)
    device_s, host_s = batch_cost(
        sim.seconds, sim.requests, batch, worker.batch_size, *decodes, worker.more_s, worker.grammar_s
    )
    if sim.config.goes_by:
        grammar.account(sim, w, 1)
        if sim.config.serves_adapters:
            lora.account(sim, w, 1)
            return max(device_s, host_s) + lora.take_stall(sim, w)
    return max(device_s, host_s)


@kernel
def launch(sim, w, now, ready_s):
    """Launch the batch formed at ``now`` as a single step, beginning at ``ready_s`` at the earliest."""
    before = sim.workers[w].newest_end_s
    seconds = price(sim, w)
    if sim.config.objects:
        seconds += sim.agents.loaders[w].at_launch_s
        sim.agents.loaders[w].at_launch_s = 0.0
    device.launch(sim, w, ready_s, seconds)
    account(sim, w, now, before)


@kernel
def account(sim, w, now, before):
    """Account for the step just launched, formed at ``now``; the previous step ended at ``before``."""
    worker = sim.workers[w]
    batch = sim.batch[w]
    end = worker.newest_end_s
    gaps.add(sim, end - before, worker.decoding - worker.skipped_decodes)
    if worker.skipped_decodes > 0:
        _count_skipped(sim, w, end)
    if sim.config.log:
        decode_log.batch(sim, w)
        log.step(sim, w, la.ANY_STEP, now, worker.newest_start_s, end)
    worker.endings_old = worker.endings_new
    worker.endings_new = -1
    worker.decode_tokens += worker.decoding
    if worker.decoding > 0:
        worker.futile_preemptions = 0
    lists.advance_clock(sim, w, 1)
    if sim.config.thinks:
        thinking.note_decoded(sim, w, worker.clock, end)
    _drain(sim, w)
    for k in range(worker.batch_size):
        _account_chunk(sim, w, batch[k], end)
    resume_skipped(sim, w)
    if sim.config.scheduler_kind == la.PIPE:
        step.pass_prompts_on(sim, w, now)
    device.await_next(sim, w, now, True)


@kernel
def _count_skipped(sim, w, end):
    """Count the gaps of decodes that the previous step skipped; this step ends at ``end``."""
    worker = sim.workers[w]
    r = worker.running_head
    while r >= 0:
        request = sim.requests[r]
        if request.status == la.DECODING and request.was_skipped and request.first_decode_step == worker.launched_step:
            gaps.add(sim, end - request.last_token_s, 1)
        r = request.next
    worker.skipped_decodes = 0


@kernel
def _account_chunk(sim, w, r, end):
    """Account for a chunk of ``r`` in the step that ends at ``end``."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.computed += request.chunk
    if request.status == la.DRAINING:
        return
    if request.chunk_kind == la.PROMPT_GOES_ON:
        if request.status == la.ADMITTED:
            request.status = la.PROMPT
            ordered.add_prompt(sim, w, r)
        return
    if request.status == la.PROMPT:
        ordered.remove_prompt(sim, w, r)
    worker.futile_preemptions = 0
    request.generated += 1
    request.sampled_step = worker.launched_step
    request.caching_lag = 0
    if request.generated == 1:
        lists.note_first_token(sim, r, end)
    else:
        gaps.add(sim, end - request.last_token_s, 1)
        if sim.config.thinks:
            thinking.note_sampled(sim, r, request.generated - 1, end, worker.decoding)
    if request.generated == sim.trace.output_tokens[r]:
        _await_end(sim, w, r)
        return
    request.status = la.DECODING
    request.first_decode_step = worker.launched_step + 1
    request.was_skipped = 0
    lists.join_decode(sim, w, r)


@kernel
def _drain(sim, w):
    """Take requests whose last token the newest step makes out of the decodes."""
    worker = sim.workers[w]
    while worker.finish_heap_size > 0 and sim.requests[sim.finish_heap[w, 0]].finish_clock == worker.clock:
        r = sim.finish_heap[w, 0]
        sim.requests[r].caching_lag = memory.caching_lag(sim, w, r)
        lists.leave_decode(sim, w, r)
        sim.requests[r].sampled_step = worker.launched_step
        _await_end(sim, w, r)


@kernel
def _await_end(sim, w, r):
    """Let ``r``, whose last token the newest step makes, end once that step's results are taken in."""
    sim.requests[r].status = la.DRAINING
    sim.workers[w].draining += 1
    ordered.add_ending(sim, w, r)


@kernel
def resume_skipped(sim, w):
    """Let skipped decodes take part in the next step again."""
    worker = sim.workers[w]
    r = worker.skipped_head
    worker.skipped_head = -1
    while r >= 0:
        request = sim.requests[r]
        after = request.next_aside
        request.status = la.DECODING
        request.first_decode_step = worker.launched_step + 1
        request.was_skipped = 1
        worker.skipped_decodes += 1
        lists.join_decode(sim, w, r)
        r = after


@kernel
def take_in(sim, w):
    """Retire the oldest outstanding step or fast-forward. Returns the first request that ends with it, or -1."""
    worker = sim.workers[w]
    if worker.phase == la.FAST_FORWARDING:
        steps = worker.fast_forward_steps
        if sim.config.log:
            decode_log.fast_forward_steps(sim, w)
        gaps.count_fast_forward(sim, w)
        if sim.config.thinks:
            visible.note_fast_forward(sim, w, steps)
        if sim.config.goes_by:
            lora.account(sim, w, steps)
            grammar.account(sim, w, steps)
        device.finish_fast_forward(sim, w)
        queue.take(sim, worker.cache_id, lists.pages_over(sim, w, 1, steps - 1) - worker.fast_forward_pages)
        worker.fast_forward_pages = 0
        step.note_peak(sim, w)
        lists.advance_clock(sim, w, steps)
        _drain(sim, w)
        if sim.config.overlap:
            return -1
    else:
        device.retire(sim, w)
        if worker.outstanding > 0:
            r = worker.endings_old
            worker.endings_old = -1
            return r
    r = worker.endings_new
    worker.endings_new = -1
    return r


@kernel
def complete(sim, w, now):
    """Take in the results of the oldest outstanding step, or of a fast-forward, at ``now``."""
    worker = sim.workers[w]
    r = take_in(sim, w)
    while r >= 0:
        request = sim.requests[r]
        after = request.next_aside
        if request.status == la.DRAINED:
            lists.stop_waiting(sim, w, r)
        else:
            if sim.config.role == fl.PREFILL and sim.fleet.trace.output_tokens[r] > 1:
                memory.publish(sim, w, r, request.computed)
                request.away = 1
            elif sim.config.store_pool < 0 or not output_write_back.set_out(sim, w, r, now):
                memory.release_finished(sim, w, r)
            lists.stop_running(sim, w, r)
            worker.draining -= 1
        lists.note_finished(sim, w, r, now)
        if sim.config.objects:
            engine_calls.call_engine(sim.config.objects, sim, al.LET_GO, w, r, now)
            engine_calls.call_engine(sim.config.objects, sim, al.ENDS, w, r, now)
        r = after


@kernel
def enqueue(sim, w, r):
    """Put the new request ``r`` into the waiting queue."""
    sim.requests[r].node = sim.workers[w].cache_id
    sim.requests[r].redirect = -1
    sim.requests[r].scheduled_step = -1
    if sim.config.counts_service:
        fair_share.arrives(sim, r)
    if lists.goes_by_urgency(sim):
        lists.wait_by_urgency(sim, w, r)
    else:
        lists.wait_last(sim, w, r)


@kernel
def receive(sim, w, r, now):
    """Queue request ``r`` at ``now``; end a fast-forward early if ``r`` might be admitted in it."""
    worker = sim.workers[w]
    enqueue(sim, w, r)
    if sim.config.compiles_grammars:
        waiting.ask_for_grammar(sim, w, r, now)
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.ARRIVES, w, r, now)
    if worker.phase == la.IDLE:
        heaps.form_at(sim, w, now)
    elif worker.phase == la.FAST_FORWARDING and step.may_be_admitted(sim, w, r):
        device.cut_fast_forward(sim, w, now)


@kernel
def let_go(sim, w, r, now):
    """Free the pages of ``r``, whose KV has been sent, for waiting requests."""
    request = sim.requests[r]
    if request.away:
        request.away = 0
        memory.release(sim, w, r, request.computed, request.computed)
        heaps.wake(sim, w, now)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        receive(sim, w, r, now)
    elif op == Op.LAUNCH_LOCKSTEP:
        launch(sim, w, now, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.RELEASE_KV:
        let_go(sim, w, r, now)
    elif op == Op.SERVE:
        # Without tiers only agents have servers.
        engine_calls.call_engine(sim.config.objects, sim, al.DONE, w, 0, now)
    else:
        queue.reset(sim, w, sim.config.capacity_pages)
        if sim.config.counts_service:
            fair_share.reset(sim, w)
        lora.reset(sim, w)
        grammar.reset(sim, w)
        if sim.config.objects:
            engine_calls.call_engine(sim.config.objects, sim, al.BEGIN, w, 0, now)
    return 0
