"""A decode worker with drafted tokens: requests wait for their KV as in ``vllm.decoding``, and verify as in ``step``.

What a pass takes of a request differs from ``vllm.decoding`` in its look-up, its pages and its first step. SGLang's
workers get drafts with the KV, so that a request verifies in its first step.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.engine import schedulers
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import decoding, memory, step
from hisearch.kernels.vllm.drafts import entry
from hisearch.kernels.vllm.drafts import step as drafts_step


@kernel
def _reserved_for_checks(sim, w):
    """Pages that vLLM leaves for the first steps of a request that asks for its KV, and of those that have.

    Each verifies drafts then, and writes its drafter's tokens (``Scheduler._inflight_prefill_reserved_blocks``).
    """
    tokens = 1 + sim.config.draft_tokens + sim.config.lookahead_tokens
    pages = lists.pages(sim, tokens)
    r = sim.workers[w].kv_pending_head
    while r >= 0:
        prompt = sim.requests[r].reserved_tokens
        pages += lists.pages(sim, prompt + tokens) - lists.pages(sim, prompt)
        r = sim.requests[r].next
    return pages


@kernel
def _fits(sim, w, r, hit_tokens, d):
    if sim.config.engine != la.VLLM or not sim.config.reserves_first_check:
        return decoding.fits(sim, w, r, hit_tokens, d)
    return step.fits(sim, w, hit_tokens, d, -_reserved_for_checks(sim, w), sim.trace.input_tokens[r])


@kernel
def _reserve(sim, w, r, now):
    """Try to reserve memory for the waiting request ``r`` and request its KV. False if it has to wait."""
    trace_node, hit_tokens, d = drafts_step.look_up(sim, w, r)
    if not _fits(sim, w, r, hit_tokens, d):
        return False
    decoding.reserve(sim, w, r, now, trace_node, hit_tokens, hit_tokens)
    sim.requests[r].reserved_tokens = sim.requests[r].computed
    return True


@kernel
def _start_verifying(sim, w, r, now):
    """Let the running ``r`` verify from the step being formed on."""
    sim.requests[r].status = la.VERIFYING
    sim.workers[w].decoding += 1


_run_arrived = decoding.arrived_run(_start_verifying)


@kernel
def _admit(sim, w, now, budget):
    """vLLM: resume requests whose KV has arrived. All: request the KV of waiting ones, or run them, in order."""
    worker = sim.workers[w]
    alongside = drafts_step.running_part(sim, w)
    r = worker.kv_pending_head if sim.config.engine == la.VLLM else -1
    while r >= 0 and schedulers.running(sim, w) < sim.config.max_running and budget > 0:
        after = sim.requests[r].next
        if sim.requests[r].away == decoding.RECEIVED:
            tokens = drafts_step.resumed_share(sim, w, r, budget, alongside)
            if tokens == 0:
                return
            decoding.remove_pending(sim, w, r)
            drafts_step.resume(sim, w, r, now, tokens)
            budget -= tokens
        r = after
    while worker.waiting > 0 and decoding.may_take(sim, w, worker.waiting_head, budget):
        r = worker.waiting_head
        if sim.requests[r].away == decoding.WAITING:
            if not _reserve(sim, w, r, now):
                return
            continue
        tokens = drafts_step.admit(sim, w, r, now, budget, alongside)
        if tokens == 0:
            return
        budget -= tokens


@kernel
def form(sim, w, now):
    """Form the next batch at ``now``, launch it and set the worker's next event."""
    if sim.config.engine != la.VLLM:
        _run_arrived(sim, w, now)
    budget, preempted = entry.begin_pass(sim, w)
    if not preempted:
        _admit(sim, w, now, budget)
    entry.set_out(sim, w, now, preempted)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        entry.complete(sim, w, now)
    elif op == Op.RECEIVE:
        decoding.receive(sim, w, r, now)
    elif op == Op.RECEIVE_KV:
        decoding.arrive(sim, w, r, now)
    elif op == Op.CANCEL_KV:
        decoding.drop(sim, w, r, now)
    elif op == Op.LAUNCH_LOCKSTEP:
        entry.launch(sim, w, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.RESET:
        queue.reset(sim, w, sim.config.capacity_pages)
        sim.workers[w].kv_pending_head = -1
        sim.workers[w].kv_pending_tail = -1
    return 0
