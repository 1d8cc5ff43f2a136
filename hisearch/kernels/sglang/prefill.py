"""SGLang's prefill batch: prompts or chunks of them, alone or in a mixed step with decodes."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.hicache import copies as hicache_copies
from hisearch.kernels.hicache import storage
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import admission, order, running
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.traffic import lists


@kernel
def _take_prompt_pages(sim, w, entries, size, now):
    page = sim.config.page_tokens
    tokens = 0
    pages = 0
    for k in range(size):
        request = sim.requests[entries[k]]
        tokens += request.chunk
        pages += lists.pages(sim, request.computed + request.chunk) - lists.pages(sim, request.computed)
    spare = size if page > 1 else 0
    # The engine evicts for its tokens and a spare page per request, rounded up to full pages.
    prefixes.ensure_free_pages(sim, w, lists.pages(sim, tokens) + spare)
    if sim.config.objects:
        prefixes.ensure_pages_for_step(sim, w, pages, now)
    if sim.trees[sim.workers[w].cache_id].free_pages < pages:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    sim.trees[sim.workers[w].cache_id].free_pages -= pages


@kernel
def _admit_waiting(sim, w, places, now):
    """Admit from the head of the queue until one does not fit."""
    worker = sim.workers[w]
    r = worker.waiting_head
    while r >= 0:
        if worker.batch_size >= places:
            worker.full = 1
        if worker.full:
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
        verdict = admission.try_admit(sim, w, r, now)
        if verdict == admission.NO_TOKEN:
            # With a host tier, memory may be short only while copies hold it.
            worker.full = 1 if not sim.config.hicache or worker.batch_size > 0 or worker.running > 0 else 0
        if verdict != admission.CONTINUE:
            return
        r = after


@kernel
def _fetch_done(sim, w, r):
    """Whether ``r`` need not wait for its fetch. Faults if the check could run out of node records."""
    if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST * (sim.config.max_running + 2):
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
    return storage.take_fetch(sim, w, r)


@kernel
def form_prefill(sim, w, now, in_flight):
    """Form a prefill batch if anything can be prefilled; returns the kind of step, or 0.

    ``in_flight``: see ``sglang.running.join_last_prefill``.
    """
    worker = sim.workers[w]
    places = sim.config.max_running - worker.running
    if sim.config.schedule == la.PRIORITY:
        worker.full = 0
    if worker.chunked < 0:
        if worker.full or worker.waiting == 0:
            return 0
        if places <= 0:
            worker.full = 1
            return 0
    if sim.config.hicache:
        storage.take_note(sim, w)
    order.sort_waiting(sim, w)
    admission.open_budget(sim, w, in_flight)
    worker.batch_size = 0
    worker.ends = -1
    if worker.chunked >= 0:
        admission.go_on(sim, w)
    _admit_waiting(sim, w, places, now)
    if worker.batch_size == 0:
        return 0
    if sim.config.hicache:
        if sim.config.objects and sim.hosts[w].loading_tokens > 0:
            engine_calls.call_engine(sim.config.objects, sim, al.URGENT, w, 0, sim.workers[w].now_s)
        hicache_copies.begin_loading(sim, w)
    _take_prompt_pages(sim, w, sim.prompts[running.newest(sim, w) ^ 1], worker.batch_size, now)
    if not sim.config.mixed_chunk or worker.running == 0:
        return la.PREFILL_STEP
    running.filter_finished(sim, w)
    if worker.decoding == 0:
        return la.PREFILL_STEP
    prefixes.ensure_free_pages(sim, w, worker.decoding)
    if sim.config.objects:
        prefixes.ensure_pages_for_step(sim, w, lists.pages_needed(sim, w, 0), now)
    running.take_decode_pages(sim, w)
    return la.MIXED_STEP
