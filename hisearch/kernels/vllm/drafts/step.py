"""vLLM's pass with drafted tokens (speculative decoding): running requests one by one, then waiting ones; see ``step``.

A request that has made a token *verifies* in every step: it computes its newest token and ``draft_tokens`` drafted
ones. The first few of these are accepted, and one token more is made. So progress differs by request, and each step is
formed by itself. How many are accepted is drawn by request and place in its output, whatever else runs.

``computed`` and ``generated`` are what holds once the newest step has ended. While it runs, the scheduler of an
asynchronous engine knows neither: it goes on as if all drafts were accepted (``assumed``), and does not know the tokens
(``known``). Pages of rejected drafts are kept for what comes.

Where ``hashes_ahead`` holds, a page is known by the token behind it too. The trace's nodes then begin and end a token
earlier than its tokens do (``simulate.arrays.drafts``), so that a page lies in the node of that token.

Source: ``v1/core/sched/scheduler.py``, ``v1/core/sched/async_scheduler.py``, ``v1/core/kv_cache_manager.py``. Held to
account by ``tests.reference.restatement.vllm_drafts``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue, tree
from hisearch.kernels.engine import drafts, gaps, ordered, schedulers
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists, thinking
from hisearch.kernels.vllm import memory, step
from hisearch.kernels.vllm.in_order import served_in_order

#: What a batch has of running requests.
NOTHING, DECODES, WITH_PROMPTS = 0, 1, 2


@kernel
def known(sim, w, r):
    """Prompt and output tokens of ``r`` that the scheduler knows."""
    return sim.trace.input_tokens[r] + drafts.known_generated(sim, w, r)


@kernel
def assumed(sim, w, r):
    """Tokens of ``r`` that the scheduler takes to be computed: drafts in flight count as accepted."""
    request = sim.requests[r]
    return request.computed + request.rejected if drafts.in_flight(sim, w, r) else request.computed


@kernel
def decodes(sim, r):
    """Whether ``r`` computes its newest token, alone or with drafts."""
    status = sim.requests[r].status
    return status == la.VERIFYING or status == la.DRAINING


@kernel
def publish(sim, w, r, tokens):
    """Let look-ups find the full pages among the first ``tokens`` tokens of ``r``."""
    if sim.config.reads_next_token and sim.config.hashes_ahead:
        tokens = min(tokens, known(sim, w, r) - 1)
    end = tree.floor_page(sim, tokens)
    if not sim.config.prefix_caching or end <= sim.requests[r].locked_tokens:
        return
    trace_node = lists.path_end(sim, r) if decodes(sim, r) else lists.path_at(sim, w, r, end)
    memory.publish_pages(sim, w, r, trace_node, end)


@kernel
def publish_processed(sim, w):
    """Let look-ups find what running requests have made, by the results just taken in; the newest is not computed."""
    if not ((sim.config.overlap or sim.config.publishes_accepted) and sim.config.prefix_caching):
        return
    r = sim.workers[w].running_head
    while r >= 0:
        if decodes(sim, r):
            publish(sim, w, r, known(sim, w, r) - 1)
        r = sim.requests[r].next


@kernel
def _missing_pages(sim, r, tokens):
    """Pages that ``r`` still needs to have them for ``tokens`` tokens, of the model's window at most."""
    tokens = min(tokens, sim.config.max_request_tokens)
    return max(lists.pages(sim, tokens) - lists.pages(sim, sim.requests[r].reserved_tokens), 0)


@kernel
def _schedule(sim, w, r, computed, share, lookahead):
    """Put ``share`` tokens of ``r`` behind its ``computed`` ones into the batch; their pages are free.

    More than ``r`` has of known ones are drafts.
    """
    worker = sim.workers[w]
    request = sim.requests[r]
    queue.take(sim, worker.cache_id, _missing_pages(sim, r, computed + share + lookahead))
    reserved = min(computed + share + lookahead, sim.config.max_request_tokens)
    request.reserved_tokens = max(request.reserved_tokens, reserved)
    publish(sim, w, r, min(computed + share, known(sim, w, r)))
    if not decodes(sim, r) and share <= step.missing_tokens(sim, r):
        step.put_chunk(sim, w, r, share)
        return
    request.chunk = share
    request.scheduled_step = worker.launched_step + 1
    request.chunk_kind = la.LISTED_DECODE
    worker.decode_tokens += share
    sim.batch[w, worker.batch_size] = r
    worker.batch_size += 1


@kernel
def _ends_for_sure(sim, w, r):
    """Whether the step in flight makes the last token that ``r`` may make, even if it rejects all drafts."""
    if not drafts.in_flight(sim, w, r):
        return False
    return drafts.known_generated(sim, w, r) + 1 >= sim.trace.max_output_tokens[r]


@kernel
def _running_share(sim, w, r, budget):
    """(Tokens assumed to be computed, tokens that the step computes) of the running ``r``."""
    computed = assumed(sim, w, r)
    if decodes(sim, r):
        if _ends_for_sure(sim, w, r):
            return computed, 0
        tokens = 1 + sim.config.draft_tokens
    else:
        tokens = step.missing_tokens(sim, r)
    return computed, max(min(step.cut(sim, w, tokens), budget, sim.config.max_request_tokens - 1 - computed), 0)


@kernel
def release(sim, w, r):
    """Free the pages of ``r``, last page first."""
    memory.release(sim, w, r, sim.requests[r].reserved_tokens, 0)
    sim.requests[r].reserved_tokens = 0


@kernel
def preempt(sim, w, r):
    """Preempt ``r``: it leaves the running list and the batch being formed, loses all its KV and waits again."""
    worker = sim.workers[w]
    if sim.requests[r].scheduled_step == worker.launched_step + 1:
        memory.leave_batch(sim, w, r)
    if sim.requests[r].status == la.VERIFYING:
        worker.decoding -= 1
    release(sim, w, r)
    memory.wait_again(sim, w, r)


@kernel
def _missing_pages_ahead(sim, w, r, computed, share):
    return _missing_pages(sim, r, computed + share + sim.config.lookahead_tokens)


@kernel
def _schedule_running(sim, w, r, computed, share, pages):
    _schedule(sim, w, r, computed, share, sim.config.lookahead_tokens)


#: Serves the running requests; returns (budget left, preempted).
serve_running = served_in_order(_running_share, _missing_pages_ahead, preempt, _schedule_running)


@kernel
def look_up(sim, w, r):
    """Look the waiting request ``r`` up in the cache: (trace node, tokens hit, cache node)."""
    trace_node = lists.path_end(sim, r)
    limit = 0
    if sim.config.prefix_caching:
        limit = tree.floor_page(sim, sim.trace.input_tokens[r] + sim.requests[r].generated - 1)
    hit_tokens, d = tree.match(sim, sim.workers[w].cache_id, trace_node, limit)
    if sim.config.reads_next_token and not sim.config.hashes_ahead and hit_tokens > 0:
        hit_tokens, d = tree.match(sim, sim.workers[w].cache_id, trace_node, hit_tokens - sim.config.page_tokens)
    return trace_node, hit_tokens, d


@kernel
def _pads(sim, r, hit_tokens, alongside):
    """Whether ``r``, admitted with all but one token cached, gets drafts that are all rejected: steps keep one shape.

    ``alongside``: what the step has of running requests, see ``running_part``.
    """
    if not sim.config.pads_new_decodes or alongside == WITH_PROMPTS:
        return False
    if sim.trace.input_tokens[r] + sim.requests[r].generated - hit_tokens != 1:
        return False
    return (alongside == DECODES or hit_tokens > 0) and (
        hit_tokens + sim.config.draft_tokens + 2 <= sim.config.max_request_tokens
    )


@kernel
def running_part(sim, w):
    """What the batch has of running requests, before any is admitted: nothing, decodes alone, or prompts too."""
    worker = sim.workers[w]
    part = NOTHING
    for k in range(worker.batch_size):
        if not decodes(sim, sim.batch[w, k]):
            return WITH_PROMPTS
        part = DECODES
    return part


@kernel
def _first_share(sim, w, r, cached, budget, alongside):
    """Tokens of ``r``, of which ``cached`` are computed, that its first step computes; 0 if the budget is too small."""
    if not _pads(sim, r, cached, alongside):
        return step.share_of(sim, w, r, cached, budget)
    share = 1 + sim.config.draft_tokens
    return share if share <= budget else 0


@kernel
def _fits(sim, w, r, hit_tokens, d, held, tokens):
    """Whether there are pages to admit ``r``, which holds ``held`` of them, for the ``tokens`` that it needs now."""
    whole = sim.trace.input_tokens[r] + sim.requests[r].generated
    if sim.config.reserve_full_prompt and not step.fits(sim, w, hit_tokens, d, held, whole):
        return False
    return step.fits(sim, w, hit_tokens, d, held, min(tokens, sim.config.max_request_tokens))


@kernel
def _run(sim, w, r, computed, share, lookahead):
    lists.run_last(sim, w, r)
    lists.number(sim, w, r)
    sim.requests[r].status = la.ADMITTED
    _schedule(sim, w, r, computed, share, lookahead)


@kernel
def admit(sim, w, r, now, budget, alongside):
    """Try to admit the waiting request ``r``. Returns tokens scheduled, 0 if it has to wait.

    ``alongside``: what the step has of running requests, see ``running_part``.
    """
    trace_node, hit_tokens, d = look_up(sim, w, r)
    lookahead = sim.config.lookahead_tokens if sim.config.looks_ahead_at_once else 0
    share = _first_share(sim, w, r, hit_tokens, budget, alongside)
    if share == 0 or not _fits(sim, w, r, hit_tokens, d, 0, hit_tokens + share + lookahead):
        return 0
    lists.stop_waiting(sim, w, r)
    step.hold(sim, w, r, trace_node, hit_tokens, hit_tokens)
    sim.requests[r].reserved_tokens = hit_tokens
    lists.note_scheduled(sim, r, now, hit_tokens, 0)
    _run(sim, w, r, hit_tokens, share, lookahead)
    return share


@kernel
def resumed_share(sim, w, r, budget, alongside):
    """Tokens that ``r``, whose KV has arrived, would compute: the last of its prompt, and drafts; 0: it has to wait."""
    computed = sim.requests[r].computed - 1
    share = _first_share(sim, w, r, computed, budget, alongside)
    held = lists.pages(sim, sim.requests[r].reserved_tokens)
    tokens = computed + share + sim.config.lookahead_tokens
    return share if _fits(sim, w, r, 0, sim.workers[w].cache_id, held, tokens) else 0


@kernel
def resume(sim, w, r, now, share):
    """Run ``r``, in no list, whose KV has arrived, with ``share`` tokens from the last one of its prompt on."""
    sim.requests[r].computed -= 1
    lists.note_scheduled(sim, r, now, sim.requests[r].hit_tokens, 0)
    _run(sim, w, r, sim.requests[r].computed, share, sim.config.lookahead_tokens)


@kernel
def admit_waiting(sim, w, now, budget):
    """Admit from the head of the queue until one does not fit."""
    worker = sim.workers[w]
    alongside = running_part(sim, w)
    while worker.waiting > 0 and budget > 0 and schedulers.running(sim, w) < sim.config.max_running:
        tokens = admit(sim, w, worker.waiting_head, now, budget, alongside)
        if tokens == 0:
            return
        budget -= tokens


@kernel
def account(sim, w, r, end):
    """Account for the share of ``r`` in the step just launched, which ends at ``end``. Returns tokens made."""
    worker = sim.workers[w]
    request = sim.requests[r]
    if request.status == la.DRAINING:
        return 0
    if request.chunk_kind == la.PROMPT_GOES_ON:
        request.computed += request.chunk
        request.status = la.PROMPT
        return 0
    accepted = 0
    if request.status == la.VERIFYING:
        accepted = drafts.accepted(sim, r, request.chunk - 1)
        request.rejected = request.chunk - 1 - accepted
    else:
        request.rejected = max(request.chunk - step.missing_tokens(sim, r), 0)
    request.computed += request.chunk - request.rejected
    request.made = min(accepted + 1, sim.trace.output_tokens[r] - request.generated)
    before = request.generated
    request.generated += request.made
    request.sampled_step = worker.launched_step
    worker.futile_preemptions = 0
    if before == 0:
        lists.note_first_token(sim, r, end)
    else:
        gaps.add(sim, end - request.last_token_s, 1)
    request.last_token_s = end
    if sim.config.thinks:
        mates = worker.decoding - (1 if request.status == la.VERIFYING else 0)
        thinking.note_sampled(sim, r, before, end, mates)
    if request.generated == sim.trace.output_tokens[r]:
        if request.status == la.VERIFYING:
            worker.decoding -= 1
        request.status = la.DRAINING
        worker.draining += 1
        ordered.add_ending(sim, w, r)
    elif request.status != la.VERIFYING:
        request.status = la.VERIFYING
        worker.decoding += 1
    return request.made
