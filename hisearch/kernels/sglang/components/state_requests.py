"""What SGLang's requests have of the pool of states.

A request has the state that its steps go on from, and with ``state_slots`` (the strategy ``extra_buffer``) as many
more, into which they also write a state for the tree: prompts behind the last whole grid of each chunk, decodes at
multiples of an interval. It puts its tokens into the tree up to such a state, which goes with them. Without such slots
(``no_buffer``) a copy of its own state goes, behind all its tokens.

A look-up may find more KV of full attention than states. A chunk that passes the last grid of that
(``branch_tokens``) leaves its state there.

Source: ``mem_cache.unified_cache.components.mamba``, ``managers.schedule_batch.ScheduleBatch`` and
``managers.scheduler_components.batch_result_processor`` (0.5.23).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix, tree
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang.components import states, unified
from hisearch.kernels.traffic import lists


@kernel
def _take(sim, w, count):
    """Take slots, evicting where there are too few."""
    v = sim.workers[w].cache_id
    unified.evict_other(sim, v, count)
    if sim.other_pools[v].free < count:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    sim.other_pools[v].free -= count


@kernel
def copy_matched(sim, w, r, d):
    """Let the waiting ``r`` have a copy of the state of node ``d``, which a look-up found."""
    mine = sim.other_requests[r]
    if mine.slots > 0 or unified.is_root(sim, d):
        return
    v = sim.workers[w].cache_id
    radix.lock(sim, v, d)
    states.lock(sim, v, d)
    _take(sim, w, 1)
    states.unlock(sim, v, d)
    radix.unlock(sim, v, d)
    mine.slots = 1


@kernel
def take_slots(sim, w, entries, size):
    """Let the requests of a prefill have their slots, and note which states their chunks leave for the tree."""
    slots = 1 + sim.config.state_slots
    missing = 0
    for k in range(size):
        missing += slots - sim.other_requests[entries[k]].slots
    if missing > 0:
        _take(sim, w, missing)
    for k in range(size):
        sim.other_requests[entries[k]].slots = slots
        if sim.config.state_slots > 0:
            _track(sim, entries[k])


@kernel
def _track(sim, r):
    """Note the state that the chunk of ``r`` leaves, behind its last whole grid; or where more had been found."""
    request = sim.requests[r]
    mine = sim.other_requests[r]
    grid = sim.config.state_grid_tokens
    begin = request.computed
    mine.untracked_tokens = begin + request.chunk
    if request.chunk < grid:
        return
    mine.tracked_tokens = begin + request.chunk // grid * grid
    beyond = mine.branch_tokens - begin
    if 0 < beyond < request.chunk and beyond % grid == 0:
        mine.tracked_tokens = mine.branch_tokens


@kernel
def _decoded(sim, r, tokens):
    """Note the last state that decodes of ``r``, up to ``tokens`` tokens, have left for the tree."""
    mine = sim.other_requests[r]
    interval = sim.config.state_interval_tokens
    newest = tokens // interval * interval
    if sim.config.state_slots > 0 and 0 < mine.untracked_tokens < newest:
        mine.tracked_tokens = newest


@kernel
def pass_untracked(sim, r, tokens, first):
    """Note that ``r`` decodes to ``tokens`` tokens in a mixed step, which leaves no state. ``first``: the first."""
    interval = sim.config.state_interval_tokens
    if sim.config.state_slots == 0 or tokens % interval != 0:
        return
    if not first:
        _decoded(sim, r, tokens - 1)
    sim.other_requests[r].untracked_tokens = tokens


@kernel
def keep(sim, w, r, counted_from, finished):
    """Put computed full pages of ``r`` into the tree, as far as it has a state for it; ``r`` holds them then.

    ``computed`` includes them. Returns their tokens.
    """
    request = sim.requests[r]
    mine = sim.other_requests[r]
    v = sim.workers[w].cache_id
    if finished:
        # A step in flight behind its last token does not count.
        known = sim.trace.input_tokens[r] - request.cut_tokens + sim.trace.output_tokens[r] - 1
        _decoded(sim, r, min(request.computed, known))
    offered = mine.tracked_tokens if sim.config.state_slots > 0 else request.computed
    mine.tracked_tokens = 0
    tokens = tree.floor_page(sim, offered)
    if tokens == 0:
        return 0
    if not finished:
        _take(sim, w, 1)
    present, d, there = states.insert(sim, v, lists.path_end(sim, r), tokens, sim.trace.priority[r], counted_from)
    sim.trees[v].free_pages += (present - request.locked_tokens) // sim.config.page_tokens
    if finished and not there:
        mine.slots -= 1
    elif there and not finished:
        sim.other_pools[v].free += 1
    states.unlock(sim, v, request.node)
    radix.unlock(sim, v, request.node)
    radix.lock(sim, v, d)
    states.lock(sim, v, d)
    request.node = d
    request.locked_tokens = tokens
    return tokens


@kernel
def drop(sim, w, r):
    """Free the slots of ``r``, and release the tree's state."""
    mine = sim.other_requests[r]
    v = sim.workers[w].cache_id
    states.unlock(sim, v, sim.requests[r].node)
    sim.other_pools[v].free += mine.slots
    mine.slots = 0
    mine.tracked_tokens = 0
    mine.untracked_tokens = 0
    mine.branch_tokens = 0
