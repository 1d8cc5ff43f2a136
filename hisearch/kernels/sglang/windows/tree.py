"""SGLang's radix tree over two pools: full attention's, and that of the layers with a sliding window.

Every node has KV of full attention, and *window KV* too or none. A prefix can be reused up to a node if the window
before that node's end has window KV. Requests hold all nodes of their prefix, and the window of the last of them. The
window's pool evicts in its own order, that of the last access: a leaf goes with both parts, another node loses its
window KV alone.

A match accesses the nodes that it returns, an insertion all on its path. So nodes are marked one by one, where
``cache.radix`` marks the deepest alone.

Source: ``mem_cache.unified_cache.unified_tree_core`` and ``components.swa`` (0.5.23). Held to account by
``tests.reference.restatement.sglang_windows``.
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
def _tokens(sim, d):
    return sim.nodes[d].end - sim.nodes[d].begin


# ---- the order of the window's pool ----------------------------------------------------------------------------------


@kernel
def _put_behind(sim, v, before, d):
    """Put ``d`` behind ``before``; -1: first, as the newest."""
    pool = sim.window_pools[v]
    head, tail = _insert(sim.window_nodes, pool.head, pool.tail, before, d)
    pool.head = head
    pool.tail = tail


@kernel
def _take_out(sim, v, d):
    pool = sim.window_pools[v]
    head, tail = _remove(sim.window_nodes, pool.head, pool.tail, d)
    pool.head = head
    pool.tail = tail


@kernel
def _give_kv(sim, v, d):
    """Note that ``d`` has window KV from now on."""
    node = sim.window_nodes[d]
    node.has_kv = 1
    _put_behind(sim, v, -1, d)
    if node.lock == 0:
        sim.window_pools[v].evictable_pages += radix.pages_of(sim, d)


@kernel
def _take_kv(sim, v, d):
    """Free the window KV of ``d``, which nobody holds."""
    pages = radix.pages_of(sim, d)
    _take_out(sim, v, d)
    sim.window_nodes[d].has_kv = 0
    sim.window_pools[v].evictable_pages -= pages
    sim.window_pools[v].free_pages += pages


@kernel
def _refresh(sim, v, d):
    """Note an access to the windows before the end of ``d``: it is the newest then, the nodes above it follow."""
    reach = sim.config.window_tokens + sim.config.page_tokens
    before = -1
    covered = 0
    while not is_root(sim, d) and covered < reach:
        if sim.window_nodes[d].has_kv:
            _take_out(sim, v, d)
            _put_behind(sim, v, before, d)
            before = d
        covered += _tokens(sim, d)
        d = sim.nodes[d].parent


# ---- locks -----------------------------------------------------------------------------------------------------------


@kernel
def lock(sim, v, d):
    """Hold the window before the end of ``d``. Returns the begin of the highest node of it."""
    covered = 0
    begin = 0
    while not is_root(sim, d) and covered < sim.config.window_tokens:
        node = sim.window_nodes[d]
        if node.lock == 0 and node.has_kv:
            sim.window_pools[v].evictable_pages -= radix.pages_of(sim, d)
        node.lock += 1
        covered += _tokens(sim, d)
        begin = sim.nodes[d].begin
        d = sim.nodes[d].parent
    return begin


@kernel
def unlock(sim, v, d, held_from):
    """Release the nodes from ``d`` up to the one that begins at ``held_from``."""
    while not is_root(sim, d) and sim.nodes[d].begin >= held_from:
        node = sim.window_nodes[d]
        node.lock -= 1
        if node.lock == 0 and node.has_kv:
            sim.window_pools[v].evictable_pages += radix.pages_of(sim, d)
        d = sim.nodes[d].parent


# ---- look-ups --------------------------------------------------------------------------------------------------------


@kernel
def _mark(sim, v, d):
    """Note an access to ``d``, for the eviction of full attention's pool."""
    node = sim.nodes[d]
    node.tick = sim.trees[v].tick
    if node.heap_slot >= 0:
        eviction.moved(sim, v, d)


@kernel
def _mark_path(sim, v, d):
    while not is_root(sim, d):
        _mark(sim, v, d)
        d = sim.nodes[d].parent


@kernel
def _split(sim, v, d, at):
    """Cut ``d`` at ``at``; the upper part has what ``d`` has. Returns the new upper part."""
    u = tree.split(sim, v, d, at)
    sim.nodes[u].serial = sim.nodes[d].serial
    sim.nodes[u].hits = sim.nodes[d].hits
    if radix.has_node_ranks(sim):
        sim.node_ranks[u] = sim.node_ranks[d]
    sim.trees[v].serial += 1
    upper, lower = sim.window_nodes[u], sim.window_nodes[d]
    upper.has_kv = lower.has_kv
    upper.lock = lower.lock
    if lower.has_kv:
        _put_behind(sim, v, d, u)
    _mark(sim, v, d)
    sim.nodes[u].tick = sim.trees[v].tick
    return u


@kernel
def _reach(sim, v, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens, whatever the windows; split where the match ends.

    Returns (tokens, node at its end).
    """
    tokens, d = tree.match(sim, v, trace_node, limit)
    if tokens == 0:
        return 0, v
    if tokens < sim.nodes[d].end:
        d = _split(sim, v, d, tokens)
    return tokens, d


@kernel
def _reusable(sim, d):
    """The deepest node, from ``d`` upwards, before whose end the window has window KV."""
    candidate = d
    covered = 0
    while not is_root(sim, d):
        if sim.window_nodes[d].has_kv:
            covered += _tokens(sim, d)
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
    full, deepest = _reach(sim, v, trace_node, limit)
    d = _reusable(sim, deepest)
    _refresh(sim, v, d)
    _mark_path(sim, v, d)
    return (0 if is_root(sim, d) else sim.nodes[d].end), d, full


# ---- insertions ------------------------------------------------------------------------------------------------------


@kernel
def _note_insertion(sim, v, d, priority, counted_from):
    """Note that an insertion passed through ``d``: its priority, and a hit if it ends behind ``counted_from``."""
    if sim.config.eviction == la.LRU:
        return
    node = sim.nodes[d]
    if radix.has_node_ranks(sim):
        sim.node_ranks[d].priority = max(sim.node_ranks[d].priority, priority)
    if node.end > counted_from:
        node.hits += 1
    if node.heap_slot >= 0:
        eviction.moved(sim, v, d)


@kernel
def _pass_through(sim, v, d, held, freed, priority, counted_from):
    """Let an insertion pass through ``d``, whose tokens behind ``held`` the request has computed itself.

    Where ``d`` has no window KV it gets the request's, which is there from ``freed`` on. Returns the window pages of
    the request that are free then.
    """
    begin = sim.nodes[d].begin
    end = sim.nodes[d].end
    if radix.has_node_ranks(sim):
        sim.node_ranks[d].priority = max(sim.node_ranks[d].priority, priority)
    spare = 0
    if held < end:
        if sim.window_nodes[d].has_kv:
            spare = max(end - max(begin, held, freed), 0) // sim.config.page_tokens
        elif freed < end:
            if freed > begin:
                _split(sim, v, d, freed)
            _give_kv(sim, v, d)
    _note_insertion(sim, v, d, priority, counted_from)
    return spare


@kernel
def _add_leaf(sim, v, above, trace_node, begin, end, freed, priority, counted_from):
    """Add a leaf below ``above``; the request has window KV from ``freed`` on. Returns it.

    What is before that, and before one window at the end, is cut off, so that who holds the leaf holds no more.
    """
    cache = sim.trees[v]
    eviction.withdraw(sim, v, above)
    d = tree.insert(sim, v, above, trace_node, begin, end)
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
    sim.window_nodes[d].has_kv = 0
    sim.window_nodes[d].lock = 0
    radix.offer(sim, v, d)
    if freed < end:
        if freed > begin:
            _split(sim, v, d, freed)
        tail = end - _window_pages(sim) * sim.config.page_tokens
        if tail > sim.nodes[d].begin:
            _give_kv(sim, v, _split(sim, v, d, tail))
        _give_kv(sim, v, d)
    _note_insertion(sim, v, d, priority, counted_from)
    return d


@kernel
def _window_pages(sim):
    """Pages of the shortest whole pages that cover the window."""
    page = sim.config.page_tokens
    return (sim.config.window_tokens + page - 1) // page


@kernel
def insert(sim, v, trace_node, tokens, priority, counted_from, held, freed):
    """Add the first ``tokens`` (whole pages) of the path to ``trace_node`` for a request of that priority.

    ``held``: tokens of it that it holds in the tree; ``freed``: those whose window KV it has not. It is a hit of each
    node that ends behind ``counted_from``. Returns (tokens that full attention had before, deepest node, window pages
    of the request that are free then).
    """
    sim.trees[v].tick += 1
    present, d = _reach(sim, v, trace_node, tokens)
    depth = 0
    u = d
    while not is_root(sim, u):
        depth += 1
        u = sim.nodes[u].parent
    spare = 0
    for above in range(depth - 1, -1, -1):
        # From the root down. A split leaves the nodes below as far from the end as they were.
        u = d
        for _ in range(above):
            u = sim.nodes[u].parent
        _mark(sim, v, u)
        spare += _pass_through(sim, v, u, held, freed, priority, counted_from)
    if present < tokens:
        d = _add_leaf(sim, v, d, trace_node, present, tokens, freed, priority, counted_from)
    if not is_root(sim, d):
        _refresh(sim, v, d)
    return present, d, spare


# ---- evictions -------------------------------------------------------------------------------------------------------


@kernel
def _evict_leaf(sim, v, d):
    """Evict the unlocked leaf ``d`` from both pools."""
    cache = sim.trees[v]
    freed = radix.pages_of(sim, d)
    parent = sim.nodes[d].parent
    if sim.window_nodes[d].has_kv:
        _take_kv(sim, v, d)
    eviction.withdraw(sim, v, d)
    tree.remove(sim, v, d)
    if not is_root(sim, parent):
        radix.offer(sim, v, parent)
    cache.free_pages += freed
    cache.evictable_pages -= freed
    cache.evicted_tokens += freed * sim.config.page_tokens


@kernel
def _oldest_free(sim, v):
    """The node with the oldest access whose window KV nobody holds, or -1."""
    d = sim.window_pools[v].tail
    while d >= 0 and sim.window_nodes[d].lock > 0:
        d = sim.window_nodes[d].prev
    return d


@kernel
def ensure_free_pages(sim, v, pages):
    """If fewer than ``pages`` are free in a pool, evict as many as are missing, as far as possible."""
    cache = sim.trees[v]
    pool = sim.window_pools[v]
    lacks_window = pool.free_pages < pages
    while cache.free_pages < pages and eviction.some(sim, v):
        _evict_leaf(sim, v, eviction.first(sim, v))
    while lacks_window and pool.free_pages < pages:
        d = _oldest_free(sim, v)
        if d < 0:
            return
        if sim.nodes[d].heap_slot >= 0:
            _evict_leaf(sim, v, d)
        else:
            _take_kv(sim, v, d)


@kernel
def reset(sim, v):
    """Reset the window's pool of tree ``v``, whose tree is empty."""
    pool = sim.window_pools[v]
    pool.capacity_pages = sim.config.window_capacity_pages
    pool.free_pages = pool.capacity_pages
    pool.evictable_pages = 0
    pool.head = -1
    pool.tail = -1
