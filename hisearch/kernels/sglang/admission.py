"""SGLang's admission: whether a waiting request, or a first chunk of it, fits into the budget of a prefill pass."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix, tree
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.hicache import prefetch
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import components as cl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.sglang import memory, running
from hisearch.kernels.sglang.components import state_requests, window_requests
from hisearch.kernels.sglang.memory import CLIP_OUTPUT_TOKENS
from hisearch.kernels.traffic import fair_share, lists

# Verdicts: go on; memory is short, so that the batch is marked full; a budget of the pass is used up.
# PASS_OVER: the request is looked up in storage again.
CONTINUE, NO_TOKEN, OTHER, PASS_OVER = 0, 1, 2, 3


@kernel
def open_budget(sim, w, in_flight, sure_in_flight):
    """Set the budget of a pass. ``in_flight``, ``sure_in_flight``: see ``sglang.running.join_last_prefill``."""
    worker = sim.workers[w]
    mixed_decodes = worker.running if sim.config.mixed_chunk else 0
    estimated, sure = running.tokens_to_come(sim, w)
    worker.reserved_tokens = mixed_decodes + sure + sure_in_flight + (estimated + in_flight) * worker.ratio
    worker.taken_tokens = mixed_decodes
    worker.input_left = sim.config.max_prefill_tokens - mixed_decodes
    worker.chunk_left = sim.config.chunk_tokens - mixed_decodes if sim.config.chunked_prefill else la.NEVER
    worker.window_taken_tokens = 0


@kernel
def _available_tokens(sim, w):
    """Tokens free or evictable."""
    cache = sim.trees[sim.workers[w].cache_id]
    return (cache.free_pages + cache.evictable_pages) * sim.config.page_tokens


@kernel
def total_left(sim, w):
    """Tokens free or evictable beyond what is reserved for outputs to come."""
    return _available_tokens(sim, w) - sim.workers[w].reserved_tokens


@kernel
def _round_up_to_pages(sim, tokens):
    page = sim.config.rank_page_tokens
    return -(-tokens // page) * page


@kernel
def cut_off(sim, w):
    """Let a prompt that was cut before another one in this pass end there: the engine notes one as unfinished.

    It happens without radix cache, where a pinned prompt takes what a prompt cut to full pages has left of the budget,
    and where the windows' pool is so small that it cuts a prompt.
    """
    worker = sim.workers[w]
    for k in range(worker.batch_size):
        r = sim.prompts[running.newest(sim, w) ^ 1, k]
        request = sim.requests[r]
        if request.chunk_kind == la.PROMPT_GOES_ON:
            request.chunk_kind = la.PROMPT_ENDS
            request.cut_tokens = sim.trace.input_tokens[r] + request.generated - request.computed - request.chunk


@kernel
def _add(sim, w, r, extend, tokens, complete):
    """Put ``extend`` tokens of ``r`` into the batch and charge the budget for ``tokens``, in a rank's full pages.

    Memory is charged pages of all ranks. A chunk that does not end its prompt reserves no output.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    if not complete and (not sim.config.prefix_caching or sim.config.window_tokens):
        cut_off(sim, w)
    request.chunk = extend
    request.chunk_kind = la.PROMPT_ENDS if complete else la.PROMPT_GOES_ON
    sim.prompts[running.newest(sim, w) ^ 1, worker.batch_size] = r
    worker.batch_size += 1
    worker.prefill_tokens += extend
    output = min(memory.max_new(sim, r), CLIP_OUTPUT_TOKENS) if complete else 0
    held = (lists.pages(sim, tokens) + (1 if sim.config.charges_page else 0)) * sim.config.page_tokens
    if sim.config.window_tokens:
        worker.window_taken_tokens += window_requests.tokens_at_most(sim, tokens, output, worker.chunk_left)
    worker.reserved_tokens += held + output
    worker.taken_tokens += held
    worker.input_left -= tokens
    worker.chunk_left -= tokens


@kernel
def go_on(sim, w):
    """Add the next chunk of the request in progress, even if memory is short; where windows lack it, it waits."""
    worker = sim.workers[w]
    r = worker.chunked
    extend = sim.trace.input_tokens[r] + sim.requests[r].generated - sim.requests[r].computed
    headroom = min(worker.chunk_left, int(total_left(sim, w)))
    if sim.config.window_tokens:
        headroom = min(headroom, window_requests.left(sim, w) - sim.config.page_tokens)
        if headroom <= 0:
            sim.requests[r].chunk = 0
            return
    if headroom <= 0:
        headroom = worker.chunk_left
    chunk = min(extend, headroom)
    _add(sim, w, r, chunk, _round_up_to_pages(sim, chunk), extend <= headroom)


@kernel
def verdict(sim, w):
    """Verdict by what is left of the budget."""
    worker = sim.workers[w]
    if total_left(sim, w) <= 0 or _available_tokens(sim, w) - worker.taken_tokens <= 0:
        return NO_TOKEN
    if sim.config.window_tokens and window_requests.left(sim, w) <= 0:
        return NO_TOKEN
    return OTHER if worker.input_left <= 0 or worker.chunk_left <= 0 else CONTINUE


@kernel
def _admit(sim, w, r, now, hit_tokens, loaded, extend, tokens, complete):
    """Dequeue ``r`` and put ``extend`` of its tokens, from ``computed`` on, into the batch (see ``_add``)."""
    if sim.config.counts_service:
        fair_share.admit(sim, w, r)
    lists.note_scheduled(sim, r, now, hit_tokens, loaded)
    lists.stop_waiting(sim, w, r)
    if sim.tiers.storage and sim.config.fetches_by_hits:
        prefetch.cancel(sim, w, r)
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.LOAD, w, r, now)
    _add(sim, w, r, extend, tokens, complete)
    return verdict(sim, w)


@kernel
def _release_objects(sim, w, r, now):
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.LET_GO, w, r, now)


@kernel
def _exceeds_input(sim, w, tokens):
    """Whether a prompt of which ``tokens`` are missing, in full pages, exceeds what is left of max_prefill_tokens."""
    worker = sim.workers[w]
    if sim.config.bounds_uncut_input and sim.config.chunked_prefill:
        return False
    return tokens >= worker.input_left and worker.batch_size > 0


@kernel
def _goes(sim, w, tokens, limit, cut):
    """Whether a pass lets in such a prompt, of which it computes ``limit`` tokens at most, or ``cut`` tokens of it."""
    return not _exceeds_input(sim, w, tokens) and (tokens <= limit or cut > 0)


@kernel
def _look_up(sim, w, r, limit):
    """Match at most ``limit`` known tokens of ``r``: (tokens, node at their end)."""
    if not sim.config.component:
        return radix.walk(sim, sim.workers[w].cache_id, lists.path_end(sim, r), limit)
    tokens, d, full = prefixes.walk_components(sim, w, lists.path_end(sim, r), limit)
    branch = full
    if sim.config.component == cl.STATES:
        branch = full // sim.config.state_grid_tokens * sim.config.state_grid_tokens
        state_requests.copy_matched(sim, w, r, d)
    sim.other_requests[r].branch_tokens = branch if branch > tokens else 0
    return tokens, d


@kernel
def _chunk_limit(sim, w, r, tokens):
    """Most tokens that this pass computes of ``r``, of which ``tokens`` are missing, in full pages; 0: it waits."""
    limit = sim.workers[w].chunk_left
    if not sim.config.window_tokens:
        return limit
    output = min(max(memory.max_new(sim, r) - sim.requests[r].generated, 0), CLIP_OUTPUT_TOKENS)
    return window_requests.chunk_limit(sim, w, tokens, output, limit)


@kernel
def try_admit(sim, w, r, now):
    """Test the first waiting request and, if it fits, add it or its first chunk to the batch.

    Returns the verdict; whether it was added shows in ``batch_size``.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    if memory.plays_out_ends(sim, r):
        request.missing_tokens = sim.trace.input_tokens[r] + request.generated
        return _try_by_ends(sim, w, r, now) if worker.batch_size < sim.config.max_prefills else OTHER
    known = sim.trace.input_tokens[r] + request.generated
    hit_tokens, d, on_host, host_node = 0, worker.cache_id, 0, worker.cache_id
    if sim.config.hicache:
        hit_tokens, d, on_host, host_node = hicache_nodes.walk(
            sim, w, lists.path_end(sim, r), tree.floor_page(sim, known - 1 - sim.config.keys_pairs)
        )
    elif sim.config.prefix_caching:
        hit_tokens, d = _look_up(sim, w, r, tree.floor_page(sim, known - 1 - sim.config.keys_pairs))
    request.missing_tokens = known - hit_tokens
    if sim.tiers.storage and sim.config.fetches_by_hits and prefetch.lost_prefix(sim, w, r, hit_tokens + on_host):
        return PASS_OVER
    if worker.batch_size >= sim.config.max_prefills:
        return OTHER
    total = known - hit_tokens + min(max(memory.max_new(sim, r) - request.generated, 0), CLIP_OUTPUT_TOKENS)
    if sim.config.needs_page:
        total += sim.config.rank_page_tokens
    if sim.config.objects:
        total += engine_calls.call_engine(sim.config.objects, sim, al.MISSING, w, r, now)
    if total >= total_left(sim, w):
        return NO_TOKEN
    tokens = _round_up_to_pages(sim, known - hit_tokens - on_host)
    if not sim.config.bounds_uncut_input and _exceeds_input(sim, w, tokens):
        return OTHER
    prefixes.lock(sim, w, r, d)
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.HOLD, w, r, now)
    # The matched prefix is no longer evictable.
    limit = _chunk_limit(sim, w, r, tokens)
    fits = total < total_left(sim, w) and (limit > 0 or not sim.config.window_tokens)
    cut = limit // sim.config.rank_page_tokens * sim.config.rank_page_tokens
    goes = not sim.config.bounds_uncut_input or _goes(sim, w, tokens, limit, cut)
    if not fits or not goes:
        prefixes.unlock(sim, w, r, d)
        _release_objects(sim, w, r, now)
        return OTHER if fits else NO_TOKEN
    request.node = d
    request.locked_tokens = hit_tokens
    request.computed = hit_tokens
    loaded = 0
    if on_host > 0:
        loaded = memory.load_back(sim, w, r, host_node, on_host)
        if not sim.config.bounds_uncut_input:
            request.missing_tokens = known - request.computed
    tokens = _round_up_to_pages(sim, known - request.computed)
    if not _goes(sim, w, tokens, limit, cut):
        # Loaded tokens stay.
        prefixes.unlock(sim, w, r, request.node)
        _release_objects(sim, w, r, now)
        request.node = sim.workers[w].cache_id
        request.locked_tokens = 0
        request.computed = 0
        return OTHER
    if tokens <= limit:
        return _admit(sim, w, r, now, hit_tokens, loaded, known - request.computed, tokens, True)
    return _admit(sim, w, r, now, hit_tokens, loaded, cut, cut, False)


@kernel
def _collect_end(sim, w, count, tokens_left, tokens_held):
    """Insert an end after those with at most as many tokens left; returns the number of ends."""
    if tokens_left <= 0:
        return count
    tokens_left_of = sim.ends[2 * w]
    tokens_held_of = sim.ends[2 * w + 1]
    k = count
    while k > 0 and tokens_left_of[k - 1] > tokens_left:
        tokens_left_of[k] = tokens_left_of[k - 1]
        tokens_held_of[k] = tokens_held_of[k - 1]
        k -= 1
    tokens_left_of[k] = tokens_left
    tokens_held_of[k] = tokens_held
    return count + 1


@kernel
def _tokens_left(sim, w, r, generated):
    """Output tokens that ``r`` has left: those that it declared, unless it is pinned the new-token ratio of them."""
    ratio = 1.0 if sim.pinned[r] else sim.workers[w].ratio
    return memory.max_new(sim, r) * ratio - generated


@kernel
def _collect_ends(sim, w, r):
    """Collect (tokens left, tokens held) of ``r``, the running requests and those in the batch, by tokens left."""
    worker = sim.workers[w]
    trace = sim.trace
    generated = sim.requests[r].generated
    count = _collect_end(sim, w, 0, _tokens_left(sim, w, r, generated), trace.input_tokens[r] + generated)
    q = worker.running_head
    while q >= 0:
        finished = sim.requests[q].outcome == la.FINISHED
        generated = trace.output_tokens[q] if finished else running.known_generated(sim, w, q)
        count = _collect_end(sim, w, count, _tokens_left(sim, w, q, generated), trace.input_tokens[q] + generated)
        q = sim.requests[q].next
    for k in range(worker.batch_size):
        q = sim.prompts[running.newest(sim, w) ^ 1, k]
        generated = sim.requests[q].generated
        count = _collect_end(sim, w, count, _tokens_left(sim, w, q, generated), trace.input_tokens[q] + generated)
    worker.ends = count


@kernel
def _insert_end(sim, w, r):
    """Insert the end of ``r``. Like the engine's, it stops at the last position even if ``r`` has most tokens left."""
    worker = sim.workers[w]
    generated = sim.requests[r].generated
    tokens_left = _tokens_left(sim, w, r, generated)
    if tokens_left <= 0:
        return
    tokens_left_of = sim.ends[2 * w]
    tokens_held_of = sim.ends[2 * w + 1]
    k_new = 0
    while k_new < worker.ends - 1 and tokens_left > tokens_left_of[k_new]:
        k_new += 1
    for k in range(worker.ends, k_new, -1):
        tokens_left_of[k] = tokens_left_of[k - 1]
        tokens_held_of[k] = tokens_held_of[k - 1]
    tokens_left_of[k_new] = tokens_left
    tokens_held_of[k_new] = sim.trace.input_tokens[r] + generated
    worker.ends += 1


@kernel
def _ends_fit(sim, w, free):
    """Play out the ends: at each, the free tokens must exceed (tokens left + 1) * requests still running."""
    count = sim.workers[w].ends
    for k in range(count):
        running_left = count - k
        if free - sim.ends[2 * w, k] * running_left <= running_left:
            return False
        free += sim.ends[2 * w + 1, k]
    return True


@kernel
def _try_by_ends(sim, w, r, now):
    """``try_admit`` without radix cache, for pinned outputs."""
    worker = sim.workers[w]
    request = sim.requests[r]
    extend = sim.trace.input_tokens[r] + request.generated
    tokens = _round_up_to_pages(sim, extend) + (sim.config.rank_page_tokens if sim.config.needs_page else 0)
    now_left = _available_tokens(sim, w) - worker.taken_tokens
    if tokens > min(now_left, total_left(sim, w)):
        return NO_TOKEN
    if sim.config.window_tokens:
        output = min(max(memory.max_new(sim, r) - request.generated, 0), CLIP_OUTPUT_TOKENS)
        if window_requests.tokens_at_most(sim, extend, output, worker.chunk_left) > window_requests.left(sim, w):
            return NO_TOKEN
    else:
        if worker.ends < 0:
            _collect_ends(sim, w, r)
        else:
            _insert_end(sim, w, r)
        if not _ends_fit(sim, w, now_left - tokens):
            return NO_TOKEN
    if worker.chunk_left <= 0:
        return OTHER
    radix.lock(sim, sim.workers[w].cache_id, sim.workers[w].cache_id)
    request.node = sim.workers[w].cache_id
    request.locked_tokens = 0
    request.computed = 0
    # The engine compares full pages. That differs only in mixed mode, where it would cut after the end.
    chunk = min(extend, worker.chunk_left)
    return _admit(sim, w, r, now, 0, 0, chunk, _round_up_to_pages(sim, chunk), extend <= worker.chunk_left)
