"""What SGLang's requests have of the windows' pool.

A request has window KV for its tokens from ``freed_tokens`` on; the first ``locked_tokens`` of them are the tree's. It
frees what is out of the window when it puts tokens into the tree, and while it decodes whenever that is an interval
(``WINDOW_EVICTION_INTERVAL``) of tokens.

A look-up may find more KV of full attention than can be reused. The request then ends its first insertion behind what
was found (``branch_tokens``), so that the window before that place has KV from now on.

Source: ``mem_cache.common.free_swa_out_of_window_slots`` and ``components.swa`` (0.5.23).
"""

from __future__ import annotations

from hisearch.base.engine_rules import WINDOW_EVICTION_INTERVAL
from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix, tree
from hisearch.kernels.sglang.components import windows
from hisearch.kernels.traffic import lists


@kernel
def lock(sim, w, r, d):
    """Let ``r`` hold the window before the end of node ``d``."""
    sim.other_requests[r].held_from = windows.lock(sim, sim.workers[w].cache_id, d)


@kernel
def unlock(sim, w, r, d):
    """Let ``r`` release it."""
    windows.unlock(sim, sim.workers[w].cache_id, d, sim.other_requests[r].held_from)


@kernel
def _free_out_of_window(sim, w, r, computed):
    """Free the window KV of ``r`` that its tokens behind the first ``computed`` do not see.

    With prefix caching whole pages that cover the window stay, so that a match may end there.
    """
    window = sim.config.window_tokens
    page = sim.config.page_tokens
    mine = sim.other_requests[r]
    if computed - window < mine.freed_tokens + 1:
        return
    mine.freed_tokens = max(mine.freed_tokens, sim.requests[r].locked_tokens)
    kept = (max(window, page) + page - 1) // page * page if sim.config.prefix_caching else window
    end = tree.floor_page(sim, max(mine.freed_tokens, computed - kept))
    sim.other_pools[sim.workers[w].cache_id].free += (end - mine.freed_tokens) // page
    mine.freed_tokens = end


@kernel
def slide(sim, w, r, known):
    """Free what has left the window of the decoding ``r``, of which ``known`` tokens are known, if it is enough."""
    if known - 1 - sim.config.window_tokens >= sim.other_requests[r].freed_tokens + WINDOW_EVICTION_INTERVAL:
        _free_out_of_window(sim, w, r, known - 1)


@kernel
def slide_prompt(sim, w, r):
    """Without prefix caching: free what has left the window of a prompt whose next chunk begins.

    With overlap the chunk before it may still be computed.
    """
    mine = sim.other_requests[r]
    mine.prompt_steps += 1
    if sim.config.prefix_caching or (sim.config.overlap and mine.prompt_steps <= 2):
        return
    ahead = sim.config.chunk_tokens if sim.config.overlap and sim.config.chunked_prefill else 0
    _free_out_of_window(sim, w, r, sim.requests[r].computed - ahead)


@kernel
def steps_to_slide(sim, r, known):
    """Decode steps until ``r``, of which ``known`` tokens are known, frees window KV."""
    return sim.other_requests[r].freed_tokens + WINDOW_EVICTION_INTERVAL + sim.config.window_tokens + 1 - known


@kernel
def keep(sim, w, r, counted_from, finished):
    """Put the computed full pages of ``r`` into the tree; it holds them then. ``computed`` includes them."""
    request = sim.requests[r]
    mine = sim.other_requests[r]
    v = sim.workers[w].cache_id
    branches = request.locked_tokens < mine.branch_tokens <= request.computed
    offered = mine.branch_tokens if branches else request.computed
    if not finished:
        _free_out_of_window(sim, w, r, offered - 1)
    tokens = tree.floor_page(sim, offered)
    present, d, spare = windows.insert(
        sim,
        v,
        lists.path_end(sim, r),
        tokens,
        sim.trace.priority[r],
        counted_from,
        request.locked_tokens,
        mine.freed_tokens,
    )
    sim.trees[v].free_pages += (present - request.locked_tokens) // sim.config.page_tokens
    sim.other_pools[v].free += spare
    windows.unlock(sim, v, request.node, mine.held_from)
    radix.unlock(sim, v, request.node)
    radix.lock(sim, v, d)
    mine.held_from = windows.lock(sim, v, d)
    request.node = d
    request.locked_tokens = tokens
    if branches:
        mine.branch_tokens = 0
        if not finished:
            _free_out_of_window(sim, w, r, request.computed - 1)
    return tokens


@kernel
def drop(sim, w, r, pages):
    """Free the window KV of ``r`` that is not the tree's, and release that; ``r`` has ``pages`` pages in all."""
    request = sim.requests[r]
    mine = sim.other_requests[r]
    begin = max(mine.freed_tokens, request.locked_tokens) // sim.config.page_tokens
    sim.other_pools[sim.workers[w].cache_id].free += pages - begin
    unlock(sim, w, r, request.node)
    mine.freed_tokens = 0
    mine.held_from = 0
    mine.branch_tokens = 0
    mine.prompt_steps = 0


# ---- admission -------------------------------------------------------------------------------------------------------


@kernel
def tokens_at_most(sim, extend, output, limit):
    """Window tokens that a prompt of which ``extend`` tokens are computed takes at most, in chunks of ``limit``.

    ``output``: tokens that it may generate. A page is for rounding.
    Source: ``mem_cache.prefill_budget.estimate_swa_kv_tokens``.
    """
    window = sim.config.window_tokens
    return max(min(extend, limit) - window, 0) + min(extend + output, window) + sim.config.page_tokens


@kernel
def left(sim, w):
    """Window tokens that are free or evictable, less what this pass has set aside."""
    pool = sim.other_pools[sim.workers[w].cache_id]
    tokens = (pool.free + pool.evictable) * sim.config.page_tokens
    return tokens - sim.workers[w].window_taken_tokens


@kernel
def chunk_limit(sim, w, extend, output, limit):
    """Most tokens of a chunk that the window's pool lets a waiting request compute; 0: it waits.

    ``extend``: tokens to compute, in full pages. Where all of them can never be there at once, chunks are shorter.
    """
    needed = tokens_at_most(sim, extend, output, limit)
    if needed < left(sim, w):
        return limit
    page = sim.config.page_tokens
    if not sim.config.chunked_prefill or needed < sim.config.other_capacity * page:
        return 0
    spare = left(sim, w) - tokens_at_most(sim, 0, output, 0)
    return min(limit, max(spare // page * page, 0))


@kernel
def never_fits(sim, extend, output):
    """Whether not even an empty pool lets such a request start; the engine would try it for ever."""
    page = sim.config.page_tokens
    capacity = sim.config.other_capacity * page
    limit = sim.config.chunk_tokens if sim.config.chunked_prefill else extend
    if tokens_at_most(sim, extend, output, limit) < capacity:
        return False
    return not sim.config.chunked_prefill or capacity - tokens_at_most(sim, 0, output, 0) < page
