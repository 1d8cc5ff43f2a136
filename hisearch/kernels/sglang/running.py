"""SGLang's running list: decoding requests, their known output, and the tokens that admission reserves for them.

A finished request is *finished pending* from the step whose results show its end until the next decode pass filters it
out. Until then it counts as running. With overlap a pass forms its batch while the previous step still runs: tokens of
that step are *in flight*, not known yet. A request with its last token in flight decodes once more.

Clock. ``WORKER.clock`` counts decode steps formed, including tokens in flight. ``known_clock`` counts those with known
results.

Reservations. A decoding request may generate up to ``horizon - clock`` more tokens; its horizon is fixed. Admission
reserves at most ``CLIP_OUTPUT_TOKENS`` of them. Requests with more are *capped*. ``WORKER.horizon_tokens`` is the sum
of the other requests' horizons. ``next_uncapped`` is a clock before which no capped request gets below the limit.
``finished_pending_tokens`` are tokens that finished pending requests did not use; the engine reserves them too.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import gaps, memory
from hisearch.kernels.traffic import lists

#: Output tokens that admission reserves per request at most (CLIP_MAX_NEW_TOKENS).
CLIP_OUTPUT_TOKENS = 4096


@kernel
def newest(sim, w):
    """Row of the step launched last."""
    return 2 * w + (sim.workers[w].launched & 1)


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
    return worker.outstanding > 0 and sim.requests[r].serial == worker.launched


@kernel
def known_generated(sim, w, r):
    """Output tokens of the decoding request ``r`` as far as results are known."""
    return lists.generated_tokens(sim, w, r) - (1 if in_prefill(sim, w, r) or flies(sim, w) else 0)


@kernel
def _horizon(sim, r):
    return memory.max_new(sim, r) - sim.trace.output_tokens[r] + sim.requests[r].finish_clock


@kernel
def _reserve(sim, w, r):
    """Reserve output for ``r``, which begins to decode."""
    worker = sim.workers[w]
    horizon = _horizon(sim, r)
    uncapped = horizon - CLIP_OUTPUT_TOKENS
    # Its newest token may be in flight and is not counted.
    sim.requests[r].capped = 1 if uncapped > worker.clock - 1 else 0
    if not sim.requests[r].capped:
        worker.horizon_tokens += horizon
        return
    if worker.capped == 0 or uncapped < worker.next_uncapped:
        worker.next_uncapped = uncapped
    worker.capped += 1


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
                worker.capped -= 1
                worker.horizon_tokens += horizon
            else:
                next_uncapped = min(next_uncapped, horizon - CLIP_OUTPUT_TOKENS)
        r = request.next
    worker.next_uncapped = next_uncapped


@kernel
def tokens_to_come(sim, w):
    """Tokens that running requests may still generate, including those in flight, clipped per request."""
    worker = sim.workers[w]
    clock = known_clock(sim, w)
    if worker.capped > 0 and worker.next_uncapped <= clock:
        _uncap(sim, w, clock)
    uncapped = worker.decoding - worker.capped
    return (
        worker.horizon_tokens - uncapped * clock + worker.capped * CLIP_OUTPUT_TOKENS + worker.finished_pending_tokens
    )


@kernel
def leave(sim, w, r):
    """Stop decoding ``r`` and update its counts, including tokens in flight."""
    worker = sim.workers[w]
    if sim.requests[r].capped:
        worker.capped -= 1
    else:
        worker.horizon_tokens -= _horizon(sim, r)
    lists.leave_decode(sim, w, r)


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
    if request.heap_slot >= 0:
        leave(sim, w, r)
        request.generated = sim.trace.output_tokens[r]
        request.next_aside = worker.finished_pending_head
        worker.finished_pending_head = r
        worker.finished_pending += 1
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
    in flight of the new requests count as still to come, in addition to ``tokens_to_come``.
    """
    worker = sim.workers[w]
    last = sim.launches[newest(sim, w)]
    entries = sim.prompts[newest(sim, w)]
    mixed = sim.config.mixed_chunk != 0
    if mixed:
        filter_finished(sim, w)
    empty = worker.running == 0
    joined = 0
    in_flight = 0
    for k in range(last.chunks):
        r = entries[last.chunks - 1 - k] if mixed else entries[k]
        if r == last.partial or sim.requests[r].outcome == la.FINISHED:
            continue
        _join(sim, w, r, mixed)
        joined += 1
        if worker.outstanding > 0 and last.kind == la.PREFILL_STEP and not sim.requests[r].capped:
            in_flight += 1
    if joined < last.chunks or (empty and joined > 0) or mixed:
        worker.full = 0
    return in_flight


@kernel
def take_decode_pages(sim, w):
    """Take a slot for one more token of each decoding request."""
    needed_pages = lists.pages_needed(sim, w, 0)
    if sim.trees[sim.workers[w].cache_id].free_pages < needed_pages:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    sim.trees[sim.workers[w].cache_id].free_pages -= needed_pages
