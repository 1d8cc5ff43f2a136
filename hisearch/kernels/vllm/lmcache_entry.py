"""vLLM with LMCache's connector: the step rule of ``vllm``, with steps that wait for loads and saves.

Rules and sources: ``tests.reference.lmcache``. Where one rank runs in the scheduler's process, its loads and saves
hold the next pass (``held_s`` of ``_launch``); gaps between tokens are still those of the steps' ends.

A decode's tracked tokens grow by one with each step, at most up to those known when the step is formed. They are not
updated step by step: unless outputs are saved, only those of preempted requests are ever read (``_note_lost``). Where a
resumed request is handed over as a new one (``resumes_as_new``), they stay behind by the output that it had.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, queue
from hisearch.kernels.engine import device
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, links, lists
from hisearch.kernels.vllm import entry as vllm
from hisearch.kernels.vllm import held, lmcache, memory, step


@kernel
def _note_lost(sim, w):
    """Update the tracked tokens of decoding requests that this pass preempted."""
    r = sim.workers[w].lost_head
    while r >= 0:
        request = sim.requests[r]
        offloaded = sim.offloaded[r]
        if request.chunk_kind == la.DECODED:
            tokens = sim.trace.input_tokens[r] + request.generated - 1
            if sim.config.overlap:
                # The token before the newest was in flight, unless a step lay between the prompt's end and the only
                # decode.
                only_decode = (
                    tokens - 1 == offloaded.tracked and request.caching_lag == 0 and not sim.offloading.save_decode
                )
                tokens -= 0 if only_decode else 1
            if tokens > offloaded.tracked:
                offloaded.tracked = tokens
                offloaded.decodes = 1
        r = request.prev_aside


@kernel
def _note_hits(sim, w, r, on_device, cached):
    """Count by tier the hits of ``r`` behind ``on_device``, up to ``cached``; only at its first schedule."""
    request = sim.requests[r]
    if request.scheduled_s == request.scheduled_s:
        return
    begin = on_device
    end = 0
    for tier in range(sim.worker_stores.shape[1]):
        end += sim.matched_chunks_in[r, tier] * sim.offloading.block_tokens
        hits = max(min(end, cached) - begin, 0)
        sim.block_tables[sim.worker_stores[w, tier]].hit_tokens += hits
        begin += hits
        if tier == 0:
            request.fetched_tokens = cached - begin


@kernel
def _admit_head(sim, w, now, budget):
    """Try to admit the first waiting request. Returns tokens scheduled, 0 if it has to wait."""
    r = sim.workers[w].waiting_head
    offloaded = sim.offloaded[r]
    trace_node, limit, hit_tokens, d = step.look_up(sim, w, r)
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    size = sim.offloading.block_tokens
    if not offloaded.asked:
        offloaded.hit_chunks = lmcache.lookup(sim, w, r, trace_node, known // size, now)
        offloaded.asked = 1
    cached = max(min(offloaded.hit_chunks * size, known - 1), hit_tokens)
    share = step.share_of(sim, w, r, cached, budget)
    if share == 0 or not step.fits_admission(sim, w, r, hit_tokens, d, 0, cached + share):
        return 0
    lists.stop_waiting(sim, w, r)
    step.hold(sim, w, r, trace_node, limit, cached)
    offloaded.asked = 0
    offloaded.on_device = hit_tokens
    offloaded.load_tokens = cached - hit_tokens
    sim.workers[w].host_hit_tokens += cached - hit_tokens
    _note_hits(sim, w, r, hit_tokens, cached)
    lists.note_scheduled(sim, r, now, hit_tokens, cached - hit_tokens)
    step.run(sim, w, r, share, lists.pages(sim, cached))
    if sim.connectors[w].first_admitted < 0:
        sim.connectors[w].first_admitted = r
    return share


@kernel
def _copy(sim, w, back, now, tokens):
    """Copy to host memory, or back, over the worker's own link and the link to host memory that it shares."""
    end = links.send_to_host(sim, w, back, now, tokens)
    return max(end, lmcache.travel(sim, w, sim.worker_stores[w, 0], back, now, tokens))


@kernel
def _handed_tokens(sim, r):
    """Tokens of the admitted ``r`` that are handed over as those of a new request: none of its output."""
    return min(sim.requests[r].computed + sim.requests[r].chunk, sim.trace.input_tokens[r])


@kernel
def _load_one(sim, w, r, at_s):
    """Load the cached chunks of the admitted ``r`` to the device; returns when they have arrived."""
    size = sim.offloading.block_tokens
    offloaded = sim.offloaded[r]
    end = offloaded.hit_chunks
    if sim.config.resumes_as_new:
        end = min(end, _handed_tokens(sim, r) // size)
    tokens = end * size - offloaded.on_device
    if tokens > 0:
        at_s = lmcache.read(sim, w, lists.path_end(sim, r), offloaded.on_device // size, end, at_s)
        at_s = _copy(sim, w, 1, at_s, tokens)
    if sim.config.unpins_loaded:
        lmcache.unpin(sim, w, r, lists.path_end(sim, r))
    return at_s


@kernel
def _load(sim, w, resumed, at_s):
    """Load the cached chunks of admitted requests to the device; returns when they have arrived."""
    r = sim.connectors[w].first_admitted
    while r >= 0:
        if (sim.requests[r].preemptions > 0) == resumed and sim.offloaded[r].load_tokens > 0:
            at_s = _load_one(sim, w, r, at_s)
        r = sim.requests[r].next
    return at_s


@kernel
def _tracked_decode(sim, w, r):
    """Tracked tokens of the decoding ``r`` for the step being formed: one more for each of its steps since."""
    sampled = sim.trace.input_tokens[r] + memory.sampled(sim, w, r)
    offloaded = sim.offloaded[r]
    return min(offloaded.tracked + sampled - offloaded.tracked_at, sampled - memory.output_placeholders(sim, w, r))


@kernel
def _track(sim, w, r):
    """Update the tracked tokens of ``r`` for the step just formed."""
    request = sim.requests[r]
    offloaded = sim.offloaded[r]
    matched_tokens = offloaded.hit_chunks * sim.offloading.block_tokens
    if request.status == la.DECODING or request.status == la.DRAINING:
        sampled = sim.trace.input_tokens[r] + memory.sampled(sim, w, r)
        offloaded.tracked = _tracked_decode(sim, w, r)
        offloaded.tracked_at = sampled
        return
    known = sim.trace.input_tokens[r] + request.generated
    offloaded.tracked_at = known
    if request.status == la.ADMITTED and (request.preemptions == 0 or sim.config.resumes_as_new):
        offloaded.tracked = _handed_tokens(sim, r)
        offloaded.saved = matched_tokens
        offloaded.decodes = 0
        return
    begin = min(request.computed, offloaded.tracked)
    new = min(begin + request.chunk, known) - begin
    if request.status == la.ADMITTED:
        offloaded.tracked = min(max(matched_tokens, offloaded.on_device) + new, known)
        offloaded.saved = matched_tokens
    else:
        offloaded.tracked = begin + new
    if new == 1:
        offloaded.decodes = 1


@kernel
def _save(sim, w, r, at_s):
    """Save the new full chunks of ``r`` after the step just formed, from ``at_s`` on; returns when done."""
    size = sim.offloading.block_tokens
    offloaded = sim.offloaded[r]
    trace_node = lists.path_end(sim, r)
    if sim.requests[r].status == la.ADMITTED and not (sim.config.unpins_loaded and offloaded.load_tokens > 0):
        lmcache.unpin(sim, w, r, trace_node)
    _track(sim, w, r)
    begin = offloaded.saved // size
    end = offloaded.tracked // size
    if end <= begin or (offloaded.decodes and not sim.offloading.save_decode):
        return at_s
    offloaded.saved = end * size
    taken = lmcache.reserve(sim, w, end - begin, at_s)
    if taken == 0:
        return at_s
    at_s = _copy(sim, w, 0, at_s, taken * size)
    lmcache.save(sim, w, trace_node, begin, begin + taken, at_s)
    return at_s


@kernel
def _save_admitted(sim, w, resumed, at_s):
    r = sim.connectors[w].first_admitted
    while r >= 0:
        if (sim.requests[r].preemptions > 0) == resumed:
            at_s = _save(sim, w, r, at_s)
        r = sim.requests[r].next
    return at_s


@kernel
def _save_running(sim, w, at_s):
    worker = sim.workers[w]
    r = worker.running_head
    while r >= 0 and r != sim.connectors[w].first_admitted:
        request = sim.requests[r]
        decodes = request.status == la.DECODING or request.status == la.DRAINING
        takes_part = request.status == la.DECODING or request.scheduled_step == worker.launched_step + 1
        if takes_part and (sim.offloading.save_decode or not decodes):
            at_s = _save(sim, w, r, at_s)
        r = request.next
    return at_s


@kernel
def _launch(sim, w, now):
    """Launch the batch just formed: loads, computation, saves."""
    worker = sim.workers[w]
    before = worker.newest_end_s
    start = max(now, before)
    saves, loads = sim.links[2 * w].transfers, sim.links[2 * w + 1].transfers
    at_s = _load(sim, w, False, start)
    at_s = _load(sim, w, True, at_s)
    held_s = at_s if sim.links[2 * w + 1].transfers > loads else now
    at_s += vllm.price(sim, w)
    at_s = _save_admitted(sim, w, False, at_s)
    if sim.config.resumes_as_new:
        at_s = _save_admitted(sim, w, True, at_s)
    if worker.batch_size > 0 or sim.offloading.save_decode:
        at_s = _save_running(sim, w, at_s)
    if not sim.config.resumes_as_new:
        at_s = _save_admitted(sim, w, True, at_s)
    if sim.links[2 * w].transfers > saves:
        held_s = at_s
    if sim.offloading.own_processes:
        held_s = now
    held.delay_results(sim, w, held_s)
    device.queue(sim, w, start, at_s)
    vllm.account(sim, w, now, before)
    if worker.event_s < held_s:
        # The scheduler's process loads and saves: its next pass comes after that.
        heaps.event_set(sim, w, held_s)


@kernel
def _fast_forward_limit(sim, w, preempted):
    """Steps as for ``step.fast_forward_limit``, in which also nothing is saved."""
    if sim.workers[w].deferred_head >= 0:
        return 1
    limit = step.fast_forward_limit(sim, w, preempted)
    if limit == 1 or not sim.offloading.save_decode:
        return limit
    size = sim.offloading.block_tokens
    r = sim.workers[w].running_head
    while r >= 0:
        limit = min(limit, sim.offloaded[r].saved // size * size + size - _tracked_decode(sim, w, r))
        r = sim.requests[r].next
    return max(limit, 1)


@kernel
def form(sim, w, now):
    """One pass at ``now``: form the next batch, launch it, and set the worker's next event."""
    worker = sim.workers[w]
    budget, preempted = vllm.begin_pass(sim, w)
    sim.connectors[w].first_admitted = -1
    _note_lost(sim, w)
    if not preempted:
        while budget > 0 and worker.waiting > 0 and worker.running < sim.config.max_running:
            tokens = _admit_head(sim, w, now, budget)
            if tokens == 0:
                break
            budget -= tokens
    step.note_peak(sim, w)
    if worker.batch_size == 0 and worker.decoding == 0:
        vllm.resume_skipped(sim, w)
        if preempted and worker.outstanding == 0:
            heaps.form_at(sim, w, now)
        else:
            device.await_next(sim, w, now, False)
        return
    limit = _fast_forward_limit(sim, w, preempted)
    if limit > 1:
        worker.fast_forward_s = now
        device.plan_fast_forward(sim, w, now, limit)
    else:
        _launch(sim, w, now)


@kernel
def _reset(sim, w):
    queue.reset(sim, w, sim.config.capacity_pages)
    sim.workers[w].deferred_head = -1
    if w == 0:
        for v in range(sim.block_tables.shape[0]):
            block_table.reset(sim, v)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        memory.release_deferred(sim, w)
        vllm.complete(sim, w, now)
    elif op == Op.RECEIVE:
        vllm.receive(sim, w, r, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.RELEASE_KV:
        vllm.let_go(sim, w, r, now)
    elif op == Op.HALT:
        lmcache.halt(sim, w, now)
    elif op == Op.LOSE_HOST:
        lmcache.lose_host(sim, w)
    else:
        _reset(sim, w)
    return 0
