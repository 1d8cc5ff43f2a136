"""vLLM: a request's known tokens, its pages, the prefixes it publishes, and preemption.

A token is *sampled* once the step that makes it has been launched, and *in flight* until that step's results are taken
in. With asynchronous scheduling a pass may come in between, which must not know the token. A request's sampled tokens
are ``generated``, or follow from the clock while it decodes. At most the newest is in flight when a pass begins.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue, tree
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.engine import engine_calls, log, ordered
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import fair_share, lists
from hisearch.kernels.vllm import waiting

_enqueue = fifo("next_aside")


@kernel
def sampled(sim, w, r):
    """Output tokens of ``r`` so far, including those in flight."""
    if sim.requests[r].status == la.DECODING:
        return lists.generated_tokens(sim, w, r)
    return sim.requests[r].generated


@kernel
def caching_lag(sim, w, r):
    """Tokens, 0 or 1, by which findable pages are behind ``r``'s computed tokens while its newest token is in flight.

    1 if a decode makes the newest token while the one before it is in flight, so that a page filled by that one is not
    findable yet. 0 after the end of a prompt, and after a step that ``r`` skipped.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.status == la.DECODING and request.first_decode_step <= worker.launched_step:
        return 0 if request.first_decode_step == worker.launched_step and request.was_skipped else 1
    return request.caching_lag


@kernel
def newest_sampled_step(sim, w, r):
    """Number of the step that sampled the newest token of ``r``."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.status == la.DECODING and request.first_decode_step <= worker.launched_step:
        return worker.launched_step
    return request.sampled_step


@kernel
def note_newest_token(sim, w, r):
    """Record when ``r`` made its newest token, before it skips a step or loses its KV."""
    worker = sim.workers[w]
    if newest_sampled_step(sim, w, r) == worker.launched_step:
        sim.requests[r].last_token_s = worker.newest_end_s


@kernel
def skip_again(sim, w, r):
    """Note that ``r``, which skipped a step, will not take part in the next one either."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.status == la.DECODING and request.was_skipped and request.first_decode_step > worker.launched_step:
        worker.skipped_decodes -= 1


@kernel
def output_placeholders(sim, w, r):
    """``num_output_placeholders``: 1 if the newest token of ``r`` is in flight while a batch is formed, else 0."""
    worker = sim.workers[w]
    return 1 if newest_sampled_step(sim, w, r) > worker.launched_step - worker.outstanding else 0


@kernel
def findable_tokens(sim, w, r):
    """Computed tokens of ``r`` whose full pages were findable before the pass: known when they were scheduled."""
    request = sim.requests[r]
    computed = request.computed
    if request.status == la.DECODING:
        computed = sim.trace.input_tokens[r] + sampled(sim, w, r) - 1
    return computed - caching_lag(sim, w, r) * output_placeholders(sim, w, r)


@kernel
def publish_pages(sim, w, r, trace_node, end):
    """Make ``r``'s pages up to ``end``, which lies behind those that are, findable."""
    request = sim.requests[r]
    begin = request.locked_tokens
    cached, _ = tree.match(sim, sim.workers[w].cache_id, trace_node, end)
    if cached > begin:
        spare = la.NODES_PER_REQUEST * (sim.config.max_running + 2)
        if sim.counters[la.NODES_LEFT] < spare + queue.cached_runs(
            sim, sim.workers[w].cache_id, trace_node, begin, cached
        ):
            sim.counters[la.FAULT] = la.NODE_POOL_FULL
            return
        request.node = queue.duplicate(sim, sim.workers[w].cache_id, request.node, trace_node, begin, cached)
    if end > cached:
        request.node = queue.grow(sim, sim.workers[w].cache_id, request.node, trace_node, cached, end)
    request.locked_tokens = end


@kernel
def publish(sim, w, r, computed):
    """Make the full pages among ``r``'s first ``computed`` tokens findable."""
    if not sim.config.prefix_caching:
        return
    end = tree.floor_page(sim, computed)
    if end <= sim.requests[r].locked_tokens:
        return
    trace_node = lists.path_end(sim, r)
    if sim.config.shared_outputs:
        _publish_others(sim, w, r, trace_node)
    if sim.requests[r].status == la.PROMPT or sim.requests[r].status == la.ADMITTED:
        trace_node = lists.path_at(sim, w, r, end)
    publish_pages(sim, w, r, trace_node, end)


@kernel
def decodes(sim, w, r):
    """Whether ``r`` generates its output on worker ``w``."""
    request = sim.requests[r]
    if request.worker != w or request.outcome != la.IN_FLIGHT:
        return False
    return request.status == la.DECODING or request.status == la.DRAINING or request.status == la.SKIPPED


@kernel
def findable_after_turn(sim, w, r):
    """Findable tokens of ``r``, which generates its output, once the pass has served it."""
    request = sim.requests[r]
    decodes_on = request.status == la.DRAINING and request.scheduled_step == sim.workers[w].launched_step + 1
    if request.status == la.DECODING or decodes_on:
        return sim.trace.input_tokens[r] + sampled(sim, w, r) - output_placeholders(sim, w, r)
    return findable_tokens(sim, w, r)


@kernel
def _findable_by_turn(sim, w, q, r):
    """Findable tokens of the decoding request ``q`` when the pass, in running order, comes to ``r``."""
    if sim.requests[r].status != la.DRAINING and sim.requests[q].order < sim.requests[r].order:
        return findable_after_turn(sim, w, q)
    return findable_tokens(sim, w, q)


@kernel
def _made_earlier(sim, w, a, b):
    """Whether the decoding request ``a`` made the tokens that it shares with ``b`` earlier than ``b``."""
    if not decodes(sim, w, b):
        return True
    lead = sim.trace.input_tokens[a] + sampled(sim, w, a) - sim.trace.input_tokens[b] - sampled(sim, w, b)
    return lead > 0 or (lead == 0 and sim.requests[a].order < sim.requests[b].order)


@kernel
def _publish_others(sim, w, r, trace_node):
    """Publish the pages on the path to ``trace_node`` that other requests made before ``r``.

    A decode's pages are published only when needed. Among duplicate blocks a look-up finds the one made first.
    """
    begin = sim.requests[r].locked_tokens
    while True:
        earliest = -1
        s = trace_node
        while s > 0 and sim.trace.end_tokens[s] > begin:
            k = sim.owner_head[s]
            while k >= 0:
                q = sim.owner[k]
                k = sim.next_owner[k]
                if q == r or not decodes(sim, w, q) or not _made_earlier(sim, w, q, r):
                    continue
                if tree.floor_page(sim, _findable_by_turn(sim, w, q, r)) <= sim.requests[q].locked_tokens:
                    continue
                if earliest < 0 or _made_earlier(sim, w, q, earliest):
                    earliest = q
            s = sim.trace.parent[s]
        if earliest < 0:
            return
        publish_pages(
            sim,
            w,
            earliest,
            lists.path_end(sim, earliest),
            tree.floor_page(sim, _findable_by_turn(sim, w, earliest, r)),
        )
        if sim.counters[la.FAULT]:
            return


@kernel
def reveal(sim, w, trace_node):
    """Publish the pages on the path to ``trace_node`` that decoding requests have made, for a waiting request.

    The pass serves each of them before any waiting request.
    """
    s = trace_node
    while s > 0:
        k = sim.owner_head[s]
        while k >= 0:
            q = sim.owner[k]
            if decodes(sim, w, q):
                publish(sim, w, q, findable_after_turn(sim, w, q))
            k = sim.next_owner[k]
        if sim.deepest_cached[sim.workers[w].cache_id, s] >= 0:
            return
        s = sim.trace.parent[s]


@kernel
def steps_to_shared_page(sim, w, r):
    """Passes from now to the first that fills a page on the path of the waiting ``r``, by a request decoding here."""
    steps = la.NEVER
    page = sim.config.page_tokens
    s = lists.path_end(sim, r)
    while s > 0:
        k = sim.owner_head[s]
        while k >= 0:
            q = sim.owner[k]
            k = sim.next_owner[k]
            if q != r and decodes(sim, w, q):
                findable = sim.trace.input_tokens[q] + sampled(sim, w, q) - output_placeholders(sim, w, q)
                steps = min(steps, page - findable % page)
        s = sim.trace.parent[s]
    return steps


@kernel
def free_empty(sim, w, pages):
    """Free ``pages`` pages that no look-up finds."""
    if sim.config.unhashed_first:
        queue.push_empty_first(sim, sim.workers[w].cache_id, pages)
    else:
        queue.push_empty(sim, sim.workers[w].cache_id, pages)


@kernel
def release(sim, w, r, allocated, findable):
    """Free the pages of ``r``'s ``allocated`` tokens, last page first.

    Full pages among its first ``findable`` tokens stay findable until they are reused.
    """
    request = sim.requests[r]
    publish(sim, w, r, findable)
    private_pages = lists.pages(sim, allocated) - request.locked_tokens // sim.config.page_tokens
    free_empty(sim, w, private_pages)
    queue.unlock(sim, sim.workers[w].cache_id, request.node, request.redirect)
    request.node = sim.workers[w].cache_id
    request.redirect = -1
    request.locked_tokens = 0


@kernel
def defers(sim, w, r):
    """Whether pages of ``r`` would be freed later: the newest step, which is under way, may write them."""
    worker = sim.workers[w]
    if not sim.config.defers_frees or worker.outstanding == 0:
        return False
    request = sim.requests[r]
    # One that is in the batch being formed may have been in the newest step too.
    in_forming = request.scheduled_step > worker.launched_step
    in_step = request.scheduled_step_before if in_forming else request.scheduled_step
    return in_step == worker.launched_step or newest_sampled_step(sim, w, r) == worker.launched_step


@kernel
def release_finished(sim, w, r):
    """Free the pages of ``r``, which has finished; or publish them, and free them with the newest step's results."""
    request = sim.requests[r]
    if not defers(sim, w, r):
        release(sim, w, r, request.computed, final_tokens(sim, r))
        return
    publish(sim, w, r, final_tokens(sim, r))
    worker = sim.workers[w]
    worker.deferred_head, worker.deferred_tail = _enqueue(sim.requests, worker.deferred_head, worker.deferred_tail, r)


@kernel
def release_deferred(sim, w):
    """Free the pages of finished requests that waited for the results of the step that is taken in."""
    worker = sim.workers[w]
    r = worker.deferred_head
    worker.deferred_head = -1
    while r >= 0:
        after = sim.requests[r].next_aside
        release(sim, w, r, sim.requests[r].computed, final_tokens(sim, r))
        r = after


@kernel
def final_tokens(sim, r):
    """Computed tokens of ``r``, which has made its last token, without that of an extra decode behind it."""
    return sim.trace.input_tokens[r] + sim.requests[r].generated - 1


@kernel
def leave_batch(sim, w, r):
    """Take the chunk of ``r`` out of the batch being formed."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.chunk_kind == la.LISTED_DECODE:
        worker.decode_tokens -= request.chunk
    else:
        worker.prefill_tokens -= request.chunk
    k = 0
    while sim.batch[w, k] != r:
        k += 1
    worker.batch_size -= 1
    while k < worker.batch_size:
        sim.batch[w, k] = sim.batch[w, k + 1]
        k += 1


@kernel
def stop(sim, w, r):
    """Take ``r`` out of the batch being formed, to preempt it: (its tokens with pages, those of them findable)."""
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.LET_GO, w, r, 0.0)
    worker = sim.workers[w]
    request = sim.requests[r]
    scheduled = request.scheduled_step == worker.launched_step + 1
    findable = findable_tokens(sim, w, r)
    newest = newest_sampled_step(sim, w, r)
    lag = caching_lag(sim, w, r)
    note_newest_token(sim, w, r)
    skip_again(sim, w, r)
    if request.status == la.DECODING:
        lists.leave_decode(sim, w, r)
        request.sampled_step = newest
        request.caching_lag = lag
        request.chunk_kind = la.DECODED
        allocated = request.computed
        if scheduled:
            allocated += 1
            placeholders = 1 if newest > worker.launched_step - worker.outstanding else 0
            findable = allocated - placeholders
    else:
        allocated = request.computed
        if request.status == la.PROMPT:
            ordered.remove_prompt(sim, w, r)
        if scheduled:
            allocated += request.chunk
            findable = final_tokens(sim, r) if request.status == la.DRAINING else allocated
            leave_batch(sim, w, r)
    return allocated, findable


@kernel
def wait_again(sim, w, r):
    """Let ``r``, which lost all its KV, wait again. If its last token is in flight, it finishes while it waits."""
    worker = sim.workers[w]
    request = sim.requests[r]
    lists.stop_running(sim, w, r)
    if request.status == la.DRAINING:
        worker.draining -= 1
        request.status = la.DRAINED
    else:
        request.status = la.WAITING
    request.computed = 0
    request.scheduled_step = -1
    request.prev_aside = worker.lost_head
    worker.lost_head = r
    request.preemptions += 1
    worker.preemptions += 1
    worker.futile_preemptions += 1
    if worker.futile_preemptions > la.FUTILE_PREEMPTIONS * sim.config.max_running:
        sim.counters[la.FAULT] = la.STUCK
    log.lost(sim, r)
    if sim.config.counts_service:
        fair_share.arrives(sim, r)
    if lists.goes_by_urgency(sim):
        lists.wait_by_urgency(sim, w, r)
    elif sim.config.goes_by:
        waiting.wait_behind(sim, w, r, 0)
    else:
        lists.wait_first(sim, w, r)


@kernel
def preempt(sim, w, r):
    """Preempt ``r``: it leaves the running list and the batch being formed, loses all its KV and waits again."""
    allocated, findable = stop(sim, w, r)
    release(sim, w, r, allocated, findable)
    wait_again(sim, w, r)


@kernel
def never_fits(sim, r):
    """True if prompt and declared output exceed what admission fills, or, without chunked prefill, a step's budget."""
    # The last output token is never computed.
    declared = sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r] - 1
    if sim.config.objects and engine_calls.call_engine(sim.config.objects, sim, al.TOO_LARGE, 0, r, 0.0):
        return True
    if not sim.config.chunked_prefill and declared > sim.config.chunk_tokens:
        return True
    return lists.pages(sim, declared) > sim.config.capacity_pages
