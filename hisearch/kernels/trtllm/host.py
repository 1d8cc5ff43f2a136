"""TensorRT-LLM's host cache (``kv_cache_config.host_cache_size``): the secondary pool of its KV cache manager.

Sources: "KV Cache System" in NVIDIA's documentation; ``kvCacheManager.cpp``, ``evictionPolicy.cpp``,
``kvCacheTransferManager.cpp`` and ``resource_manager.py`` (``KVCacheManager.prepare_resources``). The rules and
the deviations from them: ``docs/simulator.md``.

A worker's tree has pages of both pools. A node is in HBM or, ``ON_HOST``, in host memory. No request holds a node on
the host: it lies in the host's free queue, kept like that of HBM (``queue``) in the record of tree ``workers + w``. HBM
is closed towards the root, and both queues evict deeper pages first. A page that leaves HBM has only host pages below
it; a page that leaves the host has none. Workers with pipeline stages have no host cache.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue, tree
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import links

# Links of worker w to the host and back, from 2 w on.
_TO_HOST, _TO_DEVICE = 0, 1


@kernel
def _copy(sim, w, now, direction, pages):
    """Copy ``pages`` pages one by one once the device has run its steps; the step being formed waits for them."""
    worker = sim.workers[w]
    ready = max(now, worker.newest_end_s)
    for _ in range(pages):
        end = links.send_to_host(sim, w, direction, ready, sim.config.page_tokens)
        worker.load_back_s = max(worker.load_back_s, end)


@kernel
def _offload(sim, w, d, pages):
    """Move the last ``pages`` pages of ``d``, the front of HBM's queue, to the host, which has a free page or more.

    Each replaces the front of the host's queue and joins its back: if they exceed the host's free pages, the last ones
    remain.
    """
    nodes = sim.nodes
    host = sim.config.workers + w
    pool = sim.trees[host]
    page = sim.config.page_tokens
    sim.trees[w].free_pages -= pages
    sim.trees[w].evicted_tokens += pages * page
    kept_pages = min(pages, pool.free_pages)
    evicted = pool.evicted_tokens
    queue.take_from(sim, w, host, kept_pages)
    pool.evictable_pages -= (pool.evicted_tokens - evicted) // page
    if kept_pages < pages:
        pool.evicted_tokens += (pages - kept_pages) * page
        tree.trim(sim, w, d, nodes[d].end - (pages - kept_pages) * page)
    at = nodes[d].end - kept_pages * page
    whole_node = at == nodes[d].begin
    below = pool.tail
    if below >= 0 and nodes[below].parent == d and nodes[d].children == 1:
        if whole_node:
            queue.unlink(sim, w, d)
        tree.hand_down(sim, w, d, below, at)
    else:
        if not whole_node:
            queue.split(sim, w, d, at)
        queue.unlink(sim, w, d)
        queue.link_after(sim, host, d, below)
    pool.free_pages += kept_pages
    pool.evictable_pages += kept_pages
    pool.stored_tokens += pages * page
    pool.peak_pages = max(pool.peak_pages, pool.evictable_pages)


@kernel
def take(sim, w, now, pages):
    """Take ``pages`` pages from the front of HBM's queue; their content moves to a host cache, if any."""
    cache_id = sim.workers[w].cache_id
    offloaded = 0
    while pages > 0:
        d = sim.trees[cache_id].head
        taken = min(queue.run_pages(sim, d), pages) if d >= 0 else pages
        if d >= 0 and sim.nodes[d].trace_node > 0 and _has_free_host_pages(sim, w):
            _offload(sim, w, d, taken)
            offloaded += taken
        else:
            queue.take(sim, cache_id, taken)
        pages -= taken
    _copy(sim, w, now, _TO_HOST, offloaded)


@kernel
def _has_free_host_pages(sim, w):
    return sim.config.host_pages > 0 and sim.trees[sim.config.workers + w].free_pages > 0


@kernel
def _claim(sim, w, d):
    """Take node ``d`` and the host nodes above it out of the host's queue; one request holds them from now on.

    Returns (their pages, the first node in HBM above them).
    """
    nodes = sim.nodes
    host = sim.config.workers + w
    pages = 0
    while nodes[d].queued == la.ON_HOST:
        queue.unlink(sim, host, d)
        nodes[d].lock = 1
        pages += queue.run_pages(sim, d)
        d = nodes[d].parent
    if pages > 0:
        sim.trees[host].free_pages -= pages
        sim.trees[host].evictable_pages -= pages
    return pages, d


@kernel
def hold(sim, w, trace_node, limit):
    """Match the path to ``trace_node`` (at most ``limit`` tokens) in both pools and hold the matched nodes.

    Returns (tokens matched, those of them on the host, deepest node). The caller loads host tokens into HBM, or has
    them there, and frees their host pages (``onboard``, ``supersede``).
    """
    cache_id = sim.workers[w].cache_id
    tokens, deepest = tree.match(sim, cache_id, trace_node, limit)
    if tokens > 0 and tokens < sim.nodes[deepest].end:
        deepest = queue.split(sim, cache_id, deepest, tokens)
    on_host, d = _claim(sim, w, deepest)
    while d >= sim.trees.shape[0]:
        queue.lock_node(sim, cache_id, d)
        d = sim.nodes[d].parent
    return tokens, on_host * sim.config.page_tokens, deepest


@kernel
def supersede(sim, w, tokens):
    """Append the claimed host pages of ``tokens`` tokens, now in HBM, to the host's queue as empty pages."""
    queue.push_empty(sim, sim.config.workers + w, tokens // sim.config.page_tokens)


@kernel
def onboard(sim, w, now, tokens):
    """Load ``tokens`` claimed tokens into HBM, taking pages for them."""
    pages = tokens // sim.config.page_tokens
    if pages == 0:
        return
    take(sim, w, now, pages)
    _copy(sim, w, now, _TO_DEVICE, pages)
    supersede(sim, w, tokens)
    sim.trees[sim.config.workers + w].read_tokens += tokens
    sim.workers[w].host_hit_tokens += tokens


@kernel
def undisturbed_pages(sim, w):
    """Number of pages that can be taken without a copy to the host."""
    cache = sim.trees[w]
    if not _has_free_host_pages(sim, w):
        return cache.free_pages
    d = cache.head
    return queue.run_pages(sim, d) if d >= 0 and sim.nodes[d].trace_node == 0 else 0


@kernel
def reset(sim, w):
    """Empty the host pool, if any."""
    if sim.config.host_pages > 0:
        queue.reset(sim, sim.config.workers + w, sim.config.host_pages)
