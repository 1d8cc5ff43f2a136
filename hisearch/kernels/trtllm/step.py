"""TensorRT-LLM: who takes part in the next step.

The capacity scheduler looks at the active requests, which are the started ones and the first of those that wait, as
many as ``max_running`` in all, in order of arrival. Every decode takes part. Contexts that fit share what is left of
the budget, first come first served, in whole pages unless they end. ``batch`` gets them, ``REQUEST.chunk`` their share.

A waiting request whose first missing page is being made by a context before it is passed over, so that it can reuse
the page later. All that miss a page in the same trace-tree node miss the same page: ``pledged`` notes the node.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.trtllm import memory

_NO_END = 1 << 62


@kernel
def _missing_node(sim, w, r):
    """Trace-tree node in which the first full page of ``r``'s known tokens that is not cached ends; -1: none."""
    trace = sim.trace
    full = tree.floor_page(sim, memory.known_tokens(sim, r))
    s = lists.path_end(sim, r)
    cached, _ = tree.match(sim, w, s, full)
    if cached >= full:
        return -1
    while trace.start_tokens[s] >= cached + sim.config.page_tokens:
        s = trace.parent[s]
    return s


@kernel
def _better_later(sim, w, r):
    """Whether the waiting ``r`` had better wait for a page that is being made; else it is going to make that page."""
    if not sim.config.prefix_caching:
        return False
    s = _missing_node(sim, w, r)
    if s < 0:
        return False
    if sim.pledged[s] == sim.counters[la.PASSES]:
        return True
    sim.pledged[s] = sim.counters[la.PASSES]
    return False


@kernel
def _note_pages_in_progress(sim, w):
    """Pledge what the contexts in progress are going to make."""
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
def _share(sim, w, r, left):
    """Put context ``r`` into the batch with what it can have of the budget ``left``. Returns what is left then.

    What of a waiting request is cached is not known yet here: it counts with all its tokens.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    share = memory.known_tokens(sim, r) - request.computed
    if share > left:
        if not sim.config.chunked_prefill:
            return 0
        share = tree.floor_page(sim, left)
    if share > 0:
        request.chunk = share
        sim.batch[w, worker.batch_size] = r
        worker.batch_size += 1
    return left - share


@kernel
def _needed_pages(sim, r):
    """Pages that admitting the waiting ``r`` asks for: at its declared length, or now."""
    if sim.config.capacity_policy == la.MAX_UTILIZATION:
        return lists.pages(sim, memory.known_tokens(sim, r))
    return memory.declared_pages(sim, r)


@kernel
def _fill(sim, w, available):
    """Contexts in progress, and waiting ones up to the first that does not find its pages ``available``.

    Returns whether all of them got a share. One that did not keeps pages from others as long as it is not passed over,
    which an eviction may bring about.
    """
    worker = sim.workers[w]
    requests = sim.requests
    left = sim.config.chunk_tokens - worker.decoding
    places = sim.config.max_running - worker.running
    p = worker.prompts_head
    u = worker.waiting_head if places > 0 else -1
    all_served = True
    while left > 0 and (p >= 0 or u >= 0):
        if p >= 0 and (u < 0 or requests[p].order < requests[u].order):
            left = _share(sim, w, p, left)
            p = requests[p].next_aside
            continue
        r = u
        places -= 1
        u = requests[u].next if places > 0 else -1
        if _better_later(sim, w, r):
            continue
        needed = _needed_pages(sim, r)
        if needed > available:
            worker.full = 1
            u = -1
        else:
            available -= needed
            before = left
            left = _share(sim, w, r, left)
            all_served = all_served and left < before
    return all_served


@kernel
def _choose_victim(sim, w, first, end):
    """The last started request of order ``first`` to below ``end`` whose last token is not being made; or -1."""
    r = sim.workers[w].running_tail
    while r >= 0 and sim.requests[r].order >= first:
        if sim.requests[r].order < end and sim.requests[r].state != la.DRAINING:
            return r
        r = sim.requests[r].prev
    return -1


@kernel
def _needs_page(sim, w, r):
    """1 where the started ``r`` decodes and its next token begins a page."""
    if sim.requests[r].state != la.DECODING:
        return 0
    computed = sim.trace.input_tokens[r] + lists.generated_tokens(sim, w, r) - 1
    return 1 if computed % sim.config.page_tokens == 0 else 0


@kernel
def _pause_and_fill(sim, w):
    """MAX_UTILIZATION, one by one in order of arrival: where pages are short, the last started request is paused.

    None before the one that is short of pages is, and none behind a paused one takes part. True if any was paused. A
    waiting request that had one paused is looked at again, finds the page that it pledged itself, and is passed over.
    """
    worker = sim.workers[w]
    requests = sim.requests
    places = sim.config.max_running - worker.running
    end = _NO_END
    needed = 0
    paused = False
    s = worker.running_head
    u = worker.waiting_head if places > 0 else -1
    while True:
        started = s >= 0 and (u < 0 or requests[s].order < requests[u].order)
        r = s if started else u
        if r < 0 or requests[r].order >= end:
            break
        more = _needs_page(sim, w, r)
        passed_over = False
        if not started:
            passed_over = _better_later(sim, w, r)
            more = _needed_pages(sim, r)
        if not passed_over and needed + more > sim.trees[w].free_pages:
            victim = _choose_victim(sim, w, requests[r].order, end)
            if victim < 0:
                worker.full = 1
                break
            end = requests[victim].order
            memory.pause(sim, w, victim)
            paused = True
            continue
        if started:
            if requests[r].state == la.PROMPT:
                sim.batch[w, worker.batch_size] = r
                worker.batch_size += 1
            s = requests[r].next
        else:
            if not passed_over:
                sim.batch[w, worker.batch_size] = r
                worker.batch_size += 1
            places -= 1
            u = requests[r].next if places > 0 else -1
        if not passed_over:
            needed += more
    return paused


@kernel
def _share_out(sim, w):
    """Give the contexts listed in the batch their shares of the budget; those without any leave it."""
    worker = sim.workers[w]
    listed = worker.batch_size
    worker.batch_size = 0
    left = sim.config.chunk_tokens - worker.decoding
    k = 0
    while k < listed and left > 0:
        left = _share(sim, w, sim.batch[w, k], left)
        k += 1


@kernel
def _everyone_fits(sim, w):
    """Whether all decodes find their pages, and no waiting request is looked at before a started one."""
    worker = sim.workers[w]
    if worker.decoding > 0 and lists.pages_due(sim, w, 0) > sim.trees[w].free_pages:
        return False
    if worker.running == 0 or worker.waiting == 0 or worker.running == sim.config.max_running:
        return True
    return sim.requests[worker.running_tail].order < sim.requests[worker.waiting_head].order


@kernel
def _begin(sim, w, now):
    """Start those in the batch that wait; a share is cut to what is not cached. Then the decodes take their pages."""
    worker = sim.workers[w]
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        request = sim.requests[r]
        if request.state == la.WAITING:
            memory.start(sim, w, now, r)
        missing = memory.known_tokens(sim, r) - request.computed
        request.chunk = min(request.chunk, missing)
        request.part = la.PROMPT_ENDS if request.chunk == missing else la.PROMPT_GOES_ON
        worker.prefill_tokens += request.chunk
    if worker.decoding > 0:
        memory.take_decode_pages(sim, w, now, lists.pages_due(sim, w, 0))


@kernel
def compose(sim, w, now):
    """Compose the next batch at ``now``.

    Returns (whether decodes may go on without another pass until one ends, whether a request was paused).
    """
    worker = sim.workers[w]
    worker.batch_size = 0
    worker.full = 0
    _note_pages_in_progress(sim, w)
    steady = False
    paused = False
    if sim.config.capacity_policy == la.GUARANTEED_NO_EVICT:
        steady = _fill(sim, w, sim.trees[w].free_pages - worker.promised_pages + worker.allocated_pages)
    elif _everyone_fits(sim, w):
        due = lists.pages_due(sim, w, 0) if worker.decoding > 0 else 0
        steady = _fill(sim, w, sim.trees[w].free_pages - due)
    else:
        paused = _pause_and_fill(sim, w)
        _share_out(sim, w)
    _begin(sim, w, now)
    return steady, paused
