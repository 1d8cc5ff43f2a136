"""Objects of agents in a pool of pages, evicted among the cached leaves: see ``layout.agents``.

An object's node record has no place in the trace's tree (``trace_node`` -1).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction, load_queue
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import hicache as hl


@kernel
def kv(sim):
    """The index that stands for KV among the objects that a loader may load: one past the last."""
    return sim.agents.things.shape[0]


@kernel
def server(sim, w, kind):
    """Number of worker ``w``'s server for agents."""
    return (hl.SERVERS * sim.config.workers) + al.AGENT_SERVERS * w + kind


@kernel
def left_hbm(sim, w, d):
    """Node ``d`` of KV is only on worker ``w``'s host now: queue its only agent to load it."""
    if sim.config.objects == 0 or sim.agents.policy.kv_budget_pages == 0:
        return
    a = sim.agents.owner[sim.nodes[d].trace_node]
    if a < 0:
        return
    agent = sim.agents.agents[a]
    if agent.worker != w or agent.calls > 0:
        return
    lost = min(agent.fresh_pages, (sim.nodes[d].end - sim.nodes[d].begin) // sim.config.page_tokens)
    agent.fresh_pages -= lost
    sim.agents.loaders[w].kv_fresh_pages -= lost
    load_queue.stand(sim, load_queue.kv_row(sim, w), a)


@kernel
def left_host(sim, w, d):
    """Node ``d`` of KV leaves worker ``w``'s host: queue its only agent to fetch it from storage."""
    if sim.config.objects == 0 or sim.agents.policy.kv_budget_pages == 0 or sim.tiers.storage == 0:
        return
    a = sim.agents.owner[sim.nodes[d].trace_node]
    if a >= 0 and sim.agents.agents[a].worker == w and sim.agents.agents[a].calls == 0:
        load_queue.stand(sim, load_queue.fetch_row(sim, w), a)


@kernel
def pages_of(sim, d):
    """Pages of the object whose record is ``d``."""
    return sim.agents.things[sim.nodes[d].parent].pages


@kernel
def evict_from(sim, v, d):
    """Evict the resident, unlocked object whose record is ``d``; returns its pages, which are free.

    Unless steps load for themselves, its only agent is queued to load it again; of several agents, each with its next
    event.
    """
    node = sim.nodes[d]
    eviction.withdraw(sim, v, d)
    pages = pages_of(sim, d)
    obj = sim.agents.objects[node.next, node.parent]
    loader = sim.agents.loaders[node.next]
    obj.where = al.ABSENT
    loader.evicted += 1
    if obj.fresh:
        obj.fresh = 0
        loader.fresh_pages -= pages
        loader.ahead_worth -= al.AHEAD_EVIDENCE * loader.ahead_worth
    owner = sim.agents.things[node.parent].owner
    if owner >= 0 and sim.agents.policy.loading != al.AT_LAUNCH and sim.agents.agents[owner].worker == node.next:
        row = node.next if obj.on_host == al.COPIED else load_queue.read_row(sim, node.next)
        load_queue.stand(sim, row, owner)
    sim.trees[v].free_pages += pages
    sim.trees[v].evictable_pages -= pages
    return pages
