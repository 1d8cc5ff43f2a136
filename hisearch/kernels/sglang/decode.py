"""SGLang's decode batch: the running requests, fewer where memory is short, and how far it runs undisturbed."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction
from hisearch.kernels.engine import device, log
from hisearch.kernels.hicache import storage
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.sglang import gaps, inbox, memory, order, running
from hisearch.kernels.sglang import log as step_log
from hisearch.kernels.traffic import heaps, lists

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

    Most generated first, then shortest prompt, then in running order. After the first retraction the list is nearly
    in that order.
    """
    worker = sim.workers[w]
    ordered = sim.batch[w]
    count = 0
    r = worker.running_head
    while r >= 0:
        generated = running.known_generated(sim, w, r)
        k = count
        while k > 0:
            other = ordered[k - 1]
            theirs = running.known_generated(sim, w, other)
            if theirs > generated or (
                theirs == generated and sim.trace.input_tokens[other] <= sim.trace.input_tokens[r]
            ):
                break
            ordered[k] = other
            k -= 1
        ordered[k] = r
        count += 1
        r = sim.requests[r].next
    return count


@kernel
def _lose(sim, w, r):
    """Retract ``r``: its KV is lost, and so is a token in flight."""
    request = sim.requests[r]
    generated = running.known_generated(sim, w, r)
    gaps.lost(sim, w, r, running.in_prefill(sim, w, r), running.flies(sim, w))
    running.leave(sim, w, r)
    request.generated = generated
    lists.stop_running(sim, w, r)
    memory.drop(sim, w, r)
    request.computed = 0
    request.serial = -1
    request.preemptions += 1
    sim.workers[w].preemptions += 1
    log.lost(sim, r)


@kernel
def _keep_order(sim, w, count):
    """The first ``count`` of ``batch[w]`` become the running list, in that order."""
    worker = sim.workers[w]
    for k in range(count):
        lists.stop_running(sim, w, sim.batch[w, k])
    for k in range(count):
        r = sim.batch[w, k]
        lists.run_last(sim, w, r)
        # Requests whose last token is in flight finish in the order of the batch that makes it.
        if sim.requests[r].finish_clock > worker.clock:
            heaps.finish_remove(sim, w, r)
            lists.number(sim, w, r)
            heaps.finish_push(sim, w, r)


@kernel
def _retract(sim, w):
    """Retract from the end of the order, at least one and until the rest's next pages are there.

    The rest keep that order.
    """
    worker = sim.workers[w]
    count = _sorted_for_retraction(sim, w)
    total = count
    while worker.decoding > 1:
        if count < total:
            due = lists.pages_due(sim, w, 0)
            prefixes.make_room(sim, w, due)
            if sim.trees[sim.workers[w].cache_id].free_pages >= due:
                break
        count -= 1
        _lose(sim, w, sim.batch[w, count])
        prefixes.make_room(sim, w, lists.pages(sim, RETRACT_STEPS * worker.decoding))
    generated = 0
    limit = 0
    for k in range(count):
        generated += running.known_generated(sim, w, sim.batch[w, k])
        limit += memory.max_new(sim, sim.batch[w, k])
    worker.ratio = min(1.0, (generated + RETRACT_STEPS * count) / (limit + 1))
    for k in range(total - 1, count - 1, -1):
        order.enqueue(sim, w, sim.batch[w, k])
        if sim.tiers.storage:
            storage.enter(sim, w, sim.batch[w, k])
    if sim.tiers.storage:
        storage.begin_fetches(sim, w)
    _keep_order(sim, w, count)


@kernel
def form_decode(sim, w, now):
    """Let the running batch decode: finished requests leave, requests are retracted until the rest fits.

    True if any decodes.
    """
    worker = sim.workers[w]
    if worker.running == 0:
        return False
    left = worker.finished_pending > 0
    if left:
        running.filter_finished(sim, w)
    if worker.decoding == 0:
        worker.full = 0
        return False
    due = lists.pages_due(sim, w, 0)
    prefixes.make_room_for_step(sim, w, due, now)
    if sim.trees[sim.workers[w].cache_id].free_pages >= due:
        worker.ratio = _decayed(sim, worker.ratio, 1)
    else:
        decoding = worker.decoding
        _retract(sim, w)
        left = left or worker.decoding < decoding
    if left:
        worker.full = 0
    prefixes.make_room(sim, w, worker.decoding)
    running.take_decode_pages(sim, w)
    return True


@kernel
def _fast_forward_limit(sim, w):
    """Decode steps, the one whose pages are taken included, in which none ends, none could enter, none is evicted."""
    worker = sim.workers[w]
    if worker.waiting > 0 and not order.closed(sim, w):
        return 1
    limit = sim.requests[sim.finish_heap[w, 0]].finish_clock - worker.clock
    if sim.config.overlap:
        # Results show up one pass later; those of a prefill change the cache.
        limit = limit + 1 if sim.launches[running.newest(sim, w)].kind == la.DECODE_STEP else 1
    if worker.held_head >= 0:
        limit = min(limit, inbox.steps_to_look(sim, w))
    if limit == 1:
        return 1
    free = sim.trees[sim.workers[w].cache_id].free_pages
    if eviction.some(sim, sim.workers[w].cache_id) and sim.config.page_tokens > 1:
        # Room is made for one page per request before each step, needed or not.
        steps = 1
        if free >= worker.decoding:
            # Every request takes a page in each round of so many steps as a page has tokens.
            rounds = min((limit - steps) // sim.config.page_tokens, free // worker.decoding - 1)
            steps += rounds * sim.config.page_tokens
            free -= rounds * worker.decoding
        while steps < limit and free >= worker.decoding:
            free -= lists.pages_due(sim, w, steps)
            steps += 1
        return steps
    return 1 + lists.steps_with_room(sim, w, 1, free, limit - 1)


@kernel
def launch_decode(sim, w, now):
    """Set out on as many decode steps as nothing disturbs; the pages of the first are taken."""
    if sim.config.log:
        step_log.first_decode(sim, w, now)
    device.plan_fast_forward(sim, w, now, _fast_forward_limit(sim, w))


@kernel
def complete_decode(sim, w):
    """Account for the coast whose event is due, all but its results."""
    worker = sim.workers[w]
    steps = worker.fast_forward_steps
    cache = sim.trees[sim.workers[w].cache_id]
    gaps.fast_forward(sim, w)
    if sim.config.log:
        start, end = step_log.first_decode_times(sim, w)
        for ahead in range(1, steps):
            cache.free_pages -= lists.pages_due(sim, w, ahead)
            worker.ratio = _decayed(sim, worker.ratio, 1)
            start, end = step_log.next_decode(sim, w, ahead, start, end)
    else:
        cache.free_pages -= lists.pages_over(sim, w, 1, steps - 1)
        worker.ratio = _decayed(sim, worker.ratio, steps - 1)
    device.finish_fast_forward(sim, w)
    lists.advance_clock(sim, w, steps)
    launch = sim.launches[running.newest(sim, w)]
    launch.kind = la.DECODE_STEP
    launch.clock = worker.clock
