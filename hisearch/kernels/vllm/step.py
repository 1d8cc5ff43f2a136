"""vLLM: one pass of the scheduler: running requests in order, then waiting ones, against one budget of tokens.

Decodes are not visited one by one (see ``kernels.vllm`` for their clock): while the budget and the free pages suffice
for all running requests, their order has no effect. Only under shortage are they served in order.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue, tree
from hisearch.kernels.engine import ordered, schedulers
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import fair_share, front_end, lists
from hisearch.kernels.vllm import memory, waiting
from hisearch.kernels.vllm.in_order import served_in_order


@kernel
def cut(sim, w, tokens):
    """``tokens`` of one request, cut to what a step computes of it at most."""
    limit = sim.config.long_prefill_tokens
    if limit <= 0:
        return tokens
    if sim.config.lone_prompt_uncut:
        requests = _unfinished(sim, w)
        if requests <= 1:
            return tokens
        if sim.config.long_prefill_adaptive:
            limit = max(limit, sim.config.chunk_tokens // requests)
    return min(tokens, limit)


@kernel
def _unfinished(sim, w):
    """Requests of the worker: running, waiting or waiting for their KV."""
    worker = sim.workers[w]
    loading = sim.connectors[w].skipped if w < sim.connectors.shape[0] else 0
    return schedulers.running(sim, w) + worker.waiting + worker.kv_pending + loading


@kernel
def may_be_admitted(sim, w, r):
    """Whether the next pass may admit a request since ``r`` came, if it may admit any.

    It is the first that waits, or one more request shortens what is computed of each.
    """
    worker = sim.workers[w]
    shortens = sim.config.long_prefill_adaptive and sim.config.long_prefill_tokens > 0
    # A pass goes by some requests (see ``waiting``).
    first = worker.waiting_head == r or sim.config.goes_by
    return worker.running < sim.config.max_running and (first or shortens)


@kernel
def missing_tokens(sim, r):
    """Known tokens of the unfinished prompt ``r`` that are not computed."""
    request = sim.requests[r]
    return sim.trace.input_tokens[r] + request.generated - request.computed


@kernel
def _pages_for(sim, r, tokens):
    """Pages that ``tokens`` more computed tokens of ``r`` take."""
    computed = sim.requests[r].computed
    return lists.pages(sim, computed + tokens) - lists.pages(sim, computed)


@kernel
def _schedule_chunk(sim, w, r, tokens, pages):
    """Put ``tokens`` more of ``r``'s known tokens into the batch and take ``pages`` pages, which are free.

    A resumed request with all but its newest output token cached decodes at once, among the prompts.
    """
    queue.take(sim, sim.workers[w].cache_id, pages)
    memory.publish(sim, w, r, sim.requests[r].computed + tokens)
    put_chunk(sim, w, r, tokens)


@kernel
def put_chunk(sim, w, r, tokens):
    """Put ``tokens`` more of ``r``'s known tokens into the batch."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.chunk = tokens
    request.scheduled_step_before = request.scheduled_step
    request.scheduled_step = worker.launched_step + 1
    complete = tokens == missing_tokens(sim, r)
    sim.batch[w, worker.batch_size] = r
    worker.batch_size += 1
    if complete and tokens == 1 and request.generated > 0:
        request.chunk_kind = la.LISTED_DECODE
        worker.decode_tokens += 1
    else:
        request.chunk_kind = la.PROMPT_ENDS if complete else la.PROMPT_GOES_ON
        worker.prefill_tokens += tokens


@kernel
def decodes_in_vain(sim, w, r):
    """Whether ``r``, whose last token is in flight, decodes once more: only its results tell that it has ended."""
    if sim.ends_by_limit[r]:
        return False
    return memory.newest_sampled_step(sim, w, r) == sim.workers[w].launched_step


@kernel
def _schedule_decode_in_vain(sim, w, r, pages):
    """Let ``r``, whose last token is in flight, decode once more in vain; takes ``pages`` pages, which are free."""
    queue.take(sim, sim.workers[w].cache_id, pages)
    put_decode_in_vain(sim, w, r)


@kernel
def put_decode_in_vain(sim, w, r):
    """Put the extra decode of ``r`` into the batch."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.chunk = 1
    request.scheduled_step = worker.launched_step + 1
    request.chunk_kind = la.LISTED_DECODE
    worker.decode_tokens += 1
    front_end.note_in_vain(sim, w, 1)
    sim.batch[w, worker.batch_size] = r
    worker.batch_size += 1


@kernel
def _everything_fits(sim, w):
    """Whether the running requests fit in any order; only the very last may be cut by the budget."""
    worker = sim.workers[w]
    budget = sim.config.chunk_tokens - worker.decoding
    pages = lists.pages_needed(sim, w, 0) if worker.decoding > 0 else 0
    r = worker.endings_new
    while r >= 0:
        if decodes_in_vain(sim, w, r):
            budget -= 1
            pages += _pages_for(sim, r, 1)
        r = sim.requests[r].next_aside
    if budget < 0:
        return False
    r = worker.prompts_head
    while r >= 0:
        chunk = cut(sim, w, missing_tokens(sim, r))
        share = min(chunk, budget)
        if share < chunk and r != worker.running_tail:
            return False
        pages += _pages_for(sim, r, share)
        budget -= share
        r = sim.requests[r].next_aside
    return pages <= sim.trees[sim.workers[w].cache_id].free_pages


@kernel
def _serve_all(sim, w):
    """Schedule every running request. Returns the budget left."""
    worker = sim.workers[w]
    budget = sim.config.chunk_tokens - worker.decoding
    if worker.decoding > 0:
        queue.take(sim, sim.workers[w].cache_id, lists.pages_needed(sim, w, 0))
    r = worker.endings_new
    while r >= 0:
        if decodes_in_vain(sim, w, r):
            _schedule_decode_in_vain(sim, w, r, _pages_for(sim, r, 1))
            budget -= 1
        r = sim.requests[r].next_aside
    r = worker.prompts_head
    while r >= 0 and budget > 0:
        share = min(cut(sim, w, missing_tokens(sim, r)), budget)
        _schedule_chunk(sim, w, r, share, _pages_for(sim, r, share))
        budget -= share
        r = sim.requests[r].next_aside
    return budget


@kernel
def running_share(sim, w, r, budget):
    """(Computed tokens, tokens that the step computes) of the running ``r``; 0: it awaits its end."""
    request = sim.requests[r]
    if request.status == la.DRAINING:
        return request.computed, 1 if decodes_in_vain(sim, w, r) else 0
    if request.status == la.DECODING:
        return sim.trace.input_tokens[r] + lists.generated_tokens(sim, w, r) - 1, 1
    return request.computed, min(cut(sim, w, missing_tokens(sim, r)), budget)


@kernel
def _missing_pages(sim, w, r, computed, tokens):
    return lists.pages(sim, computed + tokens) - lists.pages(sim, computed)


@kernel
def _schedule_running(sim, w, r, computed, tokens, pages):
    """Put ``tokens`` of the running ``r`` into the step and take ``pages`` pages, which are free."""
    request = sim.requests[r]
    if request.status == la.DRAINING:
        _schedule_decode_in_vain(sim, w, r, pages)
    elif request.status == la.DECODING:
        request.scheduled_step = sim.workers[w].launched_step + 1
        queue.take(sim, sim.workers[w].cache_id, pages)
    else:
        _schedule_chunk(sim, w, r, tokens, pages)


_serve_in_order = served_in_order(running_share, _missing_pages, memory.preempt, _schedule_running)


@kernel
def skip_unreached_decodes(sim, w):
    """Skip the decodes that the pass did not reach."""
    worker = sim.workers[w]
    forming_step = worker.launched_step + 1
    last = -1
    r = worker.running_head
    while r >= 0:
        request = sim.requests[r]
        if request.status == la.DECODING and request.scheduled_step != forming_step:
            memory.skip_again(sim, w, r)
            if request.first_decode_step <= worker.launched_step:
                memory.note_newest_token(sim, w, r)
                request.caching_lag = memory.caching_lag(sim, w, r)
                request.sampled_step = worker.launched_step
            lists.leave_decode(sim, w, r)
            request.status = la.SKIPPED
            request.next_aside = -1
            if last >= 0:
                sim.requests[last].next_aside = r
            else:
                worker.skipped_head = r
            last = r
        r = request.next


@kernel
def serve_running(sim, w):
    """Schedule the running requests. Returns (budget left, preempted)."""
    if _everything_fits(sim, w):
        return _serve_all(sim, w), False
    budget, preempted = _serve_in_order(sim, w)
    skip_unreached_decodes(sim, w)
    return budget, preempted


@kernel
def look_up(sim, w, r):
    """Look the waiting request ``r`` up in the cache: (trace node, limit of a hit, tokens hit, cache node)."""
    trace_node = lists.path_end(sim, r)
    limit = 0
    if sim.config.prefix_caching:
        limit = tree.floor_page(sim, sim.trace.input_tokens[r] + sim.requests[r].generated - 1)
        if sim.config.shared_outputs:
            memory.reveal(sim, w, trace_node)
    hit_tokens, d = tree.match(sim, sim.workers[w].cache_id, trace_node, limit)
    return trace_node, limit, hit_tokens, d


@kernel
def fits(sim, w, hit_tokens, d, held, tokens):
    """Whether there are pages for ``tokens`` tokens in all, ``hit_tokens`` of them cached and ``held`` pages held."""
    needed = lists.pages(sim, tokens) - held - hit_tokens // sim.config.page_tokens
    cache_id = sim.workers[w].cache_id
    needed += queue.queued_pages(sim, cache_id, d, hit_tokens)
    if schedulers.running(sim, w) > 0:
        needed += sim.config.watermark_pages
    return needed <= sim.trees[cache_id].free_pages


@kernel
def hold(sim, w, r, trace_node, limit, cached):
    """Hold the cached pages of ``r`` and take pages for all its ``cached`` tokens, which count as computed."""
    request = sim.requests[r]
    hit_tokens, request.node, request.redirect = queue.hold(sim, sim.workers[w].cache_id, trace_node, limit)
    request.locked_tokens = hit_tokens
    request.computed = cached
    if cached > hit_tokens:
        queue.take(sim, sim.workers[w].cache_id, lists.pages(sim, cached) - hit_tokens // sim.config.page_tokens)


@kernel
def share_of(sim, w, r, cached, budget):
    """Tokens of ``r`` after its ``cached`` ones that a step computes; 0 if the budget does not suffice."""
    share = cut(sim, w, sim.trace.input_tokens[r] + sim.requests[r].generated - cached)
    if share > budget:
        return budget if sim.config.chunked_prefill else 0
    return share


@kernel
def fits_admission(sim, w, r, hit_tokens, d, held, tokens):
    """Whether there are pages to admit ``r``: for all its known tokens, or for the ``tokens`` that it needs now."""
    if sim.config.reserve_full_prompt:
        tokens = sim.trace.input_tokens[r] + sim.requests[r].generated
    return fits(sim, w, hit_tokens, d, held, tokens)


@kernel
def run(sim, w, r, share, held):
    """Run ``r``, which is in no list, with ``share`` tokens; it holds ``held`` pages."""
    lists.run_last(sim, w, r)
    lists.number(sim, w, r)
    sim.requests[r].status = la.ADMITTED
    _schedule_chunk(sim, w, r, share, lists.pages(sim, sim.requests[r].computed + share) - held)


@kernel
def admit(sim, w, r, now, budget):
    """Try to admit the waiting request ``r``. Returns tokens scheduled, 0 if it has to wait."""
    trace_node, limit, hit_tokens, d = look_up(sim, w, r)
    share = share_of(sim, w, r, hit_tokens, budget)
    if share == 0 or not fits_admission(sim, w, r, hit_tokens, d, 0, hit_tokens + share):
        return 0
    lists.stop_waiting(sim, w, r)
    hold(sim, w, r, trace_node, limit, hit_tokens)
    if sim.config.counts_service:
        fair_share.admit(sim, w, r)
    lists.note_scheduled(sim, r, now, hit_tokens, 0)
    run(sim, w, r, share, lists.pages(sim, hit_tokens))
    return share


@kernel
def fast_forward_limit(sim, w, preempted):
    """Steps, including the one just formed, in which all decode, none ends before the last and pages suffice.

    No request is admitted meanwhile: the free pages only become fewer. Cache hits of the first waiting request make up
    for it only where it goes on from what a request makes here: then the next page so made ends the fast-forward. A
    request that waits for objects may be admitted at any step, and in a fair order another may come to the head.
    """
    worker = sim.workers[w]
    if worker.waiting > 0:
        fair = sim.config.counts_service and worker.running < sim.config.max_running
        if sim.config.objects or fair:
            return 1
    if preempted or worker.draining > 0 or worker.outstanding != sim.config.overlap or sim.config.schedulers > 1:
        return 1
    if worker.batch_size > 0 or worker.prompts_head >= 0 or worker.skipped_head >= 0 or worker.skipped_decodes > 0:
        return 1
    limit = sim.requests[sim.finish_heap[w, 0]].finish_clock - worker.clock
    if sim.config.shared_outputs and worker.waiting > 0 and worker.running < sim.config.max_running:
        first = waiting.first_admissible(sim, w) if sim.config.goes_by else worker.waiting_head
        if first >= 0:
            limit = min(limit, memory.steps_to_shared_page(sim, w, first) - 1)
    return 1 + lists.steps_within_pages(sim, w, 1, sim.trees[worker.cache_id].free_pages, limit - 1)


@kernel
def note_peak(sim, w):
    """Update the peak of the pages that requests hold."""
    worker = sim.workers[w]
    cache = sim.trees[worker.cache_id]
    worker.peak_pages = max(worker.peak_pages, cache.capacity_pages - cache.free_pages)


@kernel
def pass_prompts_on(sim, w, now):
    """Move unfinished prompts to the next micro-batch of the pipeline.

    Prompts on a decode worker stay: SGLang's micro-batches have their own batch limits, which a moved one may exceed.
    """
    if sim.workers[w].prompts_head < 0 or sim.config.role == fl.DECODE:
        return
    scheduler = schedulers.following(sim, w)
    r = sim.workers[w].prompts_head
    while r >= 0:
        request = sim.requests[r]
        after = request.next_aside
        ordered.remove_prompt(sim, w, r)
        lists.stop_running(sim, w, r)
        request.worker = scheduler
        # Steps are numbered within a micro-batch.
        request.scheduled_step = -1
        request.sampled_step = -1
        lists.number(sim, scheduler, r)
        lists.run_last(sim, scheduler, r)
        ordered.add_prompt(sim, scheduler, r)
        r = after
    schedulers.wake(sim, scheduler, now)
