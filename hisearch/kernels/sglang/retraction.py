"""Running requests that SGLang gives up: retracted for want of memory, or preempted for a more urgent request.

With priorities every pass tries to prefill. Where the batch is full, the next waiting request may preempt: running
requests whose priority is farther from its own than the threshold go, the least urgent first and of these the latest,
as many as it needs. It takes none if all of them are too few.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.engine import log
from hisearch.kernels.hicache import storage
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import admission, drafted, gaps, memory, order, running
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.sglang.memory import CLIP_OUTPUT_TOKENS
from hisearch.kernels.traffic import lists

#: Decode steps that a retraction makes room for (SGLANG_RETRACT_DECODE_STEPS).
DECODE_STEPS = 20

_enqueue = fifo()


@kernel
def retract(sim, w, r):
    """Retract ``r``, which loses its KV and a token in flight."""
    request = sim.requests[r]
    generated = running.known_generated(sim, w, r)
    in_prefill = running.in_prefill(sim, w, r)
    if sim.config.draft_tokens > 0:
        drafted.lose(sim, w, r)
    else:
        gaps.lost(sim, w, r, in_prefill, running.flies(sim, w))
        running.leave(sim, w, r)
    request.generated = generated
    lists.stop_running(sim, w, r)
    memory.drop(sim, w, r)
    request.computed = 0
    request.cut_tokens = 0
    request.prompt_step = -1
    request.preemptions += 1
    request.missing_tokens = 0
    if sim.config.knows_lost_tokens:
        # Its newest token is not among those that the engine has noted.
        request.missing_tokens = sim.trace.input_tokens[r] + generated - (0 if in_prefill else 1)
    sim.workers[w].preemptions += 1


@kernel
def _reserved_tokens(sim, w, r):
    """Tokens that admission reserves for the output to come of the running ``r``."""
    tokens = min(memory.max_new(sim, r) - running.known_generated(sim, w, r), CLIP_OUTPUT_TOKENS)
    return tokens if running.is_sure(sim, r) else tokens * sim.workers[w].ratio


@kernel
def _goes_before(sim, a, b):
    """Whether the running ``a`` is preempted before ``b`` even if it stands behind it."""
    if sim.trace.priority[a] != sim.trace.priority[b]:
        return (sim.trace.priority[a] - sim.trace.priority[b]) * sim.config.priority_sign > 0
    return sim.requests[a].queued_at > sim.requests[b].queued_at


@kernel
def _sorted_victims(sim, w):
    """Fill ``batch[w]`` with the running requests that may go, in the order of preemption; return how many."""
    ordered = sim.batch[w]
    count = 0
    r = sim.workers[w].running_head
    while r >= 0:
        if sim.requests[r].outcome != la.FINISHED:
            k = count
            while k > 0 and _goes_before(sim, r, ordered[k - 1]):
                ordered[k] = ordered[k - 1]
                k -= 1
            ordered[k] = r
            count += 1
        r = sim.requests[r].next
    return count


@kernel
def _is_far(sim, r, victim):
    """Whether ``r`` is so much more urgent than ``victim`` that it may preempt it."""
    gap = (sim.trace.priority[victim] - sim.trace.priority[r]) * sim.config.priority_sign
    return gap > sim.config.preemption_threshold


@kernel
def _victims_for(sim, w, r):
    """Number of the first requests in ``batch[w]`` that must go for ``r``; 0 where that is not enough."""
    wanted = sim.requests[r].missing_tokens + min(memory.max_new(sim, r), CLIP_OUTPUT_TOKENS)
    needed = wanted - admission.total_left(sim, w)
    candidates = _sorted_victims(sim, w)
    count = 0
    while count < candidates and _is_far(sim, r, sim.batch[w, count]):
        needed -= _reserved_tokens(sim, w, sim.batch[w, count])
        count += 1
        if needed <= 0:
            return count
    return 0


@kernel
def preempt_for(sim, w, r):
    """Preempt running requests for the waiting ``r``; returns whether there is room for it then.

    They are queued again at the end of the pass (``queue_preempted``).
    """
    worker = sim.workers[w]
    count = _victims_for(sim, w, r)
    if count == 0:
        return False
    for k in range(count):
        sim.requests[sim.batch[w, k]].goes = 1
    left = worker.running
    q = worker.running_head
    while q >= 0:
        after = sim.requests[q].next
        if sim.requests[q].goes:
            worker.reserved_tokens -= _reserved_tokens(sim, w, q)
            retract(sim, w, q)
            left -= 1
            prefixes.ensure_free_pages(sim, w, lists.pages(sim, DECODE_STEPS * left))
        q = after
    for k in range(count):
        q = sim.batch[w, k]
        sim.requests[q].goes = 0
        worker.preempted_head, worker.preempted_tail = _enqueue(
            sim.requests, worker.preempted_head, worker.preempted_tail, q
        )
    return True


@kernel
def queue_preempted(sim, w):
    """Queue the requests that this pass has preempted."""
    worker = sim.workers[w]
    r = worker.preempted_head
    worker.preempted_head = -1
    while r >= 0:
        after = sim.requests[r].next
        log.lost(sim, r)
        order.enqueue(sim, w, r, worker.moments)
        if sim.tiers.storage:
            storage.enter(sim, w, r)
        r = after
    if sim.tiers.storage:
        storage.begin_fetches(sim, w)
