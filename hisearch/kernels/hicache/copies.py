"""HiCache's streams of copies: load-backs, and what a pass notes of copies that are done; see ``hicache``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import radix
from hisearch.kernels.hicache import memory, nodes
from hisearch.kernels.layout import sim as la


@kernel
def load_back(sim, w, d, tokens):
    """Take HBM pages for the ``tokens`` tokens up to the end of ``d`` that the host alone has, or for none of them.

    True where they were taken: ``d`` is then locked, until the copy that begins with the batch has been taken note of.
    """
    if tokens < sim.tiers.load_back_tokens:
        return False
    pages = tokens // sim.config.page_tokens
    nodes.lock_host(sim, w, d)
    memory.make_room(sim, w, pages)
    nodes.unlock_host(sim, w, d)
    if sim.trees[w].free_pages < pages:
        return False
    sim.trees[w].free_pages -= pages
    e = d
    while nodes.on_host_alone(sim, e):
        nodes.enter_hbm(sim, w, e)
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
    end = memory.copy(sim, w, 1, host.loading_tokens)
    sim.trees[nodes.host_pool(sim, w)].read_tokens += host.loading_tokens
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
    if d < 0 or sim.hosted[d].at_s > sim.workers[w].now_s:
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
    while host.to_hbm_head >= 0 and sim.hosted[host.to_hbm_head].at_s <= sim.workers[w].now_s:
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
    return min(
        _next_end_s(sim, host.to_host_head, sim.workers[w].now_s),
        _next_end_s(sim, host.to_hbm_head, sim.workers[w].now_s),
    )
