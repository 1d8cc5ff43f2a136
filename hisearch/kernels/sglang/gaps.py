"""SGLang's inter-token latencies: decodes wait while prefills run, so that gaps depend on when a request joined.

All decoding requests, except those with their last token in flight, make a token in every decode step. The gap of a
request that took part in the last decode step is the time since that step. A request that joined later has waited since
the end of its prefill: ``joins`` counts such requests by that time.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import gaps
from hisearch.kernels.engine.cost import decode_step_seconds
from hisearch.kernels.traffic import heaps, lists


@kernel
def joined(sim, w, r):
    """Note that ``r`` began to decode; the worker's newest prefill made its newest token."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.joined_clock = worker.clock
    request.joined_s = worker.newest_end_s
    if request.finish_clock > worker.clock:
        _add_join(sim, w, worker.newest_end_s)


@kernel
def _add_join(sim, w, at_s):
    worker = sim.workers[w]
    k = worker.joins - 1
    if k < 0 or sim.joins[w, k].at_s != at_s:
        k += 1
        worker.joins = k + 1
        sim.joins[w, k].at_s = at_s
        sim.joins[w, k].requests = 0
    sim.joins[w, k].requests += 1


@kernel
def _take_join_back(sim, w, at_s):
    """Count a join less. Without requests it goes: preemptions may follow one another without a decode step."""
    worker = sim.workers[w]
    k = worker.joins - 1
    while sim.joins[w, k].at_s != at_s:
        k -= 1
    sim.joins[w, k].requests -= 1
    if sim.joins[w, k].requests == 0:
        worker.joins -= 1
        for moved in range(k, worker.joins):
            sim.joins[w, moved].at_s = sim.joins[w, moved + 1].at_s
            sim.joins[w, moved].requests = sim.joins[w, moved + 1].requests


@kernel
def resumed(sim, r, end_s):
    """Count the gap of the resumed ``r``, whose prefill ends at ``end_s`` and makes another token."""
    gaps.add(sim, end_s - sim.requests[r].last_token_s, 1)


@kernel
def first_step(sim, w, end_s):
    """Count the gaps of a decode step that ends at ``end_s``; the clock is as before the step."""
    worker = sim.workers[w]
    decodes = worker.decoding - heaps.finish_count(sim, w, worker.clock)
    for k in range(worker.joins):
        join = sim.joins[w, k]
        gaps.add(sim, end_s - join.at_s, join.requests)
        decodes -= join.requests
    worker.joins = 0
    gaps.add(sim, end_s - worker.decode_end_s, decodes)
    worker.decode_before_s = worker.decode_end_s
    worker.decode_end_s = end_s


@kernel
def fast_forward(sim, w):
    """Count the gaps of the fast-forward that ends now, before it is accounted for."""
    worker = sim.workers[w]
    n = worker.decoding
    context = worker.context_tokens
    excess = lists.excess_tokens(sim, w)
    steps = worker.fast_forward_steps
    start = worker.fast_forward_from_s if sim.config.overlap else worker.newest_start_s
    end = start + decode_step_seconds(sim.seconds, n, context, excess, worker.more_s, worker.grammar_s)
    first_step(sim, w, end)
    if steps == 1:
        return
    # Only the last step can include a request whose last token the previous step made.
    until_end = sim.requests[sim.finish_heap[w, 0]].finish_clock - worker.clock
    full = min(steps, until_end)
    gaps.add_fast_forward(sim, full - 1, n, context + n, excess, worker.more_s, worker.grammar_s)
    last = decode_step_seconds(sim.seconds, n, context + (steps - 1) * n, excess, worker.more_s, worker.grammar_s)
    if steps > full:
        gaps.add(sim, last, n - heaps.finish_count(sim, w, worker.clock + steps - 1))
    if sim.config.overlap:
        worker.decode_before_s = worker.event_s
        worker.decode_end_s = worker.event_s + last
    else:
        worker.decode_before_s = worker.event_s - last
        worker.decode_end_s = worker.event_s


@kernel
def lost(sim, w, r, in_prefill, in_decode):
    """Correct the gaps of the retracted ``r``, which also loses a token that a step in flight makes.

    To be called while ``r`` still decodes.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    waits_for_first = request.joined_clock == worker.clock
    if waits_for_first and request.finish_clock > worker.clock:
        _take_join_back(sim, w, request.joined_s)
    if in_prefill:
        if sim.trace.output_tokens[r] - (request.finish_clock - worker.clock) > 1:
            gaps.add_signed(sim, worker.newest_end_s - request.last_token_s, -1)
        return
    if waits_for_first:
        request.last_token_s = request.joined_s
    elif not in_decode:
        request.last_token_s = worker.decode_end_s
    else:
        only_decode = request.joined_clock == worker.clock - 1
        request.last_token_s = request.joined_s if only_decode else worker.decode_before_s
        gaps.add_signed(sim, worker.decode_end_s - request.last_token_s, -1)
