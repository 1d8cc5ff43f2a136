"""vLLM's pass with several groups of KV blocks: running requests one by one, then waiting ones; see ``step``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import schedulers
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import memory, step
from hisearch.kernels.vllm.groups import memory as groups_memory
from hisearch.kernels.vllm.groups import states
from hisearch.kernels.vllm.in_order import served_in_order


@kernel
def preempt(sim, w, r):
    """Preempt ``r``; see ``memory.preempt``."""
    _, findable = memory.stop(sim, w, r)
    groups_memory.release(sim, w, r, findable)
    memory.wait_again(sim, w, r)


@kernel
def _put_decode(sim, w, r):
    """Note that the decoding ``r`` takes part in the step being formed."""
    sim.requests[r].scheduled_step = sim.workers[w].launched_step + 1
    sim.requests[r].chunk = 1


@kernel
def _schedule(sim, w, r, computed, share):
    """Give ``r`` blocks for ``share`` tokens behind its ``computed`` ones, and put it into the batch."""
    request = sim.requests[r]
    known = sim.trace.input_tokens[r] + memory.sampled(sim, w, r) - memory.output_placeholders(sim, w, r)
    groups_memory.take(sim, w, r, computed, computed + share)
    groups_memory.publish(sim, w, r, min(computed + share, known))
    if request.status == la.DECODING:
        _put_decode(sim, w, r)
    elif request.status == la.DRAINING:
        step.put_decode_in_vain(sim, w, r)
    else:
        step.put_chunk(sim, w, r, share)


@kernel
def _schedule_running(sim, w, r, computed, share, blocks):
    _schedule(sim, w, r, computed, share)


@kernel
def _running_share(sim, w, r, budget):
    """As ``step.running_share``; chunks end where states do."""
    computed, tokens = step.running_share(sim, w, r, budget)
    status = sim.requests[r].status
    if tokens > 0 and status != la.DECODING and status != la.DRAINING:
        tokens = states.aligned(sim, r, computed, tokens)
    return computed, tokens


_serve_in_order = served_in_order(_running_share, groups_memory.missing_blocks, preempt, _schedule_running)


@kernel
def serve_running(sim, w):
    """Schedule the running requests. Returns (budget left, preempted)."""
    budget, preempted = _serve_in_order(sim, w)
    step.skip_unreached_decodes(sim, w)
    return budget, preempted


@kernel
def admit(sim, w, r, now, budget):
    """Try to admit the waiting request ``r``. Returns tokens scheduled, 0 if it has to wait."""
    hit = groups_memory.look_up(sim, w, r)
    hit_tokens = hit * sim.config.page_tokens
    share = states.aligned(sim, r, hit_tokens, step.share_of(sim, w, r, hit_tokens, budget))
    if share == 0 or not groups_memory.fits_admission(sim, w, r, hit, share):
        return 0
    lists.stop_waiting(sim, w, r)
    groups_memory.hold(sim, w, r, hit)
    lists.note_scheduled(sim, r, now, hit_tokens, 0)
    lists.run_last(sim, w, r)
    lists.number(sim, w, r)
    sim.requests[r].status = la.ADMITTED
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
