"""vLLM v1's step rule (0.19): one token budget, running requests first, then waiting ones; fcfs, synchronous.

Under fcfs with chunked prefill the running list is decodes followed by at most one unfinished prompt, which is the
last: a prompt stays unfinished only if it used up the budget, and then nothing was admitted behind it.
"""

from __future__ import annotations

from hisearch.kernels import heaps, lists, queue, tree
from hisearch.kernels import layout as la
from hisearch.kernels.cost import batch_cost
from hisearch.kernels.jit import kernel


@kernel
def _publish(sim, w, r, computed):
    """Make the full pages among ``r``'s first ``computed`` tokens findable.

    Where another request's copies of the same pages stand in the tree already, ``r`` holds those too, so that what it
    computes behind them can be found; its own copies are counted as ``duplicates`` and freed with it. (The engine
    would leave the other copies free to be taken: at most one page for a prompt of whole pages that is cached in
    full.)
    """
    request = sim.requests[r]
    if not sim.config.prefix_caching:
        return
    end = tree.floor_page(sim, computed)
    if end <= request.locked_tokens:
        return
    static = lists.path_end(sim, r)
    found, _ = tree.match(sim, w, static, end)
    if found > request.locked_tokens:
        held = request.node
        _, request.node = queue.hold(sim, w, static, found)
        queue.unlock(sim, w, held)
        request.duplicates += (found - request.locked_tokens) // sim.config.page_tokens
        request.locked_tokens = found
    if end > found:
        request.node = queue.grow(sim, w, request.node, static, request.locked_tokens, end)
        request.locked_tokens = end


@kernel
def _release(sim, w, r):
    """Free the pages of ``r``'s ``computed`` tokens, last page first.

    The full ones stay findable until they are taken.
    """
    request = sim.requests[r]
    computed = request.computed
    _publish(sim, w, r, computed)
    own = lists.pages(sim, computed) - request.locked_tokens // sim.config.page_tokens + request.duplicates
    queue.push_empty(sim, w, own)
    queue.unlock(sim, w, request.node)
    if sim.config.host_pages > 0:
        queue.store(sim, sim.config.workers + w, lists.path_end(sim, r), tree.floor_page(sim, computed))
    request.node = w
    request.locked_tokens = 0
    request.duplicates = 0


@kernel
def _preempt(sim, w, r):
    """Take ``r`` out of the running list; all its KV is lost, it waits before all others."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if worker.chunked == r:
        worker.chunked = -1
    else:
        lists.leave_decode(sim, w, r)
    _release(sim, w, r)
    lists.stop_running(sim, w, r)
    lists.wait_first(sim, w, r)
    request.computed = 0
    request.preemptions += 1
    worker.preemptions += 1


@kernel
def _serve_decodes_short_of_pages(sim, w):
    """Give decodes their pages in list order; while there is none, the last running request is preempted.

    True if any was.
    """
    worker = sim.workers[w]
    preempted = False
    r = worker.running_head
    while r >= 0 and r != worker.chunked:
        due = (sim.trace.input_tokens[r] + lists.generated_tokens(sim, w, r) - 1) % sim.config.page_tokens == 0
        while due and sim.trees[w].free_pages == 0:
            victim = worker.running_tail
            _preempt(sim, w, victim)
            preempted = True
            if victim == r:
                return True
        if due:
            queue.take(sim, w, 1)
        r = sim.requests[r].next
    return preempted


@kernel
def _schedule_chunk(sim, w, r, tokens):
    """Put ``tokens`` more of ``r``'s known tokens into the batch; the pages are there.

    A resumed request of which all but its newest output token is cached decodes at once, among the prompts.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    before = request.computed
    queue.take(sim, w, lists.pages(sim, before + tokens) - lists.pages(sim, before))
    _publish(sim, w, r, before + tokens)
    request.chunk = tokens
    complete = before + tokens == sim.trace.input_tokens[r] + request.generated
    sim.batch[w, worker.batch_size] = r
    worker.batch_size += 1
    if complete and tokens == 1 and request.generated > 0:
        request.part = la.LATE_DECODE
        worker.decode_tokens += 1
    else:
        request.part = la.PROMPT_ENDS if complete else la.PROMPT_GOES_ON
        worker.prefill_tokens += tokens


@kernel
def _continue_chunk(sim, w, budget):
    """The unfinished prompt takes what is left of the budget, or is preempted. Returns (budget left, preempted)."""
    worker = sim.workers[w]
    r = worker.chunked
    request = sim.requests[r]
    tokens = min(sim.trace.input_tokens[r] + request.generated - request.computed, budget)
    if lists.pages(sim, request.computed + tokens) - lists.pages(sim, request.computed) > sim.trees[w].free_pages:
        _preempt(sim, w, r)
        return budget, True
    _schedule_chunk(sim, w, r, tokens)
    return budget - tokens, False


@kernel
def _admit(sim, w, now, budget):
    """Try to admit the first waiting request. Returns tokens scheduled, 0 if its memory is not there."""
    worker = sim.workers[w]
    r = worker.waiting_head
    request = sim.requests[r]
    known = sim.trace.input_tokens[r] + request.generated
    static = lists.path_end(sim, r)
    limit = tree.floor_page(sim, known - 1) if sim.config.prefix_caching else 0
    found, d = tree.match(sim, w, static, limit)
    page = sim.config.page_tokens
    if lists.pages(sim, known) - found // page + queue.queued_pages(sim, d, found) > sim.trees[w].free_pages:
        return 0
    lists.stop_waiting(sim, w, r)
    lists.run_last(sim, w, r)
    found, d = queue.hold(sim, w, static, limit)
    request.node = d
    request.locked_tokens = found
    request.computed = found
    loaded = 0
    if sim.config.host_pages > 0:
        on_host, _ = tree.match(sim, sim.config.workers + w, static, limit)
        loaded = max(on_host - found, 0)
        if loaded > 0:
            queue.take(sim, w, loaded // page)
            _publish(sim, w, r, found + loaded)
            request.computed += loaded
            lists.load_back(sim, w, now, loaded)
    lists.note_scheduled(sim, r, now, found, loaded)
    tokens = min(known - request.computed, budget)
    _schedule_chunk(sim, w, r, tokens)
    return tokens


@kernel
def form(sim, w, now):
    """Form the next batch at ``now`` and set the worker's event to its end."""
    worker = sim.workers[w]
    worker.batch_size = 0
    due = lists.pages_due(sim, w, 0) if worker.decoding > 0 else 0
    preempted = False
    if due > sim.trees[w].free_pages:
        preempted = _serve_decodes_short_of_pages(sim, w)
        due = 0
        reserved = True
    else:
        reserved = False
    budget = sim.config.chunk_tokens - worker.decoding
    if not reserved and (worker.chunked >= 0 or worker.waiting > 0):
        queue.take(sim, w, due)
        reserved = True
    if worker.chunked >= 0:
        budget, lost = _continue_chunk(sim, w, budget)
        preempted = preempted or lost
    if not preempted:
        while budget > 0 and worker.waiting > 0 and worker.running < sim.config.max_running:
            tokens = _admit(sim, w, now, budget)
            if tokens == 0:
                break
            budget -= tokens
    _launch(sim, w, now, reserved, preempted)


@kernel
def _note_peak(sim, w):
    worker = sim.workers[w]
    worker.peak_pages = max(worker.peak_pages, sim.trees[w].capacity_pages - sim.trees[w].free_pages)


@kernel
def _launch(sim, w, now, reserved, preempted):
    """Run the batch just formed: one step with prompts in it, or as many decode steps as nothing can interfere with."""
    worker = sim.workers[w]
    _note_peak(sim, w)
    if worker.batch_size == 0 and worker.decoding == 0:
        worker.phase = la.IDLE
        heaps.event_clear(sim, w)
        return
    if worker.batch_size > 0:
        seconds = batch_cost(
            sim.seconds, sim.requests, sim.batch[w], worker.batch_size, worker.decoding, worker.context_tokens
        )
        worker.energy_j += batch_cost(
            sim.joules, sim.requests, sim.batch[w], worker.batch_size, worker.decoding, worker.context_tokens
        )
        end = now + seconds
        if worker.load_back_s > end:
            end = worker.load_back_s
        worker.phase = la.STEPPING
        worker.step_start_s = now
        heaps.event_set(sim, w, end)
        return
    steps = 1
    if not preempted:
        steps = sim.requests[sim.finish_heap[w, 0]].finish_clock - worker.clock
        # The first step's pages may be taken already: then only those from the second step on are counted.
        first = 1 if reserved else 0
        steps = first + lists.steps_with_room(sim, w, first, sim.trees[w].free_pages, steps - first)
    worker.full = 1 if reserved else 0
    lists.plan_coast(sim, w, now, steps)


@kernel
def _finish(sim, w, r, now):
    _release(sim, w, r)
    lists.stop_running(sim, w, r)
    lists.note_finished(sim, w, r, now)


@kernel
def complete(sim, w, now):
    """Process the results of the step or run that ends at ``now``."""
    worker = sim.workers[w]
    steps = 1
    if worker.phase == la.COASTING:
        steps = worker.coast_steps
        lists.account_coast(sim, w, steps)
        first = 1 if worker.full else 0
        queue.take(sim, w, lists.pages_over(sim, w, first, steps - first))
        _note_peak(sim, w)
    else:
        worker.steps += 1
        worker.decode_tokens += worker.decoding
        worker.busy_s += now - worker.step_start_s
    lists.advance_clock(sim, w, steps)
    while worker.finish_heap_size > 0 and sim.requests[sim.finish_heap[w, 0]].finish_clock == worker.clock:
        r = sim.finish_heap[w, 0]
        lists.leave_decode(sim, w, r)
        _finish(sim, w, r, now)
    worker.chunked = -1
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        request = sim.requests[r]
        request.computed += request.chunk
        if request.part == la.PROMPT_GOES_ON:
            worker.chunked = r
            continue
        request.generated += 1
        if request.generated == 1:
            request.first_token_s = now
        if request.generated == sim.trace.output_tokens[r]:
            _finish(sim, w, r, now)
        else:
            lists.join_decode(sim, w, r)
    worker.batch_size = 0


@kernel
def receive(sim, w, r, now):
    """Queue request ``r`` at ``now``; a run of decode steps ends early if ``r`` might be admitted in it."""
    worker = sim.workers[w]
    sim.requests[r].node = w
    lists.wait_last(sim, w, r)
    if worker.phase == la.IDLE:
        worker.phase = la.FORMING
        heaps.event_set(sim, w, now)
    elif worker.phase == la.COASTING and worker.waiting == 1 and worker.running < sim.config.max_running:
        lists.cut_coast(sim, w, now)


@kernel
def never_fits(sim, r):
    """True where prompt and declared output exceed the whole pool."""
    return lists.pages(sim, sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r]) > sim.config.capacity_pages
