"""Decodes in the step log of vLLM and TensorRT-LLM: in the order of the running list."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import log
from hisearch.kernels.engine.cost import fast_forward
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists


@kernel
def decode(sim, w, r, ahead):
    """Log the decode of ``r`` in the step just formed, or in the fast-forwarded step ``ahead`` steps later."""
    log.entry(sim, r, sim.trace.input_tokens[r] + lists.generated_tokens(sim, w, r) - 1 + ahead, 1)


@kernel
def batch(sim, w):
    """Log the running requests in the step that vLLM has just formed."""
    worker = sim.workers[w]
    r = worker.running_head
    while r >= 0:
        request = sim.requests[r]
        if request.status == la.DECODING:
            decode(sim, w, r, 0)
        elif request.scheduled_step == worker.launched_step:
            log.entry(sim, r, request.computed, request.chunk)
        r = request.next


@kernel
def decodes(sim, w, ahead):
    """Log the decodes of all decoding requests in that step."""
    r = sim.workers[w].running_head
    while r >= 0:
        if sim.requests[r].status == la.DECODING:
            decode(sim, w, r, ahead)
        r = sim.requests[r].next


@kernel
def fast_forward_steps(sim, w):
    """Log each step of the fast-forward that ends now, before it is accounted for."""
    worker = sim.workers[w]
    log.forget_lost(sim)
    context = worker.context_tokens
    excess = lists.excess_tokens(sim, w)
    formed = worker.fast_forward_s
    start = worker.newest_start_s
    if sim.config.overlap:
        start = worker.newest_end_s
    for step in range(worker.fast_forward_steps):
        decodes(sim, w, step)
        _, end = fast_forward(
            sim.seconds, start, 1e300, 1, worker.decoding, context, excess, worker.more_s, worker.grammar_s
        )
        log.step(sim, w, la.ANY_STEP, formed, start, end)
        log.spend(sim, lists.pages_over(sim, w, 1, step) - worker.fast_forward_pages)
        context += worker.decoding
        formed = start if sim.config.overlap else end
        start = end
