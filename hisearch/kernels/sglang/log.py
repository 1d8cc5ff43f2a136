"""SGLang's batches as entries of the step log."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import log
from hisearch.kernels.engine.cost import fast_forward
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists


@kernel
def prompts(sim, entries, size):
    """Log the prompt chunks of the next step."""
    for k in range(size):
        request = sim.requests[entries[k]]
        log.entry(sim, entries[k], request.computed, request.chunk)


@kernel
def decodes(sim, w, ahead):
    """Log the decodes of the step ``ahead`` steps after the next."""
    r = sim.workers[w].running_head
    while r >= 0:
        log.entry(sim, r, lists.decoded_tokens(sim, w, r) - 1 + ahead, 1)
        r = sim.requests[r].next


@kernel
def _end_s(sim, w, ahead, start_s):
    worker = sim.workers[w]
    context = worker.context_tokens + ahead * worker.decoding
    excess = lists.excess_tokens(sim, w)
    return fast_forward(
        sim.seconds, start_s, 1e300, 1, worker.decoding, context, excess, worker.more_s, worker.grammar_s
    )[1]


@kernel
def first_decode(sim, w, now):
    """Log the first step of a fast-forward formed at ``now``."""
    start_s = max(now, sim.workers[w].newest_end_s)
    decodes(sim, w, 0)
    log.step(sim, w, la.DECODE_STEP, now, start_s, _end_s(sim, w, 0, start_s))


@kernel
def first_decode_times(sim, w):
    """Start and end of the first step of the fast-forward under way."""
    worker = sim.workers[w]
    start_s = worker.fast_forward_from_s if sim.config.overlap else worker.newest_start_s
    return start_s, _end_s(sim, w, 0, start_s)


@kernel
def next_decode(sim, w, ahead, start_s, end_s):
    """Log the step after that from ``start_s`` to ``end_s``, ``ahead`` steps into the fast-forward. Returns its times.

    With overlap it was formed when the previous one began.
    """
    after_s = _end_s(sim, w, ahead, end_s)
    decodes(sim, w, ahead)
    log.step(sim, w, la.DECODE_STEP, start_s if sim.config.overlap else end_s, end_s, after_s)
    return end_s, after_s
