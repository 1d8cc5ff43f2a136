"""SGLang's radix cache with a host tier (HiCache): a node is in HBM, on the host, or both.

HBM is closed towards the root: a node leaves HBM only after all nodes below it. A node with a host copy stays in the
tree when it is evicted from HBM; one without is dropped, or copied first with write_back. Host-only nodes below a
dropped one are *cut off*: no look-up reaches them, but they keep their host memory until it is needed. The dropped
node's record stays, ``where`` 0, as long as it has such children.

Ticks are kept as in ``radix``: the deepest node of a path and the deepest one in HBM are marked. Each insertion of a
finished prompt or output counts a hit on every node that it passes. A node with all the hits and copies that matter is
*settled*, and so are all nodes above it: a walk need not go higher.

Copies to the host run one after another on one stream, copies to HBM on another. A copy locks its node until a pass
that tries to prefill notes its end. Rules: SGLang 0.5.9's ``HiRadixCache``, as far as recorded; restated in
``tests.reference.restatement.sglang_host_tree``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS, WRITE_POLICIES
from hisearch.kernels.cache import eviction, radix, tree
from hisearch.kernels.cache.evictions import slru
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.hicache import memory as hicache_memory
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la

#: Bits of the eviction policies to which every hit matters.
_EVERY_HIT = EVICTIONS.mask(lambda policy: policy.every_hit)
_copies = dispatcher(WRITE_POLICIES, "copies", "sim, d", otherwise="False")

_enqueue = fifo("next_copy")


@kernel
def _counts_hits(sim):
    """Whether every hit of an insertion matters, however many there are, or its priority does."""
    return _EVERY_HIT >> sim.config.eviction & 1 or radix.counts_priorities(sim)


@kernel
def _is_copied(sim, d):
    """Whether ``d`` is on the host, or the root."""
    return hicache_nodes.is_root(sim, d) or sim.hosted[d].where & hl.ON_HOST != 0


@kernel
def child_towards(sim, top, d):
    """The node below ``top`` on the path to ``d``."""
    while sim.nodes[d].parent != top:
        d = sim.nodes[d].parent
    return d


@kernel
def _copy_to_host(sim, w, d):
    """Copy ``d`` to the host, which locks it until a pass notes the end. Returns whether there was memory."""
    if sim.hosted[d].where & hl.ON_HOST:
        return True
    if not hicache_memory.copy_to_host(sim, w, d):
        return False
    sim.hosted[d].written = sim.nodes[d].begin
    host = sim.hosts[w]
    host.to_host_head, host.to_host_tail = _enqueue(sim.hosted, host.to_host_head, host.to_host_tail, d)
    radix.lock(sim, w, d)
    return True


@kernel
def _count_hit(sim, w, d, counted_from):
    """Count the hit of an insertion that passes or ends in ``d``, which is in HBM; may copy it to the host."""
    node = sim.nodes[d]
    if node.end <= counted_from or hicache_memory.writes_at_eviction(sim):
        return
    hosted = sim.hosted[d]
    node.hits += 1
    if node.heap_slot >= 0:
        eviction.moved(sim, w, d)
    if not hosted.where & hl.ON_HOST and _copies(sim.tiers.write_policy, sim, d):
        top = d
        while sim.config.copies_chains and not _is_copied(sim, sim.nodes[top].parent):
            top = sim.nodes[top].parent
        while _copy_to_host(sim, w, top) and top != d:
            top = child_towards(sim, top, d)
    above = node.parent
    if hosted.where & hl.ON_HOST and node.hits >= slru.PROTECTED_HITS and not _counts_hits(sim):
        hosted.settled = 1 if hicache_nodes.is_root(sim, above) or sim.hosted[above].settled else 0


@kernel
def _link_path(sim, d, done, counted_from):
    """Link the path's nodes from below ``done`` tokens, or below a settled node, to ``d``; returns the first."""
    below = -1
    visit_all = (counted_from < la.NEVER and not hicache_memory.writes_at_eviction(sim)) or radix.counts_priorities(sim)
    while not hicache_nodes.is_root(sim, d) and sim.nodes[d].end > done:
        hosted = sim.hosted[d]
        if hosted.where & hl.IN_HBM and (hosted.settled or not visit_all):
            break
        hosted.below = below
        below = d
        d = sim.nodes[d].parent
    return below


@kernel
def _raise_priority(sim, d, priority):
    """Give ``d`` at least ``priority``."""
    if radix.has_node_ranks(sim):
        sim.node_ranks[d].priority = max(sim.node_ranks[d].priority, priority)


@kernel
def insert(sim, w, trace_node, tokens, priority, counted_from):
    """Add the first ``tokens`` (full pages) of the path to ``trace_node``, which are all in HBM now.

    Nodes are visited from the root down; a copy to the host may evict host nodes that the visit has not reached.
    It is a hit of each node that ends behind ``counted_from``. Returns (tokens that were in HBM before, deepest node).
    """
    cache = sim.trees[w]
    cache.tick += 1
    matched, d, deepest_in_hbm = hicache_nodes.find(sim, w, trace_node, tokens)
    present = min(sim.nodes[deepest_in_hbm].end, matched)
    done = 0
    last = w
    while True:
        at = _link_path(sim, d, done, counted_from)
        if at < 0 and matched > done:
            # The path is settled, except for its end.
            if matched < sim.nodes[d].end:
                hicache_nodes.mark(sim, w, d)
                d = hicache_nodes.split(sim, w, d, matched)
            last = d
            done = matched
        evicted_before = sim.trees[hicache_nodes.host_pool(sim, w)].evicted_tokens
        while at >= 0:
            below = sim.hosted[at].below
            if matched < sim.nodes[at].end:
                if not sim.config.raises_covered:
                    _raise_priority(sim, at, priority)
                hicache_nodes.mark(sim, w, at)
                at = hicache_nodes.split(sim, w, at, matched)
            _raise_priority(sim, at, priority)
            if sim.hosted[at].where & hl.IN_HBM:
                _count_hit(sim, w, at, counted_from)
            else:
                hicache_nodes.enter_hbm(sim, w, at)
            last = at
            done = sim.nodes[at].end
            if sim.trees[hicache_nodes.host_pool(sim, w)].evicted_tokens > evicted_before:
                break
            at = below
        if at < 0 or done >= matched:
            break
        matched, d, deepest_in_hbm = hicache_nodes.find(sim, w, trace_node, tokens)
        if matched <= done:
            break
    if done < tokens:
        last = _add(sim, w, last, trace_node, done, tokens, priority)
        _count_hit(sim, w, last, counted_from)
    hicache_nodes.mark(sim, w, last)
    return present, last


@kernel
def _new_node(sim, w, d, where, priority):
    """Initialise a new node ``d``, except its place in the tree."""
    cache = sim.trees[w]
    node = sim.nodes[d]
    node.serial = cache.serial
    node.tick = cache.tick
    cache.serial += 1
    hosted = sim.hosted[d]
    hosted.where = where
    hosted.settled = 0
    hosted.host_locks = 0
    hosted.device_children = 0
    if radix.has_node_ranks(sim):
        standing = sim.node_ranks[d]
        standing.rank = node.serial
        standing.priority = priority
        standing.weight = 0


@kernel
def _add(sim, w, above, trace_node, begin, end, priority):
    """Add a new node in HBM."""
    d = tree.insert(sim, w, above, trace_node, begin, end)
    _new_node(sim, w, d, hl.IN_HBM, priority)
    hicache_nodes.gain_child(sim, w, above)
    sim.trees[w].evictable_pages += radix.pages_of(sim, d)
    radix.offer(sim, w, d)
    return d


@kernel
def _fill_in(sim, d, begin):
    """Give nodes of the path to ``d`` behind ``begin`` that are in HBM alone their host copy; returns its tokens."""
    tokens = 0
    while not hicache_nodes.is_root(sim, d) and sim.nodes[d].end > begin:
        if not sim.hosted[d].where & hl.ON_HOST:
            sim.hosted[d].where |= hl.ON_HOST
            tokens += sim.nodes[d].end - sim.nodes[d].begin
        d = sim.nodes[d].parent
    return tokens


@kernel
def insert_host(sim, w, above, trace_node, begin, end):
    """Add host pages in (begin, end] on the path to ``trace_node`` below ``above``; return tokens already cached."""
    cache = sim.trees[w]
    cache.tick += 1
    hicache_nodes.mark(sim, w, above)
    matched, d, _ = hicache_nodes.find(sim, w, trace_node, end)
    if matched < begin:
        # ``above`` has been cut off meanwhile; so are its new children.
        if end > begin:
            d = tree.acquire_node(sim)
            sim.nodes[d].begin = begin
            sim.nodes[d].end = end
            sim.nodes[d].trace_node = trace_node
            sim.nodes[d].parent = above
            sim.nodes[above].children += 1
            eviction.withdraw(sim, hicache_nodes.host_pool(sim, w), above)
            _new_node(sim, w, d, hl.ON_HOST, 0)
            hicache_nodes.offer_host(sim, w, d)
        return 0
    if matched > begin:
        hicache_nodes.mark(sim, w, d)
    if matched < sim.nodes[d].end:
        d = hicache_nodes.split(sim, w, d, matched)
    present = matched - begin
    if sim.config.fetches_by_hits and not hicache_memory.writes_at_eviction(sim):
        present -= _fill_in(sim, d, begin)
    if matched < end:
        if hicache_nodes.on_host_alone(sim, d):
            eviction.withdraw(sim, hicache_nodes.host_pool(sim, w), d)
        priority = sim.node_ranks[d].priority if radix.has_node_ranks(sim) and not hicache_nodes.is_root(sim, d) else 0
        d = tree.insert(sim, w, d, trace_node, matched, end)
        _new_node(sim, w, d, hl.ON_HOST, priority)
        hicache_nodes.offer_host(sim, w, d)
    return present


@kernel
def reset(sim, w):
    """Empty the host pool and the copy streams."""
    v = hicache_nodes.host_pool(sim, w)
    pool = sim.trees[v]
    pool.capacity_pages = sim.config.host_pages
    pool.free_pages = sim.config.host_pages
    eviction.begin(sim, v, sim.config.eviction)
    host = sim.hosts[w]
    host.to_host_head = -1
    host.to_hbm_head = -1
    host.loading = -1
    host.hits_head = -1
    host.done_head = -1
    host.entering_head = -1
    host.revoked = -1
    host.written = -1
