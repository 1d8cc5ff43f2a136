"""vLLM: running requests served one by one, in order, with the preemptions that make room for them.

The loop is the same whether pages are of one group or of several, and with drafted tokens. ``served_in_order`` makes
it from what differs.
"""

from __future__ import annotations

from typing import Any

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import memory


@kernel
def _choose_victim(sim, w):
    """Request to preempt. fcfs: the last running one; else the least urgent, among equals the foremost."""
    worker = sim.workers[w]
    if not lists.goes_by_urgency(sim):
        return worker.running_tail
    victim = worker.running_head
    victim_urgency = lists.urgency(sim, victim)
    r = sim.requests[victim].next
    while r >= 0:
        urgency = lists.urgency(sim, r)
        later = sim.requests[r].arrival_s > sim.requests[victim].arrival_s
        if urgency > victim_urgency or (urgency == victim_urgency and later):
            victim = r
            victim_urgency = urgency
        r = sim.requests[r].next
    return victim


def served_in_order(share: Any, missing_pages: Any, preempt: Any, schedule: Any) -> Any:
    """Kernel ``(sim, w)`` that serves running requests one by one. It returns (budget left, preempted).

    Args:
        share: kernel ``(sim, w, r, budget)``: (tokens of ``r`` that are computed, tokens that the step computes); where
            the second is 0 the pass goes on to the next request.
        missing_pages: kernel ``(sim, w, r, computed, tokens)``: pages that ``r`` has yet to take for them.
        preempt: kernel ``(sim, w, r)``: takes ``r`` from the running requests, and its pages from ``r``.
        schedule: kernel ``(sim, w, r, computed, tokens, pages)``: puts ``r`` into the batch; ``pages`` are free.
    """

    @kernel
    def serve(sim, w):
        worker = sim.workers[w]
        forming_step = worker.launched_step + 1
        budget = sim.config.chunk_tokens
        preempted = False
        r = worker.running_head
        while r >= 0 and budget > 0:
            request = sim.requests[r]
            computed, tokens = share(sim, w, r, budget)
            if tokens == 0:
                r = request.next
                continue
            pages = missing_pages(sim, w, r, computed, tokens)
            served = True
            passed_over = 0
            after = request.next
            while served and pages > sim.trees[worker.cache_id].free_pages:
                victim = _choose_victim(sim, w)
                if memory.defers(sim, w, victim):
                    return budget, preempted
                if sim.requests[victim].scheduled_step == forming_step:
                    budget += 1 if sim.requests[victim].status == la.DECODING else sim.requests[victim].chunk
                elif sim.requests[victim].order < request.order and not sim.config.exact_victims:
                    passed_over += 1
                after = request.next
                preempt(sim, w, victim)
                preempted = True
                served = victim != r
            if not served:
                if not (sim.config.outlives_own_preemption and lists.goes_by_urgency(sim)):
                    break
                r = after
                continue
            schedule(sim, w, r, computed, tokens, pages)
            budget -= tokens
            r = request.next
            while passed_over > 0 and r >= 0:
                # The engine's position in its list is not moved back for a victim ahead of it, outside the batch.
                r = sim.requests[r].next
                passed_over -= 1
        return budget, preempted

    return serve
