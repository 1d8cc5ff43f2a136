"""SGLang's prefix cache: with a host tier (``hicache``) or without (``radix``)."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.hicache import hicache
from hisearch.kernels.hicache import memory as hicache_memory
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import agents as al


@kernel
def walk(sim, w, trace_node, limit):
    """Match the path to ``trace_node`` up to ``limit`` tokens in HBM: (tokens, node that ends with them)."""
    if sim.config.hicache:
        tokens, d, _, _ = hicache_nodes.walk(sim, w, trace_node, limit)
        return tokens, d
    return radix.walk(sim, sim.workers[w].cache_id, trace_node, limit)


@kernel
def walk_tiers(sim, w, trace_node, limit):
    """As ``walk`` in both tiers: (tokens in HBM, host-only tokens behind them, node that ends with the former)."""
    if sim.config.hicache:
        tokens, d, on_host, _ = hicache_nodes.walk(sim, w, trace_node, limit)
        return tokens, on_host, d
    tokens, d = radix.walk(sim, sim.workers[w].cache_id, trace_node, limit)
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
    else:
        radix.ensure_free_pages(sim, sim.workers[w].cache_id, pages)


@kernel
def ensure_pages_for_step(sim, w, pages, now):
    """Likewise; if too few can be evicted, a load for agents gives the pages that it has taken back."""
    ensure_free_pages(sim, w, pages)
    if sim.config.objects and sim.trees[sim.workers[w].cache_id].free_pages < pages:
        engine_calls.call_engine(sim.config.objects, sim, al.YIELD, w, 0, now)
