"""SGLang's prefill batch: prompts or chunks of them, alone or in a mixed step with decodes."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import engine_calls, lora
from hisearch.kernels.hicache import copies as hicache_copies
from hisearch.kernels.hicache import storage
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import components as cl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import admission, order, retraction, running
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.sglang import lora as sglang_lora
from hisearch.kernels.sglang.components import state_requests, window_requests
from hisearch.kernels.traffic import lists


@kernel
def _take_prompt_pages(sim, w, entries, size, now):
    page = sim.config.page_tokens
    if sim.config.component == cl.STATES:
        state_requests.take_slots(sim, w, entries, size)
    tokens = 0
    pages = 0
    for k in range(size):
        request = sim.requests[entries[k]]
        if sim.config.window_tokens:
            window_requests.slide_prompt(sim, w, entries[k])
        tokens += request.chunk
        pages += lists.pages(sim, request.computed + request.chunk) - lists.pages(sim, request.computed)
    spare = size if page > 1 else 0
    # The engine evicts for its tokens and a spare page per request, rounded up to full pages.
    prefixes.ensure_free_pages(sim, w, lists.pages(sim, tokens) + spare)
    if sim.config.objects:
        prefixes.ensure_pages_for_step(sim, w, pages, now)
    if prefixes.free_pages(sim, w) < pages:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    prefixes.take_pages(sim, w, pages)


@kernel
def _admit_waiting(sim, w, now):
    """Admit from the head of the queue until one does not fit."""
    worker = sim.workers[w]
    # A prompt that waits for its next chunk keeps its place.
    places = sim.config.max_running - worker.running
    if worker.chunked >= 0 and sim.requests[worker.chunked].chunk == 0:
        places -= 1
    adapters = sim.config.serves_adapters
    if adapters:
        sglang_lora.begin_pass(sim, w)
    r = worker.waiting_head
    while r >= 0:
        if sim.config.ends_on_spent_budget and admission.verdict(sim, w) == admission.OTHER:
            return
        if adapters and not sglang_lora.may_admit(sim, w, r, now):
            sim.lora.states[w].passed_over += 1
            r = sim.requests[r].next
            continue
        if worker.batch_size >= places:
            worker.full = 1
        if worker.full and not (sim.config.preempts and retraction.preempt_for(sim, w, r)):
            return
        after = sim.requests[r].next
        if sim.tiers.storage and not _fetch_done(sim, w, r):
            r = after
            continue
        if sim.config.objects:
            ready = engine_calls.call_engine(sim.config.objects, sim, al.READY, w, r, now)
            if ready == al.FULL:
                worker.full = 1
                return
            if not ready:
                r = after
                continue
        admitted = worker.batch_size
        verdict = admission.try_admit(sim, w, r, now)
        if adapters:
            lora.count(sim, w, r)
        if sim.config.component == cl.STATES and worker.batch_size == admitted:
            state_requests.drop(sim, w, r)
        if verdict == admission.NO_TOKEN:
            # With a host tier, memory may be short only while copies hold it.
            always = not sim.config.hicache and not sim.config.full_if_occupied
            worker.full = 1 if always or worker.batch_size > 0 or worker.running > 0 else 0
        if verdict != admission.CONTINUE and verdict != admission.PASS_OVER:
            return
        r = after


@kernel
def _fetch_done(sim, w, r):
    """Whether ``r`` need not wait for its fetch. Faults if the check could run out of node records."""
    if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST * (sim.config.max_running + 2):
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
    return storage.take_fetch(sim, w, r)


@kernel
def _may_try(sim, w):
    """Whether a pass tries to prefill; it marks the batch as full where that has no places."""
    worker = sim.workers[w]
    places = sim.config.max_running - worker.running
    # Micro-batches of a pipeline share the engine's queue: what an empty one leaves, another that has places takes.
    reopens = sim.config.filters_every_pass or sim.config.scheduler_kind == la.PIPE
    if sim.config.preempts or sim.config.window_tokens or (reopens and worker.running == 0):
        worker.full = 0
    if worker.chunked < 0 and (worker.full or worker.waiting == 0):
        return False
    if sim.config.preempts:
        return True
    # Before ``looks_for_places_first`` the engine's test is the wrong way round.
    if places <= 0 and (worker.chunked < 0) == (sim.config.looks_for_places_first != 0):
        worker.full = 1
        return False
    return True


@kernel
def form_prefill(sim, w, now, in_flight, sure_in_flight):
    """Form a prefill batch if anything can be prefilled; returns the kind of step, or 0.

    ``in_flight``, ``sure_in_flight``: see ``sglang.running.join_last_prefill``.
    """
    worker = sim.workers[w]
    if not _may_try(sim, w):
        return 0
    if sim.config.hicache and not sim.config.notes_every_pass:
        storage.take_note(sim, w)
    order.sort_waiting(sim, w)
    order.touch_waiting(sim, w)
    admission.open_budget(sim, w, in_flight, sure_in_flight)
    worker.batch_size = 0
    worker.ends = -1
    if worker.chunked >= 0:
        admission.go_on(sim, w)
    _admit_waiting(sim, w, now)
    if worker.preempted_head >= 0:
        retraction.queue_preempted(sim, w)
    if worker.batch_size == 0:
        return 0
    if sim.config.hicache:
        if sim.config.objects and sim.hosts[w].loading_tokens > 0:
            engine_calls.call_engine(sim.config.objects, sim, al.URGENT, w, 0, sim.workers[w].now_s)
        hicache_copies.begin_loading(sim, w)
    _take_prompt_pages(sim, w, sim.prompts[running.newest(sim, w) ^ 1], worker.batch_size, now)
    return la.MIXED_STEP if sim.config.mixed_chunk and _decodes_join(sim, w, now) else la.PREFILL_STEP


@kernel
def _decodes_join(sim, w, now):
    """Take the running requests along in the prefill just formed. Returns whether any decodes in it."""
    worker = sim.workers[w]
    if worker.running == 0:
        return False
    running.filter_finished(sim, w)
    if running.drain(sim, w) > 0:
        worker.full = 0
    if worker.decoding == 0:
        return False
    needed_pages = lists.pages_needed(sim, w, 0)
    if sim.config.mixes_what_fits:
        prefixes.ensure_free_pages(sim, w, needed_pages)
        if prefixes.free_pages(sim, w) < needed_pages:
            return False
    if sim.config.window_tokens:
        running.slide_windows(sim, w)
    prefixes.ensure_free_pages(sim, w, worker.decoding)
    if sim.config.objects:
        prefixes.ensure_pages_for_step(sim, w, needed_pages, now)
    running.take_decode_pages(sim, w)
    if sim.config.component == cl.STATES:
        running.pass_untracked(sim, w)
    return True
