"""What drafted tokens change of a request under SGLang: progress differs by request, and there is no clock.

``computed`` are the tokens with KV before the newest decode step of a request. It has pages for ``reserved_tokens``:
those of rejected drafts are kept for what comes.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import drafts, gaps
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists


@kernel
def reserve_tokens(sim):
    """Tokens behind those computed for which a decode step has pages: of this step and of the one in flight.

    Source: ``mem_cache.allocation_sizing.get_alloc_reserve_per_decode`` (0.5.23), for chains of drafts.
    """
    return 2 * (1 + sim.config.draft_tokens)


@kernel
def lacks_pages(sim, computed):
    """Whether the pool is too small for a decode step behind ``computed`` tokens of one request."""
    return lists.pages(sim, computed + reserve_tokens(sim)) > sim.config.capacity_pages


@kernel
def known_computed(sim, w, r):
    """Tokens of the running ``r`` with KV, as far as results are known."""
    request = sim.requests[r]
    if drafts.in_flight(sim, w, r) and request.prompt_step == sim.workers[w].launched_step:
        return request.computed
    return sim.trace.input_tokens[r] - request.cut_tokens + drafts.known_generated(sim, w, r) - 1


@kernel
def lose(sim, w, r):
    """Let ``r`` lose the tokens that a step in flight makes; it decodes no more."""
    request = sim.requests[r]
    if drafts.in_flight(sim, w, r) and request.made > 0 and drafts.known_generated(sim, w, r) > 0:
        gaps.add_signed(sim, request.last_token_s - request.joined_s, -1)
        request.last_token_s = request.joined_s
    request.sampled_step = -1
    request.made = 0
    request.status = la.WAITING
    sim.workers[w].decoding -= 1
