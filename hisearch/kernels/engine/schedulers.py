"""Schedulers of a worker, which share its accelerators: data-parallel attention ranks or pipeline micro-batches.

LOCKSTEP: a worker with data-parallel attention has a scheduler for each DP rank, with KV of its own. All DP ranks form
their batches at the same time, and their steps begin and end together: a *lockstep step*. It takes the attention time
of the slowest rank, then the time of the shared part for the tokens of all ranks. A rank without work takes part with
an empty batch. With cache tiers each rank has host memory and a KV connector of its own. A lockstep step starts when
the last scheduler is done (one may wait for copies), and ends no sooner than any rank's load-back. Without a lockstep
step under way, a worker is idle until one of its ranks has a reason to look again.

PIPE: a worker with several pipeline stages has as many schedulers, each with one micro-batch in flight, and one KV
memory for all (``WORKER.cache_id``: its tree). A micro-batch passes the stages one after another. Each stage takes an
equal share of the pass and serves batches in the order in which they were formed. A chunked prompt continues in the
scheduler that forms a batch next, so that its chunks follow each other through the stages. TensorRT-LLM schedules no
request in flight: there the next chunk is in the same scheduler's next batch.

The schedulers of a worker are adjacent in ``Sim.workers``. The first is the *leader*, which keeps the common state.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import engine_calls, standby
from hisearch.kernels.engine.cost import batch_cost
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import heaps


@kernel
def leader(sim, w):
    """First scheduler of the worker that scheduler ``w`` belongs to."""
    return w - w % sim.config.schedulers


@kernel
def running(sim, w):
    """Requests that count against the batch limit of scheduler ``w``: its own, or those of the whole pipeline."""
    if sim.config.scheduler_kind != la.PIPE or sim.config.engine == la.SGLANG:
        return sim.workers[w].running
    count = 0
    first = leader(sim, w)
    for scheduler in range(first, first + sim.config.schedulers):
        count += sim.workers[scheduler].running
    return count


@kernel
def sharing(sim, w):
    """(First, behind the last) of the schedulers that share the KV memory of scheduler ``w``."""
    first = sim.workers[w].cache_id
    return first, first + (sim.config.schedulers if sim.config.scheduler_kind == la.PIPE else 1)


@kernel
def reset(sim):
    """Reset to no lockstep steps and empty stages."""
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
    """Choose a scheduler, of the worker with leader ``first``, for a new request of ``tokens`` prompt tokens."""
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
    if sim.config.engine == la.TRTLLM and sim.config.role != fl.DECODE:
        return first
    return _least_loaded(sim, first)


@kernel
def _least_loaded(sim, first):
    """The scheduler with the smallest 4 * waiting + running, the first on a tie: vLLM's own balancer.

    Requests that wait for a load count as waiting (``Scheduler.get_request_counts``). On decode workers, requests whose
    KV is on the way count as running. Micro-batches of a pipeline that only decodes are balanced this way too
    (assumed).
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
    """The scheduler of a pipeline whose next micro-batch takes a new request.

    An engine that waits for a batch looks at arrivals when the oldest batch is done, and puts them into the next batch
    along with that one's requests. It forms another batch only if that batch is full, or none is in flight. A batch
    counts as full once its scheduler was dealt ``chunk_tokens`` since the last. If all are full, the scheduler that was
    dealt the least is chosen.
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
    """The scheduler of a pipeline that continues a prompt of which scheduler ``w`` has just launched a chunk.

    It is the next idle one in turn; else the one that is done first.
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
    """Wake scheduler ``w`` of a pipeline, which has got work."""
    worker = sim.workers[w]
    if worker.phase == la.IDLE:
        heaps.form_at(sim, w, now)


@kernel
def note_formed(sim, w):
    """Note that scheduler ``w`` of a pipeline has formed a batch: tokens dealt to it are in it, or wait for pages."""
    worker = sim.workers[w]
    worker.dealt_tokens = 0 if worker.waiting == 0 else sim.config.chunk_tokens


@kernel
def wake_waiting(sim, w, now):
    """Scheduler ``w`` of a pipeline may have freed KV: wake its idle siblings with waiting requests."""
    first = leader(sim, w)
    for scheduler in range(first, first + sim.config.schedulers):
        if (sim.workers[scheduler].waiting > 0 or sim.workers[scheduler].kv_pending > 0) and scheduler != w:
            wake(sim, scheduler, now)


@kernel
def through_stages(sim, w, now, seconds):
    """End of a pass of ``seconds`` that enters the pipeline of scheduler ``w`` at ``now``, behind earlier passes."""
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
    """Keep the batch of DP rank ``w`` (see ``cost.batch_cost``) for the lockstep step, whose length all ranks set."""
    worker = sim.workers[w]
    own_s, host_s = batch_cost(sim.seconds, sim.requests, batch, size, decoding, context, longest, squares)
    worker.own_s = own_s
    worker.host_s = host_s
    tokens = decoding
    chunks = 0
    for k in range(size):
        request = sim.requests[batch[k]]
        tokens += request.chunk
        chunks += request.chunk_kind != la.LISTED_DECODE
    worker.lockstep_tokens = tokens
    worker.lockstep_chunks = chunks
    worker.lockstep_sequences = size + decoding
    worker.formed = 1


@kernel
def _shared_seconds(sim, table, tokens):
    """Time by ``table``, of tokens of a DP rank, for ``tokens`` tokens in total."""
    at = tokens / sim.config.schedulers
    low = min(int(at), table.shape[0] - 2)
    return table[low] + (table[low + 1] - table[low]) * (at - low)


@kernel
def _lockstep_seconds(sim, first):
    """Attention time of the slowest DP rank plus that of the shared part; no less than any rank's host needs.

    vLLM pads the tokens of all ranks to the CUDA graph of the fullest rank, if it has one. SGLang and TensorRT-LLM do
    so if all ranks decode.
    """
    slowest_s = host_s = 0.0
    tokens = most_tokens = chunks = sequences = kinds = 0
    for w in range(first, first + sim.config.schedulers):
        worker = sim.workers[w]
        if not worker.formed:
            continue
        slowest_s = max(slowest_s, worker.own_s)
        host_s = max(host_s, worker.host_s)
        tokens += worker.lockstep_tokens
        most_tokens = max(most_tokens, worker.lockstep_tokens)
        chunks += worker.lockstep_chunks
        sequences += worker.lockstep_sequences
        kinds |= 2 if worker.lockstep_chunks > 0 else 1
    if sim.config.engine != la.VLLM:
        if chunks == 0:
            padded = sim.lockstep_pad[most_tokens] if most_tokens < sim.lockstep_pad.shape[0] else most_tokens
            tokens = sim.config.schedulers * padded
    elif most_tokens < sim.lockstep_pad.shape[0]:
        tokens = sim.config.schedulers * sim.lockstep_pad[most_tokens]
    shared_s = _shared_seconds(sim, sim.shared_s, tokens)
    if sim.seconds.host.draft_tokens > 0:
        shared_s += _shared_seconds(sim, sim.draft_shared_s, tokens)
        shared_s += (sim.seconds.host.draft_tokens - 1) * _shared_seconds(sim, sim.draft_shared_s, sequences)
    if sim.by_kind_s.shape[1] > 0:
        shared_s += _shared_seconds(sim, sim.by_kind_s[kinds - 1], tokens)
    return max(slowest_s + shared_s, host_s)


@kernel
def _end_lockstep_step(sim, first, now):
    """End the oldest outstanding lockstep step at ``now``: ranks with a batch in it process its results."""
    group = sim.workers[first]
    for w in range(first, first + sim.config.schedulers):
        worker = sim.workers[w]
        if worker.outstanding > 0 and worker.oldest_end_s <= now:
            engine_calls.call_engine(sim.config.engine_entry, sim, Op.COMPLETE_STEP, w, 0, now)
    group.lockstep_steps -= 1
    group.lockstep_oldest_s = group.lockstep_newest_s
    group.phase = la.FORMING
    # A scheduler may have waited for copies for longer than the lockstep step took.
    heaps.event_set(sim, first, max(now, group.now_s))


@kernel
def _preempted_alone(sim, w):
    """Whether the newest pass of DP rank ``w`` preempted requests and formed no batch, with none outstanding."""
    worker = sim.workers[w]
    by_vllm = sim.config.engine == la.VLLM or sim.config.role == fl.DECODE
    if not by_vllm or worker.formed or worker.outstanding > 0 or sim.counters[la.FAULT]:
        return False
    if sim.offloading.kv_connector == tl.OFFLOAD:
        return False
    return worker.lost_head >= 0


@kernel
def _has_work(sim, w):
    """Whether scheduler ``w`` makes a pass.

    SGLang's always do, and process what ended. vLLM's also do with requests that are being loaded, and if requests have
    finished since the engine last looked at its transfers.
    """
    worker = sim.workers[w]
    if sim.config.engine == la.SGLANG or worker.waiting > 0 or worker.running > 0 or worker.kv_pending > 0:
        return True
    if sim.offloading.kv_connector != tl.OFFLOAD:
        return False
    return sim.connectors[w].skipped > 0 or sim.connectors[w].finished_head >= 0


@kernel
def _synchronize(sim, first, now):
    """Let all DP ranks wait for the slowest scheduler of the pass begun at ``now``; returns when it is done."""
    ready = now
    for w in range(first, first + sim.config.schedulers):
        ready = max(ready, sim.workers[w].now_s)
    if ready > now:
        for w in range(first, first + sim.config.schedulers):
            sim.workers[w].now_s = ready
    return ready


@kernel
def _set_idle(sim, first):
    """No lockstep step is under way: set the event to the earliest time at which a DP rank looks again, if any."""
    time = la.FOREVER_S
    for w in range(first, first + sim.config.schedulers):
        time = min(time, sim.workers[w].look_s)
        if sim.workers[w].look_s == la.NEVER_S:
            sim.counters[la.FAULT] = la.STUCK
    group = sim.workers[first]
    group.phase = la.RESTING
    if time < la.FOREVER_S:
        heaps.event_set(sim, first, max(time, group.now_s))
    else:
        heaps.event_clear(sim, first)


@kernel
def _form_lockstep_step(sim, first, now):
    """Let every DP rank form a batch at ``now``, and launch the lockstep step. Returns how many have a batch."""
    formed = 0
    if sim.config.engine == la.TRTLLM and sim.config.role != fl.DECODE:
        engine_calls.call_engine(sim.config.engine_entry, sim, Op.CHOOSE_TOGETHER, first, 0, now)
    for w in range(first, first + sim.config.schedulers):
        sim.workers[w].formed = 0
        sim.workers[w].look_s = la.FOREVER_S
        sim.workers[w].ready_s = 0.0
        if _has_work(sim, w):
            engine_calls.call_engine(sim.config.engine_entry, sim, Op.FORM_BATCH, w, 0, now)
            while _preempted_alone(sim, w):
                engine_calls.call_engine(sim.config.engine_entry, sim, Op.FORM_BATCH, w, 0, now)
            formed += sim.workers[w].formed
    ready = _synchronize(sim, first, now)
    if formed == 0:
        return 0
    group = sim.workers[first]
    start = max(ready, group.lockstep_newest_s)
    for w in range(first, first + sim.config.schedulers):
        start = max(start, sim.workers[w].ready_s)
    start = standby.awake_at(sim, first, start)
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
    """Handle the event of the worker with leader ``first``: a lockstep step ends, or the next one is formed."""
    group = sim.workers[first]
    if group.phase == la.STEPPING:
        _end_lockstep_step(sim, first, now)
        return
    group.phase = la.FORMING
    formed = _form_lockstep_step(sim, first, now)
    if group.lockstep_steps == 0:
        _set_idle(sim, first)
    elif formed > 0 and group.lockstep_steps == 1 and sim.config.overlap:
        heaps.event_set(sim, first, max(now, group.now_s))
    else:
        group.phase = la.STEPPING
        heaps.event_set(sim, first, group.lockstep_oldest_s)


@kernel
def wake_group(sim, w, now):
    """DP rank ``w`` has got work, such as a request: if its worker is idle, it forms a lockstep step at once."""
    first = leader(sim, w)
    if sim.workers[first].phase == la.RESTING:
        sim.workers[first].phase = la.FORMING
        heaps.event_set(sim, first, now)
