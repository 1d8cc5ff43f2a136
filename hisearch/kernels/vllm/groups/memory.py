"""vLLM's KV cache manager with several groups: block tables, cached prefixes, windows; ``states`` has those of states.

Source: ``v1/core/kv_cache_coordinator.py``, ``single_type_kv_cache_manager.py`` and ``kv_cache_manager.py``. Held to
account by ``tests.reference.restatement.vllm_groups``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table
from hisearch.kernels.engine import schedulers
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm.groups import pool, states


@kernel
def _groups(sim):
    """Groups of attention, which come before those of states."""
    return sim.kv_groups.full + sim.kv_groups.windowed


@kernel
def _place(sim, r, group, page):
    """Column of ``page``'s block of ``group`` in the table of ``r``."""
    groups = sim.kv_groups
    if group < groups.full:
        return group * groups.table_pages + page
    return groups.full * groups.table_pages + (group - groups.full) * groups.ring_pages + page % groups.ring_pages


@kernel
def skipped_pages(sim, computed):
    """Leading pages that are out of the window once ``computed`` tokens are computed."""
    return max(computed - sim.kv_groups.window_tokens + 1, 0) // sim.config.page_tokens


@kernel
def _tokens_in_flight(sim, w, r):
    """Tokens of ``r`` that were computed in a step whose results are not known."""
    worker = sim.workers[w]
    request = sim.requests[r]
    return request.chunk if request.scheduled_step > worker.launched_step - worker.outstanding else 0


@kernel
def _free_skipped(sim, w, r, computed):
    """Free blocks of ``r`` that are out of the window, the one nearest to it first, and states behind it."""
    if sim.config.frees_processed:
        computed -= _tokens_in_flight(sim, w, r)
    states.free_behind(sim, sim.workers[w].cache_id, r, computed)
    if sim.kv_groups.windowed == 0:
        return
    held = sim.held[r]
    end = min(skipped_pages(sim, computed), held.pages)
    v = sim.workers[w].cache_id
    for group in range(sim.kv_groups.full, _groups(sim)):
        for page in range(end - 1, held.first_windowed - 1, -1):
            pool.release(sim, v, sim.kv_tables[held.table, _place(sim, r, group, page)])
    held.first_windowed = max(held.first_windowed, end)


@kernel
def missing_blocks(sim, w, r, computed, tokens):
    """Blocks that the running ``r`` needs for ``tokens`` tokens behind its ``computed`` ones."""
    _free_skipped(sim, w, r, computed)
    attention = max(lists.pages(sim, computed + tokens) - sim.held[r].pages, 0) * _groups(sim)
    return attention + states.missing_blocks(sim, r, computed, tokens)


@kernel
def take(sim, w, r, computed, tokens):
    """Take blocks, of one group after another, so that ``r`` has them for its first ``tokens`` tokens.

    ``computed`` of them are computed.
    """
    held = sim.held[r]
    v = sim.workers[w].cache_id
    pages = lists.pages(sim, tokens)
    for group in range(_groups(sim)):
        for page in range(held.pages, pages):
            sim.kv_tables[held.table, _place(sim, r, group, page)] = pool.take(sim, v)
    states.take(sim, v, r, computed, tokens)
    held.pages = max(held.pages, pages)


# ---- what look-ups find ----------------------------------------------------------------------------------------------


@kernel
def _window_pages(sim):
    """Consecutive pages that a hit needs in a window group."""
    page = sim.config.page_tokens
    return (sim.kv_groups.window_tokens - 1 + page - 1) // page


@kernel
def _retains(sim, r, group, page):
    """Whether look-ups may find ``page`` in ``group``: always, or where a later prompt may need it."""
    groups = sim.kv_groups
    if group < groups.full or groups.retention_pages < 0:
        return True
    needed = _window_pages(sim)
    interval = groups.retention_pages
    if interval > 0 and page % interval >= interval - needed:
        return True
    end = (sim.trace.input_tokens[r] - 1) // sim.config.page_tokens
    junction = sim.held[r].junction
    return end - needed <= page < end or junction - needed <= page < junction


@kernel
def publish(sim, w, r, tokens):
    """Let look-ups find the full pages among the first ``tokens`` tokens of ``r``."""
    held = sim.held[r]
    end = tokens // sim.config.page_tokens
    if not sim.config.prefix_caching or end <= held.hashed:
        return
    v = sim.workers[w].cache_id
    block_table.fill_path(sim, sim.trace.output_node[r], held.hashed, end)
    for group in range(_groups(sim)):
        first = held.hashed if group < sim.kv_groups.full else max(held.hashed, held.first_windowed)
        for page in range(first, end):
            if _retains(sim, r, group, page):
                block = sim.kv_tables[held.table, _place(sim, r, group, page)]
                pool.publish(sim, v, block, pool.key_of(sim, sim.path[0, page - held.hashed], group))
    states.publish(sim, v, r, end)
    held.hashed = end


@kernel
def _is_cached_in(sim, v, first, end, page_key):
    """Whether all groups from ``first`` to ``end`` (excluded) have the page."""
    group = first
    while group < end and pool.find(sim, v, pool.key_of(sim, page_key, group)) >= 0:
        group += 1
    return group == end


@kernel
def _windowed_hit(sim, v, most):
    """Pages of the longest prefix, ``most`` at most, that the window groups find."""
    groups = sim.kv_groups
    needed = _window_pages(sim)
    run = 0
    for page in range(most - 1, -1, -1):
        run = run + 1 if _is_cached_in(sim, v, groups.full, _groups(sim), sim.path[0, page]) else 0
        if run == needed:
            return page + run
    return run


@kernel
def cached_pages(sim, v, trace_node, most):
    """Pages of the path to ``trace_node``, ``most`` at most, that all groups of pool ``v`` find, and full groups alone.

    The keys of all ``most`` pages are in ``sim.path`` then.
    """
    groups = sim.kv_groups
    block_table.fill_path(sim, trace_node, 0, most)
    full = most
    if groups.full > 0:
        full = 0
        while full < most and _is_cached_in(sim, v, 0, groups.full, sim.path[0, full]):
            full += 1
    if groups.states > 0:
        return states.hit_pages(sim, v, full), full
    return _windowed_hit(sim, v, full) if groups.windowed > 0 else full, full


@kernel
def look_up(sim, w, r):
    """Pages of the longest prefix of the waiting ``r`` that all groups find; their keys are in ``sim.path`` then."""
    sim.held[r].junction = 0
    if not sim.config.prefix_caching:
        return 0
    most = (sim.trace.input_tokens[r] + sim.requests[r].generated - 1) // sim.config.page_tokens
    hit, full = cached_pages(sim, sim.workers[w].cache_id, sim.trace.output_node[r], most)
    if sim.kv_groups.full > 0 and full > hit:
        sim.held[r].junction = full
    return hit


# ---- admission -------------------------------------------------------------------------------------------------------


@kernel
def _needed(sim, v, group, hit, pages):
    """Blocks of ``group`` that leave the free queue for ``pages`` pages, of which ``hit`` are cached."""
    first = 0 if group < sim.kv_groups.full else skipped_pages(sim, hit * sim.config.page_tokens)
    needed = max(pages - max(first, hit), 0)
    for page in range(first, hit):
        block = pool.find(sim, v, pool.key_of(sim, sim.path[0, page], group))
        if sim.kv_blocks[v, block].holders == 0:
            needed += 1
    return needed


@kernel
def _fits(sim, w, r, hit, tokens, whole):
    """Whether ``tokens`` tokens fit, ``hit`` pages of them cached; ``whole``: windows count what they hold at most."""
    v = sim.workers[w].cache_id
    pages = lists.pages(sim, tokens)
    needed = sim.config.watermark_pages if schedulers.running(sim, w) > 0 else 0
    for group in range(_groups(sim)):
        capped = whole and group >= sim.kv_groups.full
        needed += _needed(sim, v, group, hit, min(pages, sim.kv_groups.admitted_pages) if capped else pages)
    needed += states.needed_blocks(sim, v, r, hit, tokens)
    return needed <= sim.trees[v].free_pages


@kernel
def fits_admission(sim, w, r, hit, share):
    """Whether there are blocks to admit ``r`` with ``hit`` cached pages and ``share`` tokens behind them."""
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    if sim.config.reserve_full_prompt and not _fits(sim, w, r, hit, known, True):
        return False
    return _fits(sim, w, r, hit, hit * sim.config.page_tokens + share, False)


@kernel
def hold(sim, w, r, hit):
    """Give ``r`` a table and the ``hit`` cached pages that the newest look-up found."""
    v = sim.workers[w].cache_id
    held = sim.held[r]
    held.table = sim.kv_pools[v].free_tables
    sim.kv_pools[v].free_tables = sim.next_tables[held.table]
    held.pages = hit
    held.hashed = hit
    held.first_windowed = skipped_pages(sim, hit * sim.config.page_tokens)
    for group in range(_groups(sim)):
        for page in range(0 if group < sim.kv_groups.full else held.first_windowed, hit):
            block = pool.find(sim, v, pool.key_of(sim, sim.path[0, page], group))
            pool.hold(sim, v, block)
            sim.kv_tables[held.table, _place(sim, r, group, page)] = block
    states.hold(sim, v, r, hit)
    sim.requests[r].computed = hit * sim.config.page_tokens


@kernel
def release(sim, w, r, findable):
    """Free the blocks of ``r``, last page first; full pages of its first ``findable`` tokens stay findable."""
    publish(sim, w, r, findable)
    v = sim.workers[w].cache_id
    held = sim.held[r]
    for group in range(_groups(sim)):
        for page in range(held.pages - 1, -1 if group < sim.kv_groups.full else held.first_windowed - 1, -1):
            pool.release(sim, v, sim.kv_tables[held.table, _place(sim, r, group, page)])
    states.release(sim, v, r)
    sim.next_tables[held.table] = sim.kv_pools[v].free_tables
    sim.kv_pools[v].free_tables = held.table


@kernel
def never_fits(sim, r):
    """True if full attention's blocks of ``r`` do not fit, or, without chunked prefill, it exceeds a step's budget.

    Requests whose windows do not fit are refused as too long (``max_request_tokens``), or stop the engine.
    """
    declared = sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r] - 1
    if not sim.config.chunked_prefill and declared > sim.config.chunk_tokens:
        return True
    groups = sim.kv_groups
    return groups.full * lists.pages(sim, declared) + groups.windowed + groups.states > sim.config.capacity_pages


@kernel
def reset(sim, w):
    """Reset worker ``w`` to an empty pool."""
    v = sim.workers[w].cache_id
    pool.reset(sim, v, sim.config.capacity_pages)
    first = v * sim.config.max_running
    for table in range(first, first + sim.config.max_running):
        sim.next_tables[table] = table + 1
    sim.kv_pools[v].free_tables = first
