"""SGLang's step rule (0.5): a prefill batch runs, alone or in a mixed step; otherwise the running batch decodes.

A *pass* forms the next batch. Requests of a prefill join the running ones on the next pass, even if its results are not
known yet (overlap). The running batch is *full* when an admission fails; none is tried until a request leaves it. The
new-token *ratio* is the share of running requests' declared outputs that admission reserves. An idle pass resets it.
"""

from __future__ import annotations

import math

from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix
from hisearch.kernels.engine import device, engine_calls, grammar, log, lora, schedulers, visible
from hisearch.kernels.engine.cost import add_energy, batch_cost
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.hicache import copies as hicache_copies
from hisearch.kernels.hicache import hicache, notes, servers, storage, stores
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import arrivals, gaps, idle, inbox, memory, running, stalls
from hisearch.kernels.sglang import decode as sglang_decode
from hisearch.kernels.sglang import grammar as sglang_grammar
from hisearch.kernels.sglang import log as step_log
from hisearch.kernels.sglang import lora as sglang_lora
from hisearch.kernels.sglang.components import unified
from hisearch.kernels.sglang.decode import initial_ratio
from hisearch.kernels.sglang.prefill import form_prefill
from hisearch.kernels.traffic import fair_share, heaps, lists, thinking


@kernel
def note_peak(sim, w):
    """Note how much memory requests hold, if it is the most so far."""
    worker = sim.workers[w]
    cache = sim.trees[sim.workers[w].cache_id]
    worker.peak_pages = max(worker.peak_pages, cache.capacity_pages - cache.free_pages - cache.evictable_pages)


@kernel
def _next_batch(sim, w, now, last):
    """Form a batch after one of kind ``last`` (0: the last pass formed none); returns its kind, or 0."""
    worker = sim.workers[w]
    if sim.config.hicache and sim.config.notes_every_pass:
        storage.take_note(sim, w)
    if worker.chunked >= 0 and sim.requests[worker.chunked].chunk > 0:
        memory.keep_unfinished(sim, w, worker.chunked, True)
    in_flight = 0
    sure_in_flight = 0
    if last == la.PREFILL_STEP or last == la.MIXED_STEP:
        in_flight, sure_in_flight = running.join_last_prefill(sim, w)
    if sim.config.filters_every_pass and worker.finished_pending > 0:
        running.filter_finished(sim, w)
        worker.full = 0
    kind = form_prefill(sim, w, now, in_flight, sure_in_flight)
    if kind == 0 and sglang_decode.form_decode(sim, w, now):
        kind = la.DECODE_STEP
    return kind


@kernel
def _shape(sim, w, kind):
    """(prompt chunks, decodes as from ``lists.decodes``) of the batch just formed."""
    worker = sim.workers[w]
    size = worker.batch_size if kind != la.DECODE_STEP else 0
    if kind == la.PREFILL_STEP:
        return size, (0, 0, 0, 0)
    return size, lists.decodes(sim, w)


@kernel
def _launch(sim, w, now, kind):
    """Launch the batch just formed as a single step."""
    worker = sim.workers[w]
    row = running.newest(sim, w) ^ 1
    entries = sim.prompts[row]
    size, batch = _shape(sim, w, kind)
    decodes = kind != la.PREFILL_STEP
    device_s, host_s = batch_cost(sim.seconds, sim.requests, entries, size, *batch, worker.more_s, worker.grammar_s)
    seconds = max(device_s, host_s) + stalls.stall_seconds(sim, w, entries, size, batch[0])
    grammar.account(sim, w, 1)
    add_energy(sim, w, entries, size, *batch)
    worker.decode_tokens += batch[0]
    end_s = device.launch(sim, w, now, seconds)
    if sim.config.log:
        step_log.prompts(sim, entries, size)
        if decodes:
            step_log.decodes(sim, w, 0)
        log.step(sim, w, kind, now, worker.newest_start_s, end_s)
    if size > 0:
        worker.chunked = -1
    for k in range(size):
        request = sim.requests[entries[k]]
        request.computed += request.chunk
        request.prompt_step = worker.launched_step
        if request.chunk_kind == la.PROMPT_ENDS:
            request.generated += 1
            if request.generated > 1:
                gaps.resumed(sim, entries[k], end_s)
        else:
            worker.chunked = entries[k]
    if decodes:
        gaps.first_step(sim, w, end_s)
        lists.advance_clock(sim, w, 1)
    launch = sim.launches[row]
    launch.kind = kind
    launch.chunks = size
    launch.partial = worker.chunked if size > 0 else -1
    launch.clock = worker.clock
    if sim.config.scheduler_kind == la.PIPE and worker.chunked >= 0:
        _pass_chunked_on(sim, w, now)
    device.await_next(sim, w, now, True)


@kernel
def _pass_chunked_on(sim, w, now):
    """Move the unfinished prompt to the next micro-batch of the pipeline, unless that has one or is full."""
    worker = sim.workers[w]
    scheduler = schedulers.following(sim, w)
    next_worker = sim.workers[scheduler]
    if next_worker.chunked >= 0 or next_worker.running + next_worker.batch_size >= sim.config.max_running:
        return
    sim.requests[worker.chunked].worker = scheduler
    next_worker.chunked = worker.chunked
    worker.chunked = -1
    schedulers.wake(sim, scheduler, now)


@kernel
def _begin_tier_work(sim, w, now):
    """Begin a pass at ``now``: start storage fetches for requests that have entered the queue."""
    if not sim.config.hicache:
        return
    sim.workers[w].now_s = max(sim.workers[w].now_s, now)
    storage.begin_fetches(sim, w)


@kernel
def serve(sim, k, now):
    """End a batch of a server's job; an idle worker passes again."""
    if k >= hl.SERVERS * sim.config.workers:
        engine_calls.call_engine(sim.config.objects, sim, al.DONE, k, 0, now)
        return
    servers.end_part(sim, k, now)
    w = k // hl.SERVERS
    worker = sim.workers[w]
    if notes.matter(sim):
        notes.end_with_result(sim, w, now)
    if worker.waiting > 0 and now > worker.now_s and k % hl.SERVERS != hl.CONNECTOR_SERVER:
        if sim.config.scheduler_kind == la.LOCKSTEP:
            schedulers.wake_group(sim, w, now)
        elif worker.phase == la.IDLE:
            heaps.form_at(sim, w, now)
    if sim.config.objects and sim.agents.loaders[w].fetch >= 0:
        engine_calls.call_engine(sim.config.objects, sim, al.PASS, w, 0, now)


@kernel
def _may_fast_forward(sim, w):
    """Whether the batch just formed may begin a fast-forward: with overlap, if a step is outstanding."""
    return not sim.config.overlap or sim.workers[w].outstanding == 1


@kernel
def form(sim, w, now):
    """One pass at ``now``: form the next batch, launch it, and set the worker's next event."""
    worker = sim.workers[w]
    if now > worker.moment_s:
        worker.moment_s = now
        worker.moments += 1
    if sim.config.serves_adapters:
        sglang_lora.note_queued(sim, w)
    log.forget_lost(sim)
    begun_s = now
    if sim.config.receive_interval > 1 or sim.config.compiles_grammars:
        arrivals.poll_inbox(sim, w, now)
        now = arrivals.take_compiled(sim, w, now)
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.PASS, w, 0, now)
    _begin_tier_work(sim, w, now)
    kind = _next_batch(sim, w, now, worker.last)
    if kind == 0 and (worker.last == 0 or not sim.config.overlap):
        if not sim.config.resets_ratio_when_empty or idle.is_empty(sim, w):
            worker.ratio = initial_ratio(sim)
        # This pass may have cleared the full mark; the engine passes again and again.
        worker.last = 0
        for _ in range(idle.PASSES + sim.config.receive_interval - 2):
            jumps = sglang_grammar.some_wait(sim, w) or (sim.tiers.jumps and idle.has_pending_events(sim, w))
            if kind == 0 and worker.waiting > 0 and not jumps:
                if worker.held_head >= 0:
                    arrivals.poll_inbox(sim, w, now)
                    _begin_tier_work(sim, w, now)
                kind = _next_batch(sim, w, now, 0)
    worker.last = kind
    if kind == 0:
        if sim.config.objects:
            engine_calls.call_engine(sim.config.objects, sim, al.PASS, w, 0, now)
        device.await_next(sim, w, now, False)
        if sim.config.scheduler_kind == la.LOCKSTEP:
            if worker.waiting > 0 and sim.config.hicache:
                worker.look_s = idle.next_retry_s(sim, w)
        elif worker.phase == la.IDLE and worker.held_head >= 0:
            heaps.form_at(sim, w, now)
        elif worker.phase == la.IDLE and worker.waiting > 0 and sim.config.hicache:
            idle.schedule_retry(sim, w)
        elif worker.phase == la.IDLE and worker.waiting > 0 and sglang_lora.next_ready_s(sim, w, now) < la.FOREVER_S:
            heaps.event_set(sim, w, sglang_lora.next_ready_s(sim, w, now))
        if sim.config.compiles_grammars:
            sglang_grammar.end_pass(sim, w, now)
        return
    if sim.config.hicache:
        now = sim.workers[w].now_s
    note_peak(sim, w)
    waits = sim.config.serves_adapters and sglang_lora.prepare_step(sim, w, kind)
    if sim.config.objects and sim.agents.policy.order == al.BY_SLOT:
        engine_calls.call_engine(sim.config.objects, sim, al.STEP, w, kind, now)
        waits = sim.agents.loaders[w].at_launch_s > 0.0
    if sim.config.compiles_grammars:
        sglang_grammar.price_step(sim, w, kind)
        waits = now > begun_s or sglang_grammar.some_wait(sim, w)
    if sim.config.scheduler_kind == la.LOCKSTEP:
        size, batch = _shape(sim, w, kind)
        entries = sim.prompts[running.newest(sim, w) ^ 1]
        schedulers.hold_back(sim, w, entries, size, *batch)
        stalls.hold_up(sim, w, entries, size, batch[0])
    elif kind == la.DECODE_STEP and sim.config.schedulers == 1 and not waits and _may_fast_forward(sim, w):
        sglang_decode.launch_decode(sim, w, now)
    else:
        _launch(sim, w, now, kind)
    if sim.config.compiles_grammars:
        sglang_grammar.end_pass(sim, w, now)


@kernel
def _process_prompts(sim, w, row, step_number, now):
    """Process the results of a step's prompts: finished ones have made a token."""
    launch = sim.launches[row]
    for k in range(launch.chunks):
        r = sim.prompts[row, k]
        request = sim.requests[r]
        if r == launch.partial or request.prompt_step != step_number:
            continue
        if math.isnan(request.first_token_s):
            lists.note_first_token(sim, r, now)
        elif sim.config.thinks:
            mates = max(sim.workers[w].decoding - sim.config.overlap, 0)
            thinking.note_sampled(sim, r, request.generated - 1, now, mates)
        if request.generated == sim.trace.output_tokens[r]:
            running.finish(sim, w, r, now)
        else:
            # The prompt's pages are keyed by the tokens before this one: a path to the prompt's end or beyond.
            memory.keep_unfinished(sim, w, r, False)


@kernel
def _process_decodes(sim, w, clock, now):
    """Process the results of the worker's ``clock``-th decode step."""
    if sim.config.thinks:
        thinking.note_decoded(sim, w, clock, now)
    r = running.next_ending(sim, w, clock)
    while r >= 0:
        running.finish(sim, w, r, now)
        r = running.next_ending(sim, w, clock)


@kernel
def _process(sim, w, step_number, now):
    """Process the results of the step numbered ``step_number``."""
    row = 2 * w + (step_number & 1)
    launch = sim.launches[row]
    if launch.kind != la.DECODE_STEP:
        _process_prompts(sim, w, row, step_number, now)
    if launch.kind != la.PREFILL_STEP:
        _process_decodes(sim, w, launch.clock, now)
    if sim.config.hicache:
        hicache_copies.begin_writing(sim, w)


@kernel
def complete(sim, w, now):
    """Process the results of the step or fast-forward that ends at ``now``; a copy may hold the scheduler longer."""
    worker = sim.workers[w]
    if sim.config.hicache:
        worker.now_s = max(worker.now_s, now)
        now = worker.now_s
    if worker.phase != la.FAST_FORWARDING:
        step_number = worker.launched_step - worker.outstanding + 1
        device.retire(sim, w)
        _process(sim, w, step_number, now)
        return
    before = worker.launched_step
    ended = max(worker.oldest_end_s, now) if sim.config.hicache else worker.oldest_end_s
    steps = worker.fast_forward_steps
    if sim.config.thinks and steps > 1:
        if sim.config.overlap:
            thinking.note_decoded(sim, w, worker.clock, worker.fast_forward_from_s)
        # The results that ``now`` brings are processed below.
        visible.note_fast_forward(sim, w, steps - 1 - sim.config.overlap)
    lora.account(sim, w, steps)
    grammar.account(sim, w, steps)
    sglang_decode.complete_decode(sim, w)
    inbox.passed(sim, w, steps - 1)
    note_peak(sim, w)
    if not sim.config.overlap:
        _process_decodes(sim, w, worker.clock, now)
    elif steps == 1:
        _process(sim, w, before, ended)
    else:
        _process_decodes(sim, w, worker.clock - 1, now)
    if sim.config.hicache:
        hicache_copies.begin_writing(sim, w)


@kernel
def let_go(sim, w, r, now):
    """Release the KV of ``r``, which has been sent: its full pages stay in the tree, evictable."""
    if not sim.requests[r].away:
        return
    sim.requests[r].away = 0
    memory.keep_finished(sim, w, r)
    # A prefill worker clears the full mark at every pass; all micro-batches of a pipeline share one memory.
    first = schedulers.leader(sim, w)
    for scheduler in range(first, first + sim.config.schedulers):
        sim.workers[scheduler].full = 0
    heaps.wake(sim, w, now)


def engine_entry(sim, op, w, r, now):
    """Carry out operation ``op`` of ``engine_calls``."""
    if op == Op.FORM_BATCH:
        form(sim, w, now)
    elif op == Op.COMPLETE_STEP:
        complete(sim, w, now)
    elif op == Op.RECEIVE:
        arrivals.receive(sim, w, r, now)
    elif op == Op.LAUNCH_LOCKSTEP:
        _launch(sim, w, now, sim.workers[w].last)
    elif op == Op.NEVER_FITS:
        return 1 if memory.never_fits(sim, r) else 0
    elif op == Op.SERVE:
        serve(sim, w, now)
    elif op == Op.RELEASE_KV:
        let_go(sim, w, r, now)
    elif op == Op.HALT:
        servers.halt(sim, w)
    elif op == Op.LOSE_HOST:
        stores.lose_host(sim, w)
    elif op == Op.WRITE_BACK_OUTPUT:
        servers.take_in(sim, w, r, now)
    else:
        radix.reset(sim, w, sim.config.capacity_pages)
        if sim.config.component:
            unified.reset(sim, w)
        if sim.config.hicache:
            hicache.reset(sim, w)
            storage.reset(sim, w)
        lora.reset(sim, w)
        grammar.reset(sim, w)
        if sim.config.objects:
            engine_calls.call_engine(sim.config.objects, sim, al.BEGIN, w, 0, now)
        if sim.config.counts_service:
            fair_share.reset(sim, w)
        sim.workers[w].ratio = initial_ratio(sim)
        sim.workers[w].draining_head = -1
        sim.workers[w].preempted_head = -1
        sim.workers[w].moment_s = -1.0
    return 0
