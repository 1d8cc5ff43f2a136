"""SGLang's radix cache on top of ``tree``: unlocked leaves are evicted as a whole, lowest priority first.

Every match and every insertion advances the tick, which is the access time of each node on its path. A path to a node
leads through all nodes above it. So a node's true access time is the latest of its own and of all nodes ever below it.
Therefore only the deepest node of a path is marked, and a removed node passes its mark to its parent. Priorities work
the same way, by maxima. The marks are exact in childless leaves, which are all that eviction looks at.

Hits are counted with a host tier (``hicache``), and without one from release 0.5.10 on; else lfu and slru are lru.

``TREE.free_pages`` are pages without content; ``evictable_pages`` those of nodes that nobody holds.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS, QUEUE_ORDERS
from hisearch.kernels.cache import eviction, objects, tree
from hisearch.kernels.layout import sim as la

#: Bits of the eviction policies that go by the requests' priorities.
_WEIGHS_NODES = QUEUE_ORDERS.mask(lambda order: order.weighs_nodes)
_PRIORITIES = EVICTIONS.mask(lambda policy: policy.priorities)
#: Bits of those that go by hits.
_HITS = EVICTIONS.mask(lambda policy: policy.hits)


@kernel
def pages_of(sim, d):
    """Pages of node ``d``."""
    return (sim.nodes[d].end - sim.nodes[d].begin) // sim.config.page_tokens


@kernel
def counts_priorities(sim):
    """Whether eviction, from HBM and the host or from a store, uses the requests' priorities."""
    return _PRIORITIES >> sim.config.eviction & 1 or sim.tiers.priorities != 0


@kernel
def has_node_ranks(sim):
    """Whether nodes have ``NODE_RANK`` records."""
    return counts_priorities(sim) or _WEIGHS_NODES >> sim.config.schedule & 1


@kernel
def offer(sim, v, d):
    """Let ``d`` be evicted if it is an unlocked leaf; with a host tier, a leaf of the nodes in HBM."""
    node = sim.nodes[d]
    if node.lock > 0 or node.heap_slot >= 0:
        return
    children = sim.hosted[d].device_children if sim.config.hicache else node.children
    if children == 0:
        eviction.enter(sim, v, d)


@kernel
def mark(sim, v, d):
    """Mark ``d`` as accessed now."""
    if d < sim.trees.shape[0]:
        return
    node = sim.nodes[d]
    node.tick = sim.trees[v].tick
    if node.heap_slot >= 0:
        eviction.moved(sim, v, d)


@kernel
def walk(sim, v, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens (whole pages); split the node in which the match ends.

    Returns (tokens, node at the match's end).
    """
    cache = sim.trees[v]
    cache.tick += 1
    tokens, d = tree.match(sim, v, trace_node, limit)
    if tokens == 0:
        return 0, v
    mark(sim, v, d)
    if tokens < sim.nodes[d].end:
        lower = d
        d = tree.split(sim, v, d, tokens)
        sim.nodes[d].serial = sim.nodes[lower].serial if sim.config.keeps_creation else cache.serial
        sim.nodes[d].hits = sim.nodes[lower].hits
        if has_node_ranks(sim):
            sim.node_ranks[d] = sim.node_ranks[lower]
        cache.serial += 1
    return tokens, d


@kernel
def _note_insertion(sim, v, d, priority):
    """Note that an insertion ended in node ``d``."""
    node = sim.nodes[d]
    if has_node_ranks(sim):
        sim.node_ranks[d].priority = max(sim.node_ranks[d].priority, priority)
    if node.heap_slot >= 0:
        eviction.moved(sim, v, d)


@kernel
def _counts_hits(sim):
    """Whether insertions count hits, and eviction asks for them."""
    return sim.config.counts_hits != 0 and _HITS >> sim.config.eviction & 1


@kernel
def _count_hits(sim, v, d, counted_from):
    """Count a hit of ``d`` and the nodes above it that end behind ``counted_from``."""
    while d >= sim.trees.shape[0] and sim.nodes[d].end > counted_from:
        node = sim.nodes[d]
        node.hits += 1
        if node.heap_slot >= 0:
            eviction.moved(sim, v, d)
        d = node.parent


@kernel
def insert(sim, v, trace_node, tokens, priority, counted_from):
    """Add the first ``tokens`` (whole pages) of the path to ``trace_node`` for a request of that priority.

    It is a hit of each node that ends behind ``counted_from``. Return (tokens present before, deepest node).
    """
    present, d = walk(sim, v, trace_node, tokens)
    if present < tokens:
        cache = sim.trees[v]
        eviction.withdraw(sim, v, d)
        d = tree.insert(sim, v, d, trace_node, present, tokens)
        node = sim.nodes[d]
        node.serial = cache.serial
        node.tick = cache.tick
        if has_node_ranks(sim):
            record = sim.node_ranks[d]
            record.rank = cache.serial
            record.priority = priority
            record.weight = 0
        cache.serial += 1
        cache.evictable_pages += pages_of(sim, d)
        offer(sim, v, d)
    if d >= sim.trees.shape[0] and sim.config.eviction != la.LRU:
        _note_insertion(sim, v, d, priority)
    if _counts_hits(sim):
        _count_hits(sim, v, d, counted_from)
    return present, d


@kernel
def lock(sim, v, d):
    """Lock node ``d``, and so all nodes above it."""
    while True:
        node = sim.nodes[d]
        node.lock += 1
        if node.lock > 1:
            return
        eviction.withdraw(sim, v, d)
        sim.trees[v].evictable_pages -= pages_of(sim, d)
        d = node.parent


@kernel
def unlock(sim, v, d):
    """Unlock node ``d``."""
    while True:
        node = sim.nodes[d]
        node.lock -= 1
        if node.lock > 0:
            return
        sim.trees[v].evictable_pages += pages_of(sim, d)
        offer(sim, v, d)
        d = node.parent


@kernel
def evict_leaf(sim, v, d):
    """Evict the unlocked leaf ``d``; returns its pages, which are free."""
    cache = sim.trees[v]
    node = sim.nodes[d]
    freed = pages_of(sim, d)
    parent = node.parent
    above = sim.nodes[parent]
    above.tick = max(above.tick, node.tick)
    if has_node_ranks(sim):
        sim.node_ranks[parent].priority = max(sim.node_ranks[parent].priority, sim.node_ranks[d].priority)
    eviction.withdraw(sim, v, d)
    tree.remove(sim, v, d)
    if parent >= sim.trees.shape[0]:
        offer(sim, v, parent)
    cache.free_pages += freed
    cache.evictable_pages -= freed
    cache.evicted_tokens += freed * sim.config.page_tokens
    return freed


@kernel
def ensure_free_pages(sim, v, pages):
    """If fewer than ``pages`` are free, evict as many as are missing, as far as possible.

    Before release 0.5.17 it evicts at least ``pages``, not just the difference.
    """
    cache = sim.trees[v]
    if cache.free_pages >= pages:
        return
    wanted = pages - cache.free_pages if sim.config.evicts_shortfall else pages
    evicted = 0
    while evicted < wanted and eviction.some(sim, v):
        d = eviction.first(sim, v)
        if sim.nodes[d].trace_node < 0:
            evicted += objects.evict_from(sim, v, d)
        else:
            evicted += evict_leaf(sim, v, d)


@kernel
def reset(sim, v, pages):
    """Reset tree ``v`` to an empty cache of ``pages`` pages."""
    root = sim.nodes[v]
    root.begin = -1
    root.end = 0
    root.lock = 1
    root.children = 0
    root.parent = -1
    root.trace_node = -1
    root.tick = 0
    root.hits = 0
    root.heap_slot = -1
    cache = sim.trees[v]
    cache.capacity_pages = pages
    cache.free_pages = pages
    eviction.begin(sim, v, sim.config.eviction)
    cache.head = -1
    cache.tail = -1
