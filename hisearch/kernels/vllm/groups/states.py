"""Linear attention's states under vLLM: groups of them take blocks of the pool beside those of full attention.

A state stands for all tokens before it. Without prefix caching a request has one block in each group. With it, chunks
end at the ends of blocks, where states can be found, and each chunk moves on to a new block; blocks behind it are free
once its results are known. All groups of states have blocks for the same pages. Source: ``MambaManager`` of
``v1/core/single_type_kv_cache_manager.py``, ``Scheduler._mamba_block_aligned_split`` of ``v1/core/sched/scheduler.py``.
Held to account by ``tests.reference.restatement.vllm_states``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import kv_groups as gl
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm.groups import pool


@kernel
def _column(sim, group, place):
    """Column of a request's table with the block in ``place`` of the ``group``-th group of states."""
    groups = sim.kv_groups
    first = groups.full * groups.table_pages + groups.windowed * groups.ring_pages
    return first + group * gl.STATE_PLACES + place


@kernel
def _page_column(sim, place):
    """Column with the page whose states are in ``place``; pages rise with places."""
    return _column(sim, sim.kv_groups.states, place)


@kernel
def _key(sim, page_key, group):
    return pool.key_of(sim, page_key, sim.kv_groups.full + sim.kv_groups.windowed + group)


# ---- where chunks end ------------------------------------------------------------------------------------------------


@kernel
def _prefill_end(sim, r):
    """Tokens at which the prompt of ``r`` ends, or what it computes anew after a preemption."""
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    return max(sim.trace.input_tokens[r], known - 1)


@kernel
def _exports(sim, start, end):
    """Whether a chunk from ``start`` to ``end`` exports the state at its last full block's end."""
    page = sim.config.page_tokens
    return sim.kv_groups.checkpoints > 0 and start % page == 0 and start + page <= (end - 1) // page * page


@kernel
def _share_of_whole_blocks(sim, known, start, share):
    page = sim.config.page_tokens
    last = known // page * page
    if start + share < last:
        return share // page * page
    return last - start if start < last < start + share else share


@kernel
def aligned(sim, r, start, share):
    """The part of a share of ``r`` behind ``start`` tokens that a step computes, so that it ends where states do."""
    end_of_prefill = _prefill_end(sim, r)
    if sim.kv_groups.states == 0 or not sim.config.prefix_caching or start >= end_of_prefill:
        return share
    page = sim.config.page_tokens
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    if not sim.config.stops_at_states:
        return _share_of_whole_blocks(sim, known, start, share)
    end = start + share
    inside = end >= end_of_prefill and _exports(sim, start, end_of_prefill)
    if end < end_of_prefill:
        longest = sim.config.chunk_tokens
        if sim.config.long_prefill_tokens > 0:
            longest = min(longest, sim.config.long_prefill_tokens)
        if end // page * page > start or page <= longest:
            end = end // page * page
    stop = end
    last = (known - 1 if sim.config.leaves_state_token else known) // page * page
    if not inside and start < last:
        stop = min(stop, last)
    if not inside and start % page > 0:
        stop = min(stop, (start // page + 1) * page)
    junction = sim.held[r].junction * page
    if start < junction < end and junction - start >= page:
        stop = min(stop, start + (junction - start) // page * page)
    return max(stop - start, 0)


# ---- blocks ----------------------------------------------------------------------------------------------------------


@kernel
def _new_blocks(sim, r, start, end, pages, places):
    """Blocks of each group that a chunk of ``r`` takes, which has ``places`` and had blocks for ``pages`` pages."""
    if not sim.config.prefix_caching:
        return 1 if places == 0 else 0
    if lists.pages(sim, end) <= pages:
        return 0
    # Where all states are kept each chunk exports one.
    ends = sim.kv_groups.retention_pages != 0 or end >= _prefill_end(sim, r)
    return 2 if ends and _exports(sim, start, end) else 1


@kernel
def free_behind(sim, v, r, computed):
    """Free the blocks of ``r`` before that of the state behind its ``computed`` tokens, the last one first."""
    if sim.kv_groups.states == 0 or not sim.config.prefix_caching:
        return
    held = sim.held[r]
    first = (computed - 1) // sim.config.page_tokens
    behind = 0
    while behind < held.states and sim.kv_tables[held.table, _page_column(sim, behind)] < first:
        behind += 1
    if behind == 0:
        return
    for group in range(sim.kv_groups.states):
        for place in range(behind - 1, -1, -1):
            pool.release(sim, v, sim.kv_tables[held.table, _column(sim, group, place)])
    held.states -= behind
    # The last of these "groups" is that of the pages' numbers.
    for group in range(sim.kv_groups.states + 1):
        for place in range(held.states):
            column = _column(sim, group, place)
            sim.kv_tables[held.table, column] = sim.kv_tables[held.table, column + behind]


@kernel
def missing_blocks(sim, r, computed, tokens):
    """Blocks that the running ``r`` needs for ``tokens`` tokens behind its ``computed`` ones."""
    held = sim.held[r]
    return sim.kv_groups.states * _new_blocks(sim, r, computed, computed + tokens, held.pages, held.states)


@kernel
def take(sim, v, r, computed, tokens):
    """Take the blocks that ``r`` lacks for its first ``tokens`` tokens, of which ``computed`` are computed."""
    if sim.kv_groups.states == 0:
        return
    held = sim.held[r]
    count = _new_blocks(sim, r, computed, tokens, held.pages, held.states)
    for group in range(sim.kv_groups.states):
        for taken in range(count):
            sim.kv_tables[held.table, _column(sim, group, held.states + taken)] = pool.take(sim, v)
    for taken in range(count):
        page = lists.pages(sim, tokens) - count + taken
        sim.kv_tables[held.table, _page_column(sim, held.states + taken)] = page
    held.states += count


# ---- what look-ups find ----------------------------------------------------------------------------------------------


@kernel
def _retains(sim, r, page):
    """Whether look-ups may find the state at the end of ``page``: always, or where a later prompt may need it."""
    interval = sim.kv_groups.retention_pages
    if interval < 0 or (interval > 0 and (page + 1) % interval == 0):
        return True
    return page + 1 == (sim.trace.input_tokens[r] - 1) // sim.config.page_tokens or page + 1 == sim.held[r].junction


@kernel
def publish(sim, v, r, end):
    """Let look-ups find states of ``r`` up to page ``end``; ``sim.path`` has the keys of pages not yet offered."""
    held = sim.held[r]
    for place in range(held.states):
        page = sim.kv_tables[held.table, _page_column(sim, place)]
        if held.hashed <= page < end and _retains(sim, r, page):
            for group in range(sim.kv_groups.states):
                key = _key(sim, sim.path[0, page - held.hashed], group)
                pool.publish(sim, v, sim.kv_tables[held.table, _column(sim, group, place)], key)
                pool.note_pass(sim, v, key)


@kernel
def hit_pages(sim, v, most):
    """Pages of the longest prefix, ``most`` at most, whose state all groups find; their keys are in ``sim.path``."""
    for page in range(most - 1, -1, -1):
        group = 0
        while group < sim.kv_groups.states and pool.find(sim, v, _key(sim, sim.path[0, page], group)) >= 0:
            group += 1
        if group == sim.kv_groups.states:
            return page + 1
    return 0


# ---- admission -------------------------------------------------------------------------------------------------------


@kernel
def needed_blocks(sim, v, r, hit, tokens):
    """Blocks that leave the free queue for the first ``tokens`` tokens of ``r``, of which ``hit`` pages are cached.

    More than any pool has where another request of this pass computes the cached state.
    """
    if sim.kv_groups.states == 0:
        return 0
    start = hit * sim.config.page_tokens
    needed = sim.kv_groups.states * _new_blocks(sim, r, start, tokens, hit, 0)
    for group in range(sim.kv_groups.states if hit > 0 else 0):
        block = pool.find(sim, v, _key(sim, sim.path[0, hit - 1], group))
        if sim.kv_blocks[v, block].published == sim.kv_pools[v].passes:
            return sim.trees[v].capacity_pages + 1
        if sim.kv_blocks[v, block].holders == 0:
            needed += 1
    return needed


@kernel
def hold(sim, v, r, hit):
    """Give ``r`` the states at the end of the ``hit`` cached pages that the newest look-up found."""
    held = sim.held[r]
    held.states = 0
    if sim.kv_groups.states == 0 or hit == 0:
        return
    for group in range(sim.kv_groups.states):
        block = pool.find(sim, v, _key(sim, sim.path[0, hit - 1], group))
        pool.hold(sim, v, block)
        sim.kv_tables[held.table, _column(sim, group, 0)] = block
    sim.kv_tables[held.table, _page_column(sim, 0)] = hit - 1
    held.states = 1


@kernel
def release(sim, v, r):
    """Free all states of ``r``, the last page's first."""
    held = sim.held[r]
    for group in range(sim.kv_groups.states):
        for place in range(held.states - 1, -1, -1):
            pool.release(sim, v, sim.kv_tables[held.table, _column(sim, group, place)])
