"""TensorRT-LLM: what a request holds and leaves to be reused, and how it loses it.

Pages lie in the free queue of ``queue``: free ones, cached or not, are taken from its front, and a request gives its
own back last page first. A prompt takes all of its pages at its start. Its full pages go into the reuse tree when its
last chunk is computed, those of the output when the request leaves. A page that is in the tree already by then is
given up for the one there, or takes the place of one in host memory, so that a request's first ``locked_tokens``
tokens are always a way of the tree, all of it in HBM.

``WORKER.allocated_pages`` counts the pages of started requests, a shared one for each; ``promised_pages`` those that
they would have at their declared lengths.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue, tree
from hisearch.kernels.engine import log, ordered
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.trtllm import host


@kernel
def known_tokens(sim, r):
    """Prompt and output so far of ``r``, which does not decode."""
    return sim.trace.input_tokens[r] + sim.requests[r].generated


@kernel
def declared_pages(sim, r):
    """Pages of prompt and declared output, all that the engine may know of the length of ``r`` (L5)."""
    return lists.pages(sim, sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r])


@kernel
def never_fits(sim, r):
    """True where prompt and declared output exceed the pool, or a prompt that is not cut exceeds one step's budget.

    A pause makes a prompt of all that is known.
    """
    longest = sim.trace.input_tokens[r]
    if sim.config.capacity_policy == la.MAX_UTILIZATION:
        longest += sim.trace.max_output_tokens[r]
    if not sim.config.chunked_prefill and longest > sim.config.chunk_tokens:
        return True
    return declared_pages(sim, r) > sim.config.capacity_pages


@kernel
def store(sim, w, r, tokens):
    """Put the full pages among ``r``'s first ``tokens`` tokens into the reuse tree."""
    if not sim.config.prefix_caching:
        return
    request = sim.requests[r]
    begin = request.locked_tokens
    end = tree.floor_page(sim, tokens)
    if end <= begin:
        return
    trace_node = lists.path_end(sim, r)
    cached, _ = tree.match(sim, w, trace_node, end)
    if cached > begin:
        _, on_host, node = host.hold(sim, w, trace_node, cached)
        queue.push_empty(sim, w, (cached - on_host - begin) // sim.config.page_tokens)
        host.supersede(sim, w, on_host)
        queue.unlock(sim, w, request.node, -1)
        request.node = node
    if end > cached:
        request.node = queue.grow(sim, w, request.node, trace_node, cached, end)
    request.locked_tokens = end


@kernel
def start(sim, w, now, r):
    """Let ``r`` hold what is cached of all its tokens but the last, all in HBM, and pages for the rest of them."""
    worker = sim.workers[w]
    request = sim.requests[r]
    known = known_tokens(sim, r)
    limit = tree.floor_page(sim, known - 1) if sim.config.prefix_caching else 0
    trace_node = lists.path_end(sim, r)
    found, on_host, request.node = host.hold(sim, w, trace_node, limit)
    request.locked_tokens = found
    request.computed = found
    host.onboard(sim, w, now, on_host)
    host.take(sim, w, now, lists.pages(sim, known) - found // sim.config.page_tokens)
    worker.allocated_pages += lists.pages(sim, known)
    worker.promised_pages += declared_pages(sim, r)
    lists.note_scheduled(sim, r, now, found - on_host, on_host)
    lists.stop_waiting(sim, w, r)
    ordered.run(sim, w, r)
    request.state = la.ADMITTED


@kernel
def take_decode_pages(sim, w, now, pages):
    """Take what the decoding requests need."""
    host.take(sim, w, now, pages)
    sim.workers[w].allocated_pages += pages


@kernel
def release(sim, w, r, allocated, reusable):
    """Give back the pages of ``r``'s ``allocated`` tokens; what its first ``reusable`` ones fill can still be found."""
    worker = sim.workers[w]
    request = sim.requests[r]
    store(sim, w, r, reusable)
    queue.push_empty(sim, w, lists.pages(sim, allocated) - request.locked_tokens // sim.config.page_tokens)
    queue.unlock(sim, w, request.node, -1)
    worker.allocated_pages -= lists.pages(sim, allocated)
    worker.promised_pages -= declared_pages(sim, r)
    request.node = w
    request.locked_tokens = 0


@kernel
def pause(sim, w, r):
    """``r`` loses its pages and waits again in its place; what it has made becomes part of its prompt.

    Every decode takes part in every step: where a step is outstanding, its newest token is not known yet.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.state == la.DECODING:
        request.last_token_s = worker.newest_end_s
        lists.leave_decode(sim, w, r)
        in_flight = 1 if worker.outstanding > 0 else 0
        release(sim, w, r, request.computed, request.computed - in_flight)
    else:
        ordered.remove_prompt(sim, w, r)
        release(sim, w, r, known_tokens(sim, r), request.computed)
    lists.stop_running(sim, w, r)
    request.state = la.WAITING
    request.computed = 0
    request.preemptions += 1
    worker.preemptions += 1
    log.lost(sim, r)
    ordered.wait(sim, w, r)
