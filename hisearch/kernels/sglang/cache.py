"""SGLang's prefix cache: with a host tier (``hicache``), over two pools (``components``), or ``radix`` alone."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction, radix
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.hicache import hicache
from hisearch.kernels.hicache import memory as hicache_memory
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import components as cl
from hisearch.kernels.sglang.components import states, unified, window_requests, windows


@kernel
def walk(sim, w, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens in HBM: (tokens, node that ends with them)."""
    if sim.config.hicache:
        tokens, d, _, _ = hicache_nodes.walk(sim, w, trace_node, limit)
        return tokens, d
    if sim.config.component:
        tokens, d, _ = walk_components(sim, w, trace_node, limit)
        return tokens, d
    return radix.walk(sim, sim.workers[w].cache_id, trace_node, limit)


@kernel
def walk_components(sim, w, trace_node, limit):
    """As ``walk`` over two pools: (tokens that can be reused, node at their end, tokens that full attention has)."""
    v = sim.workers[w].cache_id
    if sim.config.component == cl.WINDOWS:
        return windows.walk(sim, v, trace_node, limit)
    return states.walk(sim, v, trace_node, limit)


@kernel
def walk_tiers(sim, w, trace_node, limit):
    """As ``walk`` in both tiers: (tokens in HBM, host-only tokens behind them, node that ends with the former)."""
    if sim.config.hicache:
        tokens, d, on_host, _ = hicache_nodes.walk(sim, w, trace_node, limit)
        return tokens, on_host, d
    tokens, d = walk(sim, w, trace_node, limit)
    return tokens, 0, d


@kernel
def insert(sim, w, trace_node, tokens, priority, counted_from):
    """Add the first ``tokens`` (full pages) of the path to ``trace_node``.

    It is a hit of each node that ends behind ``counted_from``. Returns (tokens that HBM had before, deepest node).
    """
    if sim.config.hicache:
        return hicache.insert(sim, w, trace_node, tokens, priority, counted_from)
    return radix.insert(sim, sim.workers[w].cache_id, trace_node, tokens, priority, counted_from)


@kernel
def ensure_free_pages(sim, w, pages):
    """If fewer than ``pages`` are free, evict, as far as possible (see ``radix``)."""
    if sim.config.hicache:
        hicache_memory.ensure_free_pages(sim, w, pages)
    elif sim.config.component:
        unified.ensure_free_pages(sim, sim.workers[w].cache_id, pages)
    else:
        radix.ensure_free_pages(sim, sim.workers[w].cache_id, pages)


@kernel
def some_evictable(sim, w):
    """Whether anything can be evicted."""
    v = sim.workers[w].cache_id
    return eviction.some(sim, v) or (sim.config.window_tokens > 0 and sim.other_pools[v].evictable > 0)


@kernel
def free_pages(sim, w):
    """Pages that can be taken: with a pool for windows, that both have."""
    free = sim.trees[sim.workers[w].cache_id].free_pages
    return min(free, sim.other_pools[sim.workers[w].cache_id].free) if sim.config.window_tokens else free


@kernel
def take_pages(sim, w, pages):
    """Take free pages, of full attention and of windows."""
    sim.trees[sim.workers[w].cache_id].free_pages -= pages
    if sim.config.window_tokens:
        sim.other_pools[sim.workers[w].cache_id].free -= pages


@kernel
def lock(sim, w, r, d):
    """Let ``r`` hold the path to node ``d``, and the window before its end or its state."""
    radix.lock(sim, sim.workers[w].cache_id, d)
    if sim.config.component == cl.WINDOWS:
        window_requests.lock(sim, w, r, d)
    elif sim.config.component == cl.STATES:
        states.lock(sim, sim.workers[w].cache_id, d)


@kernel
def unlock(sim, w, r, d):
    """Let ``r`` release it."""
    if sim.config.component == cl.WINDOWS:
        window_requests.unlock(sim, w, r, d)
    elif sim.config.component == cl.STATES:
        states.unlock(sim, sim.workers[w].cache_id, d)
    radix.unlock(sim, sim.workers[w].cache_id, d)


@kernel
def ensure_pages_for_step(sim, w, pages, now):
    """Likewise; if too few can be evicted, a load for agents gives the pages that it has taken back."""
    ensure_free_pages(sim, w, pages)
    if sim.config.objects and free_pages(sim, w) < pages:
        engine_calls.call_engine(sim.config.objects, sim, al.YIELD, w, 0, now)
