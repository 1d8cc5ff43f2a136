"""SGLang's prefill batch: which waiting requests, or chunks of them, fit into the budgets of one pass."""

from __future__ import annotations

from hisearch.kernels import layout as la
from hisearch.kernels import lists, radix, tree
from hisearch.kernels import sglang_memory as memory
from hisearch.kernels.jit import kernel

#: Output tokens that admission reserves per request at most (CLIP_MAX_NEW_TOKENS).
CLIP_OUTPUT_TOKENS = 4096

# Verdicts of an admission test.
_CONTINUE, _NO_TOKEN, _OTHER = 0, 1, 2


@kernel
def _reserved_tokens(sim, w):
    """Tokens set aside for the running requests' outputs to come.

    Those that linger count with what they did not use.
    """
    worker = sim.workers[w]
    reserved = 0.0
    r = worker.running_head
    while r >= 0:
        left = memory.max_new(sim, r) - lists.generated_tokens(sim, w, r)
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
    request.part = la.PROMPT_ENDS if complete else la.PROMPT_GOES_ON
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
        found, d = radix.walk(sim, w, lists.path_end(sim, r), tree.floor_page(sim, known - 1))
    max_new = memory.max_new(sim, r)
    total = known - found + min(max(max_new - request.generated, 0), CLIP_OUTPUT_TOKENS)
    if total >= _left(sim, w, reserved):
        return _NO_TOKEN, reserved, taken, input_left, chunk_left
    if lists.pages(sim, known - found) * page >= input_left and worker.batch_size > 0:
        return _OTHER, reserved, taken, input_left, chunk_left
    radix.lock(sim, w, d)
    cut = chunk_left // page * page
    fits = total < _left(sim, w, reserved)
    if not fits or (lists.pages(sim, known - found) * page > chunk_left and cut <= 0):
        radix.unlock(sim, w, d)
        return _OTHER if fits else _NO_TOKEN, reserved, taken, input_left, chunk_left
    request.node = d
    request.locked_tokens = found
    request.computed = found
    loaded = 0
    if sim.config.host_pages > 0:
        loaded = memory.load_back(sim, w, r, now)
    lists.note_scheduled(sim, r, now, found, loaded)
    extend = known - request.computed
    tokens = lists.pages(sim, extend) * page
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
    tokens = lists.pages(sim, extend) * sim.config.page_tokens
    output = min(memory.max_new(sim, r), CLIP_OUTPUT_TOKENS) if complete else 0
    return reserved + tokens + output, taken + tokens, input_left - tokens, chunk_left - tokens


@kernel
def form_prefill(sim, w, now):
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
        pages += lists.pages(sim, request.computed + request.chunk) - lists.pages(sim, request.computed)
    spare = worker.batch_size if page > 1 else 0
    # The engine asks for tokens and a spare page per request; rounded up, that is how far it evicts in whole pages.
    radix.make_room(sim, w, lists.pages(sim, tokens) + spare)
    if sim.trees[w].free_pages < pages:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    sim.trees[w].free_pages -= pages
