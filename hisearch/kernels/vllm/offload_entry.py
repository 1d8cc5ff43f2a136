"""vLLM with its native offloading connector: the step rule of ``vllm``, with requests that wait for loads.

Requests that load, or whose blocks another request loads, are *skipped*: a separate queue holds them, which is served
before the waiting queue. Rules and sources: ``tests.reference.vllm_offload``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_runs, queue
from hisearch.kernels.engine import device
from hisearch.kernels.engine.cost import fast_forward
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import heaps, lists
from hisearch.kernels.vllm import entry as vllm
from hisearch.kernels.vllm import loading_queue, memory, offload, step, transfers


@kernel
def _load(sim, w, r, look, tokens):
    """Try to allocate pages for the ``tokens`` of ``r`` in host memory. Returns ``SKIPPED``, or ``NO_PAGES``."""
    trace_node, limit, hit_tokens, d = look
    cached = hit_tokens + tokens
    if not step.fits_admission(sim, w, r, hit_tokens, d, 0, cached):
        return loading_queue.NO_PAGES
    step.hold(sim, w, r, trace_node, limit, cached)
    offload.load(sim, w, r, trace_node, hit_tokens, tokens)
    return loading_queue.SKIPPED


@kernel
def _consider(sim, w, r, now, budget, skipped):
    """Try to run ``r``. Returns tokens scheduled, ``SKIPPED`` if it waits for a load, or ``NO_PAGES``."""
    offloaded = sim.offloaded[r]
    if offloaded.loading == tl.LOADING:
        return loading_queue.SKIPPED
    if offloaded.loading == tl.NOTED:
        transfers.end_wait(sim, w, r)
    if offloaded.loading == tl.LOADED:
        return loading_queue.resume(sim, w, r, now, budget, skipped)
    look = step.look_up(sim, w, r)
    trace_node, _, hit_tokens, _ = look
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    tokens = offload.find(sim, w, r, trace_node, known, hit_tokens)
    if tokens < 0:
        return loading_queue.SKIPPED
    if tokens > 0:
        return _load(sim, w, r, look, tokens)
    return loading_queue.begin(sim, w, r, now, budget, skipped, look)


@kernel
def _admit(sim, w, now, budget):
    """Admit skipped and waiting requests until one does not fit."""
    worker = sim.workers[w]
    cursor = sim.connectors[w].skipped_head
    while budget > 0 and worker.running < sim.config.max_running:
        r = cursor
        skipped = cursor >= 0
        by_urgency = lists.goes_by_urgency(sim)
        if worker.waiting > 0 and (
            not skipped or (by_urgency and loading_queue.more_urgent(sim, worker.waiting_head, r))
        ):
            r = worker.waiting_head
            skipped = False
        if r < 0:
            return
        if skipped:
            cursor = sim.requests[r].next
        verdict = _consider(sim, w, r, now, budget, skipped)
        if verdict == loading_queue.NO_PAGES:
            return
        if verdict > 0:
            budget -= verdict
        elif not skipped:
            lists.stop_waiting(sim, w, r)
            loading_queue.skip(sim, w, r)


@kernel
def _tokens_after_step(sim, w, r):
    """Known tokens of the scheduled request ``r`` that the step being formed will have computed."""
    request = sim.requests[r]
    if request.status == la.DRAINING:
        return memory.final_tokens(sim, r)
    if request.status == la.DECODING:
        return sim.trace.input_tokens[r] + memory.sampled(sim, w, r) - memory.output_placeholders(sim, w, r)
    return request.computed + request.chunk


@kernel
def _is_scheduled(sim, w, r):
    request = sim.requests[r]
    return request.status == la.DECODING or request.scheduled_step == sim.workers[w].launched_step + 1


@kernel
def _store_admitted(sim, w, resumed):
    r = sim.connectors[w].first_admitted
    while r >= 0:
        if (sim.requests[r].preemptions > 0) == resumed:
            offload.store(sim, w, r, _tokens_after_step(sim, w, r))
        r = sim.requests[r].next


@kernel
def _store(sim, w):
    """Store the blocks that this step completes: of new, running, then resumed requests."""
    connector = sim.connectors[w]
    connector.lagging = 0
    _store_admitted(sim, w, False)
    r = sim.workers[w].running_head
    while r >= 0 and r != connector.first_admitted:
        if _is_scheduled(sim, w, r):
            offload.store(sim, w, r, _tokens_after_step(sim, w, r))
        r = sim.requests[r].next
    _store_admitted(sim, w, True)


@kernel
def _go_idle(sim, w, now, preempted):
    """Without a step: note transfers at once, and schedule the next pass."""
    worker = sim.workers[w]
    row = 2 * w
    offload.look(sim, w, now, row)
    again = preempted or transfers.has_notes(sim, row)
    offload.take_notes(sim, w, row)
    time = la.FOREVER_S
    if worker.waiting + sim.connectors[w].skipped + worker.running > 0:
        time = now if again else transfers.next_end_s(sim, w)
    if sim.config.scheduler_kind == la.LOCKSTEP:
        worker.look_s = time
    elif time < la.FOREVER_S:
        heaps.form_at(sim, w, time)
    else:
        device.await_next(sim, w, now, False)


@kernel
def _fast_forward_limit(sim, w, preempted):
    """Steps as for ``step.fast_forward_limit``, also without a store or look-up visible to other workers.

    Stores to a worker's private host memory are visible to no other worker: ``_catch_up`` performs them later.
    """
    worker = sim.workers[w]
    if not offload.quiet(sim, w):
        return 1
    shared = sim.offloading.workers_per_store > 1
    looks = worker.running < sim.config.max_running and worker.waiting + sim.connectors[w].skipped > 0
    if looks and sim.connectors[w].skipped > 0:
        return 1
    # A miss leaves the LRU order as it is, but changes the state of ARC, of a threshold, and of a shared queue.
    if looks and (sim.offloading.arc or sim.offloading.threshold > 0 or shared):
        return 1
    limit = step.fast_forward_limit(sim, w, preempted)
    if not (looks or shared or sim.config.log):
        return limit
    # A pass takes a page that a waiting request may hit, and stores the block that its step fills.
    filling = 0 if sim.config.overlap else 1
    steps = 1
    while steps < limit and lists.pages_needed(sim, w, steps) + lists.pages_needed(sim, w, steps + filling) == 0:
        steps += 1
    return steps


@kernel
def _sort_by_block_end(sim, w, steps):
    """Sort the running requests into ``sim.next_filling`` by the pass in which each next fills a block.

    Pass k, of ``steps``, forms the step after the first k. A request fills its next block one block's tokens later.
    """
    size = sim.offloading.block_tokens
    sim.next_filling[:] = -1
    r = sim.workers[w].running_tail
    while r >= 0:
        k = (sim.offloaded[r].dealt_with + 1) * size - _tokens_after_step(sim, w, r)
        if k < steps:
            sim.offloaded[r].next_due = sim.next_filling[k % size]
            sim.next_filling[k % size] = r
        r = sim.requests[r].prev


@kernel
def _catch_up(sim, w):
    """Perform the host memory operations of an ended fast-forward's passes after the first."""
    worker = sim.workers[w]
    connector = sim.connectors[w]
    steps = worker.fast_forward_steps
    if steps < 2:
        return
    _sort_by_block_end(sim, w, steps)
    excess = lists.excess_tokens(sim, w)
    end_s = worker.fast_forward_from_s if sim.config.overlap else worker.newest_start_s
    ended = 0
    phase = 0
    for k in range(1, steps):
        phase += 1
        if phase == sim.offloading.block_tokens:
            phase = 0
        if connector.prepared >= 0:
            context = worker.context_tokens + ended * worker.decoding
            _, end_s = fast_forward(sim.seconds, end_s, la.FOREVER_S, k - ended, worker.decoding, context, excess)
            ended = k
            transfers.begin_prepared(sim, w, end_s)
            offload.end_transfers(sim, w, end_s, 2 * w)
        if connector.lagging:
            connector.lagging = 0
            r = worker.running_head
            while r >= 0:
                offload.store(sim, w, r, _tokens_after_step(sim, w, r) + k)
                r = sim.requests[r].next
            continue
        r = sim.next_filling[phase]
        while r >= 0:
            offload.store(sim, w, r, _tokens_after_step(sim, w, r) + k)
            r = sim.offloaded[r].next_due


@kernel
def form(sim, w, now):
    """One pass at ``now``: form the next batch, launch it, and set the worker's next event."""
    worker = sim.workers[w]
    budget, preempted = vllm.begin_pass(sim, w)
    sim.connectors[w].first_admitted = -1
    if not preempted:
        _admit(sim, w, now, budget)
    ready_s = offload.begin_transfers(sim, w, now)
    worker.ready_s = ready_s
    _store(sim, w)
    offload.flush(sim, w)
    if worker.batch_size == 0 and worker.decoding == 0:
        vllm.resume_skipped(sim, w)
        if worker.outstanding == 0:
            _go_idle(sim, w, ready_s, preempted)
        else:
            device.await_next(sim, w, now, False)
        return
    step.note_peak(sim, w)
    offload.look(sim, w, ready_s, 2 * w + ((worker.launched_step + 1) & 1))
    if sim.config.scheduler_kind == la.LOCKSTEP:
        vllm.hold_back(sim, w)
        return
    limit = _fast_forward_limit(sim, w, preempted)
    if limit > 1:
        worker.fast_forward_s = now
        device.plan_fast_forward(sim, w, now, limit)
    else:
        vllm.launch(sim, w, now, ready_s)


@kernel
def complete(sim, w, now):
    """Take in results at ``now``: ended requests, then the transfers polled at their step's launch."""
    worker = sim.workers[w]
    row = 2 * w + ((worker.launched_step - worker.outstanding + 1) & 1)
    fast_forwarding = worker.phase == la.FAST_FORWARDING
    if fast_forwarding:
        _catch_up(sim, w)
    r = vllm.take_in(sim, w)
    while r >= 0:
        request = sim.requests[r]
        after = request.next_aside
        keeps = offload.finish(sim, w, r)
        if request.status == la.DRAINED:
            lists.stop_waiting(sim, w, r)
        else:
            if keeps:
                memory.publish(sim, w, r, memory.final_tokens(sim, r))
                sim.offloaded[r].holds = 1
            else:
                memory.release(sim, w, r, request.computed, memory.final_tokens(sim, r))
            lists.stop_running(sim, w, r)
            worker.draining -= 1
        lists.note_finished(sim, w, r, now)
        r = after
    if not fast_forwarding:
        offload.take_notes(sim, w, row)


@kernel
def receive(sim, w, r, now):
    """Queue request ``r`` at ``now``; ends idling, and a fast-forward in which ``r`` might be considered."""
    worker = sim.workers[w]
    vllm.enqueue(sim, w, r)
    offload.receive(sim, r)
    if sim.config.scheduler_kind == la.LOCKSTEP:
        return
    if worker.phase == la.IDLE or (worker.phase == la.FORMING and worker.event_s > now):
        heaps.form_at(sim, w, now)
    elif worker.phase == la.FAST_FORWARDING and step.may_be_admitted(sim, w, r):
        device.cut_fast_forward(sim, w, now)


@kernel
def _reset(sim, w):
    queue.reset(sim, w, sim.config.capacity_pages)
    transfers.reset(sim, w, offload.ROWS)
    if w == 0:
        sim.counters[la.FREE_TRANSFER] = -1
        host_runs.reset(sim)
        for v in range(sim.block_tables.shape[0]):
            block_table.reset(sim, v)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        receive(sim, w, r, now)
    elif op == Op.LAUNCH_LOCKSTEP:
        vllm.launch(sim, w, now, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.HALT:
        transfers.halt(sim, w, offload.ROWS, now)
    elif op == Op.RESET:
        _reset(sim, w)
    return 0
