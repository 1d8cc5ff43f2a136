"""A worker's HBM as one sees it from outside, between its events: what passes up to now have done to it.

Two things are put off until they matter to the worker itself: a fast-forward takes its pages at its end, and vLLM's
decodes make pages findable when somebody looks for them.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue, tree
from hisearch.kernels.engine import device
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import memory
from hisearch.kernels.vllm.groups import memory as groups_memory


@kernel
def catch_up(sim, w, now):
    """Take the pages that passes before ``now`` have taken. Returns the fast-forwarded steps that they formed."""
    worker = sim.workers[w]
    if worker.phase != la.FAST_FORWARDING:
        return 0
    steps, _ = device.formed_by(sim, w, now)
    # SGLang's fast-forwards evict nothing.
    if sim.config.engine != la.SGLANG:
        pages = lists.pages_over(sim, w, 1, steps - 1) - worker.fast_forward_pages
        d = sim.trees[worker.cache_id].head
        if pages > 0 and (sim.nodes[d].trace_node > 0 or queue.run_pages(sim, d) < pages):
            queue.take(sim, worker.cache_id, pages)
            worker.fast_forward_pages += pages
    return steps


@kernel
def pages_held(sim, w, now):
    """Pages of HBM that requests hold on worker ``w`` at ``now``, of any engine; what is only cached is left out."""
    ahead = catch_up(sim, w, now)
    worker = sim.workers[w]
    cache = sim.trees[worker.cache_id]
    pages = cache.capacity_pages - cache.free_pages - cache.evictable_pages
    if ahead > 1:
        pages += lists.pages_over(sim, w, 1, ahead - 1) - worker.fast_forward_pages
    return pages


@kernel
def _has_groups(sim):
    """Whether the worker's KV lies in groups of blocks, which take and publish pages at every step."""
    return sim.kv_groups.full + sim.kv_groups.windowed > 0


@kernel
def _in_hbm(sim, d):
    """The deepest node on the way up from ``d`` that is in HBM, which is closed towards the root."""
    if sim.config.host_pages > 0:
        while d >= sim.trees.shape[0]:
            if sim.config.hicache and sim.hosted[d].where & hl.IN_HBM:
                break
            if not sim.config.hicache and sim.nodes[d].queued != la.ON_HOST:
                break
            d = sim.nodes[d].parent
    return d


@kernel
def _findable(sim, w, r, ahead):
    """Tokens of the decoding request ``r`` whose full pages can be found, ``ahead`` steps into a fast-forward."""
    request = sim.requests[r]
    computed = request.computed
    lag = memory.caching_lag(sim, w, r)
    placeholders = memory.output_placeholders(sim, w, r)
    if request.status == la.DECODING:
        computed = sim.trace.input_tokens[r] + memory.sampled(sim, w, r) + ahead - 1
        if ahead > 0:
            lag = 1
            placeholders = 1
    return tree.floor_page(sim, computed - (lag * placeholders if sim.config.overlap else 0))


@kernel
def cached_tokens(sim, w, trace_node, limit, now):
    """Tokens of the path to ``trace_node``, at most ``limit`` (whole pages), in the HBM of worker ``w`` at ``now``."""
    cache_id = sim.workers[w].cache_id
    if _has_groups(sim):
        pages, _ = groups_memory.cached_pages(sim, cache_id, trace_node, limit // sim.config.page_tokens)
        return pages * sim.config.page_tokens
    ahead = catch_up(sim, w, now)
    cached, d = tree.match(sim, cache_id, trace_node, limit)
    cached = min(cached, sim.nodes[_in_hbm(sim, d)].end)
    if sim.config.engine != la.VLLM or not sim.config.shared_outputs:
        return cached
    s = trace_node
    while s > 0:
        k = sim.owner_head[s]
        while k >= 0:
            r = sim.owner[k]
            if memory.decodes(sim, w, r):
                reach = min(limit, tree.floor_page(sim, sim.trace.end_tokens[s]))
                cached = max(cached, min(_findable(sim, w, r, ahead), reach))
            k = sim.next_owner[k]
        s = sim.trace.parent[s]
    return cached


@kernel
def depict(sim, w, prefix_index, word, bit, now):
    """Mark the trace-tree nodes in which a page completes and whose last whole page worker ``w`` has at ``now``.

    ``prefix_index``: as in ``Fleet``; modified in place in column ``word``.
    """
    cache_id = sim.workers[w].cache_id
    if _has_groups(sim):
        for s in range(1, prefix_index.shape[0]):
            pages = sim.trace.end_tokens[s] // sim.config.page_tokens
            cached, _ = groups_memory.cached_pages(sim, cache_id, s, pages)
            if 0 < pages == cached:
                prefix_index[s, word] |= bit
        return
    ahead = catch_up(sim, w, now)
    for s in range(1, prefix_index.shape[0]):
        d = sim.deepest_cached[cache_id, s]
        if d >= 0:
            d = _in_hbm(sim, d)
        if d >= 0 and sim.nodes[d].end >= tree.floor_page(sim, sim.trace.end_tokens[s]):
            prefix_index[s, word] |= bit
    if sim.config.engine != la.VLLM or not sim.config.prefix_caching:
        return
    r = sim.workers[w].running_head
    while r >= 0:
        if memory.decodes(sim, w, r):
            _depict_output(sim, r, _findable(sim, w, r, ahead), prefix_index, word, bit)
        r = sim.requests[r].next


@kernel
def _depict_output(sim, r, findable, prefix_index, word, bit):
    """Mark the nodes that the output of ``r`` has filled, of which ``findable`` tokens can be found."""
    s = lists.path_end(sim, r)
    while s != sim.trace.prompt_node[r]:
        whole = tree.floor_page(sim, sim.trace.end_tokens[s])
        if sim.trace.start_tokens[s] < whole <= findable:
            prefix_index[s, word] |= bit
        s = sim.trace.parent[s]
