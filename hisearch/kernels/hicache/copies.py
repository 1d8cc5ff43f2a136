"""HiCache's copy streams: load-backs, and the copies that a pass notes as done; see ``hicache``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.hicache import memory as hicache_memory
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import sim as la

_enqueue = fifo("next_copy")


@kernel
def load_back(sim, w, d, tokens):
    """Take HBM pages for all or none of the ``tokens`` host-only tokens up to the end of ``d``.

    Returns whether they were taken. ``d`` is then locked until the copy that begins with the batch has been noted.
    """
    if tokens < sim.tiers.load_back_tokens:
        return False
    pages = tokens // sim.config.page_tokens
    hicache_nodes.lock_host(sim, w, d)
    hicache_memory.ensure_free_pages(sim, w, pages)
    hicache_nodes.unlock_host(sim, w, d)
    if sim.trees[w].free_pages < pages:
        return False
    sim.trees[w].free_pages -= pages
    node = d
    while hicache_nodes.on_host_alone(sim, node):
        hicache_nodes.enter_hbm(sim, w, node)
        node = sim.nodes[node].parent
    radix.lock(sim, w, d)
    sim.workers[w].host_hit_tokens += tokens
    host = sim.hosts[w]
    host.loading_tokens += tokens
    sim.hosted[d].next_copy = host.loading
    host.loading = d
    return True


@kernel
def begin_loading(sim, w):
    """Begin one copy of all load-backs of the batch being formed; its step does not end before the copy."""
    host = sim.hosts[w]
    if host.loading_tokens == 0:
        return
    end = hicache_memory.copy(sim, w, 1, host.loading_tokens)
    sim.trees[hicache_nodes.host_pool(sim, w)].read_tokens += host.loading_tokens
    sim.workers[w].load_back_s = end
    host.loading_tokens = 0
    d = host.loading
    host.loading = -1
    while d >= 0:
        after = sim.hosted[d].next_copy
        sim.hosted[d].at_s = end
        host.to_hbm_head, host.to_hbm_tail = _enqueue(sim.hosted, host.to_hbm_head, host.to_hbm_tail, d)
        d = after


@kernel
def begin_writing(sim, w):
    """Begin one copy of all nodes that wait for theirs."""
    host = sim.hosts[w]
    if host.writing_tokens == 0:
        return
    end = hicache_memory.copy(sim, w, 0, host.writing_tokens)
    host.writing_tokens = 0
    d = host.to_host_head
    while d >= 0:
        if sim.hosted[d].at_s == la.FOREVER_S:
            sim.hosted[d].at_s = end
        d = sim.hosted[d].next_copy


@kernel
def next_written(sim, w):
    """Unlock and return the next node whose copy to the host is done by now; -1: none."""
    host = sim.hosts[w]
    d = host.to_host_head
    if d < 0 or sim.hosted[d].at_s > sim.workers[w].now_s:
        return -1
    host.to_host_head = sim.hosted[d].next_copy
    radix.unlock(sim, w, d)
    return d


@kernel
def note_loaded(sim, w):
    """Unlock the nodes that have been loaded back by now."""
    host = sim.hosts[w]
    while host.to_hbm_head >= 0 and sim.hosted[host.to_hbm_head].at_s <= sim.workers[w].now_s:
        d = host.to_hbm_head
        host.to_hbm_head = sim.hosted[d].next_copy
        radix.unlock(sim, w, d)


@kernel
def _next_end_s(sim, d, now):
    """End of the first copy in the stream from ``d`` on that is not done by ``now``."""
    while d >= 0:
        if sim.hosted[d].at_s > now:
            return sim.hosted[d].at_s
        d = sim.hosted[d].next_copy
    return la.FOREVER_S


@kernel
def next_copy_s(sim, w):
    """End of the next copy under way; infinity without one."""
    host = sim.hosts[w]
    return min(
        _next_end_s(sim, host.to_host_head, sim.workers[w].now_s),
        _next_end_s(sim, host.to_hbm_head, sim.workers[w].now_s),
    )
