"""TensorRT-LLM's step with drafted tokens: which decodes take part, their pages, what they make and give back.

A request that has made a token *verifies* in every step: it computes its newest token and ``draft_tokens`` drafted
ones. The first few of these are accepted, and one token more is made; how many is drawn by request and place in its
output. So progress differs by request, and each step is formed by itself.

A request has pages for ``reserved_tokens``. Its start takes them for the prompt and for ``lookahead_tokens`` behind it,
each step for all tokens that it computes. Results give those of rejected drafts back, to the front of the free queue:
with overlap a step later, when the next has taken its own. What is set aside for a request knows nothing of drafts.

A decode counts in the budget with its drafts, but for a request that no results were taken in since the step that ended
its prompt. Where the next one in order of arrival does not fit, neither it nor anything behind it takes part.

Sources (PyTorch backend): ``pyexecutor/resource_manager.py`` (``KVCacheManager.prepare_resources``,
``update_resources``), ``pyexecutor/py_executor.py`` (``_update_request_states_tp``, ``_handle_responses``,
``_process_previous_batch``), ``speculative/spec_sampler_base.py`` (``SpecSampler``), ``speculative/utils.py``
(``get_num_extra_kv_tokens``), ``microBatchScheduler.cpp`` (``operator()``), ``kvCacheManager.cpp``
(``releaseLastBlock``). Held to account by ``tests.reference.trtllm_drafts``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue
from hisearch.kernels.engine import drafts, gaps
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists, thinking
from hisearch.kernels.trtllm import batch, memory, shares, step
from hisearch.kernels.trtllm import entry as plain


@kernel
def _decodes_on(sim, w, r):
    """Whether ``r`` takes part in the next step: not where the one in flight makes its last token in any case."""
    if sim.requests[r].status != la.VERIFYING:
        return False
    known_to_end = drafts.known_generated(sim, w, r) + 1 >= sim.trace.max_output_tokens[r]
    return not (sim.config.ends_by_length and known_to_end and drafts.in_flight(sim, w, r))


@kernel
def _choose_decodes(sim, w):
    """Mark the decodes of the next step, and note what they count for. Returns the order where they end."""
    worker = sim.workers[w]
    tokens = 0
    decodes = 0
    end = step.NO_END
    r = worker.running_head
    while r >= 0:
        request = sim.requests[r]
        if _decodes_on(sim, w, r):
            counted = 1
            if request.ended_step <= worker.responded_step:
                counted += sim.config.draft_tokens
            if tokens + counted > sim.config.chunk_tokens:
                end = request.order
                break
            tokens += counted
            decodes += 1
            request.scheduled_step = worker.launched_step + 1
        r = request.next
    worker.late = decodes - worker.decoding
    worker.drafted_tokens = tokens - decodes
    return end


@kernel
def _leave_behind(sim, w, end):
    """Leave contexts of order ``end`` and up out of the batch."""
    worker = sim.workers[w]
    row = sim.batch[w]
    listed = worker.batch_size
    worker.batch_size = 0
    for k in range(listed):
        if sim.requests[row[k]].order < end:
            row[worker.batch_size] = row[k]
            worker.batch_size += 1


@kernel
def choose(sim, w):
    """Choose the decodes and the contexts of the next batch. Nobody is paused."""
    worker = sim.workers[w]
    worker.batch_size = 0
    worker.full = 0
    worker.paused = 0
    memory.activate(sim, w)
    step.note_pages_in_progress(sim, w)
    end = _choose_decodes(sim, w)
    if sim.config.capacity_policy == la.STATIC_BATCH and worker.decoding > 0:
        worker.full = 1
        return
    step.fill(sim, w, step.unreserved_pages(sim, w))
    if worker.batch_size == 0 and worker.decoding == 0:
        step.go_on(sim, w)
    _leave_behind(sim, w, end)
    if sim.config.chunking_policy == la.EQUAL_PROGRESS:
        shares.share_equally(sim, w)


@kernel
def start(sim, w, now):
    """Start the batch's contexts; then put its decodes behind them, with pages for all tokens that they compute."""
    worker = sim.workers[w]
    batch.begin(sim, w, now)
    tokens = 1 + sim.config.draft_tokens
    r = worker.running_head
    while r >= 0:
        request = sim.requests[r]
        if request.status == la.VERIFYING and request.scheduled_step == worker.launched_step + 1:
            held = lists.pages(sim, request.reserved_tokens)
            request.reserved_tokens += tokens
            memory.take_decode_pages(sim, w, now, lists.pages(sim, request.reserved_tokens) - held)
            request.chunk = tokens
            request.chunk_kind = la.LISTED_DECODE
            sim.batch[w, worker.batch_size] = r
            worker.batch_size += 1
            worker.decode_tokens += tokens
        r = request.next


@kernel
def known_computed(sim, w, r):
    """Tokens of the verifying ``r`` with KV, as far as results are known."""
    return sim.trace.input_tokens[r] + max(drafts.known_generated(sim, w, r), 1) - 1


@kernel
def _note_made(sim, w, r, tokens, end_s):
    """Note that the newest step, which ends at ``end_s``, makes up to ``tokens`` of ``r``. Returns how many it does."""
    request = sim.requests[r]
    before = request.generated
    request.made = min(tokens, sim.trace.output_tokens[r] - before)
    request.sampled_step = sim.workers[w].launched_step
    if request.made == 0:
        # Its last token is in flight; nothing comes of another step.
        return 0
    request.generated += request.made
    if before == 0:
        lists.note_first_token(sim, r, end_s)
    else:
        gaps.add(sim, end_s - request.last_token_s, 1)
    request.last_token_s = end_s
    if sim.config.thinks:
        thinking.note_sampled(sim, r, before, end_s, sim.workers[w].decoding - 1)
    return request.made


@kernel
def account(sim, w, r, end_s):
    """Account for the share of ``r`` in the step just launched, which ends at ``end_s``. Returns tokens made."""
    request = sim.requests[r]
    request.rejected_before = request.rejected
    request.rejected = 0
    if request.chunk_kind == la.LISTED_DECODE:
        accepted = drafts.accepted(sim, r, sim.config.draft_tokens)
        request.rejected = sim.config.draft_tokens - accepted
        return _note_made(sim, w, r, 1 + accepted, end_s)
    if not plain.advance_prompt(sim, w, r):
        return 0
    request.status = la.VERIFYING
    sim.workers[w].decoding += 1
    return _note_made(sim, w, r, 1, end_s)


@kernel
def give_back_rejected(sim, w, r, step_number):
    """Give back the pages of what the step numbered ``step_number`` rejected of ``r``, which goes on."""
    request = sim.requests[r]
    if request.outcome != la.IN_FLIGHT:
        return
    held = lists.pages(sim, request.reserved_tokens)
    request.reserved_tokens -= request.rejected if request.sampled_step == step_number else request.rejected_before
    pages = held - lists.pages(sim, request.reserved_tokens)
    queue.push_empty_first(sim, sim.workers[w].cache_id, pages)
    sim.workers[w].allocated_pages -= pages


@kernel
def end_requests(sim, w, r, now):
    """End ``r`` and all requests after it in its list of endings; a step in flight may still compute them."""
    worker = sim.workers[w]
    while r >= 0:
        request = sim.requests[r]
        computed = sim.trace.input_tokens[r] + sim.trace.output_tokens[r] - 1
        memory.release(sim, w, r, request.reserved_tokens, computed)
        lists.stop_running(sim, w, r)
        worker.decoding -= 1
        worker.active_tokens -= sim.trace.input_tokens[r]
        lists.note_finished(sim, w, r, now)
        r = request.next_aside
