"""vLLM: what a request knows, holds and makes findable, and how it loses it.

A token is *sampled* once the step that makes it has been launched, and *in flight* until that step's results are taken
in: with asynchronous scheduling a pass may come in between, which must not know it. A request's sampled tokens are
``generated``, or follow from the clock while it decodes; at most its newest one is in flight when a pass begins.
"""

from __future__ import annotations

from hisearch.kernels import layout as la
from hisearch.kernels import lists, log, queue, tree
from hisearch.kernels.jit import kernel


@kernel
def sampled(sim, w, r):
    """Output tokens of ``r`` so far, those in flight too."""
    if sim.requests[r].state == la.DECODING:
        return lists.generated_tokens(sim, w, r)
    return sim.requests[r].generated


@kernel
def _newest_by_decode(sim, w, r):
    """Whether a decode (and not the end of a prompt) sampled the newest token of ``r``."""
    request = sim.requests[r]
    if request.state == la.DECODING and request.joined_step <= sim.workers[w].launched:
        return 1
    return request.by_decode


@kernel
def newest_step(sim, w, r):
    """Serial of the step that sampled the newest token of ``r``."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.state == la.DECODING and request.joined_step <= worker.launched:
        return worker.launched
    return request.sampled_step


@kernel
def in_flight(sim, w, r):
    """1 where the newest token of ``r`` is still being made, else 0; while a batch is formed."""
    worker = sim.workers[w]
    return 1 if newest_step(sim, w, r) > worker.launched - worker.outstanding else 0


@kernel
def findable_tokens(sim, w, r):
    """Computed tokens of ``r`` whose full pages could be found before the pass: those known when they were scheduled.

    The token in flight was not, if a decode makes it: the page that its predecessor fills waits for the results.
    """
    request = sim.requests[r]
    computed = request.computed
    if request.state == la.DECODING:
        computed = sim.trace.input_tokens[r] + sampled(sim, w, r) - 1
    return computed - _newest_by_decode(sim, w, r) * in_flight(sim, w, r)


@kernel
def publish(sim, w, r, computed):
    """Make the full pages among ``r``'s first ``computed`` tokens findable."""
    request = sim.requests[r]
    if not sim.config.prefix_caching:
        return
    end = tree.floor_page(sim, computed)
    begin = request.locked_tokens
    if end <= begin:
        return
    static = lists.path_end(sim, r)
    cached, _ = tree.match(sim, w, static, end)
    if cached > begin:
        spare = la.NODES_PER_REQUEST * (sim.config.max_running + 2)
        if sim.counters[la.NODES_LEFT] < spare + queue.cached_runs(sim, w, static, begin, cached):
            sim.counters[la.FAULT] = la.NODE_POOL_FULL
            return
        request.node = queue.duplicate(sim, w, request.node, static, begin, cached)
    if end > cached:
        request.node = queue.grow(sim, w, request.node, static, cached, end)
    request.locked_tokens = end


@kernel
def reveal(sim, w, static):
    """Publish what decoding requests have made so far of the path to ``static``: their pages are laid only when needed.

    Each of them has its place in the pass before any waiting request.
    """
    s = static
    while s > 0:
        k = sim.owner_head[s]
        while k >= 0:
            r = sim.owner[k]
            request = sim.requests[r]
            if request.worker == w and request.outcome == la.IN_FLIGHT:
                if request.state == la.DECODING:
                    publish(sim, w, r, sim.trace.input_tokens[r] + sampled(sim, w, r) - in_flight(sim, w, r))
                elif request.state == la.DRAINING or request.state == la.SITTING:
                    publish(sim, w, r, findable_tokens(sim, w, r))
            k = sim.next_owner[k]
        if sim.cover[w, s] >= 0:
            return
        s = sim.trace.parent[s]


@kernel
def release(sim, w, r, allocated, findable):
    """Free the pages of ``r``'s ``allocated`` tokens, last page first.

    The full ones among its first ``findable`` tokens stay findable until they are taken.
    """
    request = sim.requests[r]
    publish(sim, w, r, findable)
    own = lists.pages(sim, allocated) - request.locked_tokens // sim.config.page_tokens
    queue.push_empty(sim, w, own)
    queue.unlock(sim, w, request.node, request.strand)
    if sim.config.host_pages > 0:
        queue.store(sim, sim.config.workers + w, lists.path_end(sim, r), tree.floor_page(sim, findable))
    request.node = w
    request.strand = -1
    request.locked_tokens = 0


@kernel
def set_aside_last(sim, w, r):
    """Append ``r`` to the unfinished prompts."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.state = la.PROMPT
    request.next_aside = -1
    request.prev_aside = worker.prompts_tail
    if worker.prompts_tail >= 0:
        sim.requests[worker.prompts_tail].next_aside = r
    else:
        worker.prompts_head = r
    worker.prompts_tail = r


@kernel
def leave_prompts(sim, w, r):
    """``r`` is no unfinished prompt any more."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.prev_aside >= 0:
        sim.requests[request.prev_aside].next_aside = request.next_aside
    else:
        worker.prompts_head = request.next_aside
    if request.next_aside >= 0:
        sim.requests[request.next_aside].prev_aside = request.prev_aside
    else:
        worker.prompts_tail = request.prev_aside


@kernel
def _leave_batch(sim, w, r):
    """Take the chunk of ``r`` out of the batch being formed."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.part == la.LATE_DECODE:
        worker.decode_tokens -= 1
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
def preempt(sim, w, r):
    """Take ``r`` out of the running list, and of the batch being formed; all its KV is lost, and it waits again.

    If its last token is in flight, it will end where it waits.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    scheduled = request.mark == worker.launched + 1
    findable = findable_tokens(sim, w, r)
    newest = newest_step(sim, w, r)
    by_decode = _newest_by_decode(sim, w, r)
    if request.state == la.DECODING:
        lists.leave_decode(sim, w, r)
        request.sampled_step = newest
        request.by_decode = by_decode
        allocated = request.computed
        if scheduled:
            allocated += 1
            flight = 1 if newest > worker.launched - worker.outstanding else 0
            findable = allocated - flight
    else:
        allocated = request.computed
        if request.state == la.PROMPT:
            leave_prompts(sim, w, r)
        if scheduled:
            allocated += request.chunk
            findable = allocated
            _leave_batch(sim, w, r)
    release(sim, w, r, allocated, findable)
    lists.stop_running(sim, w, r)
    if request.state == la.DRAINING:
        worker.draining -= 1
        request.state = la.DRAINED
    else:
        request.state = la.WAITING
    request.computed = 0
    request.mark = -1
    request.preemptions += 1
    worker.preemptions += 1
    log.lost(sim, r)
    if sim.config.schedule == la.PRIORITY:
        lists.wait_by_urgency(sim, w, r)
    else:
        lists.wait_first(sim, w, r)


@kernel
def never_fits(sim, r):
    """True where prompt and declared output exceed the whole pool, or one step's budget if prompts are never cut."""
    declared = sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r]
    if not sim.config.chunked_prefill and declared > sim.config.chunk_tokens:
        return True
    return lists.pages(sim, declared) > sim.config.capacity_pages
