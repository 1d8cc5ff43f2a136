"""KV that host memory alone has, brought into HBM ahead of the call that will want it: a load beside those of objects.

What is brought is the way of an agent's newest call, from where HBM's part of it ends. Its pages are taken when the
load begins, and count as cached when it has ended; until then the way above them is held in HBM and their copies on the
host. What others have brought or computed meanwhile is not brought twice: the pages are given back. Room is made of
what is due later than the agent and has a copy on the host, so that nothing is lost for a guess.

Whether and when: ``agents.loads``. Tiers: ``hicache``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction, objects, radix, tree
from hisearch.kernels.engine import device
from hisearch.kernels.hicache import memory, nodes
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists


@kernel
def missing(sim, w, a):
    """What the host alone has of agent ``a``'s newest way: (tokens, its deepest node, the deepest one in HBM).

    In whole nodes; (0, root, root) where there is none, or too little for the engine to load back.
    """
    agent = sim.agents.agents[a]
    if sim.agents.policy.kv_budget_pages == 0 or agent.end_s < 0.0:
        return 0, w, w
    limit = tree.floor_page(sim, sim.trace.end_tokens[agent.trace_node])
    _, d, e = nodes.find(sim, w, agent.trace_node, limit)
    tokens = sim.nodes[d].end - sim.nodes[e].end
    if d == e or tokens < sim.tiers.load_back_tokens:
        return 0, w, w
    return tokens, d, e


@kernel
def comes(sim, w, a):
    """Whether agent ``a``'s KV is being brought to worker ``w``."""
    loader = sim.agents.loaders[w]
    return loader.object == objects.kv(sim) and loader.agent == a


@kernel
def committed_pages(sim, w, now):
    """KV pages that the steps under way will take; a run of decode steps ends with the next pass."""
    worker = sim.workers[w]
    if worker.phase != la.FAST_FORWARDING:
        return 0
    device.cut_fast_forward(sim, w, now)
    return lists.pages_over(sim, w, 1, worker.fast_forward_steps - 1) - worker.fast_forward_pages


@kernel
def _goes_for(sim, w, due):
    """The next node that may be evicted for who is due at ``due``, or -1."""
    d = eviction.first(sim, w)
    if d < 0:
        return -1
    return d if sim.agents.keys[d] > due and sim.hosted[d].where & hl.ON_HOST else -1


@kernel
def _make_room(sim, w, due, pages, now):
    """Room for ``pages`` beyond what steps under way take, from what is due later than ``due`` and has a copy."""
    cache = sim.trees[w]
    if cache.free_pages < pages and _goes_for(sim, w, due) < 0:
        return False
    committed = committed_pages(sim, w, now)
    if cache.free_pages + cache.evictable_pages - committed < pages:
        return False
    while cache.free_pages - committed < pages:
        d = _goes_for(sim, w, due)
        if d < 0:
            return False
        here = radix.pages_of(sim, d)
        eviction.withdraw(sim, w, d)
        memory.leave_to_host(sim, w, d)
        cache.free_pages += here
        cache.evictable_pages -= here
        cache.evicted_tokens += here * sim.config.page_tokens
    return True


@kernel
def begin(sim, w, a, now):
    """Take pages for what agent ``a`` is missing, if budget and room allow; returns its tokens, or 0."""
    loader = sim.agents.loaders[w]
    agent = sim.agents.agents[a]
    tokens, d, e = missing(sim, w, a)
    pages = tokens // sim.config.page_tokens
    if pages == 0 or loader.kv_fresh_pages + pages > sim.agents.policy.kv_budget_pages:
        return 0
    # Held first: the way above is due no later than the agent, but may be without a copy.
    radix.lock(sim, w, e)
    nodes.lock_host(sim, w, d)
    if not _make_room(sim, w, agent.due, pages, now):
        nodes.unlock_host(sim, w, d)
        radix.unlock(sim, w, e)
        return 0
    sim.trees[w].free_pages -= pages
    loader.kv_node = d
    loader.kv_anchor = e
    loader.kv_pages = pages
    return tokens


@kernel
def _let_go(sim, w, came):
    """The load is over: of its pages ``came`` are the cache's."""
    loader = sim.agents.loaders[w]
    radix.unlock(sim, w, loader.kv_anchor)
    sim.trees[w].free_pages += loader.kv_pages - came
    loader.kv_node = -1
    loader.kv_anchor = -1
    loader.kv_pages = 0


@kernel
def interrupt(sim, w):
    """The load under way has moved what it has for nothing."""
    nodes.unlock_host(sim, w, sim.agents.loaders[w].kv_node)
    _let_go(sim, w, 0)


@kernel
def end(sim, w):
    """The load under way has ended: what it brought is in HBM. Returns the tokens that travelled."""
    loader = sim.agents.loaders[w]
    agent = sim.agents.agents[loader.agent]
    tokens = loader.kv_pages * sim.config.page_tokens
    nodes.unlock_host(sim, w, loader.kv_node)
    came = 0
    d = loader.kv_node
    while nodes.on_host_alone(sim, d):
        came += radix.pages_of(sim, d)
        nodes.enter_hbm(sim, w, d)
        d = sim.nodes[d].parent
    _let_go(sim, w, came)
    sim.trees[nodes.host_pool(sim, w)].read_tokens += tokens
    loader.kv_loaded_pages += came
    if agent.worker == w and agent.calls == 0:
        loader.kv_fresh_pages += came
        agent.fresh_pages += came
    elif agent.worker == w:
        loader.kv_used_pages += came
    return tokens


@kernel
def note_call(sim, w, a):
    """Agent ``a`` calls at worker ``w``: what was loaded ahead for it has been used, if that is where it is."""
    agent = sim.agents.agents[a]
    if agent.fresh_pages == 0:
        return
    loader = sim.agents.loaders[agent.worker]
    loader.kv_fresh_pages -= agent.fresh_pages
    if agent.worker == w:
        loader.kv_used_pages += agent.fresh_pages
    agent.fresh_pages = 0
