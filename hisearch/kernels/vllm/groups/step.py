"""vLLM's pass with several groups of KV blocks: running requests one by one, then waiting ones; see ``step``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import schedulers
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import memory, step
from hisearch.kernels.vllm.groups import memory as groups_memory


@kernel
def preempt(sim, w, r):
    """Preempt ``r``; see ``memory.preempt``."""
    _, findable = memory.stop(sim, w, r)
    groups_memory.release(sim, w, r, findable)
    memory.wait_again(sim, w, r)


@kernel
def _put_decode(sim, w, r):
    """Note that the decoding ``r`` takes part in the step being formed."""
    sim.requests[r].mark = sim.workers[w].launched + 1
    sim.requests[r].chunk = 1


@kernel
def _schedule(sim, w, r, computed, share):
    """Give ``r`` blocks for ``share`` tokens behind its ``computed`` ones, and put it into the batch."""
    request = sim.requests[r]
    known = sim.trace.input_tokens[r] + memory.sampled(sim, w, r) - memory.in_flight(sim, w, r)
    groups_memory.take(sim, w, r, computed + share)
    groups_memory.publish(sim, w, r, min(computed + share, known))
    if request.state == la.DECODING:
        _put_decode(sim, w, r)
    elif request.state == la.DRAINING:
        step.put_extra(sim, w, r)
    else:
        step.put_chunk(sim, w, r, share)


@kernel
def serve_running(sim, w):
    """Serve running requests one by one, preempting where blocks are short. Returns (budget left, preempted)."""
    worker = sim.workers[w]
    serial = worker.launched + 1
    budget = sim.config.chunk_tokens
    preempted = False
    r = worker.running_head
    while r >= 0 and budget > 0:
        request = sim.requests[r]
        if request.state == la.DRAINING and not step.goes_on(sim, w, r):
            r = request.next
            continue
        computed = request.computed
        share = 1
        if request.state == la.DECODING:
            computed = sim.trace.input_tokens[r] + lists.generated_tokens(sim, w, r) - 1
        elif request.state != la.DRAINING:
            share = min(step.cut(sim, w, step.missing_tokens(sim, r)), budget)
        served = True
        passed_over = 0
        after = request.next
        while (
            served and groups_memory.missing_blocks(sim, w, r, computed, share) > sim.trees[worker.cache_id].free_pages
        ):
            victim = step.choose_victim(sim, w)
            if sim.requests[victim].mark == serial:
                budget += 1 if sim.requests[victim].state == la.DECODING else sim.requests[victim].chunk
            elif sim.requests[victim].order < request.order and not sim.config.exact_victims:
                passed_over += 1
            after = request.next
            preempt(sim, w, victim)
            preempted = True
            served = victim != r
        if not served:
            if not (sim.config.outlives_own_preemption and sim.config.schedule == la.PRIORITY):
                break
            r = after
            continue
        _schedule(sim, w, r, computed, share)
        budget -= share
        r = request.next
        while passed_over > 0 and r >= 0:
            # The engine's position in the list is not moved back for a victim ahead of it that was not in the batch.
            r = sim.requests[r].next
            passed_over -= 1
    step.leave_out_decodes(sim, w, serial)
    return budget, preempted


@kernel
def admit(sim, w, r, now, budget):
    """Try to admit the waiting request ``r``. Returns tokens scheduled, 0 if it has to wait."""
    hit = groups_memory.look_up(sim, w, r)
    hit_tokens = hit * sim.config.page_tokens
    share = step.share_of(sim, w, r, hit_tokens, budget)
    if share == 0 or not groups_memory.fits_admission(sim, w, r, hit, share):
        return 0
    lists.stop_waiting(sim, w, r)
    groups_memory.hold(sim, w, r, hit)
    lists.note_scheduled(sim, r, now, hit_tokens, 0)
    lists.run_last(sim, w, r)
    lists.number(sim, w, r)
    sim.requests[r].state = la.ADMITTED
    _schedule(sim, w, r, hit_tokens, share)
    return share


@kernel
def admit_waiting(sim, w, now, budget):
    """Admit from the head of the queue until one does not fit."""
    worker = sim.workers[w]
    while worker.waiting > 0 and budget > 0 and schedulers.running(sim, w) < sim.config.max_running:
        tokens = admit(sim, w, worker.waiting_head, now, budget)
        if tokens == 0:
            return
        budget -= tokens
