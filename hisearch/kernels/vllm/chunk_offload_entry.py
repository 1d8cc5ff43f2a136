"""vLLM 0.33 with its native offloading connector: the step rule of ``vllm``, with requests that wait for loads.

Requests that hold pages for a load are in a queue of their own (``loading_queue``), which is served before the waiting
queue. Rules and sources: ``tests.reference.vllm_offload_chunks``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_runs, queue
from hisearch.kernels.engine import device
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import heaps, lists
from hisearch.kernels.vllm import chunk_offload, held, loading_queue, memory, step, transfers
from hisearch.kernels.vllm import entry as vllm


@kernel
def _missing_pages(sim, r, pages):
    """Pages that the known tokens of ``r`` need beyond the ``pages`` that it holds."""
    return max(lists.pages(sim, sim.trace.input_tokens[r] + sim.requests[r].generated) - pages, 0)


@kernel
def _pages_to_come(sim, w):
    """Pages that prompts which have begun, and requests that load, still need."""
    forming_step = sim.workers[w].launched_step + 1
    pages = 0
    r = sim.workers[w].prompts_head
    while r >= 0:
        request = sim.requests[r]
        tokens = request.computed + (request.chunk if request.scheduled_step == forming_step else 0)
        pages += _missing_pages(sim, r, lists.pages(sim, tokens))
        r = request.next_aside
    r = sim.connectors[w].first_admitted
    while r >= 0:
        request = sim.requests[r]
        if request.chunk_kind == la.PROMPT_GOES_ON:
            pages += _missing_pages(sim, r, lists.pages(sim, request.computed + request.chunk))
        r = request.next
    r = sim.connectors[w].skipped_head
    while r >= 0:
        loaded = sim.offloaded[r].dealt_with * sim.offloading.block_tokens
        pages += _missing_pages(sim, r, lists.pages(sim, loaded))
        r = sim.requests[r].next
    return pages


@kernel
def _load(sim, w, r, look, tokens):
    """Try to allocate pages for the ``tokens`` of ``r`` in host memory. Returns ``SKIPPED``, or ``NO_PAGES``."""
    trace_node, limit, hit_tokens, d = look
    cached = hit_tokens + tokens
    if not step.fits_admission(sim, w, r, hit_tokens, d, 0, cached):
        return loading_queue.NO_PAGES
    reserved = _pages_to_come(sim, w) * sim.config.page_tokens
    if not step.fits(sim, w, hit_tokens, d, 0, cached + reserved):
        return loading_queue.NO_PAGES
    step.hold(sim, w, r, trace_node, limit, cached)
    chunk_offload.load(sim, w, r, hit_tokens, tokens)
    return loading_queue.SKIPPED


@kernel
def _consider(sim, w, r, now, budget, skipped):
    """Try to run ``r``. Returns tokens scheduled, ``SKIPPED`` if it waits, or ``NO_PAGES``."""
    offloaded = sim.offloaded[r]
    if offloaded.loading == tl.LOADING:
        return loading_queue.SKIPPED
    if offloaded.loading == tl.NOTED:
        transfers.end_wait(sim, w, r)
    if offloaded.loading == tl.LOADED:
        tokens = loading_queue.resume(sim, w, r, now, budget, skipped)
        if tokens > 0:
            queue.touch_path(sim, sim.workers[w].cache_id, sim.requests[r].node, sim.requests[r].redirect)
        return tokens
    look = step.look_up(sim, w, r)
    trace_node, _, hit_tokens, _ = look
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    tokens = chunk_offload.find(sim, w, r, trace_node, known, hit_tokens)
    if tokens < 0:
        return loading_queue.SKIPPED
    if tokens > 0:
        return _load(sim, w, r, look, tokens)
    return loading_queue.begin(sim, w, r, now, budget, skipped, look)


@kernel
def _admit(sim, w, now, budget):
    """Admit requests that have loaded, then waiting ones, until one does not fit."""
    worker = sim.workers[w]
    r = sim.connectors[w].skipped_head
    while r >= 0 and budget > 0 and worker.running < sim.config.max_running:
        after = sim.requests[r].next
        verdict = _consider(sim, w, r, now, budget, True)
        if verdict == loading_queue.NO_PAGES:
            return
        budget -= max(verdict, 0)
        r = after
    r = worker.waiting_head
    while r >= 0 and budget > 0 and worker.running < sim.config.max_running:
        after = sim.requests[r].next
        verdict = _consider(sim, w, r, now, budget, False)
        if verdict == loading_queue.NO_PAGES:
            return
        budget -= max(verdict, 0)
        if sim.offloaded[r].loading == tl.LOADING:
            lists.stop_waiting(sim, w, r)
            loading_queue.skip(sim, w, r)
        r = after


@kernel
def _offer(sim, w, at_s):
    """Offer the blocks that this step completes. Returns when transfers have ended for which it has to wait, or 0."""
    connector = sim.connectors[w]
    if connector.lagging:
        _offer_all(sim, w)
    else:
        for k in range(sim.workers[w].batch_size):
            r = sim.batch[w, k]
            if sim.requests[r].status != la.DRAINING:
                tokens = sim.requests[r].computed + sim.requests[r].chunk
                chunk_offload.prepare(sim, w, chunk_offload.store(sim, w, r, tokens))
    lagging = connector.lagging
    until_s = chunk_offload.offer_finished(sim, w, at_s)
    connector.lagging = lagging
    chunk_offload.append_prepared(sim, w)
    return until_s


@kernel
def _offer_all(sim, w):
    """Offer the blocks of all scheduled requests, in running order, where some did not fit before."""
    connector = sim.connectors[w]
    connector.lagging = 0
    r = sim.workers[w].running_head
    while r >= 0:
        request = sim.requests[r]
        tokens = sim.trace.input_tokens[r]
        if request.scheduled_step == sim.workers[w].launched_step + 1 and request.status != la.DRAINING:
            if request.status != la.DECODING:
                tokens = request.computed + request.chunk
            chunk_offload.prepare(sim, w, chunk_offload.store(sim, w, r, tokens))
        elif request.status == la.DECODING or request.scheduled_step == sim.workers[w].launched_step + 1:
            chunk_offload.prepare(sim, w, chunk_offload.store(sim, w, r, tokens))
        elif sim.offloaded[r].dealt_with < tokens // sim.offloading.block_tokens:
            connector.lagging = 1
        r = request.next


@kernel
def _go_idle(sim, w, now, preempted):
    """Without a step: note transfers, and schedule the next pass."""
    worker = sim.workers[w]
    connector = sim.connectors[w]
    row = chunk_offload.ROWS * w + chunk_offload.EMPTY_ROW
    again = preempted or connector.prepared >= 0
    again |= chunk_offload.take_notes(sim, w, row)
    chunk_offload.look(sim, w, now, row)
    connector.empty_noted = 1
    if sim.config.overlap:
        again |= transfers.has_notes(sim, row)
    else:
        again |= chunk_offload.take_notes(sim, w, row)
    time = la.FOREVER_S
    if again:
        time = now
    elif worker.waiting + connector.skipped + worker.running > 0 or sim.offloading.workers_per_store > 1:
        time = transfers.next_end_s(sim, w)
    if time < la.FOREVER_S:
        heaps.form_at(sim, w, time)
    else:
        device.await_next(sim, w, now, False)


@kernel
def _fast_forward_limit(sim, w, preempted):
    """Steps as for ``step.fast_forward_limit``, in which also nothing is transferred.

    A page taken may be one that the first waiting request hits, so that it would load it instead.
    """
    worker = sim.workers[w]
    if worker.deferred_head >= 0 or not chunk_offload.quiet(sim, w):
        return 1
    looks = worker.running < sim.config.max_running and worker.waiting + sim.connectors[w].skipped > 0
    if looks and (sim.connectors[w].skipped > 0 or sim.offloading.workers_per_store > 1):
        return 1
    limit = step.fast_forward_limit(sim, w, preempted)
    if not looks:
        return limit
    steps = 1
    while steps < limit and lists.pages_needed(sim, w, steps) == 0:
        steps += 1
    return steps


@kernel
def form(sim, w, now):
    """One pass at ``now``: form the next batch, launch it, and set the worker's next event."""
    worker = sim.workers[w]
    connector = sim.connectors[w]
    at_s = max(now, worker.newest_end_s)
    transfers.begin_prepared(sim, w, at_s)
    chunk_offload.release_finished(sim, w)
    queue.forget_touched(sim, worker.cache_id)
    budget, preempted = vllm.begin_pass(sim, w)
    connector.first_admitted = -1
    if not preempted:
        _admit(sim, w, now, budget)
    ready_s = max(now, chunk_offload.flushed_s(sim, w))
    ready_s = max(ready_s, _offer(sim, w, at_s))
    if worker.batch_size == 0 and worker.decoding == 0:
        transfers.begin_loads(sim, w, max(ready_s, worker.newest_end_s))
        vllm.resume_skipped(sim, w)
        if worker.outstanding == 0:
            connector.held_s = _held_s(sim, now, ready_s)
            _go_idle(sim, w, ready_s, preempted)
            return
        chunk_offload.look(sim, w, ready_s, chunk_offload.ROWS * w + chunk_offload.EMPTY_ROW)
        connector.empty_noted = 1
        held.delay_results(sim, w, _held_s(sim, now, ready_s))
        device.await_next(sim, w, now, False)
        _hold(sim, w, _held_s(sim, now, ready_s))
        return
    step.note_peak(sim, w)
    limit = 1 if ready_s > now else _fast_forward_limit(sim, w, preempted)
    if limit > 1:
        worker.fast_forward_s = now
        device.plan_fast_forward(sim, w, now, limit)
        return
    held.delay_results(sim, w, _held_s(sim, now, ready_s))
    vllm.launch(sim, w, now, ready_s)
    transfers.begin_loads(sim, w, max(ready_s, worker.newest_end_s))
    chunk_offload.look(sim, w, ready_s, chunk_offload.ROWS * w + (worker.launched_step & 1))
    if connector.empty_noted:
        connector.empty_noted = 0
        chunk_offload.take_notes(sim, w, chunk_offload.ROWS * w + chunk_offload.EMPTY_ROW)
    _hold(sim, w, _held_s(sim, now, ready_s))


@kernel
def _held_s(sim, now, ready_s):
    """Until when a pass at ``now``, whose step is launched at ``ready_s``, holds the scheduler."""
    return now if sim.offloading.own_processes else ready_s


@kernel
def _hold(sim, w, until_s):
    """Let the next pass, or the results that the scheduler takes in next, wait until ``until_s``."""
    sim.connectors[w].held_s = until_s
    if sim.workers[w].event_s < until_s:
        heaps.event_set(sim, w, until_s)


@kernel
def complete(sim, w, now):
    """Take in results at ``now``: ended requests, then the transfers polled at their step's launch."""
    worker = sim.workers[w]
    row = chunk_offload.ROWS * w + ((worker.launched_step - worker.outstanding + 1) & 1)
    fast_forwarding = worker.phase == la.FAST_FORWARDING
    r = vllm.take_in(sim, w)
    while r >= 0:
        request = sim.requests[r]
        after = request.next_aside
        transfers.append_finished(sim, w, r)
        if request.status == la.DRAINED:
            lists.stop_waiting(sim, w, r)
        else:
            memory.publish(sim, w, r, memory.final_tokens(sim, r))
            lists.stop_running(sim, w, r)
            worker.draining -= 1
        lists.note_finished(sim, w, r, now)
        r = after
    if not fast_forwarding:
        chunk_offload.take_notes(sim, w, row)


@kernel
def receive(sim, w, r, now):
    """Queue request ``r`` at ``now``; ends idling, and a fast-forward in which ``r`` might be considered."""
    worker = sim.workers[w]
    if worker.phase == la.IDLE:
        # The engine passes on while it copies, and notes what ends.
        row = chunk_offload.ROWS * w + chunk_offload.EMPTY_ROW
        chunk_offload.take_notes(sim, w, row)
        chunk_offload.look(sim, w, now, row)
        chunk_offload.take_notes(sim, w, row)
    vllm.enqueue(sim, w, r)
    chunk_offload.receive(sim, r)
    if worker.phase == la.IDLE or (worker.phase == la.FORMING and worker.event_s > now):
        heaps.form_at(sim, w, max(now, sim.connectors[w].held_s))
    elif worker.phase == la.FAST_FORWARDING and step.may_be_admitted(sim, w, r):
        device.cut_fast_forward(sim, w, now)


@kernel
def _reset(sim, w):
    queue.reset(sim, w, sim.config.capacity_pages)
    sim.workers[w].deferred_head = -1
    chunk_offload.reset(sim, w)
    if w == 0:
        sim.counters[la.FREE_TRANSFER] = -1
        host_runs.reset(sim)
        for v in range(sim.offloading.stores):
            sim.stores[v].evictable = 0
        for v in range(sim.block_tables.shape[0]):
            block_table.reset(sim, v)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        chunk_offload.release_deferred(sim, w)
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        receive(sim, w, r, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.HALT:
        chunk_offload.halt(sim, w, now)
    elif op == Op.RESET:
        _reset(sim, w)
    return 0
