"""SGLang's step rule (0.5): a prefill batch runs alone, else the running batch decodes; fcfs, without overlap.

Words of the engine: a request *lingers* between the decode step in which it finished and the next decode pass, which
filters it out; until then it counts as running. The running batch is marked *full* when an admission fails, and none
is tried until something leaves it. The new-token *ratio* is the share of the running requests' declared outputs that
admission reserves.
"""

from __future__ import annotations

from hisearch.kernels import device, heaps, lists, radix
from hisearch.kernels import layout as la
from hisearch.kernels import sglang_memory as memory
from hisearch.kernels.cost import batch_cost
from hisearch.kernels.jit import kernel
from hisearch.kernels.sglang_prefill import form_prefill

#: Decode steps that a retraction makes room for (SGLANG_RETRACT_DECODE_STEPS).
RETRACT_STEPS = 20


@kernel
def initial_ratio(sim):
    """New-token ratio at the start and after every idle pass."""
    return min(0.7 * sim.config.conservativeness, 1.0)


@kernel
def _decayed(sim, ratio, passes):
    """The ratio after ``passes`` decode passes: a linear fall to 0.14 of its start over 600 of them."""
    start = initial_ratio(sim)
    least = min(0.14 * start, 1.0)
    decay = (start - least) / 600
    for _ in range(passes):
        if ratio <= least:
            return ratio
        ratio = max(ratio - decay, least)
    return ratio


@kernel
def _sorted_for_retraction(sim, w):
    """Fill ``batch[w]`` with the decoding requests, those to retract first at the end; return how many.

    Most generated first, then shortest prompt, then in running order.
    """
    worker = sim.workers[w]
    order = sim.batch[w]
    count = 0
    r = worker.running_head
    while r >= 0:
        generated = lists.generated_tokens(sim, w, r)
        k = count
        while k > 0:
            other = order[k - 1]
            theirs = lists.generated_tokens(sim, w, other)
            if theirs > generated or (
                theirs == generated and sim.trace.input_tokens[other] <= sim.trace.input_tokens[r]
            ):
                break
            order[k] = other
            k -= 1
        order[k] = r
        count += 1
        r = sim.requests[r].next
    return count


@kernel
def _retract(sim, w):
    """Retract from the end of the order, at least one and until the rest's next pages are there.

    The rest keep that order.
    """
    worker = sim.workers[w]
    count = _sorted_for_retraction(sim, w)
    order = sim.batch[w]
    retracted = 0
    while worker.decoding > 1:
        if retracted > 0:
            due = lists.pages_due(sim, w, 0)
            radix.make_room(sim, w, due)
            if sim.trees[w].free_pages >= due:
                break
        count -= 1
        r = order[count]
        lists.leave_decode(sim, w, r)
        lists.stop_running(sim, w, r)
        memory.drop(sim, w, r)
        sim.requests[r].computed = 0
        radix.make_room(sim, w, lists.pages(sim, RETRACT_STEPS * worker.decoding))
        sim.requests[r].preemptions += 1
        worker.preemptions += 1
        lists.wait_last(sim, w, r)
        retracted += 1
    generated = 0
    limit = 0
    for k in range(count):
        r = order[k]
        generated += lists.generated_tokens(sim, w, r)
        limit += memory.max_new(sim, r)
        lists.stop_running(sim, w, r)
        heaps.finish_remove(sim, w, r)
    for k in range(count):
        r = order[k]
        lists.run_last(sim, w, r)
        sim.requests[r].order = worker.orders
        worker.orders += 1
        heaps.finish_push(sim, w, r)
    worker.ratio = min(1.0, (generated + RETRACT_STEPS * count) / (limit + 1))


@kernel
def _drop_lingering(sim, w):
    """Filter the requests that finished in the last decode step out of the running list."""
    worker = sim.workers[w]
    r = worker.running_head
    while worker.lingering > 0:
        after = sim.requests[r].next
        if sim.requests[r].outcome == la.FINISHED:
            lists.stop_running(sim, w, r)
            worker.lingering -= 1
        r = after


@kernel
def _form_decode(sim, w):
    """Let the running batch decode: finished requests leave, requests are retracted until the rest fits.

    True if any decodes.
    """
    worker = sim.workers[w]
    left = worker.lingering > 0
    if left:
        _drop_lingering(sim, w)
    if worker.decoding == 0:
        worker.full = 0
        return False
    due = lists.pages_due(sim, w, 0)
    radix.make_room(sim, w, due)
    if sim.trees[w].free_pages >= due:
        worker.ratio = _decayed(sim, worker.ratio, 1)
    else:
        _retract(sim, w)
        left = True
    if left:
        worker.full = 0
    radix.make_room(sim, w, worker.decoding)
    due = lists.pages_due(sim, w, 0)
    if sim.trees[w].free_pages < due:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    sim.trees[w].free_pages -= due
    return True


@kernel
def _coast_limit(sim, w):
    """Decode steps, the one whose pages are taken included, in which none ends, none could enter, none is evicted."""
    worker = sim.workers[w]
    if worker.waiting > 0 and not worker.full:
        return 1
    limit = sim.requests[sim.finish_heap[w, 0]].finish_clock - worker.clock
    if limit == 1:
        return 1
    free = sim.trees[w].free_pages
    if sim.trees[w].heap_size > 0 and sim.config.page_tokens > 1:
        # Room is made for one page per request before each step, needed or not.
        steps = 1
        while steps < limit and free >= worker.decoding:
            free -= lists.pages_due(sim, w, steps)
            steps += 1
        return steps
    return 1 + lists.steps_with_room(sim, w, 1, free, limit - 1)


@kernel
def _note_peak(sim, w):
    worker = sim.workers[w]
    cache = sim.trees[w]
    worker.peak_pages = max(worker.peak_pages, cache.capacity_pages - cache.free_pages - cache.evictable_pages)


@kernel
def form(sim, w, now):
    """Form the next batch at ``now`` and set the worker's event to its end."""
    worker = sim.workers[w]
    worker.batch_size = 0
    prefill = form_prefill(sim, w, now)
    decode = False
    if not prefill:
        decode = _form_decode(sim, w)
    if not prefill and not decode:
        # An idle pass resets the ratio; it may have cleared the mark that kept requests out.
        worker.ratio = initial_ratio(sim)
        prefill = form_prefill(sim, w, now)
        if not prefill:
            worker.phase = la.IDLE
            heaps.event_clear(sim, w)
            return
    _note_peak(sim, w)
    if prefill:
        seconds = batch_cost(sim.seconds, sim.requests, sim.batch[w], worker.batch_size, 0, 0)
        worker.energy_j += batch_cost(sim.joules, sim.requests, sim.batch[w], worker.batch_size, 0, 0)
        device.launch(sim, w, now, seconds)
        device.await_next(sim, w, now, True)
    else:
        device.plan_coast(sim, w, now, _coast_limit(sim, w))


@kernel
def _finish(sim, w, r, now):
    memory.keep_finished(sim, w, r)
    lists.note_finished(sim, w, r, now)


@kernel
def _complete_decode(sim, w, now):
    worker = sim.workers[w]
    steps = worker.coast_steps
    device.finish_coast(sim, w)
    sim.trees[w].free_pages -= lists.pages_over(sim, w, 1, steps - 1)
    worker.ratio = _decayed(sim, worker.ratio, steps - 1)
    _note_peak(sim, w)
    lists.advance_clock(sim, w, steps)
    while worker.finish_heap_size > 0 and sim.requests[sim.finish_heap[w, 0]].finish_clock == worker.clock:
        r = sim.finish_heap[w, 0]
        lists.leave_decode(sim, w, r)
        worker.lingering += 1
        _finish(sim, w, r, now)


@kernel
def _complete_prefill(sim, w, now):
    worker = sim.workers[w]
    device.retire(sim, w)
    empty = worker.decoding + worker.lingering == 0
    joined = 0
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
            lists.note_first_token(sim, r, now)
        if request.generated == sim.trace.output_tokens[r]:
            _finish(sim, w, r, now)
        else:
            # The prompt's pages are keyed by what was known before this token: a path to the prompt's end or beyond.
            memory.keep_unfinished(sim, w, r)
            lists.run_last(sim, w, r)
            lists.number(sim, w, r)
            lists.join_decode(sim, w, r)
            joined += 1
    if worker.chunked >= 0:
        memory.keep_unfinished(sim, w, worker.chunked)
    if joined < worker.batch_size or (empty and joined > 0):
        worker.full = 0
    worker.batch_size = 0


@kernel
def complete(sim, w, now):
    """Process the results of the step or run that ends at ``now``."""
    if sim.workers[w].phase == la.COASTING:
        _complete_decode(sim, w, now)
    else:
        _complete_prefill(sim, w, now)


@kernel
def receive(sim, w, r, now):
    """Queue request ``r`` at ``now``; a run of decode steps ends early if a prefill would be tried."""
    worker = sim.workers[w]
    sim.requests[r].node = w
    lists.wait_last(sim, w, r)
    if worker.phase == la.IDLE:
        worker.phase = la.FORMING
        heaps.event_set(sim, w, now)
    elif worker.phase == la.COASTING and not worker.full:
        device.cut_coast(sim, w, now)
