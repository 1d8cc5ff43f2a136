"""What SGLang's requests hold: private pages and pages of the radix cache.

A request's first ``locked_tokens`` tokens belong to the tree; the rest of its computed tokens are private. With drafted
tokens it has ``reserved_tokens`` of them, more than are computed. Where keys are pairs of tokens (``keys_pairs``), the
tree has one less than the tokens that a request offers.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix, tree
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.hicache import copies as hicache_copies
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import components as cl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.sglang import drafted
from hisearch.kernels.sglang.components import state_requests, window_requests
from hisearch.kernels.traffic import lists

#: Output tokens that admission reserves per request at most (CLIP_MAX_NEW_TOKENS).
CLIP_OUTPUT_TOKENS = 4096
#: Tokens of the pool that the engine withholds from any prompt (max_req_input_len).
SPARE_INPUT_TOKENS = 6


@kernel
def plays_out_ends(sim, r):
    """Whether admission of ``r`` plays out the requests' ends: radix cache off and its output length pinned."""
    return sim.pinned[r] != 0 and sim.config.prefix_caching == 0


@kernel
def _longest_tokens(sim, r):
    """Most prompt and output tokens of one request: the engine clips them to two less than the pool (max_req_len).

    When ends are played out, computed tokens are rounded up to pages: a longer request might wait for ever.
    """
    spare = sim.config.rank_page_tokens if plays_out_ends(sim, r) else 1
    return sim.config.capacity_pages * sim.config.page_tokens - 1 - spare


@kernel
def max_new(sim, r):
    """The declared output limit. The pool can hold it (``never_fits``), so the engine does not clip it."""
    return sim.trace.max_output_tokens[r]


@kernel
def _insert(sim, w, r, trace_node, tokens, chunk):
    """Put the first ``tokens`` tokens of ``r`` into the tree; returns how many were there, and their last node."""
    request = sim.requests[r]
    priority = sim.trace.priority[r]
    counted_from = 0
    if sim.config.counts_hits_once:
        counted_from = request.inserted_tokens
        request.inserted_tokens = max(counted_from, tokens)
    elif chunk:
        counted_from = la.NEVER
    present, d = prefixes.insert(sim, w, trace_node, tokens, priority, counted_from)
    prompt_tokens = tree.floor_page(sim, sim.trace.input_tokens[r] - sim.config.keys_pairs)
    if sim.config.splits_at_prompt and 0 < prompt_tokens < tokens:
        prefixes.insert(sim, w, sim.trace.prompt_node[r], prompt_tokens, priority + 1, la.NEVER)
    return present, d


@kernel
def _keep_components(sim, w, r, finished):
    """Move full pages of ``r`` to a tree over two pools; ``r`` keeps holding them."""
    request = sim.requests[r]
    if sim.config.component == cl.WINDOWS:
        tokens = window_requests.keep(sim, w, r, request.inserted_tokens, finished)
    else:
        tokens = state_requests.keep(sim, w, r, request.inserted_tokens, finished)
    request.inserted_tokens = max(request.inserted_tokens, tokens)


@kernel
def keep_unfinished(sim, w, r, chunk):
    """After a prefill or a chunk of it: move its full pages to the tree; ``r`` keeps holding them.

    ``computed`` includes it.
    """
    if not sim.config.prefix_caching:
        return
    request = sim.requests[r]
    if sim.config.component:
        _keep_components(sim, w, r, False)
        return
    tokens = tree.floor_page(sim, request.computed - sim.config.keys_pairs)
    trace_node = lists.path_at(sim, w, r, tokens) if chunk else lists.path_end(sim, r)
    present, d = _insert(sim, w, r, trace_node, tokens, chunk)
    sim.trees[sim.workers[w].cache_id].free_pages += (present - request.locked_tokens) // sim.config.page_tokens
    if not sim.config.splits_at_prompt:
        _, d = prefixes.walk(sim, w, trace_node, tokens)
    radix.unlock(sim, sim.workers[w].cache_id, request.node)
    radix.lock(sim, sim.workers[w].cache_id, d)
    request.node = d
    request.locked_tokens = tokens


@kernel
def drop(sim, w, r):
    """Free ``r``'s private pages and release those of the tree and its objects."""
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.LET_GO, w, r, 0.0)
    request = sim.requests[r]
    pages = lists.pages(sim, max(request.computed, request.reserved_tokens))
    sim.trees[sim.workers[w].cache_id].free_pages += pages - request.locked_tokens // sim.config.page_tokens
    if sim.config.component == cl.WINDOWS:
        window_requests.drop(sim, w, r, pages)
    elif sim.config.component == cl.STATES:
        state_requests.drop(sim, w, r)
    radix.unlock(sim, sim.workers[w].cache_id, request.node)
    request.node = sim.workers[w].cache_id
    request.locked_tokens = 0
    request.inserted_tokens = 0
    request.reserved_tokens = 0


@kernel
def keep_finished(sim, w, r):
    """Finish ``r``: move full pages to the tree, free the rest."""
    request = sim.requests[r]
    if sim.config.prefix_caching and sim.config.component:
        _keep_components(sim, w, r, True)
    elif sim.config.prefix_caching:
        tokens = tree.floor_page(sim, request.computed - sim.config.keys_pairs)
        present, _ = _insert(sim, w, r, lists.path_end(sim, r), tokens, False)
        sim.trees[sim.workers[w].cache_id].free_pages += (present - request.locked_tokens) // sim.config.page_tokens
        request.locked_tokens = tokens
    drop(sim, w, r)


@kernel
def load_back(sim, w, r, d, tokens):
    """Load into HBM all or none of the ``tokens`` host-only tokens up to the end of node ``d``.

    ``r`` then holds the tokens up to there. Returns the tokens loaded.
    """
    request = sim.requests[r]
    if not hicache_copies.load_back(sim, w, d, tokens):
        return 0
    radix.lock(sim, sim.workers[w].cache_id, d)
    radix.unlock(sim, sim.workers[w].cache_id, request.node)
    request.node = d
    request.locked_tokens += tokens
    request.computed += tokens
    return tokens


@kernel
def never_fits(sim, r):
    """Whether the pool is too small for the prompt, or for the declared output, which the engine would clip."""
    capacity = sim.config.capacity_pages * sim.config.page_tokens
    prompt = sim.trace.input_tokens[r]
    declared = prompt + sim.trace.max_output_tokens[r]
    if sim.config.objects and engine_calls.call_engine(sim.config.objects, sim, al.TOO_LARGE, 0, r, 0.0):
        return True
    if sim.config.needs_page:
        # A page more than its own pages: from 0.5.21 on the engine clips the output to what leaves it.
        page = sim.config.page_tokens
        if sim.trace.max_output_tokens[r] > capacity - (lists.pages(sim, prompt) + 1) * page - 1:
            return True
    if sim.config.window_tokens and window_requests.never_fits(
        sim, lists.pages(sim, prompt) * sim.config.page_tokens, min(sim.trace.max_output_tokens[r], CLIP_OUTPUT_TOKENS)
    ):
        return True
    # The engine gives up a request for whose last step the pool has too little.
    if sim.config.draft_tokens > 0 and declared > prompt + 1 and drafted.lacks_pages(sim, declared - 2):
        return True
    return prompt >= capacity - SPARE_INPUT_TOKENS or declared > _longest_tokens(sim, r)
