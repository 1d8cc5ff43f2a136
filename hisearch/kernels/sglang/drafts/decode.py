"""SGLang's decode batch with drafted tokens: who is in it, the pages that it takes, and what it makes.

Every request of the batch computes its newest token and ``draft_tokens`` drafted ones. The first few of these are
accepted, and one token more is made; how many is drawn by request and place in its output. Before that it takes pages
for what two steps may compute (``drafted.reserve_tokens``): the results of the step in flight are not known yet.

Source: ``speculative.eagle_utils.eagle_prepare_for_decode``, ``managers.schedule_batch.ScheduleBatch`` and
``managers.scheduler_components.batch_result_processor`` (0.5.23). Held to account by
``tests.reference.restatement.sglang_drafts``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import drafts, gaps, log
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.sglang import decode as sglang_decode
from hisearch.kernels.sglang import drafted, memory, order, retraction, running
from hisearch.kernels.traffic import front_end, lists, thinking


@kernel
def join_last_prefill(sim, w):
    """Add the requests of the last prefill to the running list, except finished ones and an unfinished prompt."""
    worker = sim.workers[w]
    last = sim.launches[running.newest(sim, w)]
    entries = sim.prompts[running.newest(sim, w)]
    empty = worker.running == 0
    joined = 0
    for k in range(last.chunks):
        r = entries[k]
        if r == last.partial or sim.requests[r].outcome == la.FINISHED:
            continue
        lists.run_last(sim, w, r)
        sim.requests[r].status = la.VERIFYING
        worker.decoding += 1
        joined += 1
    if joined < last.chunks or (empty and joined > 0):
        worker.full = 0


@kernel
def _drain(sim, w):
    """Let requests that the tokens in flight end by their declared limit leave the batch. Returns how many."""
    worker = sim.workers[w]
    if not sim.config.overlap or worker.outstanding == 0:
        return 0
    drained = 0
    r = worker.running_head
    while r >= 0:
        after = sim.requests[r].next
        if drafts.in_flight(sim, w, r) and drafts.known_generated(sim, w, r) + 1 >= memory.max_new(sim, r):
            lists.stop_running(sim, w, r)
            worker.decoding -= 1
            sim.requests[r].status = la.DRAINING
            drained += 1
        r = after
    worker.draining += drained
    return drained


@kernel
def _wanted_tokens(sim, w, r):
    """Tokens for which ``r`` has pages in its next step."""
    wanted = drafted.known_computed(sim, w, r) + drafted.reserve_tokens(sim)
    held = max(sim.requests[r].reserved_tokens, sim.requests[r].computed)
    return max(held, lists.pages(sim, wanted) * sim.config.page_tokens)


@kernel
def _missing(sim, w):
    """(pages, tokens) that the running requests lack for their next step; the latter beside those of begun pages."""
    pages = 0
    tokens = 0
    r = sim.workers[w].running_head
    while r >= 0:
        held = max(sim.requests[r].reserved_tokens, sim.requests[r].computed)
        wanted = _wanted_tokens(sim, w, r)
        pages += lists.pages(sim, wanted) - lists.pages(sim, held)
        tokens += wanted - held
        r = sim.requests[r].next
    return pages, tokens


@kernel
def _fits(sim, w):
    """Whether the running requests have their pages, if need be after evicting."""
    pages, _ = _missing(sim, w)
    prefixes.ensure_free_pages(sim, w, pages)
    return sim.trees[sim.workers[w].cache_id].free_pages >= pages


@kernel
def _take_pages(sim, w):
    """Take pages for the next step, evicting for a page of each request more."""
    worker = sim.workers[w]
    pages, tokens = _missing(sim, w)
    if tokens == 0:
        return
    spare = worker.decoding if sim.config.page_tokens > 1 else 0
    prefixes.ensure_free_pages(sim, w, lists.pages(sim, tokens) + spare)
    if sim.trees[worker.cache_id].free_pages < pages:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    sim.trees[worker.cache_id].free_pages -= pages
    r = worker.running_head
    while r >= 0:
        sim.requests[r].reserved_tokens = _wanted_tokens(sim, w, r)
        r = sim.requests[r].next


@kernel
def _retract(sim, w):
    """Retract requests from the end of the order, at least one, until the rest have their pages.

    The rest keep that order.
    """
    worker = sim.workers[w]
    count = sglang_decode.sorted_for_retraction(sim, w)
    total = count
    while worker.decoding > 1 and (count == total or not _fits(sim, w)):
        count -= 1
        r = sim.batch[w, count]
        retraction.retract(sim, w, r)
        log.lost(sim, r)
        prefixes.ensure_free_pages(sim, w, lists.pages(sim, retraction.DECODE_STEPS * worker.decoding))
    generated = 0
    declared = 0
    for k in range(count):
        r = sim.batch[w, k]
        generated += drafts.known_generated(sim, w, r)
        declared += memory.max_new(sim, r)
        lists.stop_running(sim, w, r)
        lists.run_last(sim, w, r)
    worker.ratio = min(1.0, (generated + retraction.DECODE_STEPS * count) / (declared + 1))
    for k in range(total - 1, count - 1, -1):
        order.enqueue(sim, w, sim.batch[w, k], worker.moments)


@kernel
def form_decode(sim, w):
    """Form a decode batch of the running requests, in the row of the next step. Returns whether any decodes."""
    worker = sim.workers[w]
    if worker.running == 0:
        return False
    drained = _drain(sim, w) > 0
    if worker.decoding == 0:
        worker.full = 0
        return False
    before = worker.decoding
    if _fits(sim, w):
        worker.ratio = sglang_decode.decayed(sim, worker.ratio, 1)
    elif drained:
        # The results in flight free memory.
        worker.full = 0
        return False
    else:
        _retract(sim, w)
    if drained or worker.decoding < before:
        worker.full = 0
    _take_pages(sim, w)
    entries = sim.prompts[running.newest(sim, w) ^ 1]
    worker.batch_size = 0
    r = worker.running_head
    while r >= 0:
        request = sim.requests[r]
        request.chunk = 1 + sim.config.draft_tokens
        request.chunk_kind = la.LISTED_DECODE
        entries[worker.batch_size] = r
        worker.batch_size += 1
        r = request.next
    return True


@kernel
def place(sim, r):
    """Note what the decode step being launched finds computed of ``r``, all earlier steps ended."""
    request = sim.requests[r]
    request.computed = sim.trace.input_tokens[r] - request.cut_tokens + request.generated - 1


@kernel
def account(sim, w, r, end_s):
    """Account for what the step just launched, which ends at ``end_s``, makes of ``r``. Returns tokens made."""
    request = sim.requests[r]
    request.sampled_step = sim.workers[w].launched_step
    left = sim.trace.output_tokens[r] - request.generated
    if left == 0:
        # Its last token is in flight; nothing comes of another step.
        front_end.note_in_vain(sim, w, request.chunk)
        request.made = 0
        return 0
    tokens = 1 if request.chunk_kind == la.PROMPT_ENDS else 1 + drafts.accepted(sim, r, sim.config.draft_tokens)
    request.made = min(tokens, left)
    request.exceeds = 1 if tokens > left else 0
    if request.generated > 0:
        gaps.add(sim, end_s - request.last_token_s, 1)
    request.joined_s = request.last_token_s
    request.last_token_s = end_s
    request.generated += request.made
    if sim.config.thinks:
        mates = sim.workers[w].decoding - (1 if request.status == la.VERIFYING else 0)
        thinking.note_sampled(sim, r, request.generated - request.made, end_s, mates)
    return request.made


@kernel
def finish(sim, w, r, now):
    """Finish ``r``, whose end the results at ``now`` show.

    Where its last step made more tokens than its output has, the KV of its last token is kept too.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.status == la.DRAINING:
        worker.draining -= 1
    elif request.status == la.VERIFYING:
        worker.decoding -= 1
        request.next_aside = worker.finished_pending_head
        worker.finished_pending_head = r
        worker.finished_pending += 1
    request.status = la.WAITING
    place(sim, r)
    request.computed += request.exceeds
    memory.keep_finished(sim, w, r)
    lists.note_finished(sim, w, r, now)
