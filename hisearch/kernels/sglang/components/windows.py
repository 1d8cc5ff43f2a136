"""SGLang's radix tree with a pool for layers with a sliding window: what nodes have of their KV.

A prefix can be reused up to a node if all nodes in the window before that node's end have KV of the windows. Requests
hold all nodes of their prefix, and the window of the last of them.

Source: ``mem_cache.unified_cache.components.swa`` (0.5.23). Held to account by
``tests.reference.restatement.sglang_windows``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.sglang.components import unified


@kernel
def _refresh(sim, v, d):
    """Note an access to the windows before the end of ``d``: it is the newest then, the nodes above it follow."""
    reach = sim.config.window_tokens + sim.config.page_tokens
    before = -1
    covered = 0
    while not unified.is_root(sim, d) and covered < reach:
        if sim.other_nodes[d].has:
            unified.take_out(sim, v, d)
            unified.put_behind(sim, v, before, d)
            before = d
        covered += unified.tokens_of(sim, d)
        d = sim.nodes[d].parent


@kernel
def lock(sim, v, d):
    """Hold the window before the end of ``d``. Returns the begin of the highest node of it."""
    covered = 0
    begin = 0
    while not unified.is_root(sim, d) and covered < sim.config.window_tokens:
        unified.hold(sim, v, d)
        covered += unified.tokens_of(sim, d)
        begin = sim.nodes[d].begin
        d = sim.nodes[d].parent
    return begin


@kernel
def unlock(sim, v, d, held_from):
    """Release the nodes from ``d`` up to the one that begins at ``held_from``."""
    while not unified.is_root(sim, d) and sim.nodes[d].begin >= held_from:
        unified.let_go(sim, v, d)
        d = sim.nodes[d].parent


@kernel
def _reusable(sim, d):
    """The deepest node, from ``d`` upwards, before whose end the window has KV."""
    candidate = d
    covered = 0
    while not unified.is_root(sim, d):
        if sim.other_nodes[d].has:
            covered += unified.tokens_of(sim, d)
            if covered >= sim.config.window_tokens:
                return candidate
        else:
            covered = 0
            candidate = sim.nodes[d].parent
        d = sim.nodes[d].parent
    return candidate


@kernel
def walk(sim, v, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens (whole pages), and split the node in which it ends.

    Returns (tokens that can be reused, node at their end, tokens that full attention has).
    """
    sim.trees[v].tick += 1
    full, deepest = unified.reach(sim, v, trace_node, limit)
    d = _reusable(sim, deepest)
    _refresh(sim, v, d)
    unified.mark_path(sim, v, d)
    return (0 if unified.is_root(sim, d) else sim.nodes[d].end), d, full


@kernel
def _pass_through(sim, v, d, held, freed):
    """Let an insertion pass through ``d``, whose tokens behind ``held`` the request has computed itself.

    Where ``d`` has no windows' KV it gets the request's, which is there from ``freed`` on. Returns the pages of the
    request's windows that are free then.
    """
    begin = sim.nodes[d].begin
    end = sim.nodes[d].end
    if held >= end:
        return 0
    if sim.other_nodes[d].has:
        return max(end - max(begin, held, freed), 0) // sim.config.page_tokens
    if freed < end:
        if freed > begin:
            unified.split(sim, v, d, freed)
        unified.give(sim, v, d)
    return 0


@kernel
def _give_leaf(sim, v, d, freed):
    """Give the new leaf ``d`` the request's windows' KV, which is there from ``freed`` on.

    What is before that, and before one window at the end, is cut off, so that who holds the leaf holds no more.
    """
    page = sim.config.page_tokens
    begin = sim.nodes[d].begin
    end = sim.nodes[d].end
    if freed >= end:
        return
    if freed > begin:
        unified.split(sim, v, d, freed)
    tail = end - (sim.config.window_tokens + page - 1) // page * page
    if tail > sim.nodes[d].begin:
        unified.give(sim, v, unified.split(sim, v, d, tail))
    unified.give(sim, v, d)


@kernel
def insert(sim, v, trace_node, tokens, priority, counted_from, held, freed):
    """Add the first ``tokens`` (whole pages) of the path to ``trace_node`` for a request of that priority.

    ``held``: tokens of it that it holds in the tree; ``freed``: those whose windows' KV it has not. It is a hit of each
    node that ends behind ``counted_from``. Returns (tokens that full attention had before, deepest node, pages of the
    request's windows that are free then).
    """
    sim.trees[v].tick += 1
    present, d = unified.reach(sim, v, trace_node, tokens)
    spare = 0
    for level in range(unified.depth(sim, d) - 1, -1, -1):
        # From the root down. A split leaves the nodes below as far from the end as they were.
        u = unified.above(sim, d, level)
        unified.mark(sim, v, u)
        unified.raise_priority(sim, u, priority)
        spare += _pass_through(sim, v, u, held, freed)
        unified.note_insertion(sim, v, u, counted_from)
    if present < tokens:
        d = unified.add_leaf(sim, v, d, trace_node, present, tokens, priority)
        _give_leaf(sim, v, d, freed)
        unified.note_insertion(sim, v, d, counted_from)
    _refresh(sim, v, d)
    return present, d, spare
