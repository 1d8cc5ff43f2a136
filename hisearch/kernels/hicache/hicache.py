"""SGLang's radix cache with a host tier (HiCache): a node is in HBM, on the host, or both.

What is in HBM is closed towards the root: a node leaves HBM only after all below it. A node with a host copy stays in
the tree when it is evicted from HBM, one without is dropped; with write_back it is copied first. Nodes on the host
alone below a dropped one are *cut off*: no look-up comes to them, but they keep their host memory until it is wanted.
The dropped node's record stays, ``where`` 0, as long as it has such children.

Ticks are kept as in ``radix``: of a way the deepest node is marked, and the deepest one in HBM. Hits are counted node
by node, by each insertion of a finished prompt or output that passes through; a node that has got all the hits and
copies that matter is *settled*, and with it all above it, so that a walk need not go higher.

Copies to the host run one after another on one stream, those back to HBM on another. A copy locks its node until a pass
that tries to prefill takes note of its end. Rules: SGLang 0.5.9's ``HiRadixCache``, as far as recorded; restated in
``validate.restatement.sglang_host_tree``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import eviction, radix, tree
from hisearch.kernels.cache.evictions import slru
from hisearch.kernels.hicache import memory, nodes
from hisearch.kernels.layout import hicache as hl

#: Bits of the eviction policies to which every hit matters.
_EVERY_HIT = EVICTIONS.mask(lambda policy: policy.every_hit)


@kernel
def _counts_hits(sim):
    """True where each insertion's hits matter, however many there are, or its priority does."""
    return _EVERY_HIT >> sim.config.eviction & 1 or radix.counts_priorities(sim)


@kernel
def _count_hit(sim, w, d, chunk):
    """An insertion passes through ``d``, which was in HBM, or ends in it. It may be copied to the host now."""
    if chunk or sim.tiers.write_hits == 0:
        return
    node = sim.nodes[d]
    hosted = sim.hosted[d]
    node.hits += 1
    if node.heap_slot >= 0:
        eviction.moved(sim, w, d)
    if not hosted.where & hl.ON_HOST and node.hits >= sim.tiers.write_hits and memory.copy_to_host(sim, w, d):
        hosted.next_copy = -1
        host = sim.hosts[w]
        if host.to_host_tail >= 0:
            sim.hosted[host.to_host_tail].next_copy = d
        else:
            host.to_host_head = d
        host.to_host_tail = d
        radix.lock(sim, w, d)
    above = node.parent
    if hosted.where & hl.ON_HOST and node.hits >= slru.PROTECTED_HITS and not _counts_hits(sim):
        hosted.settled = 1 if nodes.is_root(sim, above) or sim.hosted[above].settled else 0


@kernel
def _way_down(sim, d, done, chunk):
    """Link the nodes from below ``done`` tokens, or below a settled node, down to ``d``; returns the first."""
    below = -1
    everything = (not chunk and sim.tiers.write_hits > 0) or radix.counts_priorities(sim)
    while not nodes.is_root(sim, d) and sim.nodes[d].end > done:
        hosted = sim.hosted[d]
        if hosted.where & hl.IN_HBM and (hosted.settled or not everything):
            break
        hosted.below = below
        below = d
        d = sim.nodes[d].parent
    return below


@kernel
def insert(sim, w, trace_node, tokens, priority, chunk):
    """Add the first ``tokens`` (whole pages) of the path to ``trace_node``, which are all in HBM now.

    Nodes are visited from the root down; a copy to the host may evict host nodes that the visit has not come to.
    ``chunk``: of a prompt that goes on, which counts no hits. Returns (tokens that were in HBM before, deepest node).
    """
    cache = sim.trees[w]
    cache.tick += 1
    found, d, e = nodes.find(sim, w, trace_node, tokens)
    present = min(sim.nodes[e].end, found)
    done = 0
    last = w
    while True:
        at = _way_down(sim, d, done, chunk)
        if at < 0 and found > done:
            # All of it is settled, but for the end of the way.
            if found < sim.nodes[d].end:
                nodes.mark(sim, w, d)
                d = nodes.split(sim, w, d, found)
            last = d
            done = found
        gone = sim.trees[nodes.host_pool(sim, w)].evicted_tokens
        while at >= 0:
            below = sim.hosted[at].below
            if radix.stands(sim):
                sim.standings[at].priority = max(sim.standings[at].priority, priority)
            if found < sim.nodes[at].end:
                nodes.mark(sim, w, at)
                at = nodes.split(sim, w, at, found)
            if sim.hosted[at].where & hl.IN_HBM:
                _count_hit(sim, w, at, chunk)
            else:
                nodes.enter_hbm(sim, w, at)
            last = at
            done = sim.nodes[at].end
            if sim.trees[nodes.host_pool(sim, w)].evicted_tokens > gone:
                break
            at = below
        if at < 0 or done >= found:
            break
        found, d, e = nodes.find(sim, w, trace_node, tokens)
        if found <= done:
            break
    if done < tokens:
        last = _add(sim, w, last, trace_node, done, tokens, priority)
        _count_hit(sim, w, last, chunk)
    nodes.mark(sim, w, last)
    return present, last


@kernel
def _new_node(sim, w, d, where, priority):
    """Set what a new node ``d`` has beside its place."""
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
    if radix.stands(sim):
        standing = sim.standings[d]
        standing.rank = node.serial
        standing.priority = priority
        standing.weight = 0


@kernel
def _add(sim, w, above, trace_node, begin, end, priority):
    """A new node in HBM."""
    d = tree.insert(sim, w, above, trace_node, begin, end)
    _new_node(sim, w, d, hl.IN_HBM, priority)
    nodes.gain_child(sim, w, above)
    sim.trees[w].evictable_pages += radix.pages_of(sim, d)
    radix.offer(sim, w, d)
    return d


@kernel
def insert_host(sim, w, above, trace_node, begin, end):
    """Add host pages in (begin, end] on the path to ``trace_node`` below ``above``; return tokens already cached."""
    cache = sim.trees[w]
    cache.tick += 1
    nodes.mark(sim, w, above)
    found, d, _ = nodes.find(sim, w, trace_node, end)
    if found < begin:
        # ``above`` has been cut off meanwhile: what it gets is not to be found either.
        if end > begin:
            d = tree.acquire_node(sim)
            sim.nodes[d].begin = begin
            sim.nodes[d].end = end
            sim.nodes[d].trace_node = trace_node
            sim.nodes[d].parent = above
            sim.nodes[above].children += 1
            eviction.withdraw(sim, nodes.host_pool(sim, w), above)
            _new_node(sim, w, d, hl.ON_HOST, 0)
            nodes.offer_host(sim, w, d)
        return 0
    if found > begin:
        nodes.mark(sim, w, d)
    if found < sim.nodes[d].end:
        d = nodes.split(sim, w, d, found)
    if found < end:
        if nodes.on_host_alone(sim, d):
            eviction.withdraw(sim, nodes.host_pool(sim, w), d)
        priority = sim.standings[d].priority if radix.stands(sim) and not nodes.is_root(sim, d) else 0
        d = tree.insert(sim, w, d, trace_node, found, end)
        _new_node(sim, w, d, hl.ON_HOST, priority)
        nodes.offer_host(sim, w, d)
    return found - begin


@kernel
def reset(sim, w):
    """An empty host pool, no copies under way."""
    v = nodes.host_pool(sim, w)
    pool = sim.trees[v]
    pool.capacity_pages = sim.config.host_pages
    pool.free_pages = sim.config.host_pages
    eviction.begin(sim, v, sim.config.eviction)
    host = sim.hosts[w]
    host.to_host_head = -1
    host.to_host_tail = -1
    host.to_hbm_head = -1
    host.to_hbm_tail = -1
    host.loading = -1
    host.entering_head = -1
    host.entering_tail = -1
    host.revoked = -1
    host.revoked_tail = -1
    host.written = -1
