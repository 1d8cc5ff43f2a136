"""SGLang's running list: decoding requests, their known output, and the tokens that admission reserves for them.

A finished request is *finished pending* from the step whose results show its end until the next decode pass filters it
out. Until then it counts as running. With overlap a pass forms its batch while the previous step still runs: tokens of
that step are *in flight*, not known yet. A request with its last token in flight decodes once more.

Clock. ``WORKER.clock`` counts decode steps formed, including tokens in flight. ``known_clock`` counts those with known
results.

Reservations. A decoding request may generate up to ``horizon - clock`` more tokens; its horizon is fixed. Admission
reserves at most ``CLIP_OUTPUT_TOKENS`` of them. Requests with more are *capped*. ``WORKER.horizon_tokens`` is the sum
of the other requests' horizons. ``next_uncapped`` is a clock before which no capped request gets below the limit.
``finished_pending_tokens`` are tokens that finished pending requests did not use; the engine reserves them too. From
release 0.5.22 on the outputs of pinned requests are *sure*: all of them are reserved. ``sure``, ``sure_capped`` and
``sure_horizon_tokens`` count these requests apart.

A request that its declared limit ends is *draining* while its last token is in flight, from release 0.5.22 on: it has
left the batch, and decodes no more.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.engine import drafts, engine_calls
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.sglang import gaps, memory
from hisearch.kernels.sglang.components import state_requests, window_requests
from hisearch.kernels.sglang.memory import CLIP_OUTPUT_TOKENS
from hisearch.kernels.traffic import front_end, heaps, lists

_enqueue = fifo("next_aside")


@kernel
def newest(sim, w):
    """Row of the step launched last."""
    return 2 * w + (sim.workers[w].launched_step & 1)


@kernel
def flies(sim, w):
    """Whether the step in flight while a batch is formed makes a token for every decoding request."""
    return sim.workers[w].outstanding > 0 and sim.launches[newest(sim, w)].kind != la.PREFILL_STEP


@kernel
def known_clock(sim, w):
    """The worker's clock as far as results are known; requests in a prefill step are not on it yet."""
    return sim.workers[w].clock - (1 if flies(sim, w) else 0)


@kernel
def in_prefill(sim, w, r):
    """Whether the prefill in flight makes the newest token of ``r``."""
    worker = sim.workers[w]
    return worker.outstanding > 0 and sim.requests[r].prompt_step == worker.launched_step


@kernel
def known_generated(sim, w, r):
    """Output tokens of the decoding request ``r`` as far as results are known."""
    if sim.config.draft_tokens > 0:
        return drafts.known_generated(sim, w, r)
    return lists.generated_tokens(sim, w, r) - (1 if in_prefill(sim, w, r) or flies(sim, w) else 0)


@kernel
def _horizon(sim, r):
    return memory.max_new(sim, r) - sim.trace.output_tokens[r] + sim.requests[r].finish_clock


@kernel
def is_sure(sim, r):
    """Whether admission reserves all of the output to come of ``r``, not only the new-token ratio of it."""
    return sim.config.reserves_pinned != 0 and sim.pinned[r] != 0


@kernel
def _count_horizon(sim, w, r, sign):
    """Add the horizon of the uncapped ``r`` to those of its kind, or with ``sign`` -1 take it out."""
    if is_sure(sim, r):
        sim.workers[w].sure_horizon_tokens += sign * _horizon(sim, r)
    else:
        sim.workers[w].horizon_tokens += sign * _horizon(sim, r)


@kernel
def _count_capped(sim, w, r, change):
    """Count ``r`` among the capped requests, or with ``change`` -1 no longer."""
    sim.workers[w].capped += change
    if is_sure(sim, r):
        sim.workers[w].sure_capped += change


@kernel
def _reserve(sim, w, r):
    """Reserve output for ``r``, which begins to decode."""
    worker = sim.workers[w]
    if is_sure(sim, r):
        worker.sure += 1
    horizon = _horizon(sim, r)
    uncapped = horizon - CLIP_OUTPUT_TOKENS
    # Its newest token may be in flight and is not counted.
    sim.requests[r].capped = 1 if uncapped > worker.clock - 1 else 0
    if not sim.requests[r].capped:
        _count_horizon(sim, w, r, 1)
        return
    if worker.capped == 0 or uncapped < worker.next_uncapped:
        worker.next_uncapped = uncapped
    _count_capped(sim, w, r, 1)


@kernel
def _uncap(sim, w, clock):
    """Uncap the requests that are below the limit."""
    worker = sim.workers[w]
    next_uncapped = la.NEVER
    r = worker.running_head
    while r >= 0:
        request = sim.requests[r]
        if request.capped and request.outcome == la.IN_FLIGHT:
            horizon = _horizon(sim, r)
            if horizon - CLIP_OUTPUT_TOKENS <= clock:
                request.capped = 0
                _count_capped(sim, w, r, -1)
                _count_horizon(sim, w, r, 1)
            else:
                next_uncapped = min(next_uncapped, horizon - CLIP_OUTPUT_TOKENS)
        r = request.next
    worker.next_uncapped = next_uncapped


@kernel
def _tokens_to_come_with_drafts(sim, w):
    estimated, sure = 0, 0
    r = sim.workers[w].running_head
    while r >= 0:
        tokens = min(memory.max_new(sim, r) - drafts.known_generated(sim, w, r), CLIP_OUTPUT_TOKENS)
        if is_sure(sim, r):
            sure += tokens
        else:
            estimated += tokens
        r = sim.requests[r].next
    return estimated, sure


@kernel
def tokens_to_come(sim, w):
    """Tokens that running requests may still generate, including those in flight, clipped per request.

    Returns those of which admission reserves the new-token ratio, and those that it reserves.
    """
    worker = sim.workers[w]
    if sim.config.draft_tokens > 0:
        return _tokens_to_come_with_drafts(sim, w)
    clock = known_clock(sim, w)
    if worker.capped > 0 and worker.next_uncapped <= clock:
        _uncap(sim, w, clock)
    sure = worker.sure_horizon_tokens - (worker.sure - worker.sure_capped) * clock
    capped = worker.capped - worker.sure_capped
    estimated = worker.horizon_tokens - (worker.decoding - worker.sure - capped) * clock
    return (
        estimated + capped * CLIP_OUTPUT_TOKENS + worker.finished_pending_tokens,
        sure + worker.sure_capped * CLIP_OUTPUT_TOKENS,
    )


@kernel
def leave(sim, w, r):
    """Stop decoding ``r`` and update its counts, including tokens in flight."""
    if is_sure(sim, r):
        sim.workers[w].sure -= 1
    if sim.requests[r].capped:
        _count_capped(sim, w, r, -1)
    else:
        _count_horizon(sim, w, r, -1)
    lists.leave_decode(sim, w, r)


@kernel
def _wait_for_last(sim, w, r):
    """Let ``r``, whose last token is in flight, leave the batch."""
    worker = sim.workers[w]
    request = sim.requests[r]
    # A prompt's results are processed with its step.
    prompt = in_prefill(sim, w, r)
    leave(sim, w, r)
    lists.stop_running(sim, w, r)
    request.draining = 1
    worker.draining += 1
    if prompt:
        return
    worker.draining_head, worker.draining_tail = _enqueue(sim.requests, worker.draining_head, worker.draining_tail, r)


@kernel
def drain(sim, w):
    """Let requests that the tokens in flight end by their declared limit leave the batch; returns how many."""
    worker = sim.workers[w]
    if not sim.config.skips_last_decode or not sim.config.overlap or worker.outstanding == 0:
        return 0
    before = worker.draining
    decode_on = -1
    while worker.finish_heap_size > 0 and sim.requests[sim.finish_heap[w, 0]].finish_clock <= worker.clock:
        r = sim.finish_heap[w, 0]
        excess = sim.trace.output_tokens[r] - memory.max_new(sim, r)
        if excess > 0 or (excess == 0 and sim.ends_by_limit[r]):
            _wait_for_last(sim, w, r)
        else:
            heaps.finish_remove(sim, w, r)
            sim.requests[r].next_aside = decode_on
            decode_on = r
    while decode_on >= 0:
        heaps.finish_push(sim, w, decode_on)
        decode_on = sim.requests[decode_on].next_aside
    return worker.draining - before


@kernel
def next_ending(sim, w, clock):
    """The next request, in batch order, that the ``clock``-th decode step makes the last token of; -1: none."""
    worker = sim.workers[w]
    r = -1
    if worker.finish_heap_size > 0 and sim.requests[sim.finish_heap[w, 0]].finish_clock == clock:
        r = sim.finish_heap[w, 0]
    d = worker.draining_head
    if d < 0 or (r >= 0 and sim.requests[r].order < sim.requests[d].order):
        return r
    worker.draining_head = sim.requests[d].next_aside
    return d


@kernel
def filter_finished(sim, w):
    """Remove the requests that are known to have finished from the running list."""
    worker = sim.workers[w]
    while worker.finished_pending_head >= 0:
        r = worker.finished_pending_head
        worker.finished_pending_head = sim.requests[r].next_aside
        lists.stop_running(sim, w, r)
    worker.finished_pending = 0
    worker.finished_pending_tokens = 0


@kernel
def finish(sim, w, r, now):
    """Finish ``r``, whose end the results at ``now`` show."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.draining:
        request.draining = 0
        worker.draining -= 1
    elif request.heap_slot >= 0:
        # With overlap, the step after its last has been launched with it.
        front_end.note_in_vain(sim, w, worker.clock - request.finish_clock)
        leave(sim, w, r)
        request.generated = sim.trace.output_tokens[r]
        request.next_aside = worker.finished_pending_head
        worker.finished_pending_head = r
        worker.finished_pending += 1
        if not is_sure(sim, r):
            worker.finished_pending_tokens += min(memory.max_new(sim, r) - request.generated, CLIP_OUTPUT_TOKENS)
    if sim.config.role == fl.PREFILL and sim.fleet.trace.output_tokens[r] > 1:
        memory.keep_unfinished(sim, w, r, False)
        request.away = 1
    else:
        memory.keep_finished(sim, w, r)
    lists.note_finished(sim, w, r, now)
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.ENDS, w, r, now)


@kernel
def _join(sim, w, r, first):
    if first:
        lists.run_first(sim, w, r)
        lists.number_first(sim, w, r)
    else:
        lists.run_last(sim, w, r)
        lists.number(sim, w, r)
    lists.join_decode(sim, w, r)
    gaps.joined(sim, w, r)
    _reserve(sim, w, r)


@kernel
def join_last_prefill(sim, w):
    """Add the requests of the last prefill to the running list, except finished ones and an unfinished prompt.

    With mixed steps the new requests go before the running ones, and the full mark is cleared. Returns how many tokens
    in flight of the new requests count as still to come, in addition to both of ``tokens_to_come``.
    """
    worker = sim.workers[w]
    last = sim.launches[newest(sim, w)]
    entries = sim.prompts[newest(sim, w)]
    # Running requests that a mixed step left out go before the new ones.
    mixed = sim.config.mixed_chunk != 0 and (not sim.config.mixes_what_fits or last.kind == la.MIXED_STEP)
    if mixed:
        filter_finished(sim, w)
    empty = worker.running == 0
    joined = 0
    in_flight = 0
    sure_in_flight = 0
    for k in range(last.chunks):
        r = entries[last.chunks - 1 - k] if mixed else entries[k]
        if r == last.partial or sim.requests[r].outcome == la.FINISHED:
            continue
        _join(sim, w, r, mixed)
        joined += 1
        if worker.outstanding > 0 and last.kind == la.PREFILL_STEP and not sim.requests[r].capped:
            if is_sure(sim, r):
                sure_in_flight += 1
            else:
                in_flight += 1
    if joined < last.chunks or (empty and joined > 0) or mixed:
        worker.full = 0
    return in_flight, sure_in_flight


@kernel
def slide_windows(sim, w):
    """Free what has left the windows of the requests that decode in the step being formed, except in their first."""
    r = sim.workers[w].running_head
    while r >= 0:
        request = sim.requests[r]
        if request.outcome != la.FINISHED and request.joined_clock < sim.workers[w].clock:
            window_requests.slide(sim, w, r, sim.trace.input_tokens[r] + known_generated(sim, w, r))
        r = request.next


@kernel
def pass_untracked(sim, w):
    """Note that the decoding requests take part in a mixed step, which leaves no states of theirs for the tree."""
    r = sim.workers[w].running_head
    while r >= 0:
        request = sim.requests[r]
        if request.outcome != la.FINISHED:
            tokens = sim.trace.input_tokens[r] - request.cut_tokens + lists.generated_tokens(sim, w, r)
            state_requests.pass_untracked(sim, r, tokens, request.joined_clock == sim.workers[w].clock)
        r = request.next


@kernel
def steps_to_slide(sim, w):
    """Decode steps until a request frees window KV, at least 1."""
    steps = la.NEVER
    r = sim.workers[w].running_head
    while r >= 0:
        known = sim.trace.input_tokens[r] + known_generated(sim, w, r)
        steps = min(steps, window_requests.steps_to_slide(sim, r, known))
        r = sim.requests[r].next
    return max(steps, 1)


@kernel
def take_decode_pages(sim, w):
    """Take a slot for one more token of each decoding request."""
    needed_pages = lists.pages_needed(sim, w, 0)
    if prefixes.free_pages(sim, w) < needed_pages:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    prefixes.take_pages(sim, w, needed_pages)
