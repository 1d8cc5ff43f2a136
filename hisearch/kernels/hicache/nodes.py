"""HiCache's nodes: their tiers, eviction candidates and look-up; see ``hicache``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction, radix, tree
from hisearch.kernels.layout import hicache as hl


@kernel
def host_pool(sim, w):
    """Index of worker ``w``'s host pool among the trees."""
    return sim.trees.shape[0] - sim.config.workers + w


@kernel
def is_root(sim, d):
    """Whether node ``d`` is a tree's root."""
    return d < sim.trees.shape[0]


@kernel
def on_host_alone(sim, d):
    """Whether node ``d`` has left HBM and is on the host."""
    return not is_root(sim, d) and sim.hosted[d].where == hl.ON_HOST


@kernel
def offer_host(sim, w, d):
    """Make ``d`` evictable from the host if it is an unused host-only leaf."""
    node = sim.nodes[d]
    hosted = sim.hosted[d]
    if hosted.where == hl.ON_HOST and node.children == 0 and hosted.host_locks == 0 and node.heap_slot < 0:
        eviction.enter(sim, host_pool(sim, w), d)


@kernel
def lock_host(sim, w, d):
    """Lock the host copy of ``d`` for storage."""
    if is_root(sim, d):
        return
    sim.hosted[d].host_locks += 1
    if sim.hosted[d].where == hl.ON_HOST:
        eviction.withdraw(sim, host_pool(sim, w), d)


@kernel
def unlock_host(sim, w, d):
    """Unlock the host copy of ``d``."""
    if is_root(sim, d):
        return
    sim.hosted[d].host_locks -= 1
    offer_host(sim, w, d)


@kernel
def enter_hbm(sim, w, d):
    """Put the host-only ``d`` into HBM as well."""
    eviction.withdraw(sim, host_pool(sim, w), d)
    sim.hosted[d].where |= hl.IN_HBM
    gain_child(sim, w, sim.nodes[d].parent)
    sim.trees[w].evictable_pages += radix.pages_of(sim, d)
    radix.offer(sim, w, d)


@kernel
def gain_child(sim, w, d):
    """Count one more child of ``d`` in HBM."""
    if not is_root(sim, d):
        eviction.withdraw(sim, w, d)
        sim.hosted[d].device_children += 1


@kernel
def lose_child(sim, w, d, child):
    """Count one child of ``d`` in HBM less: ``child``, which passes its tick up."""
    if is_root(sim, d):
        return
    sim.nodes[d].tick = max(sim.nodes[d].tick, sim.nodes[child].tick)
    sim.hosted[d].device_children -= 1
    radix.offer(sim, w, d)


@kernel
def find(sim, w, trace_node, limit):
    """Longest cached prefix of the path to ``trace_node``, at most ``limit`` tokens: (tokens, node, deepest in HBM)."""
    while True:
        tokens, d = tree.match(sim, w, trace_node, limit)
        if tokens == 0:
            return 0, w, w
        deepest_in_hbm = d
        while on_host_alone(sim, deepest_in_hbm):
            deepest_in_hbm = sim.nodes[deepest_in_hbm].parent
        if is_root(sim, deepest_in_hbm) or sim.hosted[deepest_in_hbm].where != 0:
            return tokens, d, deepest_in_hbm
        # Cut off: clear the deepest trace node that leads to it.
        s = trace_node
        while sim.deepest_cached[w, s] < 0:
            s = sim.trace.parent[s]
        sim.deepest_cached[w, s] = -1


@kernel
def split(sim, w, d, at):
    """Split ``d`` at ``at``; ``d`` keeps the lower half, its copies and its storage locks. Returns the upper half."""
    upper = tree.split(sim, w, d, at)
    sim.nodes[upper].serial = sim.nodes[d].serial if sim.config.keeps_creation else sim.trees[w].serial
    sim.trees[w].serial += 1
    sim.nodes[upper].hits = sim.nodes[d].hits
    hosted = sim.hosted[upper]
    hosted.where = sim.hosted[d].where
    hosted.settled = sim.hosted[d].settled
    hosted.host_locks = 0
    hosted.device_children = 1 if sim.hosted[d].where & hl.IN_HBM else 0
    if radix.has_node_ranks(sim):
        sim.node_ranks[upper] = sim.node_ranks[d]
    return upper


@kernel
def mark(sim, w, d):
    """Mark ``d`` as accessed now."""
    if is_root(sim, d):
        return
    sim.nodes[d].tick = sim.trees[w].tick
    if sim.nodes[d].heap_slot >= 0:
        eviction.moved(sim, host_pool(sim, w) if sim.hosted[d].where == hl.ON_HOST else w, d)


@kernel
def walk(sim, w, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens (full pages) in both tiers.

    Returns (tokens in HBM, the node that ends with them, host-only tokens after them, the path's deepest node with a
    host copy; the root counts as having one).
    """
    sim.trees[w].tick += 1
    tokens, d, deepest_in_hbm = find(sim, w, trace_node, limit)
    if tokens == 0:
        return 0, w, 0, w
    mark(sim, w, d)
    if tokens < sim.nodes[d].end:
        upper = split(sim, w, d, tokens)
        if deepest_in_hbm == d:
            deepest_in_hbm = upper
        d = upper
    if deepest_in_hbm != d:
        mark(sim, w, deepest_in_hbm)
    in_hbm = sim.nodes[deepest_in_hbm].end
    while not is_root(sim, d) and not sim.hosted[d].where & hl.ON_HOST:
        d = sim.nodes[d].parent
    return in_hbm, deepest_in_hbm, tokens - in_hbm, d
