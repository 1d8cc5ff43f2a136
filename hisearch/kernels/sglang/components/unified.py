"""What SGLang's trees over two pools share: marks, splits, leaves, the other pool's order, and evictions.

Every node has KV of full attention; the *other* pool's part it has or not. That pool evicts in an order of its own, of
the last access: a leaf goes from both pools, another node loses the other part alone.

A match accesses the nodes that it returns, an insertion all on its path. So nodes are marked one by one, where
``cache.radix`` marks the deepest alone.

Source: ``mem_cache.unified_cache.unified_tree_core`` (0.5.23).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction, radix, tree
from hisearch.kernels.core.linked_list import linked_list
from hisearch.kernels.layout import sim as la

_insert, _remove = linked_list()


@kernel
def is_root(sim, d):
    """Whether ``d`` is the root of a tree."""
    return d < sim.trees.shape[0]


@kernel
def tokens_of(sim, d):
    """Tokens of node ``d``."""
    return sim.nodes[d].end - sim.nodes[d].begin


# ---- the other pool --------------------------------------------------------------------------------------------------


@kernel
def units(sim, d):
    """Units of the other pool that ``d`` takes: its pages, or one state."""
    return radix.pages_of(sim, d) if sim.config.window_tokens else 1


@kernel
def put_behind(sim, v, before, d):
    """Put ``d`` behind ``before`` in the other pool's order; -1: first, as the newest."""
    pool = sim.other_pools[v]
    head, tail = _insert(sim.other_nodes, pool.head, pool.tail, before, d)
    pool.head = head
    pool.tail = tail


@kernel
def take_out(sim, v, d):
    """Take ``d`` out of that order."""
    pool = sim.other_pools[v]
    head, tail = _remove(sim.other_nodes, pool.head, pool.tail, d)
    pool.head = head
    pool.tail = tail


@kernel
def give(sim, v, d):
    """Note that ``d`` has the other part from now on."""
    node = sim.other_nodes[d]
    node.has = 1
    put_behind(sim, v, -1, d)
    if node.lock == 0:
        sim.other_pools[v].evictable += units(sim, d)


@kernel
def take_away(sim, v, d):
    """Free the other part of ``d``, which nobody holds."""
    freed = units(sim, d)
    take_out(sim, v, d)
    sim.other_nodes[d].has = 0
    sim.other_pools[v].evictable -= freed
    sim.other_pools[v].free += freed


@kernel
def hold(sim, v, d):
    """Hold the other part of ``d``, or what it may get of it."""
    node = sim.other_nodes[d]
    if node.lock == 0 and node.has:
        sim.other_pools[v].evictable -= units(sim, d)
    node.lock += 1


@kernel
def let_go(sim, v, d):
    """Release it."""
    node = sim.other_nodes[d]
    node.lock -= 1
    if node.lock == 0 and node.has:
        sim.other_pools[v].evictable += units(sim, d)


# ---- nodes -----------------------------------------------------------------------------------------------------------


@kernel
def mark(sim, v, d):
    """Note an access to ``d``, for the eviction of full attention's pool."""
    node = sim.nodes[d]
    node.tick = sim.trees[v].tick
    if node.heap_slot >= 0:
        eviction.moved(sim, v, d)


@kernel
def mark_path(sim, v, d):
    """Likewise to ``d`` and all nodes above it."""
    while not is_root(sim, d):
        mark(sim, v, d)
        d = sim.nodes[d].parent


@kernel
def split(sim, v, d, at):
    """Cut ``d`` at ``at``. Returns the new upper part, which has the window's KV of ``d``, and no state."""
    u = tree.split(sim, v, d, at)
    sim.nodes[u].serial = sim.nodes[d].serial
    sim.nodes[u].hits = sim.nodes[d].hits
    if radix.has_node_ranks(sim):
        sim.node_ranks[u] = sim.node_ranks[d]
    sim.trees[v].serial += 1
    upper, lower = sim.other_nodes[u], sim.other_nodes[d]
    upper.has = lower.has if sim.config.window_tokens else 0
    upper.lock = lower.lock if sim.config.window_tokens else 0
    if upper.has:
        put_behind(sim, v, d, u)
    mark(sim, v, d)
    sim.nodes[u].tick = sim.trees[v].tick
    return u


@kernel
def reach(sim, v, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens in full attention; split where the match ends.

    Returns (tokens, node at its end).
    """
    tokens, d = tree.match(sim, v, trace_node, limit)
    if tokens == 0:
        return 0, v
    if tokens < sim.nodes[d].end:
        d = split(sim, v, d, tokens)
    return tokens, d


@kernel
def raise_priority(sim, d, priority):
    """Let ``d`` have at least that priority."""
    if radix.has_node_ranks(sim):
        sim.node_ranks[d].priority = max(sim.node_ranks[d].priority, priority)


@kernel
def note_insertion(sim, v, d, counted_from):
    """Note that an insertion passed through ``d``; it is a hit if ``d`` ends behind ``counted_from``."""
    if sim.config.eviction == la.LRU:
        return
    node = sim.nodes[d]
    if node.end > counted_from:
        node.hits += 1
    if node.heap_slot >= 0:
        eviction.moved(sim, v, d)


@kernel
def depth(sim, d):
    """Nodes from the root to ``d``, without the root."""
    count = 0
    while not is_root(sim, d):
        count += 1
        d = sim.nodes[d].parent
    return count


@kernel
def above(sim, d, levels):
    """The node ``levels`` above ``d``."""
    for _ in range(levels):
        d = sim.nodes[d].parent
    return d


@kernel
def add_leaf(sim, v, parent, trace_node, begin, end, priority):
    """Add a leaf without the other part below ``parent``; returns it."""
    cache = sim.trees[v]
    eviction.withdraw(sim, v, parent)
    d = tree.insert(sim, v, parent, trace_node, begin, end)
    node = sim.nodes[d]
    node.serial = cache.serial
    node.tick = cache.tick
    if radix.has_node_ranks(sim):
        record = sim.node_ranks[d]
        record.rank = cache.serial
        record.priority = priority
        record.weight = 0
    cache.serial += 1
    cache.evictable_pages += radix.pages_of(sim, d)
    sim.other_nodes[d].has = 0
    sim.other_nodes[d].lock = 0
    radix.offer(sim, v, d)
    return d


# ---- evictions -------------------------------------------------------------------------------------------------------


@kernel
def _evict_leaf(sim, v, d):
    """Evict the unlocked leaf ``d`` from both pools."""
    cache = sim.trees[v]
    freed = radix.pages_of(sim, d)
    parent = sim.nodes[d].parent
    if sim.other_nodes[d].has:
        take_away(sim, v, d)
    eviction.withdraw(sim, v, d)
    tree.remove(sim, v, d)
    if not is_root(sim, parent):
        radix.offer(sim, v, parent)
    cache.free_pages += freed
    cache.evictable_pages -= freed
    cache.evicted_tokens += freed * sim.config.page_tokens


@kernel
def evict_full(sim, v, pages):
    """Evict leaves until ``pages`` pages of full attention's pool are free, as far as possible."""
    while sim.trees[v].free_pages < pages and eviction.some(sim, v):
        _evict_leaf(sim, v, eviction.first(sim, v))


@kernel
def _oldest_unheld(sim, v):
    """The node with the oldest access whose other part nobody holds, or -1."""
    d = sim.other_pools[v].tail
    while d >= 0 and sim.other_nodes[d].lock > 0:
        d = sim.other_nodes[d].prev
    return d


@kernel
def evict_other(sim, v, wanted):
    """Evict until ``wanted`` units of the other pool are free, as far as possible."""
    while sim.other_pools[v].free < wanted:
        d = _oldest_unheld(sim, v)
        if d < 0:
            return
        if sim.nodes[d].heap_slot >= 0:
            _evict_leaf(sim, v, d)
        else:
            take_away(sim, v, d)


@kernel
def ensure_free_pages(sim, v, pages):
    """If fewer than ``pages`` are free in a pool of pages, evict as many as are missing, as far as possible."""
    lacks = sim.config.window_tokens > 0 and sim.other_pools[v].free < pages
    evict_full(sim, v, pages)
    if lacks:
        evict_other(sim, v, pages)


@kernel
def reset(sim, v):
    """Reset the other pool of tree ``v``, whose tree is empty."""
    pool = sim.other_pools[v]
    pool.capacity = sim.config.other_capacity
    pool.free = pool.capacity
    pool.evictable = 0
    pool.head = -1
    pool.tail = -1
