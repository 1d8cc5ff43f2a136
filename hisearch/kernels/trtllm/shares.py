"""TensorRT-LLM: how many tokens each context of a batch gets of the step's budget.

Sources: ``microBatchScheduler.cpp`` (``setCtxRequestsChunkSize``), ``pyexecutor/scheduler/scheduler.py``
(``PyMicroBatchScheduler``).

The last chunk of a context that starts counts without its cached tokens. The window of any other chunk moves on by
what is cached: it counts in full.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.layout import sim as la
from hisearch.kernels.trtllm import batch, memory


@kernel
def _credit(sim, w, r):
    """Cached tokens taken off what the start of ``r`` counts for; 0 where it has started."""
    if sim.requests[r].status != la.WAITING or not sim.config.credits_reuse:
        return 0
    cached, held = memory.cached_tokens(sim, w, r)
    if sim.config.capacity_policy == la.MAX_UTILIZATION and not sim.config.credits_unheld:
        return held
    return cached


@kernel
def put(sim, w, r):
    """Put context ``r`` into the batch with all that it misses. Returns what that counts for."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.chunk = batch.missing_tokens(sim, r)
    request.credit = _credit(sim, w, r)
    request.counted_tokens = request.chunk - request.credit
    sim.batch[w, worker.batch_size] = r
    worker.batch_size += 1
    return request.counted_tokens


@kernel
def share(sim, w, r, budget):
    """Put context ``r`` into the batch with its share of the ``budget``, if any. Returns the budget left."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if put(sim, w, r) > budget:
        if not sim.config.chunked_prefill:
            worker.batch_size -= 1
            return 0
        request.chunk = tree.floor_page(sim, budget)
        request.counted_tokens = request.chunk
        if request.chunk == 0:
            worker.batch_size -= 1
    return budget - request.counted_tokens


@kernel
def _counted(sim, r, chunk):
    """What a chunk of ``r`` counts for."""
    missing = batch.missing_tokens(sim, r)
    credit = sim.requests[r].credit
    return chunk if credit + chunk < missing else missing - credit


@kernel
def _advance(sim, r, budget):
    """Give context ``r`` another page of the ``budget``, if it takes one. Returns (the budget left, tokens given)."""
    request = sim.requests[r]
    chunk = min(request.chunk + sim.config.page_tokens, batch.missing_tokens(sim, r))
    counted = _counted(sim, r, chunk)
    more = counted - request.counted_tokens
    if more > budget or chunk > sim.config.chunk_tokens:
        return budget, 0
    given = chunk - request.chunk
    request.chunk = chunk
    request.counted_tokens = counted
    return budget - more, given


@kernel
def share_equally(sim, w):
    """Give all contexts of the batch a page after the other while the budget lasts; those without one leave the batch.

    Returns whether all of them got one.
    """
    worker = sim.workers[w]
    row = sim.batch[w]
    listed = worker.batch_size
    budget = batch.budget_of(sim, w)
    total = 0
    for k in range(listed):
        total += sim.requests[row[k]].counted_tokens
    if total <= budget or not sim.config.chunked_prefill:
        return True
    for k in range(listed):
        sim.requests[row[k]].chunk = 0
        sim.requests[row[k]].counted_tokens = 0
    given = 1
    while budget > 0 and given > 0:
        given = 0
        for k in range(listed):
            budget, more = _advance(sim, row[k], budget)
            given += more
    worker.batch_size = 0
    for k in range(listed):
        if sim.requests[row[k]].chunk > 0:
            row[worker.batch_size] = row[k]
            worker.batch_size += 1
    return worker.batch_size == listed


@kernel
def share_in_order(sim, w):
    """Give the contexts of the batch their shares, first come first served; those without one leave it."""
    worker = sim.workers[w]
    listed = worker.batch_size
    worker.batch_size = 0
    budget = batch.budget_of(sim, w)
    k = 0
    while k < listed and budget > 0:
        budget = share(sim, w, sim.batch[w, k], budget)
        k += 1


@kernel
def hold_back(sim, w):
    """Hold contexts back while decodes run and the batch is small, up to ``wait_steps`` in turn: whether it does so."""
    worker = sim.workers[w]
    decodes = worker.decoding + worker.late
    if sim.config.wait_steps == 0 and sim.config.wait_tokens == 0.0:
        return False
    if worker.batch_size == 0 or decodes == 0:
        return False
    tokens = decodes + worker.drafted_tokens
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        tokens += sim.requests[r].counted_tokens if sim.config.credits_reuse else memory.known_tokens(sim, r)
    if worker.waited_steps >= sim.config.wait_steps or tokens >= sim.config.wait_tokens:
        worker.waited_steps = 0
        return False
    worker.waited_steps += 1
    worker.batch_size = 0
    return True
