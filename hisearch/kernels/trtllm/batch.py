"""TensorRT-LLM: the start of a batch's contexts, its decodes, and those behind a last token.

A request *decodes once more* where only the results of a step in flight tell that it has ended: ``late_tokens`` is 1.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import front_end, lists
from hisearch.kernels.trtllm import memory


@kernel
def _decodes_on(sim, r):
    """Whether ``r``, whose last token is in flight, decodes once more: its declared limit does not tell its end."""
    if sim.config.role == fl.PREFILL:
        return False
    return not (sim.config.ends_by_length and sim.ends_by_limit[r])


@kernel
def needs_page(sim, w, r):
    """1 if the started ``r`` decodes and its next token begins a page, else 0."""
    request = sim.requests[r]
    if request.status == la.DRAINING and request.late_tokens:
        return 1 if request.computed % sim.config.page_tokens == 0 else 0
    if request.status != la.DECODING:
        return 0
    computed = sim.trace.input_tokens[r] + lists.generated_tokens(sim, w, r) - 1
    return 1 if computed % sim.config.page_tokens == 0 else 0


@kernel
def list_late(sim, w):
    """Find the requests that decode once more. Returns the pages that they need for it."""
    worker = sim.workers[w]
    worker.late = 0
    pages = 0
    r = worker.endings_new
    while r >= 0:
        request = sim.requests[r]
        if _decodes_on(sim, r):
            request.late_tokens = 1
            worker.late += 1
            pages += needs_page(sim, w, r)
        r = request.next_aside
    return pages


@kernel
def leave_out_late(sim, w, end):
    """Leave out those of order ``end`` and up."""
    r = sim.workers[w].endings_new
    while r >= 0:
        if sim.requests[r].order >= end and sim.requests[r].late_tokens:
            sim.requests[r].late_tokens = 0
            sim.workers[w].late -= 1
        r = sim.requests[r].next_aside


@kernel
def free_pages(sim, w):
    """Free pages of the KV memory of scheduler ``w``."""
    return sim.trees[sim.workers[w].cache_id].free_pages


@kernel
def budget_of(sim, w):
    """Tokens that the decodes leave to contexts."""
    worker = sim.workers[w]
    return sim.config.chunk_tokens - worker.decoding - worker.late - worker.drafted_tokens


@kernel
def missing_tokens(sim, r):
    """Tokens of context ``r`` that are not computed, or found in the cache if it has started."""
    return memory.known_tokens(sim, r) - sim.requests[r].computed


@kernel
def _put_unfinished_first(sim, w):
    """Put the contexts whose share does not end them first; both parts keep their order."""
    batch = sim.batch[w]
    front = 0
    for k in range(sim.workers[w].batch_size):
        r = batch[k]
        if sim.requests[r].chunk < missing_tokens(sim, r):
            for j in range(k, front, -1):
                batch[j] = batch[j - 1]
            batch[front] = r
            front += 1


@kernel
def _trim(sim, w):
    """Cut shares, from the last on, where less was cached than credited and the budget is exceeded.

    A share keeps a page, and ends with one.
    """
    worker = sim.workers[w]
    excess = -budget_of(sim, w)
    for k in range(worker.batch_size):
        excess += sim.requests[sim.batch[w, k]].chunk
    if excess <= 0 or not sim.config.chunked_prefill:
        return
    for k in range(worker.batch_size - 1, -1, -1):
        request = sim.requests[sim.batch[w, k]]
        end = tree.floor_page(sim, request.computed + request.chunk - excess)
        share = max(end - request.computed, sim.config.page_tokens)
        if share < request.chunk:
            excess -= request.chunk - share
            request.chunk = share
        if excess <= 0:
            break
    _put_unfinished_first(sim, w)


@kernel
def begin(sim, w, now):
    """Start the batch's waiting requests, with shares cut to uncached tokens."""
    worker = sim.workers[w]
    _put_unfinished_first(sim, w)
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        if sim.requests[r].status == la.WAITING:
            memory.start(sim, w, now, r)
        sim.requests[r].chunk = min(sim.requests[r].chunk, missing_tokens(sim, r))
    _put_unfinished_first(sim, w)
    _trim(sim, w)
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        request = sim.requests[r]
        request.chunk_kind = la.PROMPT_ENDS if request.chunk == missing_tokens(sim, r) else la.PROMPT_GOES_ON
        worker.prefill_tokens += request.chunk


@kernel
def add_late(sim, w, now):
    """Put the requests that decode once more into the batch."""
    worker = sim.workers[w]
    r = worker.endings_new
    while r >= 0:
        request = sim.requests[r]
        if request.late_tokens:
            memory.take_decode_pages(sim, w, now, needs_page(sim, w, r))
            request.chunk = 1
            request.chunk_kind = la.LISTED_DECODE
            front_end.note_in_vain(sim, w, 1)
            sim.batch[w, worker.batch_size] = r
            worker.batch_size += 1
        r = request.next_aside
