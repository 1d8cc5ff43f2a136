"""Loads of an agent's KV from host memory into HBM ahead of its call; they share the link with loads of objects.

A load covers the path of the agent's newest call, from the end of what HBM has. It takes its pages when it begins; they
count as cached when it has ended. Until then the path above them is locked in HBM, and their copies on the host. Pages
that others have loaded or computed meanwhile are given back. A load evicts only KV that has a copy on the host and
whose predicted call is later than the agent's, so that a wrong prediction loses nothing.

``agents.loads`` decides whether and when. Tiers: ``hicache``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction, objects, radix, tree
from hisearch.kernels.engine import device
from hisearch.kernels.hicache import memory as hicache_memory
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists


@kernel
def missing(sim, w, a):
    """KV of agent ``a``'s newest path that only the host has: (tokens, its deepest node, the deepest one in HBM).

    In whole nodes; (0, root, root) where there is none, or too little for the engine to load back.
    """
    agent = sim.agents.agents[a]
    if sim.agents.policy.kv_budget_pages == 0 or agent.end_s < 0.0:
        return 0, w, w
    limit = tree.floor_page(sim, sim.trace.end_tokens[agent.trace_node])
    _, d, e = hicache_nodes.find(sim, w, agent.trace_node, limit)
    tokens = sim.nodes[d].end - sim.nodes[e].end
    if d == e or tokens < sim.tiers.load_back_tokens:
        return 0, w, w
    return tokens, d, e


@kernel
def comes(sim, w, a):
    """Whether agent ``a``'s KV is being loaded at worker ``w``."""
    loader = sim.agents.loaders[w]
    return loader.object == objects.kv(sim) and loader.agent == a


@kernel
def committed_pages(sim, w, now):
    """KV pages that the steps under way will take; a fast-forward is cut at the next pass."""
    worker = sim.workers[w]
    if worker.phase != la.FAST_FORWARDING:
        return 0
    device.cut_fast_forward(sim, w, now)
    return lists.pages_over(sim, w, 1, worker.fast_forward_steps - 1) - worker.fast_forward_pages


@kernel
def _next_victim(sim, w, predicted):
    """The next node that may be evicted for an agent with that predicted call, or -1."""
    d = eviction.first(sim, w)
    if d < 0:
        return -1
    return d if sim.agents.keys[d] > predicted and sim.hosted[d].where & hl.ON_HOST else -1


@kernel
def _evict_for(sim, w, predicted, pages, now):
    """Free ``pages`` beyond those of steps under way; evicts KV with a copy whose predicted call is later."""
    cache = sim.trees[w]
    if cache.free_pages < pages and _next_victim(sim, w, predicted) < 0:
        return False
    committed = committed_pages(sim, w, now)
    if cache.free_pages + cache.evictable_pages - committed < pages:
        return False
    while cache.free_pages - committed < pages:
        d = _next_victim(sim, w, predicted)
        if d < 0:
            return False
        freed = radix.pages_of(sim, d)
        eviction.withdraw(sim, w, d)
        hicache_memory.leave_to_host(sim, w, d)
        cache.free_pages += freed
        cache.evictable_pages -= freed
        cache.evicted_tokens += freed * sim.config.page_tokens
    return True


@kernel
def begin(sim, w, a, now):
    """Take pages for agent ``a``'s missing KV, if the budget and free pages allow; returns its tokens, or 0."""
    loader = sim.agents.loaders[w]
    agent = sim.agents.agents[a]
    tokens, d, e = missing(sim, w, a)
    pages = tokens // sim.config.page_tokens
    if pages == 0 or loader.kv_fresh_pages + pages > sim.agents.policy.kv_budget_pages:
        return 0
    # Locked first: the path above has no later predicted call than the agent, but may lack a copy.
    radix.lock(sim, w, e)
    hicache_nodes.lock_host(sim, w, d)
    if not _evict_for(sim, w, agent.predicted_call, pages, now):
        hicache_nodes.unlock_host(sim, w, d)
        radix.unlock(sim, w, e)
        return 0
    sim.trees[w].free_pages -= pages
    loader.kv_node = d
    loader.kv_anchor = e
    loader.kv_pages = pages
    return tokens


@kernel
def _release(sim, w, kept):
    """End the load: ``kept`` of its pages belong to the cache, the others are free."""
    loader = sim.agents.loaders[w]
    radix.unlock(sim, w, loader.kv_anchor)
    sim.trees[w].free_pages += loader.kv_pages - kept
    loader.kv_node = -1
    loader.kv_anchor = -1
    loader.kv_pages = 0


@kernel
def interrupt(sim, w):
    """Abort the load under way; what it has moved is wasted."""
    hicache_nodes.unlock_host(sim, w, sim.agents.loaders[w].kv_node)
    _release(sim, w, 0)


@kernel
def end(sim, w):
    """End the load under way: its KV is in HBM. Returns the tokens transferred."""
    loader = sim.agents.loaders[w]
    agent = sim.agents.agents[loader.agent]
    tokens = loader.kv_pages * sim.config.page_tokens
    hicache_nodes.unlock_host(sim, w, loader.kv_node)
    loaded = 0
    d = loader.kv_node
    while hicache_nodes.on_host_alone(sim, d):
        loaded += radix.pages_of(sim, d)
        hicache_nodes.enter_hbm(sim, w, d)
        d = sim.nodes[d].parent
    _release(sim, w, loaded)
    sim.trees[hicache_nodes.host_pool(sim, w)].read_tokens += tokens
    loader.kv_loaded_pages += loaded
    if agent.worker == w and agent.calls == 0:
        loader.kv_fresh_pages += loaded
        agent.fresh_pages += loaded
    elif agent.worker == w:
        loader.kv_used_pages += loaded
    return tokens


@kernel
def note_call(sim, w, a):
    """Agent ``a`` calls at worker ``w``: KV loaded ahead for it counts as used, if it was loaded there."""
    agent = sim.agents.agents[a]
    if agent.fresh_pages == 0:
        return
    loader = sim.agents.loaders[agent.worker]
    loader.kv_fresh_pages -= agent.fresh_pages
    if agent.worker == w:
        loader.kv_used_pages += agent.fresh_pages
    agent.fresh_pages = 0
