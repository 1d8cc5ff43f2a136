"""Lanes of a worker: schedulers that share its accelerators.

A worker with several attention groups (WAVE) has a lane for each of them, with KV of its own. All lanes form their
batches at one time, and their steps begin and end together: a *wave*. It takes the slowest lane's own part, then what
all do together, for the tokens of all. A lane without work takes part with an empty batch. With cache tiers each lane
has host memory and movers of its own: a wave sets out when the last scheduler is done (one may wait for copies), and
ends no sooner than what any lane loads back. A worker without a wave out rests until one of its lanes has a reason to
look again.

A worker with several pipeline stages (PIPE) has as many lanes, each with one batch in flight, and one KV memory for all
of them (``WORKER.cache_id``: the tree that has it). A batch passes the stages one after the other, each of which takes
an equal share of the pass and serves batches in the order in which they were formed. A prompt that is cut goes on in
the lane that forms a batch next, so that its chunks follow each other through the stages.

Lanes lie side by side in ``Sim.workers``; the first of a worker is its *leader*, which keeps what all have in common.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.engine.cost import batch_cost
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import heaps


@kernel
def leader(sim, w):
    """First lane of the worker that lane ``w`` belongs to."""
    return w - w % sim.config.schedulers


@kernel
def running(sim, w):
    """Requests that count against the batch limit of lane ``w``: its own, or those of all lanes of a pipeline."""
    if sim.config.scheduler_kind != la.PIPE or sim.config.engine == la.SGLANG:
        return sim.workers[w].running
    count = 0
    first = leader(sim, w)
    for scheduler in range(first, first + sim.config.schedulers):
        count += sim.workers[scheduler].running
    return count


@kernel
def reset(sim):
    """No waves, empty stages."""
    schedulers = sim.config.schedulers
    for w in range(sim.config.workers):
        worker = sim.workers[w]
        worker.cache_id = leader(sim, w) if sim.config.scheduler_kind == la.PIPE else w
        if sim.config.scheduler_kind == la.LOCKSTEP:
            worker.phase = la.RESTING
    if schedulers > 1:
        sim.stage_free_s[:] = 0.0


@kernel
def choose(sim, first, tokens):
    """The lane of the worker whose leader is ``first`` that a new request of ``tokens`` prompt tokens goes to."""
    if sim.config.schedulers == 1:
        return first
    if sim.config.scheduler_kind == la.PIPE:
        if sim.config.role == fl.DECODE:
            return _least_loaded(sim, first)
        chosen = _next_to_form(sim, first)
        sim.workers[chosen].dealt_tokens += tokens
        return chosen
    if sim.config.engine == la.SGLANG:
        worker = sim.workers[first]
        chosen = first + worker.next_scheduler
        worker.next_scheduler = (worker.next_scheduler + 1) % sim.config.schedulers
        return chosen
    return _least_loaded(sim, first)


@kernel
def _least_loaded(sim, first):
    """The smallest 4 * waiting + running, the first of them on a tie: vLLM's own balancer.

    Requests that wait for a load count among those that wait (``Scheduler.get_request_counts``).
    TensorRT-LLM's executor likewise hands new requests to the rank with the fewest active ones. On decode workers those
    whose KV is on the way count as running. Batches of a pipeline that only decodes are kept alike by it too (assumed).
    """
    chosen = first
    for w in range(first + 1, first + sim.config.schedulers):
        if _load(sim, w) < _load(sim, chosen):
            chosen = w
    return chosen


@kernel
def _load(sim, w):
    worker = sim.workers[w]
    waiting = worker.waiting
    if sim.offloading.kv_connector == tl.OFFLOAD:
        waiting += sim.connectors[w].skipped
    return 4 * waiting + worker.running + worker.kv_pending


@kernel
def _next_to_form(sim, first):
    """The lane in whose next batch a new request takes part.

    An engine that waits for a batch looks at arrivals when the oldest one is done, and puts them into the next batch
    along with that one's requests. Only where it is full, or where no batch is in flight, does it form another one. A
    batch counts as full of what its lane was dealt since the last; where all are, the one that was dealt the least.
    """
    busy = -1
    idle = -1
    least = first
    for w in range(first, first + sim.config.schedulers):
        worker = sim.workers[w]
        if worker.dealt_tokens < sim.workers[least].dealt_tokens:
            least = w
        if worker.dealt_tokens >= sim.config.chunk_tokens:
            continue
        if worker.event_slot < 0:
            idle = w if idle < 0 else idle
        elif busy < 0 or worker.event_s < sim.workers[busy].event_s:
            busy = w
    if busy >= 0:
        return busy
    return idle if idle >= 0 else least


@kernel
def following(sim, w):
    """The lane of a pipeline that goes on with a prompt of which lane ``w`` has just launched a chunk.

    An idle one, the next in turn; else that which is done first.
    """
    first = leader(sim, w)
    chosen = -1
    for k in range(1, sim.config.schedulers):
        scheduler = first + (w - first + k) % sim.config.schedulers
        if sim.workers[scheduler].event_slot < 0:
            return scheduler
        if chosen < 0 or sim.workers[scheduler].event_s < sim.workers[chosen].event_s:
            chosen = scheduler
    return chosen


@kernel
def wake(sim, w, now):
    """Lane ``w`` of a pipeline has got something to do."""
    worker = sim.workers[w]
    if worker.phase == la.IDLE:
        worker.phase = la.FORMING
        heaps.event_set(sim, w, now)


@kernel
def note_formed(sim, w):
    """Lane ``w`` of a pipeline has just formed a batch: what it was dealt is in it, or waits for room."""
    worker = sim.workers[w]
    worker.dealt_tokens = 0 if worker.waiting == 0 else sim.config.chunk_tokens


@kernel
def wake_waiting(sim, w, now):
    """Lane ``w`` of a pipeline may have given KV back: idle lanes beside it with requests waiting try again."""
    first = leader(sim, w)
    for scheduler in range(first, first + sim.config.schedulers):
        if (sim.workers[scheduler].waiting > 0 or sim.workers[scheduler].kv_pending > 0) and scheduler != w:
            wake(sim, scheduler, now)


@kernel
def through_stages(sim, w, now, seconds):
    """End of a pass of ``seconds`` that enters the pipeline of lane ``w`` at ``now`` behind those already in it."""
    schedulers = sim.config.schedulers
    row = w // schedulers
    share = seconds / schedulers
    at = now
    for stage in range(schedulers):
        at = max(at, sim.stage_free_s[row, stage]) + share
        sim.stage_free_s[row, stage] = at
    return at


@kernel
def hold_back(sim, w, batch, size, decoding, context, longest, squares):
    """Lane ``w`` has formed a batch of a wave (see ``cost.batch_cost``); its length depends on the other lanes'."""
    worker = sim.workers[w]
    own_s, host_s = batch_cost(sim.seconds, sim.requests, batch, size, decoding, context, longest, squares)
    worker.own_s = own_s
    worker.host_s = host_s
    tokens = decoding
    for k in range(size):
        tokens += sim.requests[batch[k]].chunk
    worker.lockstep_tokens = tokens
    worker.lockstep_chunks = size
    worker.formed = 1


@kernel
def _shared_seconds(sim, tokens):
    """What the lanes do together for ``tokens`` tokens in all."""
    table = sim.shared_s
    at = tokens / sim.config.schedulers
    low = min(int(at), table.shape[0] - 2)
    return table[low] + (table[low + 1] - table[low]) * (at - low)


@kernel
def _lockstep_seconds(sim, first):
    """The slowest lane's own part, then that of all together; no less than a lane's host needs.

    vLLM pads the tokens of all lanes to the CUDA graph of the fullest where there is one for it; SGLang and
    TensorRT-LLM do so where all decode.
    """
    own = 0.0
    host = 0.0
    total = 0
    most = 0
    chunks = 0
    for w in range(first, first + sim.config.schedulers):
        worker = sim.workers[w]
        if not worker.formed:
            continue
        own = max(own, worker.own_s)
        host = max(host, worker.host_s)
        total += worker.lockstep_tokens
        most = max(most, worker.lockstep_tokens)
        chunks += worker.lockstep_chunks
    if sim.config.engine != la.VLLM:
        if chunks == 0:
            padded = sim.lockstep_pad[most] if most < sim.lockstep_pad.shape[0] else most
            total = sim.config.schedulers * padded
    elif most < sim.lockstep_pad.shape[0]:
        total = sim.config.schedulers * sim.lockstep_pad[most]
    return max(own + _shared_seconds(sim, total), host)


@kernel
def _end_lockstep_step(sim, first, now):
    """The oldest outstanding wave has ended at ``now``: lanes that had a batch in it take in its results."""
    group = sim.workers[first]
    for w in range(first, first + sim.config.schedulers):
        worker = sim.workers[w]
        if worker.outstanding > 0 and worker.oldest_end_s <= now:
            engine_calls.call_engine(sim.config.engine_entry, sim, Op.COMPLETE_STEP, w, 0, now)
    group.lockstep_steps -= 1
    group.lockstep_oldest_s = group.lockstep_newest_s
    group.phase = la.FORMING
    # A scheduler may have waited for something for longer than the wave took.
    heaps.event_set(sim, first, max(now, group.now_s))


@kernel
def _preempted_alone(sim, w):
    """Whether the newest pass of lane ``w`` preempted requests and formed no batch, with none outstanding."""
    worker = sim.workers[w]
    by_vllm = sim.config.engine == la.VLLM or sim.config.role == fl.DECODE
    if not by_vllm or worker.formed or worker.outstanding > 0 or sim.counters[la.FAULT]:
        return False
    if sim.offloading.kv_connector == tl.OFFLOAD:
        return False
    return worker.lost_head >= 0


@kernel
def _has_work(sim, w):
    """Whether the scheduler of lane ``w`` makes a pass.

    SGLang's do in any case, and take note of what ended. vLLM's do with requests that are being loaded as well, and
    where requests have finished since the engine looked at its transfers last.
    """
    worker = sim.workers[w]
    if sim.config.engine == la.SGLANG or worker.waiting > 0 or worker.running > 0 or worker.kv_pending > 0:
        return True
    if sim.offloading.kv_connector != tl.OFFLOAD:
        return False
    return sim.connectors[w].skipped > 0 or sim.connectors[w].finished_head >= 0


@kernel
def _meet(sim, first, now):
    """All lanes go on when the last of their schedulers, which began a pass at ``now``, is done; returns when."""
    ready = now
    for w in range(first, first + sim.config.schedulers):
        ready = max(ready, sim.workers[w].now_s)
    if ready > now:
        for w in range(first, first + sim.config.schedulers):
            sim.workers[w].now_s = ready
    return ready


@kernel
def _rest(sim, first):
    """No wave is out: the next one is tried when a lane has asked to look again, or something is sent to one."""
    time = la.FOREVER_S
    for w in range(first, first + sim.config.schedulers):
        time = min(time, sim.workers[w].look_s)
        if sim.workers[w].look_s == la.NOTHING_S:
            sim.counters[la.FAULT] = la.STUCK
    group = sim.workers[first]
    group.phase = la.RESTING
    if time < la.FOREVER_S:
        heaps.event_set(sim, first, max(time, group.now_s))
    else:
        heaps.event_clear(sim, first)


@kernel
def _form_lockstep_step(sim, first, now):
    """Let every lane form a batch at ``now``, and set out on the wave. Returns how many have one."""
    formed = 0
    for w in range(first, first + sim.config.schedulers):
        sim.workers[w].formed = 0
        sim.workers[w].look_s = la.FOREVER_S
        sim.workers[w].ready_s = 0.0
        if _has_work(sim, w):
            engine_calls.call_engine(sim.config.engine_entry, sim, Op.FORM_BATCH, w, 0, now)
            while _preempted_alone(sim, w):
                engine_calls.call_engine(sim.config.engine_entry, sim, Op.FORM_BATCH, w, 0, now)
            formed += sim.workers[w].formed
    ready = _meet(sim, first, now)
    if formed == 0:
        return 0
    group = sim.workers[first]
    start = max(ready, group.lockstep_newest_s)
    for w in range(first, first + sim.config.schedulers):
        start = max(start, sim.workers[w].ready_s)
    end = start + _lockstep_seconds(sim, first)
    for w in range(first, first + sim.config.schedulers):
        end = max(end, sim.workers[w].load_back_s)
    for w in range(first, first + sim.config.schedulers):
        worker = sim.workers[w]
        worker.lockstep_start_s = start
        worker.lockstep_end_s = end
        if worker.formed:
            engine_calls.call_engine(sim.config.engine_entry, sim, Op.LAUNCH_LOCKSTEP, w, 0, ready)
    group.lockstep_steps += 1
    group.lockstep_newest_s = end
    if group.lockstep_steps == 1:
        group.lockstep_oldest_s = end
    return formed


@kernel
def lockstep_event(sim, first, now):
    """The event of the worker whose leader is ``first``: a wave ends, or the next one is formed."""
    group = sim.workers[first]
    if group.phase == la.STEPPING:
        _end_lockstep_step(sim, first, now)
        return
    group.phase = la.FORMING
    formed = _form_lockstep_step(sim, first, now)
    if group.lockstep_steps == 0:
        _rest(sim, first)
    elif formed > 0 and group.lockstep_steps == 1 and sim.config.overlap:
        heaps.event_set(sim, first, max(now, group.now_s))
    else:
        group.phase = la.STEPPING
        heaps.event_set(sim, first, group.lockstep_oldest_s)


@kernel
def wake_group(sim, w, now):
    """Lane ``w`` has a reason to look again, such as a request; a worker that rests tries to form a wave at once."""
    first = leader(sim, w)
    if sim.workers[first].phase == la.RESTING:
        sim.workers[first].phase = la.FORMING
        heaps.event_set(sim, first, now)
