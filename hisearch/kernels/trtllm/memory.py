"""TensorRT-LLM: pages that a request holds, stores for reuse, and loses.

Free pages, cached or not, are taken from the front of the free queue (``queue``). A request frees its private pages
last page first. A prompt takes all of its pages at its start. Its full pages go into the reuse tree after each chunk,
those of the output when the request leaves. A request keeps duplicate blocks, and what is behind them, to itself until
it leaves. Then it gives them up for those in the tree, or they replace one in host memory. A request's first
``locked_tokens`` tokens are thus always a path of the tree, all of it in HBM.

Requests wait in order of arrival. By priority (``scheduler_config.waiting_queue_policy``) they are queued, the most
urgent first, until they become active; the active ones keep their order. Sources: ``PriorityWaitingQueue`` of
``pyexecutor/scheduler/waiting_queue.py``, ``get_from_waiting_queue`` of ``pyexecutor/request_utils.py``, pull request
12362.

``WORKER.allocated_pages`` counts the pages of started requests, shared ones once for each. ``promised_pages`` counts
the pages that they would have at their declared lengths.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue, tree
from hisearch.kernels.engine import log, ordered
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.trtllm import gathering, host

#: The order of a queued request that is not active; behind that of any active one.
NOT_ACTIVE = 1 << 62


@kernel
def known_tokens(sim, r):
    """Tokens of prompt and output so far of ``r``, which does not decode."""
    return sim.trace.input_tokens[r] + sim.requests[r].generated


@kernel
def declared_pages(sim, r):
    """Pages of prompt and declared output, the only length of ``r`` that the engine may know (L5)."""
    return lists.pages(sim, sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r])


@kernel
def prompt_pages(sim, r):
    """Pages that the start of ``r`` takes: of all known tokens, and of those that its drafter keeps behind them."""
    return lists.pages(sim, known_tokens(sim, r) + sim.config.lookahead_tokens)


@kernel
def _most_pages(sim, r):
    """Pages that ``r`` may need: at its declared length, or for the drafts of its last steps."""
    if sim.config.draft_tokens == 0:
        return declared_pages(sim, r)
    # Before the last of them all tokens but two are known and computed; with overlap a step is in flight then.
    computed = sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r] - 2
    drafted = sim.config.lookahead_tokens + (1 + sim.config.overlap) * (1 + sim.config.draft_tokens)
    return max(declared_pages(sim, r), lists.pages(sim, computed + drafted))


@kernel
def queue_up(sim, w, r):
    """Let ``r`` wait on scheduler ``w`` behind all others, by priority behind those that go before it."""
    sim.requests[r].node = sim.workers[w].cache_id
    sim.workers[w].active_tokens += sim.trace.input_tokens[r]
    if sim.config.schedule == la.PRIORITY:
        _queue_by_priority(sim, w, r)
        return
    lists.number(sim, w, r)
    lists.wait_last(sim, w, r)


@kernel
def _queue_by_priority(sim, w, r):
    """Queue ``r`` behind the active requests of ``w`` and those of its priority or a more urgent one."""
    sim.requests[r].order = NOT_ACTIVE
    before = sim.workers[w].waiting_tail
    while before >= 0 and sim.requests[before].order == NOT_ACTIVE:
        if sim.trace.priority[before] <= sim.trace.priority[r]:
            break
        before = sim.requests[before].prev
    lists.wait_after(sim, w, before, r)


@kernel
def activate(sim, w):
    """Number the first queued requests of ``w``, for which there are places: they are active from now on."""
    if sim.config.schedule != la.PRIORITY:
        return
    worker = sim.workers[w]
    places = sim.config.max_running - worker.running
    r = worker.waiting_head
    while r >= 0 and places > 0:
        if sim.requests[r].order == NOT_ACTIVE:
            lists.number(sim, w, r)
        places -= 1
        r = sim.requests[r].next


@kernel
def never_fits(sim, r):
    """Whether prompt and declared output, or drafts behind them, exceed the pool, or an unchunked prompt the budget.

    A pause turns all known tokens into the prompt.
    """
    longest = sim.trace.input_tokens[r]
    if sim.config.capacity_policy == la.MAX_UTILIZATION:
        longest += sim.trace.max_output_tokens[r]
    if not sim.config.chunked_prefill and longest > sim.config.chunk_tokens:
        return True
    return _most_pages(sim, r) > sim.config.capacity_pages


@kernel
def store(sim, w, r, tokens, leaves):
    """Put the full pages among ``r``'s first ``tokens`` tokens into the reuse tree; ``leaves``: see above."""
    if not sim.config.prefix_caching:
        return
    request = sim.requests[r]
    begin = request.locked_tokens
    end = tree.floor_page(sim, tokens)
    if end <= begin:
        return
    cache_id = sim.workers[w].cache_id
    trace_node = lists.path_end(sim, r)
    cached, _ = tree.match(sim, cache_id, trace_node, end)
    if cached > begin:
        if not leaves:
            return
        _, on_host, node = host.hold(sim, w, trace_node, cached)
        queue.push_empty(sim, cache_id, (cached - on_host - begin) // sim.config.page_tokens)
        host.supersede(sim, w, on_host)
        queue.unlock(sim, cache_id, request.node, -1)
        request.node = node
    if end > cached:
        request.node = queue.grow(sim, cache_id, request.node, trace_node, cached, end)
    request.locked_tokens = end


@kernel
def cached_tokens(sim, w, r):
    """Cached tokens that the waiting ``r`` would find now: (all, those of them in pages that requests hold)."""
    if not sim.config.prefix_caching:
        return 0, 0
    page = sim.config.page_tokens
    most = tree.floor_page(sim, known_tokens(sim, r) - 1)
    tokens, d = tree.match(sim, sim.workers[w].cache_id, lists.path_end(sim, r), most)
    if tokens == 0:
        return 0, 0
    held = tokens
    while d >= sim.trees.shape[0] and sim.nodes[d].lock == 0:
        held -= (min(sim.nodes[d].end, tokens) - sim.nodes[d].begin) // page * page
        d = sim.nodes[d].parent
    return tokens, held


@kernel
def start(sim, w, now, r):
    """Start ``r``: hold its cached tokens, except the last, in HBM, and take pages for the rest."""
    worker = sim.workers[w]
    request = sim.requests[r]
    known = known_tokens(sim, r)
    limit = tree.floor_page(sim, known - 1) if sim.config.prefix_caching else 0
    trace_node = lists.path_end(sim, r)
    hit_tokens, on_host, request.node = host.hold(sim, w, trace_node, limit)
    request.locked_tokens = hit_tokens
    request.computed = hit_tokens
    host.onboard(sim, w, now, on_host)
    request.reserved_tokens = known + sim.config.lookahead_tokens
    host.take(sim, w, now, prompt_pages(sim, r) - hit_tokens // sim.config.page_tokens)
    worker.allocated_pages += prompt_pages(sim, r)
    worker.promised_pages += declared_pages(sim, r)
    lists.note_scheduled(sim, r, now, hit_tokens - on_host, on_host)
    lists.stop_waiting(sim, w, r)
    ordered.run(sim, w, r)
    request.status = la.ADMITTED


@kernel
def take_decode_pages(sim, w, now, pages):
    """Take pages for the decoding requests."""
    host.take(sim, w, now, pages)
    sim.workers[w].allocated_pages += pages


@kernel
def release(sim, w, r, allocated, reusable):
    """Free the pages of ``r``'s ``allocated`` tokens; full pages of its first ``reusable`` ones stay findable."""
    worker = sim.workers[w]
    request = sim.requests[r]
    store(sim, w, r, reusable, True)
    queue.push_empty(
        sim, worker.cache_id, lists.pages(sim, allocated) - request.locked_tokens // sim.config.page_tokens
    )
    queue.unlock(sim, worker.cache_id, request.node, -1)
    worker.allocated_pages -= lists.pages(sim, allocated)
    worker.promised_pages -= declared_pages(sim, r)
    request.node = worker.cache_id
    request.locked_tokens = 0


@kernel
def pause(sim, w, r):
    """Pause ``r``: it loses its pages and waits again in arrival order; its output joins its prompt.

    Every decode takes part in every step: while a step is outstanding, the newest token is not known yet.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.status == la.DECODING:
        request.last_token_s = gathering.newest_result_s(sim, w)
        lists.leave_decode(sim, w, r)
        in_flight = 1 if worker.outstanding > 0 else 0
        release(sim, w, r, request.computed, request.computed - in_flight)
    else:
        ordered.remove_prompt(sim, w, r)
        release(sim, w, r, known_tokens(sim, r), request.computed)
    lists.stop_running(sim, w, r)
    request.status = la.WAITING
    request.computed = 0
    request.preemptions += 1
    worker.preemptions += 1
    log.lost(sim, r)
    ordered.wait(sim, w, r)
