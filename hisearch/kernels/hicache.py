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

from hisearch.kernels import eviction, links, radix, tree
from hisearch.kernels import layout as la
from hisearch.kernels.jit import kernel


@kernel
def host_pool(sim, w):
    """Index of worker ``w``'s host pool among the trees."""
    return sim.trees.shape[0] - sim.config.workers + w


@kernel
def _is_root(sim, d):
    return d < sim.trees.shape[0]


@kernel
def _on_host_alone(sim, d):
    return not _is_root(sim, d) and sim.hosted[d].where == la.ON_HOST


# ---- what may be evicted ---------------------------------------------------------------------------------------------


@kernel
def _offer_host(sim, w, d):
    """Let ``d`` be evicted from the host if it is a leaf on the host alone that nothing uses."""
    node = sim.nodes[d]
    hosted = sim.hosted[d]
    if hosted.where == la.ON_HOST and node.children == 0 and hosted.host_locks == 0 and node.heap_slot < 0:
        eviction.enter(sim, host_pool(sim, w), d)


@kernel
def lock_host(sim, w, d):
    """Storage uses the host copy of ``d``."""
    if _is_root(sim, d):
        return
    sim.hosted[d].host_locks += 1
    if sim.hosted[d].where == la.ON_HOST:
        eviction.withdraw(sim, host_pool(sim, w), d)


@kernel
def unlock_host(sim, w, d):
    """Storage is done with the host copy of ``d``."""
    if _is_root(sim, d):
        return
    sim.hosted[d].host_locks -= 1
    _offer_host(sim, w, d)


@kernel
def _enter_hbm(sim, w, d):
    """``d``, on the host alone so far, is in HBM as well."""
    eviction.withdraw(sim, host_pool(sim, w), d)
    sim.hosted[d].where |= la.IN_HBM
    _gain_child(sim, w, sim.nodes[d].parent)
    sim.trees[w].evictable_pages += radix.pages_of(sim, d)
    radix.offer(sim, w, d)


@kernel
def _gain_child(sim, w, d):
    """``d`` has one more child in HBM."""
    if not _is_root(sim, d):
        eviction.withdraw(sim, w, d)
        sim.hosted[d].device_children += 1


@kernel
def _lose_child(sim, w, d, child):
    """``d`` has one child in HBM less, ``child``, which hands its marks up."""
    if _is_root(sim, d):
        return
    sim.nodes[d].tick = max(sim.nodes[d].tick, sim.nodes[child].tick)
    sim.hosted[d].device_children -= 1
    radix.offer(sim, w, d)


# ---- looking up ------------------------------------------------------------------------------------------------------


@kernel
def _find(sim, w, static, limit):
    """Longest cached prefix of the path to ``static``, up to ``limit`` tokens: (tokens, node, deepest one in HBM)."""
    while True:
        tokens, d = tree.match(sim, w, static, limit)
        if tokens == 0:
            return 0, w, w
        e = d
        while _on_host_alone(sim, e):
            e = sim.nodes[e].parent
        if _is_root(sim, e) or sim.hosted[e].where != 0:
            return tokens, d, e
        # Cut off: forget the deepest trace-tree node that leads there.
        s = static
        while sim.cover[w, s] < 0:
            s = sim.trace.parent[s]
        sim.cover[w, s] = -1


@kernel
def _split(sim, w, d, at):
    """Cut ``d`` at ``at``; ``d`` keeps the lower part, its copies and its storage locks. Returns the upper part."""
    u = tree.split(sim, w, d, at)
    sim.nodes[u].serial = sim.trees[w].serial
    sim.trees[w].serial += 1
    sim.nodes[u].hits = sim.nodes[d].hits
    hosted = sim.hosted[u]
    hosted.where = sim.hosted[d].where
    hosted.settled = sim.hosted[d].settled
    hosted.host_locks = 0
    hosted.device_children = 1 if sim.hosted[d].where & la.IN_HBM else 0
    if radix.stands(sim):
        sim.standings[u] = sim.standings[d]
    return u


@kernel
def _mark(sim, w, d):
    """``d`` was accessed now."""
    if _is_root(sim, d):
        return
    sim.nodes[d].tick = sim.trees[w].tick
    slot = sim.nodes[d].heap_slot
    if slot >= 0:
        eviction.sift(sim, host_pool(sim, w) if sim.hosted[d].where == la.ON_HOST else w, slot)


@kernel
def walk(sim, w, static, limit):
    """Match the path to ``static`` up to ``limit`` tokens (whole pages) in both tiers.

    Returns (tokens in HBM, the node at whose end they end, tokens behind them on the host alone, deepest node of the
    way with a host copy; the root has one).
    """
    sim.trees[w].tick += 1
    tokens, d, e = _find(sim, w, static, limit)
    if tokens == 0:
        return 0, w, 0, w
    _mark(sim, w, d)
    if tokens < sim.nodes[d].end:
        u = _split(sim, w, d, tokens)
        if e == d:
            e = u
        d = u
    if e != d:
        _mark(sim, w, e)
    in_hbm = sim.nodes[e].end
    while not _is_root(sim, d) and not sim.hosted[d].where & la.ON_HOST:
        d = sim.nodes[d].parent
    return in_hbm, e, tokens - in_hbm, d


# ---- adding ----------------------------------------------------------------------------------------------------------


@kernel
def _counts_hits(sim):
    """True where each insertion's hits matter, however many there are, or its priority does."""
    return sim.config.eviction == la.LFU or sim.config.eviction == la.BY_PRIORITY


@kernel
def _count_hit(sim, w, d, chunk):
    """An insertion passes through ``d``, which was in HBM, or ends in it. It may be copied to the host now."""
    if chunk or sim.tiers.write_hits == 0:
        return
    node = sim.nodes[d]
    hosted = sim.hosted[d]
    node.hits += 1
    if node.heap_slot >= 0:
        eviction.sift(sim, w, node.heap_slot)
    if not hosted.where & la.ON_HOST and node.hits >= sim.tiers.write_hits and _copy_to_host(sim, w, d):
        hosted.next_copy = -1
        host = sim.hosts[w]
        if host.to_host_tail >= 0:
            sim.hosted[host.to_host_tail].next_copy = d
        else:
            host.to_host_head = d
        host.to_host_tail = d
        radix.lock(sim, w, d)
    above = node.parent
    if hosted.where & la.ON_HOST and node.hits >= eviction.PROTECTED_HITS and not _counts_hits(sim):
        hosted.settled = 1 if _is_root(sim, above) or sim.hosted[above].settled else 0


@kernel
def _way_down(sim, d, done, chunk):
    """Link the nodes from below ``done`` tokens, or below a settled node, down to ``d``; returns the first."""
    below = -1
    everything = (not chunk and sim.tiers.write_hits > 0) or sim.config.eviction == la.BY_PRIORITY
    while not _is_root(sim, d) and sim.nodes[d].end > done:
        hosted = sim.hosted[d]
        if hosted.where & la.IN_HBM and (hosted.settled or not everything):
            break
        hosted.below = below
        below = d
        d = sim.nodes[d].parent
    return below


@kernel
def insert(sim, w, static, tokens, priority, chunk):
    """Add the first ``tokens`` (whole pages) of the path to ``static``, which are all in HBM now.

    Nodes are visited from the root down; a copy to the host may evict host nodes that the visit has not come to.
    ``chunk``: of a prompt that goes on, which counts no hits. Returns (tokens that were in HBM before, deepest node).
    """
    cache = sim.trees[w]
    cache.tick += 1
    found, d, e = _find(sim, w, static, tokens)
    present = min(sim.nodes[e].end, found)
    done = 0
    last = w
    while True:
        at = _way_down(sim, d, done, chunk)
        if at < 0 and found > done:
            # All of it is settled, but for the end of the way.
            if found < sim.nodes[d].end:
                _mark(sim, w, d)
                d = _split(sim, w, d, found)
            last = d
            done = found
        gone = sim.trees[host_pool(sim, w)].evicted_tokens
        while at >= 0:
            below = sim.hosted[at].below
            if radix.stands(sim):
                sim.standings[at].priority = max(sim.standings[at].priority, priority)
            if found < sim.nodes[at].end:
                _mark(sim, w, at)
                at = _split(sim, w, at, found)
            if sim.hosted[at].where & la.IN_HBM:
                _count_hit(sim, w, at, chunk)
            else:
                _enter_hbm(sim, w, at)
            last = at
            done = sim.nodes[at].end
            if sim.trees[host_pool(sim, w)].evicted_tokens > gone:
                break
            at = below
        if at < 0 or done >= found:
            break
        found, d, e = _find(sim, w, static, tokens)
        if found <= done:
            break
    if done < tokens:
        last = _add(sim, w, last, static, done, tokens, priority)
        _count_hit(sim, w, last, chunk)
    _mark(sim, w, last)
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
def _add(sim, w, above, static, begin, end, priority):
    """A new node in HBM."""
    d = tree.insert(sim, w, above, static, begin, end)
    _new_node(sim, w, d, la.IN_HBM, priority)
    _gain_child(sim, w, above)
    sim.trees[w].evictable_pages += radix.pages_of(sim, d)
    radix.offer(sim, w, d)
    return d


@kernel
def insert_host(sim, w, above, static, begin, end):
    """Add host pages in (begin, end] on the path to ``static`` below ``above``. Returns tokens in the tree already."""
    cache = sim.trees[w]
    cache.tick += 1
    _mark(sim, w, above)
    found, d, _ = _find(sim, w, static, end)
    if found < begin:
        # ``above`` has been cut off meanwhile: what it gets is not to be found either.
        if end > begin:
            d = tree.acquire_node(sim)
            sim.nodes[d].begin = begin
            sim.nodes[d].end = end
            sim.nodes[d].static = static
            sim.nodes[d].parent = above
            sim.nodes[above].children += 1
            eviction.withdraw(sim, host_pool(sim, w), above)
            _new_node(sim, w, d, la.ON_HOST, 0)
            _offer_host(sim, w, d)
        return 0
    if found > begin:
        _mark(sim, w, d)
    if found < sim.nodes[d].end:
        d = _split(sim, w, d, found)
    if found < end:
        if _on_host_alone(sim, d):
            eviction.withdraw(sim, host_pool(sim, w), d)
        priority = sim.standings[d].priority if radix.stands(sim) and not _is_root(sim, d) else 0
        d = tree.insert(sim, w, d, static, found, end)
        _new_node(sim, w, d, la.ON_HOST, priority)
        _offer_host(sim, w, d)
    return found - begin


# ---- copying ---------------------------------------------------------------------------------------------------------


@kernel
def take_host(sim, w, pages):
    """Take pages of host memory, if need be after evicting; where too few are free, all of ``pages`` are evicted."""
    pool = sim.trees[host_pool(sim, w)]
    if pool.free_pages < pages:
        _evict_host(sim, w, pages)
    if pool.free_pages < pages:
        return False
    pool.free_pages -= pages
    pool.peak_pages = max(pool.peak_pages, pool.capacity_pages - pool.free_pages)
    return True


@kernel
def _copy_to_host(sim, w, d):
    """Begin to copy ``d``, if host memory can be had; it counts as copied from now on."""
    pages = radix.pages_of(sim, d)
    if not take_host(sim, w, pages):
        return False
    tokens = pages * sim.config.page_tokens
    sim.hosted[d].where |= la.ON_HOST
    sim.hosted[d].at_s = links.send(sim, 2 * w, sim.hosts[w].now_s, tokens)
    sim.trees[host_pool(sim, w)].stored_tokens += tokens
    return True


@kernel
def load_back(sim, w, d, tokens):
    """Take HBM pages for the ``tokens`` tokens up to the end of ``d`` that the host alone has, or for none of them.

    True where they were taken: ``d`` is then locked, until the copy that begins with the batch has been taken note of.
    """
    if tokens < sim.tiers.load_back_tokens:
        return False
    pages = tokens // sim.config.page_tokens
    lock_host(sim, w, d)
    make_room(sim, w, pages)
    unlock_host(sim, w, d)
    if sim.trees[w].free_pages < pages:
        return False
    sim.trees[w].free_pages -= pages
    e = d
    while _on_host_alone(sim, e):
        _enter_hbm(sim, w, e)
        e = sim.nodes[e].parent
    radix.lock(sim, w, d)
    sim.workers[w].host_hit_tokens += tokens
    host = sim.hosts[w]
    host.loading_tokens += tokens
    sim.hosted[d].next_copy = host.loading
    host.loading = d
    return True


@kernel
def begin_loading(sim, w):
    """One copy of all that the batch being formed loads back; the step that runs it does not end before."""
    host = sim.hosts[w]
    if host.loading_tokens == 0:
        return
    end = links.send(sim, 2 * w + 1, host.now_s, host.loading_tokens)
    sim.trees[host_pool(sim, w)].read_tokens += host.loading_tokens
    sim.workers[w].load_back_s = end
    host.loading_tokens = 0
    d = host.loading
    host.loading = -1
    while d >= 0:
        after = sim.hosted[d].next_copy
        sim.hosted[d].at_s = end
        sim.hosted[d].next_copy = -1
        if host.to_hbm_tail >= 0:
            sim.hosted[host.to_hbm_tail].next_copy = d
        else:
            host.to_hbm_head = d
        host.to_hbm_tail = d
        d = after


@kernel
def next_written(sim, w):
    """Unlock the next node whose copy to the host is done by now, and return it; -1 where there is none."""
    host = sim.hosts[w]
    d = host.to_host_head
    if d < 0 or sim.hosted[d].at_s > host.now_s:
        return -1
    host.to_host_head = sim.hosted[d].next_copy
    if host.to_host_head < 0:
        host.to_host_tail = -1
    radix.unlock(sim, w, d)
    return d


@kernel
def note_loaded(sim, w):
    """Unlock what has been loaded back by now."""
    host = sim.hosts[w]
    while host.to_hbm_head >= 0 and sim.hosted[host.to_hbm_head].at_s <= host.now_s:
        d = host.to_hbm_head
        host.to_hbm_head = sim.hosted[d].next_copy
        if host.to_hbm_head < 0:
            host.to_hbm_tail = -1
        radix.unlock(sim, w, d)


@kernel
def _next_end_s(sim, d, now):
    """When the first copy of the stream that begins with ``d`` ends that is not done by ``now``."""
    while d >= 0:
        if sim.hosted[d].at_s > now:
            return sim.hosted[d].at_s
        d = sim.hosted[d].next_copy
    return la.FOREVER_S


@kernel
def next_copy_s(sim, w):
    """When the next copy is done that is not done yet; infinity where none is under way."""
    host = sim.hosts[w]
    return min(_next_end_s(sim, host.to_host_head, host.now_s), _next_end_s(sim, host.to_hbm_head, host.now_s))


# ---- evicting --------------------------------------------------------------------------------------------------------


@kernel
def _forget(sim, w, d):
    """Take the childless node ``d``, on the host alone, out of the tree."""
    node = sim.nodes[d]
    p = node.parent
    cut_off = not _is_root(sim, p) and sim.hosted[p].where == 0
    if not cut_off and _on_host_alone(sim, p):
        sim.nodes[p].tick = max(sim.nodes[p].tick, node.tick)
    if cut_off:
        s = node.static
        while s > 0 and sim.trace.end_tokens[s] > node.begin:
            if sim.cover[w, s] == d:
                sim.cover[w, s] = -1
            s = sim.trace.parent[s]
        sim.nodes[p].children -= 1
        tree.release_node(sim, d)
        if sim.nodes[p].children == 0:
            tree.release_node(sim, p)
        return
    tree.remove(sim, w, d)
    if not _is_root(sim, p):
        _offer_host(sim, w, p)


@kernel
def _evict_host(sim, w, pages):
    """Evict from the host until at least ``pages`` are gone or nothing is left that could go."""
    v = host_pool(sim, w)
    pool = sim.trees[v]
    gone = 0
    while gone < pages and pool.heap_size > 0:
        d = sim.evict_heap[v, 0]
        eviction.withdraw(sim, v, d)
        gone += radix.pages_of(sim, d)
        _forget(sim, w, d)
    pool.free_pages += gone
    pool.evicted_tokens += gone * sim.config.page_tokens


@kernel
def _drop(sim, w, d):
    """Take ``d``, which is in HBM alone, out of the tree, and cut off what is below it."""
    node = sim.nodes[d]
    p = node.parent
    _lose_child(sim, w, p, d)
    if node.children == 0:
        tree.remove(sim, w, d)
        return
    s = node.static
    while s > 0:
        start = sim.trace.start_tokens[s]
        sim.cover[w, s] = p if not _is_root(sim, p) and start < node.begin else -1
        if start <= node.begin:
            break
        s = sim.trace.parent[s]
    sim.nodes[p].children -= 1
    node.parent = -1
    sim.hosted[d].where = 0


@kernel
def make_room(sim, w, pages):
    """Where fewer than ``pages`` of HBM are free, evict at least that many, not the difference.

    With write_back the scheduler waits for the copies of what it evicts.
    """
    cache = sim.trees[w]
    if cache.free_pages >= pages:
        return
    gone = 0
    copied = -1
    kept = -1
    while gone < pages and cache.heap_size > 0:
        d = sim.evict_heap[w, 0]
        eviction.withdraw(sim, w, d)
        hosted = sim.hosted[d]
        here = radix.pages_of(sim, d)
        if hosted.where & la.ON_HOST:
            hosted.where = la.ON_HOST
            _lose_child(sim, w, sim.nodes[d].parent, d)
            _offer_host(sim, w, d)
        elif sim.tiers.write_hits > 0:
            _drop(sim, w, d)
        elif _copy_to_host(sim, w, d):
            # In HBM until the copies are waited for: what is on the host alone may be evicted for the next copy.
            _lose_child(sim, w, sim.nodes[d].parent, d)
            hosted.below = copied
            copied = d
        else:
            hosted.below = kept
            kept = d
            continue
        gone += here
    cache.free_pages += gone
    cache.evictable_pages -= gone
    cache.evicted_tokens += gone * sim.config.page_tokens
    if copied >= 0:
        sim.hosts[w].now_s = max(sim.hosts[w].now_s, sim.links[2 * w].free_s)
    while copied >= 0:
        sim.hosted[copied].where = la.ON_HOST
        _offer_host(sim, w, copied)
        copied = sim.hosted[copied].below
    while kept >= 0:
        radix.offer(sim, w, kept)
        kept = sim.hosted[kept].below


@kernel
def reset(sim, w):
    """An empty host pool, no copies under way."""
    v = host_pool(sim, w)
    pool = sim.trees[v]
    pool.capacity_pages = sim.config.host_pages
    pool.free_pages = sim.config.host_pages
    pool.eviction = sim.config.eviction
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
