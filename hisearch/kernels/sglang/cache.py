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
    """Match the path to ``trace_node`` up to ``limit`` tokens in HBM: (tokens, node at whose end they end)."""
    if sim.config.hicache:
        tokens, d, _, _ = hicache_nodes.walk(sim, w, trace_node, limit)
        return tokens, d
    return radix.walk(sim, sim.workers[w].cache_id, trace_node, limit)


@kernel
def insert(sim, w, trace_node, tokens, priority, chunk):
    """Add the first ``tokens`` (whole pages) of the path to ``trace_node``; returns how many HBM had before.

    ``chunk``: of a prompt that goes on.
    """
    if sim.config.hicache:
        present, _ = hicache.insert(sim, w, trace_node, tokens, priority, chunk)
    else:
        present, _ = radix.insert(sim, sim.workers[w].cache_id, trace_node, tokens, priority)
    return present


@kernel
def make_room(sim, w, pages):
    """Where fewer than ``pages`` are free, evict at least that many, not the difference, as far as there are any."""
    if sim.config.hicache:
        hicache_memory.make_room(sim, w, pages)
    else:
        radix.make_room(sim, sim.workers[w].cache_id, pages)


@kernel
def make_room_for_step(sim, w, pages, now):
    """Likewise; where too few can be evicted, a load for agents that has taken pages gives them back."""
    make_room(sim, w, pages)
    if sim.config.objects and sim.trees[sim.workers[w].cache_id].free_pages < pages:
        engine_calls.call_engine(sim.config.objects, sim, al.YIELD, w, 0, now)
