"""A decode worker under prefill/decode disaggregation: a request reserves KV memory, receives its KV, then runs.

The step rule is vLLM's (see ``vllm``) for every engine: with decodes alone they all behave the same. The engines differ
in the free memory that a request needs before its KV is sent:

    vLLM            its prompt's pages, less the cached ones (WAITING_FOR_REMOTE_KVS in v1's scheduler)
    SGLang          its prompt and ``reserved_tokens`` more, on top of as many for each request on the worker; as the
                    only request, also its declared output (DecodePreallocQueue)
    TensorRT-LLM    its prompt and declared output, on top of those of all requests on the worker (guaranteed_no_evict)

A request waits, is *pending* from its reservation until its KV has arrived, and runs. Under vLLM it then recomputes its
last prompt token, which makes the first output token that its user gets. Elsewhere the first token comes with the KV.
A request that loses its KV recomputes its prompt on the decode worker, as in vLLM. SGLang keeps a copy in host memory
instead, so that its retractions cost less than simulated.
"""

from __future__ import annotations

from typing import Any

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.core.linked_list import linked_list
from hisearch.kernels.engine import device, schedulers
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, kv_transfer, lists
from hisearch.kernels.vllm import entry as vllm
from hisearch.kernels.vllm import memory, output_write_back, step

#: Most output tokens that SGLang reserves for a single request (CLIP_MAX_NEW_TOKEN).
CLIP_OUTPUT_TOKENS = 4096

# REQUEST.away: on this worker; waiting for a reservation; KV transfer pending; KV received.
LOCAL, WAITING, IN_TRANSFER, RECEIVED = 0, 1, 2, 3


_insert, _remove = linked_list()


@kernel
def _add_pending(sim, w, r):
    worker = sim.workers[w]
    sim.requests[r].away = IN_TRANSFER
    head, tail = _insert(sim.requests, worker.kv_pending_head, worker.kv_pending_tail, worker.kv_pending_tail, r)
    worker.kv_pending_head = head
    worker.kv_pending_tail = tail
    worker.kv_pending += 1


@kernel
def remove_pending(sim, w, r):
    """Take ``r`` from the requests whose KV has been asked for."""
    worker = sim.workers[w]
    head, tail = _remove(sim.requests, worker.kv_pending_head, worker.kv_pending_tail, r)
    worker.kv_pending_head = head
    worker.kv_pending_tail = tail
    worker.kv_pending -= 1
    sim.requests[r].away = LOCAL


@kernel
def _declared_pages(sim, r):
    return lists.pages(sim, sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r])


@kernel
def _total_declared_pages(sim, w):
    """Pages that the running and pending requests may come to hold, by their declared lengths."""
    worker = sim.workers[w]
    pages = 0
    r = worker.running_head
    while r >= 0:
        pages += _declared_pages(sim, r)
        r = sim.requests[r].next
    r = worker.kv_pending_head
    while r >= 0:
        pages += _declared_pages(sim, r)
        r = sim.requests[r].next
    return pages


@kernel
def _resident_requests(sim, w):
    """Requests that hold KV memory of scheduler ``w``; the micro-batches of a pipeline share one memory."""
    if sim.config.scheduler_kind != la.PIPE:
        return sim.workers[w].running + sim.workers[w].kv_pending
    count = 0
    first = schedulers.leader(sim, w)
    for scheduler in range(first, first + sim.config.schedulers):
        count += sim.workers[scheduler].running + sim.workers[scheduler].kv_pending
    return count


@kernel
def fits(sim, w, r, hit_tokens, d):
    """Whether there is memory for the KV of ``r``, of which ``hit_tokens`` are cached."""
    worker = sim.workers[w]
    prompt = sim.trace.input_tokens[r]
    if sim.config.engine == la.VLLM:
        return step.fits(sim, w, hit_tokens, d, 0, prompt)
    if worker.running + worker.kv_pending >= sim.config.max_running:
        return False
    if sim.config.engine == la.TRTLLM:
        return _total_declared_pages(sim, w) + _declared_pages(sim, r) <= sim.config.capacity_pages
    residents = _resident_requests(sim, w)
    reserved = sim.fleet.transfer.reserved_tokens
    free = sim.trees[worker.cache_id].free_pages * sim.config.page_tokens
    declared_output = min(sim.trace.max_output_tokens[r], CLIP_OUTPUT_TOKENS) if residents == 0 else 0
    return prompt + max(reserved, declared_output) <= free - reserved * residents


@kernel
def _reserve(sim, w, r, now):
    """Try to reserve memory for the waiting request ``r`` and request its KV. False if it has to wait."""
    trace_node, limit, hit_tokens, d = step.look_up(sim, w, r)
    if not fits(sim, w, r, hit_tokens, d):
        return False
    reserve(sim, w, r, now, trace_node, limit, hit_tokens)
    return True


@kernel
def reserve(sim, w, r, now, trace_node, limit, hit_tokens):
    """Hold the ``hit_tokens`` cached tokens of ``r``, take pages for the rest of its prompt and request their KV."""
    prompt = sim.trace.input_tokens[r]
    lists.stop_waiting(sim, w, r)
    step.hold(sim, w, r, trace_node, limit, prompt)
    sim.requests[r].hit_tokens = hit_tokens
    _add_pending(sim, w, r)
    kv_transfer.reserved(sim.fleet, r, prompt - hit_tokens, now)


@kernel
def _start_decoding(sim, w, r, now):
    """Let the running ``r`` decode from the step being formed on."""
    worker = sim.workers[w]
    request = sim.requests[r]
    request.caching_lag = 0
    request.status = la.DECODING
    request.first_decode_step = worker.launched_step + 1
    request.was_skipped = 1
    worker.skipped_decodes += 1
    lists.join_decode(sim, w, r)


def arrived_run(start: Any) -> Any:
    """Kernel ``(sim, w, now)`` that runs requests whose KV and first token have arrived, in order of reservation.

    start: kernel ``(sim, w, r, now)``: what ``r``, by then in the running list, is from the step being formed on.
    """

    @kernel
    def run(sim, w, now):
        worker = sim.workers[w]
        r = worker.kv_pending_head
        while r >= 0 and worker.running < sim.config.max_running:
            request = sim.requests[r]
            after = request.next
            if request.away == RECEIVED:
                remove_pending(sim, w, r)
                lists.note_scheduled(sim, r, now, request.hit_tokens, 0)
                lists.note_first_token(sim, r, now)
                request.generated = 1
                request.sampled_step = 0
                request.last_token_s = now
                lists.run_last(sim, w, r)
                lists.number(sim, w, r)
                start(sim, w, r, now)
            r = after

    return run


_run_arrived = arrived_run(_start_decoding)


@kernel
def _resume_arrived(sim, w, now, budget):
    """vLLM: likewise, each recomputing the last token of its prompt. Returns the budget left, 0 if one waits."""
    worker = sim.workers[w]
    r = worker.kv_pending_head
    while r >= 0 and schedulers.running(sim, w) < sim.config.max_running and budget > 0:
        request = sim.requests[r]
        after = request.next
        if request.away == RECEIVED:
            held_pages = lists.pages(sim, request.computed)
            if not step.fits_admission(sim, w, r, 0, worker.cache_id, held_pages, request.computed):
                return 0
            remove_pending(sim, w, r)
            request.computed -= 1
            lists.note_scheduled(sim, r, now, request.hit_tokens, 0)
            step.run(sim, w, r, 1, held_pages)
            budget -= 1
        r = after
    return budget


@kernel
def may_take(sim, w, r, budget):
    """Whether the pass goes on to the waiting ``r``: vLLM asks for KV too only where one more request could run."""
    if sim.requests[r].away == WAITING and sim.config.engine != la.VLLM:
        return True
    return budget > 0 and schedulers.running(sim, w) < sim.config.max_running


@kernel
def _admit(sim, w, now, budget):
    """Request the KV of waiting requests, and run those that compute their prompt on this worker, in order."""
    worker = sim.workers[w]
    while worker.waiting > 0 and may_take(sim, w, worker.waiting_head, budget):
        r = worker.waiting_head
        if sim.requests[r].away == WAITING:
            if not _reserve(sim, w, r, now):
                return
            continue
        tokens = step.admit(sim, w, r, now, budget)
        if tokens == 0:
            return
        budget -= tokens


@kernel
def form(sim, w, now):
    """Form the next batch at ``now``, launch it and set the worker's next event."""
    is_vllm = sim.config.engine == la.VLLM
    if not is_vllm:
        _run_arrived(sim, w, now)
    budget, preempted = vllm.begin_pass(sim, w)
    if not preempted:
        if is_vllm:
            budget = _resume_arrived(sim, w, now, budget)
        _admit(sim, w, now, budget)
    vllm.set_out(sim, w, now, preempted)


@kernel
def _wake(sim, w, now, cut):
    """Schedule a pass: at once if the worker is idle; ``cut``: also end a fast-forward early."""
    worker = sim.workers[w]
    if sim.config.scheduler_kind == la.LOCKSTEP:
        schedulers.wake_group(sim, w, now)
    elif worker.phase == la.IDLE:
        heaps.form_at(sim, w, now)
    elif worker.phase == la.FAST_FORWARDING and cut and worker.running < sim.config.max_running:
        device.cut_fast_forward(sim, w, now)


@kernel
def receive(sim, w, r, now):
    """Queue request ``r`` at ``now``."""
    vllm.enqueue(sim, w, r)
    sim.requests[r].away = WAITING if sim.fleet.kv_transfers[r].state != fl.NO_TRANSFER else LOCAL
    _wake(sim, w, now, sim.workers[w].waiting_head == r)


@kernel
def arrive(sim, w, r, now):
    """Note that the KV of ``r`` has arrived."""
    sim.requests[r].away = RECEIVED
    _wake(sim, w, now, True)


@kernel
def drop(sim, w, r, now):
    """Cancel the KV transfer of ``r`` and free the memory reserved for it."""
    request = sim.requests[r]
    if request.away == WAITING:
        lists.stop_waiting(sim, w, r)
    else:
        remove_pending(sim, w, r)
        memory.release(sim, w, r, request.computed, request.locked_tokens)
    _wake(sim, w, now, True)


@kernel
def serve(sim, k, now):
    """Note that server ``k`` has finished a batch of its job; waiting requests may take the freed memory."""
    if output_write_back.serve(sim, k, now) and sim.workers[k // hl.SERVERS].waiting > 0:
        _wake(sim, k // hl.SERVERS, now, True)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        vllm.complete(sim, w, now)
    elif op == Op.RECEIVE:
        receive(sim, w, r, now)
    elif op == Op.RECEIVE_KV:
        arrive(sim, w, r, now)
    elif op == Op.CANCEL_KV:
        drop(sim, w, r, now)
    elif op == Op.LAUNCH_LOCKSTEP:
        vllm.launch(sim, w, now, now)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.SERVE:
        serve(sim, w, now)
    elif op == Op.HALT:
        output_write_back.halt(sim, w)
    else:
        queue.reset(sim, w, sim.config.capacity_pages)
        if sim.config.store_pool >= 0:
            output_write_back.reset(sim, w)
        sim.workers[w].kv_pending_head = -1
        sim.workers[w].kv_pending_tail = -1
    return 0
