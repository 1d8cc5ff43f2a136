"""SGLang's decode batch: the running requests, retraction when memory is short, and fast-forwards."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import device, log
from hisearch.kernels.hicache import notes, storage
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.sglang import gaps, inbox, memory, order, retraction, running
from hisearch.kernels.sglang import log as step_log
from hisearch.kernels.traffic import heaps, lists


@kernel
def initial_ratio(sim):
    """New-token ratio at the start and after every idle pass."""
    return min(0.7 * sim.config.conservativeness, 1.0)


@kernel
def decayed(sim, ratio, passes):
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
def sorted_for_retraction(sim, w):
    """Fill ``batch[w]`` with the decoding requests, the first to retract at the end; return how many.

    Most generated first, then shortest prompt, then running order. After the first retraction the list is nearly in
    that order.
    """
    worker = sim.workers[w]
    ordered = sim.batch[w]
    count = 0
    r = worker.running_head
    while r >= 0:
        generated = running.known_generated(sim, w, r)
        k = count
        while k > 0:
            previous = ordered[k - 1]
            previous_generated = running.known_generated(sim, w, previous)
            if previous_generated > generated or (
                previous_generated == generated and sim.trace.input_tokens[previous] <= sim.trace.input_tokens[r]
            ):
                break
            ordered[k] = previous
            k -= 1
        ordered[k] = r
        count += 1
        r = sim.requests[r].next
    return count


@kernel
def _keep_order(sim, w, count):
    """Make the first ``count`` of ``batch[w]`` the running list, in that order."""
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
    """Retract requests from the end of the order, at least one, until the rest have their next pages.

    The rest keep that order.
    """
    worker = sim.workers[w]
    count = sorted_for_retraction(sim, w)
    total = count
    while worker.decoding > 1:
        if count < total:
            needed_pages = lists.pages_needed(sim, w, 0)
            prefixes.ensure_free_pages(sim, w, needed_pages)
            if prefixes.free_pages(sim, w) >= needed_pages:
                break
        count -= 1
        retraction.retract(sim, w, sim.batch[w, count])
        log.lost(sim, sim.batch[w, count])
        prefixes.ensure_free_pages(sim, w, lists.pages(sim, retraction.DECODE_STEPS * worker.decoding))
    generated = 0
    declared = 0
    for k in range(count):
        generated += running.known_generated(sim, w, sim.batch[w, k])
        declared += memory.max_new(sim, sim.batch[w, k])
    worker.ratio = min(1.0, (generated + retraction.DECODE_STEPS * count) / (declared + 1))
    for k in range(total - 1, count - 1, -1):
        order.enqueue(sim, w, sim.batch[w, k], worker.moments)
        if sim.tiers.storage:
            storage.enter(sim, w, sim.batch[w, k])
    if sim.tiers.storage:
        storage.begin_fetches(sim, w)
    _keep_order(sim, w, count)


@kernel
def form_decode(sim, w, now):
    """Form a decode batch of the running requests: filter out finished ones, retract until the rest fit.

    Returns whether any decodes.
    """
    worker = sim.workers[w]
    if worker.running == 0:
        return False
    shrank = worker.finished_pending > 0
    if shrank:
        running.filter_finished(sim, w)
    drained = running.drain(sim, w) > 0
    shrank = shrank or drained
    if worker.decoding == 0:
        worker.full = 0
        return False
    needed_pages = lists.pages_needed(sim, w, 0)
    prefixes.ensure_pages_for_step(sim, w, needed_pages, now)
    if prefixes.free_pages(sim, w) >= needed_pages:
        worker.ratio = decayed(sim, worker.ratio, 1)
    elif drained:
        # The results in flight free memory.
        worker.full = 0
        return False
    else:
        decoding = worker.decoding
        _retract(sim, w)
        shrank = shrank or worker.decoding < decoding
    if shrank:
        worker.full = 0
    if sim.config.window_tokens:
        running.slide_windows(sim, w)
    prefixes.ensure_free_pages(sim, w, worker.decoding)
    running.take_decode_pages(sim, w)
    return True


@kernel
def _fast_forward_limit(sim, w):
    """Decode steps, including the one with pages taken, in which no request ends or enters and no page is evicted."""
    worker = sim.workers[w]
    if worker.waiting > 0 and not order.closed(sim, w):
        return 1
    limit = sim.requests[sim.finish_heap[w, 0]].finish_clock - worker.clock
    if sim.config.overlap:
        # Results are known one pass later; those of a prefill change the cache.
        if sim.launches[running.newest(sim, w)].kind != la.DECODE_STEP or worker.draining > 0:
            return 1
        limit = max(limit, 1) if sim.config.skips_last_decode else limit + 1
    if notes.matter(sim) and notes.next_pass_acts(sim, w):
        return 1
    if worker.held_head >= 0:
        limit = min(limit, inbox.steps_to_look(sim, w))
    if limit == 1:
        return 1
    if sim.config.window_tokens:
        limit = min(limit, running.steps_to_slide(sim, w))
    free = prefixes.free_pages(sim, w)
    if prefixes.some_evictable(sim, w) and sim.config.page_tokens > 1:
        # Each step first evicts for one page per request, needed or not.
        steps = 1
        if free >= worker.decoding:
            # In a round of one page's tokens every request takes a page.
            rounds = min((limit - steps) // sim.config.page_tokens, free // worker.decoding - 1)
            steps += rounds * sim.config.page_tokens
            free -= rounds * worker.decoding
        while steps < limit and free >= worker.decoding:
            free -= lists.pages_needed(sim, w, steps)
            steps += 1
        return steps
    return 1 + lists.steps_within_pages(sim, w, 1, free, limit - 1)


@kernel
def launch_decode(sim, w, now):
    """Launch a fast-forward of undisturbed decode steps; the pages of the first are taken."""
    if sim.config.log:
        step_log.first_decode(sim, w, now)
    device.plan_fast_forward(sim, w, now, _fast_forward_limit(sim, w))
    if notes.matter(sim):
        notes.end_with_copy(sim, w)


@kernel
def complete_decode(sim, w):
    """Account for the fast-forward that ends now, except for its results."""
    worker = sim.workers[w]
    steps = worker.fast_forward_steps
    gaps.fast_forward(sim, w)
    if sim.config.log:
        start, end = step_log.first_decode_times(sim, w)
        for ahead in range(1, steps):
            prefixes.take_pages(sim, w, lists.pages_needed(sim, w, ahead))
            worker.ratio = decayed(sim, worker.ratio, 1)
            start, end = step_log.next_decode(sim, w, ahead, start, end)
    else:
        prefixes.take_pages(sim, w, lists.pages_over(sim, w, 1, steps - 1))
        worker.ratio = decayed(sim, worker.ratio, steps - 1)
    device.finish_fast_forward(sim, w)
    lists.advance_clock(sim, w, steps)
    launch = sim.launches[running.newest(sim, w)]
    launch.kind = la.DECODE_STEP
    launch.clock = worker.clock
