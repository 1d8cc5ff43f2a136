"""TensorRT-LLM: the composition of the next step.

The capacity scheduler visits the active requests in order of arrival: the started ones and the first waiting ones, up
to ``max_running`` in all. Every decode takes part. Contexts that fit share the rest of the budget, first come first
served or page by page in turn. ``batch`` lists them, unfinished chunks first; ``REQUEST.chunk`` is their share.
Behind them it lists the requests that decode once more behind their last token: only the results of a step in flight
tell that they have ended.

A waiting request is passed over if an earlier context is making its first missing page, which it can reuse later. All
requests that miss a page in the same trace node miss the same page: ``pledged`` notes the node.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.engine import schedulers
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.trtllm import batch, memory, shares

#: Behind the order of any active request.
NO_END = memory.NOT_ACTIVE


@kernel
def _missing_node(sim, w, r):
    """Trace node in which the first uncached full page of ``r``'s known tokens ends; -1: none."""
    trace = sim.trace
    full = tree.floor_page(sim, memory.known_tokens(sim, r))
    s = lists.path_end(sim, r)
    cached, _ = tree.match(sim, sim.workers[w].cache_id, s, full)
    if cached >= full:
        return -1
    while trace.start_tokens[s] >= cached + sim.config.page_tokens:
        s = trace.parent[s]
    return s


@kernel
def _should_wait(sim, w, r):
    """Whether the waiting ``r`` should wait for a page being made; if not, ``r`` pledges to make it."""
    if not sim.config.prefix_caching or sim.config.capacity_policy == la.STATIC_BATCH:
        return False
    s = _missing_node(sim, w, r)
    if s < 0:
        return False
    if sim.pledged[s] == sim.counters[la.PASSES]:
        return True
    sim.pledged[s] = sim.counters[la.PASSES]
    return False


@kernel
def note_pages_in_progress(sim, w):
    """Pledge the pages that the contexts in progress will make."""
    sim.counters[la.PASSES] += 1
    if not sim.config.prefix_caching:
        return
    r = sim.workers[w].prompts_head
    while r >= 0:
        s = _missing_node(sim, w, r)
        if s >= 0:
            sim.pledged[s] = sim.counters[la.PASSES]
        r = sim.requests[r].next_aside


@kernel
def _needed_pages(sim, w, r):
    """Pages that admission of the waiting ``r`` needs: at its declared length, or now."""
    pages = memory.declared_pages(sim, r)
    if sim.config.capacity_policy == la.MAX_UTILIZATION:
        pages = lists.pages(sim, memory.known_tokens(sim, r))
    if sim.config.credits_reuse:
        pages -= memory.cached_tokens(sim, w, r)[1] // sim.config.page_tokens
    return pages


@kernel
def _pages_to_come(sim, r):
    """Pages that the context ``r``, which has started, may still need."""
    return memory.declared_pages(sim, r) - memory.prompt_pages(sim, r)


@kernel
def unreserved_pages(sim, w):
    """Free pages that decodes, and all requests of sibling micro-batches, will not need at their declared lengths."""
    first, behind = schedulers.sharing(sim, w)
    pages = sim.trees[first].free_pages
    for sibling in range(first, behind):
        pages += sim.workers[sibling].allocated_pages - sim.workers[sibling].promised_pages
    r = sim.workers[w].prompts_head
    while r >= 0:
        pages += _pages_to_come(sim, r)
        r = sim.requests[r].next_aside
    return pages


@kernel
def fill(sim, w, available):
    """Schedule contexts in progress and waiting ones, up to the first whose pages are not ``available``.

    Returns whether all waiting ones got a share. One without a share withholds pages from others until it is passed
    over, which an eviction may cause.
    """
    worker = sim.workers[w]
    requests = sim.requests
    reserves = sim.config.capacity_policy != la.MAX_UTILIZATION
    in_order = sim.config.chunking_policy == la.FIRST_COME_FIRST_SERVED
    budget = batch.budget_of(sim, w)
    places = sim.config.max_running - worker.running
    p = worker.prompts_head
    u = worker.waiting_head if places > 0 else -1
    all_served = True
    while budget > 0 and (p >= 0 or u >= 0):
        if p >= 0 and (u < 0 or requests[p].order < requests[u].order):
            if reserves:
                available -= _pages_to_come(sim, p)
                if available < 0:
                    break
            if in_order:
                budget = shares.share(sim, w, p, budget)
            else:
                shares.put(sim, w, p)
            p = requests[p].next_aside
            continue
        r = u
        places -= 1
        u = requests[u].next if places > 0 else -1
        if _should_wait(sim, w, r):
            continue
        available -= _needed_pages(sim, w, r)
        if available < 0:
            worker.full = 1
            break
        if not in_order:
            shares.put(sim, w, r)
            continue
        before = budget
        budget = shares.share(sim, w, r, budget)
        all_served = all_served and budget < before
    return all_served


@kernel
def go_on(sim, w):
    """Schedule the contexts in progress that fit, where a waiting request before them ended a pass without any.

    The engine would stand still for good.
    """
    available = batch.free_pages(sim, w)
    budget = batch.budget_of(sim, w)
    r = sim.workers[w].prompts_head
    while r >= 0 and budget > 0:
        available -= _pages_to_come(sim, r)
        if available < 0:
            break
        if sim.config.chunking_policy == la.FIRST_COME_FIRST_SERVED:
            budget = shares.share(sim, w, r, budget)
        else:
            shares.put(sim, w, r)
        r = sim.requests[r].next_aside


@kernel
def _choose_victim(sim, w, first, end):
    """The last started request of order ``first`` to below ``end`` that is not draining; -1: none."""
    r = sim.workers[w].running_tail
    while r >= 0 and sim.requests[r].order >= first:
        if sim.requests[r].order < end and sim.requests[r].status != la.DRAINING:
            return r
        r = sim.requests[r].prev
    return -1


@kernel
def _needed_so_far(sim, w, end):
    """Pages that the decodes of order below ``end`` and the waiting requests in the batch need."""
    needed = 0
    r = sim.workers[w].running_head
    while r >= 0 and sim.requests[r].order < end:
        needed += batch.needs_page(sim, w, r)
        r = sim.requests[r].next
    for k in range(sim.workers[w].batch_size):
        r = sim.batch[w, k]
        if sim.requests[r].status == la.WAITING:
            needed += _needed_pages(sim, w, r)
    return needed


@kernel
def _pause_and_fill(sim, w):
    """MAX_UTILIZATION, one by one in order of arrival: under a page shortage, pause the last started request.

    No request before the one short of pages is paused, and none after a paused one takes part. A waiting request that
    caused a pause is visited again, finds the page that it pledged itself, and is passed over. Pages that only the
    paused request held are no longer credited to those before it. Requests of sibling micro-batches are not paused.
    Returns whether any request was paused.
    """
    worker = sim.workers[w]
    requests = sim.requests
    places = sim.config.max_running - worker.running
    end = NO_END
    needed = 0
    paused = False
    s = worker.running_head
    u = worker.waiting_head if places > 0 else -1
    while True:
        started = s >= 0 and (u < 0 or requests[s].order < requests[u].order)
        r = s if started else u
        if r < 0 or requests[r].order >= end:
            break
        more = batch.needs_page(sim, w, r)
        passed_over = False
        if not started:
            passed_over = _should_wait(sim, w, r)
            more = _needed_pages(sim, w, r)
        if not passed_over and needed + more > batch.free_pages(sim, w):
            victim = _choose_victim(sim, w, requests[r].order, end)
            if victim < 0:
                worker.full = 1
                end = requests[r].order
                break
            end = requests[victim].order
            memory.pause(sim, w, victim)
            paused = True
            needed = _needed_so_far(sim, w, requests[r].order)
            continue
        if started:
            if requests[r].status == la.PROMPT:
                shares.put(sim, w, r)
            s = requests[r].next
        else:
            if not passed_over:
                shares.put(sim, w, r)
            places -= 1
            u = requests[r].next if places > 0 else -1
        if not passed_over:
            needed += more
    batch.leave_out_late(sim, w, end)
    return paused


@kernel
def _all_fit(sim, w, needed):
    """Whether the pages ``needed`` by all decodes are free, and no waiting request is visited before a started one."""
    worker = sim.workers[w]
    if needed > batch.free_pages(sim, w):
        return False
    if worker.running == 0 or worker.waiting == 0 or worker.running == sim.config.max_running:
        return True
    return sim.requests[worker.running_tail].order < sim.requests[worker.waiting_head].order


@kernel
def choose(sim, w):
    """Choose the contexts of the next batch, and pause requests for them.

    Returns whether decodes may go on without another pass until one ends.
    """
    worker = sim.workers[w]
    worker.batch_size = 0
    worker.full = 0
    worker.paused = 0
    memory.activate(sim, w)
    note_pages_in_progress(sim, w)
    needed = batch.list_late(sim, w)
    if worker.decoding > 0:
        needed += lists.pages_needed(sim, w, 0)
    if sim.config.capacity_policy == la.STATIC_BATCH and worker.decoding + worker.draining > 0:
        worker.full = 1
        return True
    steady = False
    if sim.config.capacity_policy != la.MAX_UTILIZATION:
        steady = fill(sim, w, unreserved_pages(sim, w))
        if worker.batch_size == 0 and worker.decoding + worker.draining == 0:
            go_on(sim, w)
    elif _all_fit(sim, w, needed):
        steady = fill(sim, w, batch.free_pages(sim, w) - needed)
    else:
        worker.paused = _pause_and_fill(sim, w)
        if sim.config.chunking_policy == la.FIRST_COME_FIRST_SERVED:
            shares.share_in_order(sim, w)
    if sim.config.chunking_policy == la.EQUAL_PROGRESS:
        steady = shares.share_equally(sim, w) and steady
    return steady


@kernel
def start(sim, w, now):
    """Start the batch: its waiting requests, then the pages of its decodes."""
    batch.begin(sim, w, now)
    if sim.workers[w].decoding > 0:
        memory.take_decode_pages(sim, w, now, lists.pages_needed(sim, w, 0))
    batch.add_late(sim, w, now)
