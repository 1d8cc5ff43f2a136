"""SGLang's step rule (0.5): a prefill batch runs alone, else the running batch decodes; fcfs, without overlap.

Words of the engine: a request *lingers* between the decode step in which it finished and the next decode pass, which filters it
out; until then it counts as running. The running batch is marked *full* when an admission fails, and none is tried until
something leaves it. The new-token *ratio* is the share of the running requests' declared outputs that admission reserves.
"""

from __future__ import annotations

from hisearch.kernels import heaps, lists, queue, radix, tree
from hisearch.kernels import layout as la
from hisearch.kernels.cost import batch_cost
from hisearch.kernels.jit import kernel

#: Output tokens that admission reserves per request at most (CLIP_MAX_NEW_TOKENS).
CLIP_OUTPUT_TOKENS = 4096
#: Decode steps that a retraction makes room for (SGLANG_RETRACT_DECODE_STEPS).
RETRACT_STEPS = 20
#: Load-backs of fewer tokens are not worth an operation (HiCache's load_back_threshold).
LOAD_BACK_TOKENS = 10
#: Tokens of the pool that the engine keeps from any one request (max_req_len, max_req_input_len).
SPARE_OUTPUT_TOKENS = 2
SPARE_INPUT_TOKENS = 6

# Verdicts of an admission test.
_CONTINUE, _NO_TOKEN, _OTHER = 0, 1, 2


@kernel
def _pages(sim, tokens):
    page = sim.config.page_tokens
    return (tokens + page - 1) // page


@kernel
def _path_end(sim, r):
    return sim.trace.output_node[r] if sim.requests[r].generated > 0 else sim.trace.prompt_node[r]


@kernel
def _max_new(sim, r):
    """The declared output limit, clipped to what the pool can hold."""
    longest = sim.config.capacity_pages * sim.config.page_tokens - SPARE_OUTPUT_TOKENS - sim.trace.input_tokens[r]
    return min(sim.trace.max_output_tokens[r], longest)


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


# ---- memory ----------------------------------------------------------------------------------------------------------


@kernel
def _keep_unfinished(sim, w, r):
    """After a chunk: its whole pages become the tree's, and ``r`` holds on to them. ``computed`` includes the chunk."""
    if not sim.config.prefix_caching:
        return
    request = sim.requests[r]
    static = _path_end(sim, r)
    tokens = tree.floor_page(sim, request.computed)
    present, _ = radix.insert(sim, w, static, tokens)
    sim.trees[w].free_pages += (present - request.locked_tokens) // sim.config.page_tokens
    _, d = radix.walk(sim, w, static, tokens)
    radix.unlock(sim, w, request.node)
    radix.lock(sim, w, d)
    request.node = d
    request.locked_tokens = tokens
    _back_up(sim, w, r, tokens)


@kernel
def _back_up(sim, w, r, tokens):
    if sim.config.host_pages > 0:
        queue.store(sim, sim.config.workers + w, _path_end(sim, r), tokens)


@kernel
def _drop(sim, w, r):
    """Give ``r``'s own pages back and let go of the tree's."""
    request = sim.requests[r]
    sim.trees[w].free_pages += _pages(sim, request.computed) - request.locked_tokens // sim.config.page_tokens
    radix.unlock(sim, w, request.node)
    request.node = w
    request.locked_tokens = 0


@kernel
def _keep_finished(sim, w, r):
    """At the end: whole pages to the tree, the rest becomes free."""
    request = sim.requests[r]
    if sim.config.prefix_caching:
        tokens = tree.floor_page(sim, request.computed)
        present, _ = radix.insert(sim, w, _path_end(sim, r), tokens)
        sim.trees[w].free_pages += (present - request.locked_tokens) // sim.config.page_tokens
        request.locked_tokens = tokens
        _back_up(sim, w, r, tokens)
    _drop(sim, w, r)


@kernel
def _load_back(sim, w, r, now):
    """Bring what the host tier holds beyond ``r``'s cached prefix into HBM, all or nothing. Returns the tokens loaded."""
    request = sim.requests[r]
    static = _path_end(sim, r)
    known = sim.trace.input_tokens[r] + request.generated
    on_host, _ = tree.match(sim, sim.config.workers + w, static, tree.floor_page(sim, known - 1))
    loaded = on_host - request.computed
    if loaded < LOAD_BACK_TOKENS:
        return 0
    pages = loaded // sim.config.page_tokens
    radix.make_room(sim, w, pages)
    if sim.trees[w].free_pages < pages:
        return 0
    sim.trees[w].free_pages -= pages
    _, d = radix.insert(sim, w, static, on_host)
    radix.lock(sim, w, d)
    radix.unlock(sim, w, request.node)
    request.node = d
    request.locked_tokens = on_host
    request.computed = on_host
    lists.load_back(sim, w, now, loaded)
    return loaded


# ---- admission -------------------------------------------------------------------------------------------------------


@kernel
def _reserved_tokens(sim, w):
    """Tokens set aside for the running requests' outputs to come; those that linger count with what they did not use."""
    worker = sim.workers[w]
    reserved = 0.0
    r = worker.running_head
    while r >= 0:
        left = _max_new(sim, r) - lists.generated_tokens(sim, w, r)
        reserved += min(left, CLIP_OUTPUT_TOKENS) * worker.ratio
        r = sim.requests[r].next
    return reserved


@kernel
def _left(sim, w, reserved):
    """Tokens free or evictable beyond ``reserved``."""
    cache = sim.trees[w]
    return (cache.free_pages + cache.evictable_pages) * sim.config.page_tokens - reserved


@kernel
def _add_to_batch(sim, w, r, tokens, complete):
    worker = sim.workers[w]
    request = sim.requests[r]
    request.chunk = tokens
    request.finish_clock = -1 if complete else -2
    sim.batch[w, worker.batch_size] = r
    worker.batch_size += 1
    worker.prefill_tokens += tokens


@kernel
def _try_admit(sim, w, r, now, reserved, taken, input_left, chunk_left):
    """Test the first waiting request and, if it fits, add it or its first chunk to the batch.

    Returns (verdict, reserved, taken, input_left, chunk_left) as they are afterwards; whether it was added shows in
    ``batch_size``.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    page = sim.config.page_tokens
    known = sim.trace.input_tokens[r] + request.generated
    found, d = 0, w
    if sim.config.prefix_caching:
        found, d = radix.walk(sim, w, _path_end(sim, r), tree.floor_page(sim, known - 1))
    max_new = _max_new(sim, r)
    total = known - found + min(max(max_new - request.generated, 0), CLIP_OUTPUT_TOKENS)
    if total >= _left(sim, w, reserved):
        return _NO_TOKEN, reserved, taken, input_left, chunk_left
    if _pages(sim, known - found) * page >= input_left and worker.batch_size > 0:
        return _OTHER, reserved, taken, input_left, chunk_left
    radix.lock(sim, w, d)
    cut = chunk_left // page * page
    fits = total < _left(sim, w, reserved)
    if not fits or (_pages(sim, known - found) * page > chunk_left and cut <= 0):
        radix.unlock(sim, w, d)
        return _OTHER if fits else _NO_TOKEN, reserved, taken, input_left, chunk_left
    request.node = d
    request.locked_tokens = found
    request.computed = found
    loaded = 0
    if sim.config.host_pages > 0:
        loaded = _load_back(sim, w, r, now)
    lists.note_scheduled(sim, r, now, found, loaded)
    extend = known - request.computed
    tokens = _pages(sim, extend) * page
    complete = tokens <= chunk_left
    output = min(max_new, CLIP_OUTPUT_TOKENS)
    if not complete:
        extend = cut
        tokens = cut
        output = 0
    lists.stop_waiting(sim, w, r)
    _add_to_batch(sim, w, r, extend, complete)
    reserved += tokens + output
    taken += tokens
    input_left -= tokens
    chunk_left -= tokens
    verdict = _CONTINUE
    if _left(sim, w, reserved) <= 0 or _left(sim, w, taken) <= 0:
        verdict = _NO_TOKEN
    elif input_left <= 0 or chunk_left <= 0:
        verdict = _OTHER
    return verdict, reserved, taken, input_left, chunk_left


@kernel
def _go_on(sim, w, reserved, taken, input_left, chunk_left):
    """Add the next chunk of the request begun earlier, whatever memory is left. Returns the budgets as after it."""
    worker = sim.workers[w]
    r = worker.chunked
    request = sim.requests[r]
    extend = sim.trace.input_tokens[r] + request.generated - request.computed
    room = min(chunk_left, int(_left(sim, w, reserved)))
    if room <= 0:
        room = chunk_left
    complete = extend <= room
    extend = min(extend, room)
    _add_to_batch(sim, w, r, extend, complete)
    tokens = _pages(sim, extend) * sim.config.page_tokens
    output = min(_max_new(sim, r), CLIP_OUTPUT_TOKENS) if complete else 0
    return reserved + tokens + output, taken + tokens, input_left - tokens, chunk_left - tokens


@kernel
def _form_prefill(sim, w, now):
    """Form a prefill batch if anything can be prefilled; True if there is one."""
    worker = sim.workers[w]
    running = worker.decoding + worker.lingering
    places = sim.config.max_running - running
    if worker.chunked < 0:
        if worker.full or worker.waiting == 0:
            return False
        if places <= 0:
            worker.full = 1
            return False
    reserved = _reserved_tokens(sim, w)
    taken = 0
    input_left = sim.config.max_prefill_tokens
    chunk_left = sim.config.chunk_tokens
    if worker.chunked >= 0:
        reserved, taken, input_left, chunk_left = _go_on(sim, w, reserved, taken, input_left, chunk_left)
    while worker.waiting > 0:
        if worker.batch_size >= places:
            worker.full = 1
        if worker.full:
            break
        verdict, reserved, taken, input_left, chunk_left = _try_admit(
            sim, w, worker.waiting_head, now, reserved, taken, input_left, chunk_left
        )
        if verdict == _NO_TOKEN:
            worker.full = 1
        if verdict != _CONTINUE:
            break
    if worker.batch_size == 0:
        return False
    _take_prefill_pages(sim, w)
    return True


@kernel
def _take_prefill_pages(sim, w):
    worker = sim.workers[w]
    page = sim.config.page_tokens
    tokens = 0
    pages = 0
    for k in range(worker.batch_size):
        request = sim.requests[sim.batch[w, k]]
        tokens += request.chunk
        pages += _pages(sim, request.computed + request.chunk) - _pages(sim, request.computed)
    spare = worker.batch_size if page > 1 else 0
    # The engine asks for tokens and a spare page per request; rounded up, that is how far it evicts in whole pages.
    radix.make_room(sim, w, _pages(sim, tokens) + spare)
    sim.trees[w].free_pages -= pages


# ---- decode ----------------------------------------------------------------------------------------------------------


@kernel
def _sorted_for_retraction(sim, w):
    """Fill ``batch[w]`` with the decoding requests: most generated first, then shortest prompt, then in running order."""
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
    """Retract from the end of the order, at least one and until the rest's next pages are there; the rest keep that order."""
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
        _drop(sim, w, r)
        sim.requests[r].computed = 0
        radix.make_room(sim, w, _pages(sim, RETRACT_STEPS * worker.decoding))
        sim.requests[r].preemptions += 1
        worker.preemptions += 1
        lists.wait_last(sim, w, r)
        retracted += 1
    generated = 0
    limit = 0
    for k in range(count):
        r = order[k]
        generated += lists.generated_tokens(sim, w, r)
        limit += _max_new(sim, r)
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
    """Let the running batch decode: finished requests leave, requests are retracted until the rest fits. True if any decodes."""
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
    sim.trees[w].free_pages -= lists.pages_due(sim, w, 0)
    return True


@kernel
def _coast_limit(sim, w):
    """Decode steps, the one whose pages are taken included, in which no request ends, none could enter, nothing is evicted."""
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


# ---- the worker ------------------------------------------------------------------------------------------------------


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
    prefill = _form_prefill(sim, w, now)
    decode = False
    if not prefill:
        decode = _form_decode(sim, w)
    if not prefill and not decode:
        # An idle pass resets the ratio; it may have cleared the mark that kept requests out.
        worker.ratio = initial_ratio(sim)
        prefill = _form_prefill(sim, w, now)
        if not prefill:
            worker.phase = la.IDLE
            heaps.event_clear(sim, w)
            return
    _note_peak(sim, w)
    if prefill:
        seconds = batch_cost(sim.seconds, sim.requests, sim.batch[w], worker.batch_size, 0, 0)
        worker.energy_j += batch_cost(sim.joules, sim.requests, sim.batch[w], worker.batch_size, 0, 0)
        worker.phase = la.STEPPING
        worker.step_start_s = now
        heaps.event_set(sim, w, max(now + seconds, worker.load_back_s))
    else:
        lists.plan_coast(sim, w, now, _coast_limit(sim, w))


@kernel
def _finish(sim, w, r, now):
    _keep_finished(sim, w, r)
    lists.note_finished(sim, w, r, now)


@kernel
def _complete_decode(sim, w, now):
    worker = sim.workers[w]
    steps = worker.coast_steps
    lists.account_coast(sim, w, steps)
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
    worker.steps += 1
    worker.busy_s += now - worker.step_start_s
    empty = worker.decoding + worker.lingering == 0
    joined = 0
    worker.chunked = -1
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        request = sim.requests[r]
        request.computed += request.chunk
        if request.finish_clock == -2:
            worker.chunked = r
            continue
        request.generated += 1
        if request.generated == 1:
            request.first_token_s = now
        if request.generated == sim.trace.output_tokens[r]:
            _finish(sim, w, r, now)
        else:
            # The prompt's pages are keyed by what was known before this token: a path to the prompt's end or beyond.
            _keep_unfinished(sim, w, r)
            lists.run_last(sim, w, r)
            lists.join_decode(sim, w, r)
            joined += 1
    if worker.chunked >= 0:
        _keep_unfinished(sim, w, worker.chunked)
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
        lists.cut_coast(sim, w, now)


@kernel
def never_fits(sim, r):
    """True where the engine refuses the prompt, or would cut the output short, for want of room in the whole pool."""
    capacity = sim.config.capacity_pages * sim.config.page_tokens
    prompt = sim.trace.input_tokens[r]
    return prompt >= capacity - SPARE_INPUT_TOKENS or prompt + sim.trace.output_tokens[r] > capacity - SPARE_OUTPUT_TOKENS
