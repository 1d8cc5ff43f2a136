"""SGLang's radix tree with a pool of states of linear attention: some nodes have the state at their end.

A prefix can be reused up to a node that has its state. Requests hold all nodes of their prefix, and the state of the
last of them.

Source: ``mem_cache.unified_cache.components.mamba`` (0.5.23). Held to account by
``tests.reference.restatement.sglang_states``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.sglang.components import unified


@kernel
def _refresh(sim, v, d):
    """Note an access to the state of ``d``."""
    unified.take_out(sim, v, d)
    unified.put_behind(sim, v, -1, d)


@kernel
def lock(sim, v, d):
    """Hold the state of ``d``."""
    if not unified.is_root(sim, d):
        unified.hold(sim, v, d)


@kernel
def unlock(sim, v, d):
    """Release it."""
    if not unified.is_root(sim, d):
        unified.let_go(sim, v, d)


@kernel
def walk(sim, v, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens (whole pages), and split the node in which it ends.

    Returns (tokens that can be reused, node at their end, tokens that full attention has).
    """
    sim.trees[v].tick += 1
    full, d = unified.reach(sim, v, trace_node, limit)
    while not unified.is_root(sim, d) and not sim.other_nodes[d].has:
        d = sim.nodes[d].parent
    if unified.is_root(sim, d):
        return 0, d, full
    _refresh(sim, v, d)
    unified.mark_path(sim, v, d)
    return sim.nodes[d].end, d, full


@kernel
def insert(sim, v, trace_node, tokens, priority, counted_from):
    """Add the first ``tokens`` (whole pages) of the path to ``trace_node``, with the state at their end.

    It is a hit of each node that ends behind ``counted_from``. Returns (tokens that full attention had before, deepest
    node, whether its state was there).
    """
    sim.trees[v].tick += 1
    present, d = unified.reach(sim, v, trace_node, tokens)
    for level in range(unified.depth(sim, d) - 1, -1, -1):
        u = unified.above(sim, d, level)
        unified.mark(sim, v, u)
        unified.raise_priority(sim, u, priority)
        unified.note_insertion(sim, v, u, counted_from)
    if present < tokens:
        d = unified.add_leaf(sim, v, d, trace_node, present, tokens, priority)
        unified.note_insertion(sim, v, d, counted_from)
    if sim.other_nodes[d].has:
        _refresh(sim, v, d)
        return present, d, True
    unified.give(sim, v, d)
    return present, d, False
