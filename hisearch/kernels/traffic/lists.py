"""Common to all engines: waiting and running lists, the decode clock, the end of a request."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import linked_list
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import fair_share, flow, front_end, heaps, kv_transfer, thinking

_insert, _remove = linked_list()


@kernel
def pages(sim, tokens):
    """Pages that ``tokens`` tokens take."""
    page = sim.config.page_tokens
    return (tokens + page - 1) // page


@kernel
def path_end(sim, r):
    """Trace node at the end of ``r``'s known tokens: of its prompt, or of its output once it has generated."""
    return sim.trace.output_node[r] if sim.requests[r].generated > 0 else sim.trace.prompt_node[r]


@kernel
def path_at(sim, w, r, tokens):
    """Trace node, on the path to ``r``'s ``path_end``, in which its first ``tokens`` tokens end.

    For a prompt computed in chunks: the worker keeps the path and the place reached on it, so that the rest of the path
    is not walked again for each chunk.
    """
    worker = sim.workers[w]
    path = sim.trace_paths[w]
    s = path_end(sim, r)
    if worker.held_path_end != s or sim.trace.start_tokens[path[worker.held_path_at]] >= tokens:
        worker.held_path_end = s
        k = 0
        while s > 0:
            path[k] = s
            k += 1
            s = sim.trace.parent[s]
        worker.held_path_at = max(k - 1, 0)
    k = worker.held_path_at
    while k > 0 and sim.trace.end_tokens[path[k]] < tokens:
        k -= 1
    worker.held_path_at = k
    return path[k]


@kernel
def wait_after(sim, w, before, r):
    """Queue ``r`` behind the waiting request ``before``; -1: at the head."""
    worker = sim.workers[w]
    head, tail = _insert(sim.requests, worker.waiting_head, worker.waiting_tail, before, r)
    worker.waiting_head = head
    worker.waiting_tail = tail
    worker.waiting += 1


@kernel
def wait_last(sim, w, r):
    """Queue ``r`` behind all waiting requests."""
    wait_after(sim, w, sim.workers[w].waiting_tail, r)


@kernel
def wait_first(sim, w, r):
    """Queue ``r`` before all waiting requests."""
    wait_after(sim, w, -1, r)


@kernel
def goes_by_urgency(sim):
    """Whether vLLM's queue goes by urgency, not by arrival alone."""
    return sim.config.schedule == la.PRIORITY or sim.config.schedule == la.EDF


@kernel
def deadline_s(sim, r):
    """When the first token of ``r`` is due: its arrival and the TTFT target of its priority; the last holds beyond."""
    targets_s = sim.ttft_targets_s
    return sim.requests[r].arrival_s + targets_s[min(sim.trace.priority[r], targets_s.shape[0] - 1)]


@kernel
def urgency(sim, r):
    """What is lowest for the most urgent: the priority value, or the deadline."""
    return deadline_s(sim, r) if sim.config.schedule == la.EDF else float(sim.trace.priority[r])


@kernel
def wait_by_urgency(sim, w, r):
    """Queue ``r`` by (urgency, arrival, index), the lowest first."""
    requests = sim.requests
    worker = sim.workers[w]
    mine = urgency(sim, r)
    before = worker.waiting_tail
    while before >= 0:
        later = requests[before].arrival_s > requests[r].arrival_s
        if requests[before].arrival_s == requests[r].arrival_s:
            later = before > r
        theirs = urgency(sim, before)
        if theirs < mine or (theirs == mine and not later):
            break
        before = requests[before].prev
    wait_after(sim, w, before, r)


@kernel
def stop_waiting(sim, w, r):
    """Take ``r`` out of the waiting list."""
    worker = sim.workers[w]
    head, tail = _remove(sim.requests, worker.waiting_head, worker.waiting_tail, r)
    worker.waiting_head = head
    worker.waiting_tail = tail
    worker.waiting -= 1


@kernel
def run_after(sim, w, before, r):
    """Put ``r`` into the running list behind ``before``; -1: at its head."""
    worker = sim.workers[w]
    head, tail = _insert(sim.requests, worker.running_head, worker.running_tail, before, r)
    worker.running_head = head
    worker.running_tail = tail
    worker.running += 1


@kernel
def run_last(sim, w, r):
    """Append ``r`` to the running list."""
    run_after(sim, w, sim.workers[w].running_tail, r)


@kernel
def run_first(sim, w, r):
    """Put ``r`` at the head of the running list."""
    run_after(sim, w, -1, r)


@kernel
def number(sim, w, r):
    """Give ``r`` the next number in its worker's order, which breaks ties between requests that finish together."""
    sim.requests[r].order = sim.workers[w].orders
    sim.workers[w].orders += 1


@kernel
def number_first(sim, w, r):
    """Give ``r`` a number before all others in its worker's order; see ``number``."""
    sim.workers[w].front_orders -= 1
    sim.requests[r].order = sim.workers[w].front_orders


@kernel
def stop_running(sim, w, r):
    """Take ``r`` out of the running list."""
    worker = sim.workers[w]
    head, tail = _remove(sim.requests, worker.running_head, worker.running_tail, r)
    worker.running_head = head
    worker.running_tail = tail
    worker.running -= 1


@kernel
def generated_tokens(sim, w, r):
    """Output tokens of the decoding request ``r`` so far."""
    return sim.trace.output_tokens[r] - (sim.requests[r].finish_clock - sim.workers[w].clock)


@kernel
def decoded_tokens(sim, w, r):
    """Prompt and output tokens that the decoding request ``r`` reads in the next step."""
    return sim.trace.input_tokens[r] + generated_tokens(sim, w, r) - sim.requests[r].cut_tokens


@kernel
def join_decode(sim, w, r):
    """``r``, whose newest token was just sampled, decodes from the next step on."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.finish_clock = worker.clock + sim.trace.output_tokens[r] - request.generated
    sim.residue[w, (request.computed - worker.clock) % sim.config.page_tokens] += 1
    known = sim.trace.input_tokens[r] + request.generated - request.cut_tokens
    worker.context_tokens += known
    worker.squared_tokens += (known - worker.clock) * (known - worker.clock)
    if worker.decoding == 0 or known - worker.clock > worker.longest_tokens:
        worker.longest_tokens = known - worker.clock
        worker.longest_stale = 0
    worker.decoding += 1
    heaps.finish_push(sim, w, r)
    if sim.config.counts_service:
        fair_share.join_decode(sim, w, r)
    if sim.config.thinks:
        thinking.join_decode(sim, w, r)


@kernel
def leave_decode(sim, w, r):
    """``r`` no longer decodes; its ``generated`` and ``computed`` are brought up to date."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.generated = generated_tokens(sim, w, r)
    known = sim.trace.input_tokens[r] + request.generated - request.cut_tokens
    request.computed = known - 1
    sim.residue[w, (request.computed - worker.clock) % sim.config.page_tokens] -= 1
    worker.context_tokens -= known
    worker.squared_tokens -= (known - worker.clock) * (known - worker.clock)
    if known - worker.clock == worker.longest_tokens:
        worker.longest_stale = 1
    worker.decoding -= 1
    heaps.finish_remove(sim, w, r)
    if sim.config.counts_service:
        fair_share.leave_decode(sim, w, r)
    if sim.config.thinks:
        thinking.leave_decode(sim, w, r)


@kernel
def longest_context(sim, w):
    """Tokens that the decode with the longest context reads in the next step; 0 where costs do not depend on it."""
    worker = sim.workers[w]
    if not sim.seconds.host.skewed or worker.decoding == 0:
        return 0
    if worker.longest_stale:
        decoding = sim.finish_heap[w]
        longest = 0
        for k in range(worker.decoding):
            longest = max(longest, decoded_tokens(sim, w, decoding[k]))
        worker.longest_tokens = longest - worker.clock
        worker.longest_stale = 0
    return worker.longest_tokens + worker.clock


@kernel
def decodes(sim, w):
    """Of the decoding requests: (number, tokens that they read in total, the longest, sum of their squares).

    Integer wrap-around cancels out again: the quantities computed from the squares are small (see
    ``cost.late_share``).
    """
    worker = sim.workers[w]
    number, context, clock = worker.decoding, worker.context_tokens, worker.clock
    squares = worker.squared_tokens + clock * (2 * context - number * clock)
    return number, context, longest_context(sim, w), squares


@kernel
def excess_tokens(sim, w):
    """Sum over the decoding requests of the longest context less their own (see ``cost.skew_seconds``)."""
    worker = sim.workers[w]
    if not sim.seconds.host.skewed:
        return 0
    return longest_context(sim, w) * worker.decoding - worker.context_tokens


@kernel
def pages_needed(sim, w, ahead):
    """Pages that the decoding requests need for the step ``ahead`` steps from now (0: the next)."""
    return sim.residue[w, -(sim.workers[w].clock + ahead) % sim.config.page_tokens]


@kernel
def pages_over(sim, w, ahead, steps):
    """Pages that the decoding requests need over ``steps`` steps, the first of them ``ahead`` steps from now."""
    page = sim.config.page_tokens
    rounds = steps // page
    pages = rounds * sim.workers[w].decoding
    for step in range(ahead + rounds * page, ahead + steps):
        pages += pages_needed(sim, w, step)
    return pages


@kernel
def steps_within_pages(sim, w, ahead, pages, limit):
    """Decode steps that ``pages`` free pages allow: at most ``limit``, the first of them ``ahead`` steps from now."""
    if pages_over(sim, w, ahead, limit) <= pages:
        return limit
    steps = 0
    while True:
        pages -= pages_needed(sim, w, ahead + steps)
        if pages < 0:
            return steps
        steps += 1


@kernel
def advance_clock(sim, w, steps):
    """All decoding requests have made ``steps`` more tokens."""
    worker = sim.workers[w]
    worker.clock += steps
    worker.context_tokens += steps * worker.decoding


@kernel
def note_scheduled(sim, r, now, hit_tokens, host_hit_tokens):
    """Note that ``r`` is put into a batch at ``now``; only the first time counts."""
    request = sim.requests[r]
    if request.scheduled_s != request.scheduled_s:
        request.scheduled_s = now
        request.hit_tokens = hit_tokens
        fetched = min(host_hit_tokens, request.fetched_tokens)
        request.host_hit_tokens = host_hit_tokens - fetched
        request.storage_hit_tokens = fetched
        near = request.fetched_tokens - request.far_fetched_tokens
        sim.workers[request.worker].far_hit_tokens += max(fetched - near, 0)


@kernel
def note_first_token(sim, r, at_s):
    """Note that ``r``'s first token is made at ``at_s``."""
    request = sim.requests[r]
    request.first_token_s = at_s
    request.decoding_at_first_token = sim.workers[request.worker].decoding
    if sim.config.message_s > 0.0:
        front_end.note_first_token(sim, request.worker, r, at_s)
    flow.note_first_token(sim.fleet, _member(sim, r), r, at_s, _makes_all(sim, r))


@kernel
def delay_first_token(sim, r, until_s):
    """Let ``r``'s first token, whose step has been launched, come at ``until_s``."""
    from_s = sim.requests[r].first_token_s
    sim.requests[r].first_token_s = until_s
    flow.delay_first_token(sim.fleet, _member(sim, r), r, from_s, until_s, _makes_all(sim, r))


@kernel
def _member(sim, r):
    return sim.config.first_member + sim.requests[r].worker // sim.config.schedulers


@kernel
def _makes_all(sim, r):
    """Whether the user gets all tokens of ``r`` from this pool."""
    return sim.config.role != fl.PREFILL or sim.fleet.trace.output_tokens[r] == 1


@kernel
def note_finished(sim, w, r, now):
    """Note that ``r`` made its last token at ``now``."""
    request = sim.requests[r]
    request.finish_s = now
    request.decoding_at_last_token = sim.workers[w].decoding
    request.outcome = la.FINISHED
    flow.leave(sim.fleet, sim.config.first_member + w // sim.config.schedulers, r, now)
    if sim.config.role == fl.PREFILL and sim.fleet.trace.output_tokens[r] > 1:
        kv_transfer.computed(sim.fleet, r, request.scheduled_s, now)
    else:
        own_s, others_s = sim.config.stream_s, sim.config.stream_share_s * request.decoding_at_last_token
        if sim.config.message_s > 0.0:
            own_s += front_end.note_last_token(sim, w, r, now)
        flow.announce_end(sim.fleet, r, now + own_s + 0.5 * others_s, now + own_s + others_s)
