"""A worker that decodes what prefill workers have computed: room first, then the KV comes, then it runs.

The step rule is vLLM's (see ``vllm``), whatever the engine: with nothing but decodes they all do the same. What differs
is how much room a request needs before its KV is sent:

    vLLM            its prompt's pages, less those that it finds cached (WAITING_FOR_REMOTE_KVS in v1's scheduler)
    SGLang          its prompt and ``reserved_tokens`` more, beside as many for each request that is here; and where it
                    would be the only one, its declared output (DecodePreallocQueue)
    TensorRT-LLM    its prompt and declared output, beside those of all requests that are here (guaranteed_no_evict)

A request waits, is *apart* from when it has room until its KV has come, and runs. Under vLLM it then computes its last
prompt token again, which makes the first output token that its user gets; elsewhere the first token comes with the KV.
A request that loses its KV computes its prompt here: so vLLM does; SGLang keeps a copy in host memory instead, and a
retraction costs it less than here.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.engine import device, schedulers
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, kv_transfer, lists
from hisearch.kernels.vllm import entry as vllm
from hisearch.kernels.vllm import memory, output_write_back, step

#: Output tokens that SGLang's room for a single request counts at most (CLIP_MAX_NEW_TOKEN).
CLIP_OUTPUT_TOKENS = 4096

# REQUEST.away: it is here; it waits for room; its KV is on the way; its KV is here.
HERE, WAITS, UNDERWAY, CAME = 0, 1, 2, 3


@kernel
def _split_off(sim, w, r):
    worker = sim.workers[w]
    request = sim.requests[r]
    request.away = UNDERWAY
    request.prev = worker.kv_pending_tail
    request.next = -1
    if worker.kv_pending_tail >= 0:
        sim.requests[worker.kv_pending_tail].next = r
    else:
        worker.kv_pending_head = r
    worker.kv_pending_tail = r
    worker.kv_pending += 1


@kernel
def _come_back(sim, w, r):
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.prev >= 0:
        sim.requests[request.prev].next = request.next
    else:
        worker.kv_pending_head = request.next
    if request.next >= 0:
        sim.requests[request.next].prev = request.prev
    else:
        worker.kv_pending_tail = request.prev
    worker.kv_pending -= 1
    request.away = HERE


@kernel
def _declared_pages(sim, r):
    return lists.pages(sim, sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r])


@kernel
def _promised_pages(sim, w):
    """Pages that the requests here may come to hold."""
    worker = sim.workers[w]
    promised = 0
    r = worker.running_head
    while r >= 0:
        promised += _declared_pages(sim, r)
        r = sim.requests[r].next
    r = worker.kv_pending_head
    while r >= 0:
        promised += _declared_pages(sim, r)
        r = sim.requests[r].next
    return promised


@kernel
def _present(sim, w):
    """Requests that have room in the memory of lane ``w``, which is that of all lanes in a pipeline."""
    if sim.config.scheduler_kind != la.PIPE:
        return sim.workers[w].running + sim.workers[w].kv_pending
    count = 0
    first = schedulers.leader(sim, w)
    for scheduler in range(first, first + sim.config.schedulers):
        count += sim.workers[scheduler].running + sim.workers[scheduler].kv_pending
    return count


@kernel
def _has_room(sim, w, r, found, d):
    """Whether the KV of ``r``, of which ``found`` tokens are here, may be sent for."""
    worker = sim.workers[w]
    prompt = sim.trace.input_tokens[r]
    if sim.config.engine == la.VLLM:
        return step.fits(sim, w, found, d, 0, prompt)
    if worker.running + worker.kv_pending >= sim.config.max_running:
        return False
    if sim.config.engine == la.TRTLLM:
        return _promised_pages(sim, w) + _declared_pages(sim, r) <= sim.config.capacity_pages
    present = _present(sim, w)
    kept = sim.fleet.transfer.reserved_tokens
    free = sim.trees[worker.cache_id].free_pages * sim.config.page_tokens
    alone = min(sim.trace.max_output_tokens[r], CLIP_OUTPUT_TOKENS) if present == 0 else 0
    return prompt + max(kept, alone) <= free - kept * present


@kernel
def _send_for(sim, w, r, now):
    """Try to make room for the waiting request ``r`` and send for its KV. False where it has to go on waiting."""
    trace_node, limit, found, d = step.look_up(sim, w, r)
    if not _has_room(sim, w, r, found, d):
        return False
    prompt = sim.trace.input_tokens[r]
    lists.stop_waiting(sim, w, r)
    step.hold(sim, w, r, trace_node, limit, prompt)
    sim.requests[r].hit_tokens = found
    _split_off(sim, w, r)
    kv_transfer.reserved(sim.fleet, r, prompt - found, now)
    return True


@kernel
def _run_on(sim, w, r, now):
    """``r``, whose KV and first token have come, decodes from the step on that is formed now."""
    worker = sim.workers[w]
    request = sim.requests[r]
    lists.note_scheduled(sim, r, now, request.hit_tokens, 0)
    lists.note_first_token(sim, r, now)
    request.generated = 1
    request.sampled_step = 0
    request.waits = 0
    request.last_token_s = now
    lists.run_last(sim, w, r)
    lists.number(sim, w, r)
    request.state = la.DECODING
    request.joined_step = worker.launched + 1
    request.skipped_step = 1
    worker.skipped_step += 1
    lists.join_decode(sim, w, r)


@kernel
def _run_arrived(sim, w, now):
    """Requests whose KV and first token have come run, in the order in which they had found room."""
    worker = sim.workers[w]
    r = worker.kv_pending_head
    while r >= 0 and worker.running < sim.config.max_running:
        after = sim.requests[r].next
        if sim.requests[r].away == CAME:
            _come_back(sim, w, r)
            _run_on(sim, w, r, now)
        r = after


@kernel
def _resume_arrived(sim, w, now, budget):
    """vLLM: likewise, each computing the last token of its prompt. Returns the budget left."""
    worker = sim.workers[w]
    r = worker.kv_pending_head
    while r >= 0 and schedulers.running(sim, w) < sim.config.max_running and budget > 0:
        request = sim.requests[r]
        after = request.next
        if request.away == CAME:
            held = lists.pages(sim, request.computed)
            if not step.has_room(sim, w, r, 0, worker.cache_id, held, request.computed):
                break
            _come_back(sim, w, r)
            request.computed -= 1
            lists.note_scheduled(sim, r, now, request.hit_tokens, 0)
            step.run(sim, w, r, 1, held)
            budget -= 1
        r = after
    return budget


@kernel
def _admit(sim, w, now, budget):
    """Send for the KV of waiting requests, and run those that compute their prompt here, in order."""
    worker = sim.workers[w]
    while worker.waiting > 0:
        r = worker.waiting_head
        if sim.requests[r].away == WAITS:
            if not _send_for(sim, w, r, now):
                return
            continue
        if budget <= 0 or schedulers.running(sim, w) >= sim.config.max_running:
            return
        tokens = step.admit(sim, w, r, now, budget)
        if tokens == 0:
            return
        budget -= tokens


@kernel
def form(sim, w, now):
    """Form the next batch at ``now``, launch it and set the worker's next event."""
    by_vllm = sim.config.engine == la.VLLM
    if not by_vllm:
        _run_arrived(sim, w, now)
    budget, preempted = vllm.begin_pass(sim, w)
    if not preempted:
        if by_vllm:
            budget = _resume_arrived(sim, w, now, budget)
        _admit(sim, w, now, budget)
    vllm.set_out(sim, w, now, preempted)


@kernel
def _wake(sim, w, now, at_once):
    """Something may come of a pass: at once where the worker is idle; ``at_once``: a run of decode steps ends early."""
    worker = sim.workers[w]
    if sim.config.scheduler_kind == la.LOCKSTEP:
        schedulers.wake_group(sim, w, now)
    elif worker.phase == la.IDLE:
        worker.phase = la.FORMING
        heaps.event_set(sim, w, now)
    elif worker.phase == la.FAST_FORWARDING and at_once and worker.running < sim.config.max_running:
        device.cut_fast_forward(sim, w, now)


@kernel
def receive(sim, w, r, now):
    """Queue request ``r`` at ``now``."""
    vllm.enqueue(sim, w, r)
    sim.requests[r].away = WAITS if sim.fleet.hands[r].state != fl.NOT_HANDED else HERE
    _wake(sim, w, now, sim.workers[w].waiting_head == r)


@kernel
def arrive(sim, w, r, now):
    """The KV of ``r`` has come."""
    sim.requests[r].away = CAME
    _wake(sim, w, now, True)


@kernel
def drop(sim, w, r, now):
    """The KV of ``r`` will not come: whatever room it has here is free."""
    request = sim.requests[r]
    if request.away == WAITS:
        lists.stop_waiting(sim, w, r)
    else:
        _come_back(sim, w, r)
        memory.release(sim, w, r, request.computed, request.locked_tokens)
    _wake(sim, w, now, True)


@kernel
def serve(sim, k, now):
    """Server ``k`` has done a part of its job; whoever waits for room may have what it has freed."""
    if output_write_back.serve(sim, k, now) and sim.workers[k // hl.SERVERS].waiting > 0:
        _wake(sim, k // hl.SERVERS, now, True)


def engine_entry(sim, op, w, r, now):
    """The errands of ``engine_calls``."""
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
