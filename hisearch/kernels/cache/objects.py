"""Objects of agents in a pool of pages, among the cached leaves that may be evicted: see ``layout.agents``.

An object's record among the nodes has no place in the trace's tree (``trace_node`` -1).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import agents_line, eviction
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import hicache as hl


@kernel
def kv(sim):
    """What stands for KV among the objects that a loader may be at: one behind the last."""
    return sim.agents.things.shape[0]


@kernel
def server(sim, w, kind):
    """Number of worker ``w``'s server for agents."""
    return (hl.SERVERS * sim.config.workers) + al.AGENT_SERVERS * w + kind


@kernel
def left_hbm(sim, w, d):
    """A run of KV, node ``d``, is on worker ``w``'s host alone now: its only agent stands in line for it."""
    if sim.config.objects == 0 or sim.agents.policy.kv_budget_pages == 0:
        return
    a = sim.agents.owner[sim.nodes[d].trace_node]
    if a < 0:
        return
    agent = sim.agents.agents[a]
    if agent.worker != w or agent.calls > 0:
        return
    gone = min(agent.fresh_pages, (sim.nodes[d].end - sim.nodes[d].begin) // sim.config.page_tokens)
    agent.fresh_pages -= gone
    sim.agents.loaders[w].kv_fresh_pages -= gone
    agents_line.stand(sim, agents_line.kv_row(sim, w), a)


@kernel
def left_host(sim, w, d):
    """A run of KV, node ``d``, leaves worker ``w``'s host: its only agent stands in line to fetch it from storage."""
    if sim.config.objects == 0 or sim.agents.policy.kv_budget_pages == 0 or sim.tiers.storage == 0:
        return
    a = sim.agents.owner[sim.nodes[d].trace_node]
    if a >= 0 and sim.agents.agents[a].worker == w and sim.agents.agents[a].calls == 0:
        agents_line.stand(sim, agents_line.fetch_row(sim, w), a)


@kernel
def pages_of(sim, d):
    """Pages of the object whose record is ``d``."""
    return sim.agents.things[sim.nodes[d].parent].pages


@kernel
def evict_from(sim, v, d):
    """Let the resident object that nobody holds go; returns its pages, which are free.

    Its only agent stands in line again, if it has a use for that; of several, each does with its next event.
    """
    node = sim.nodes[d]
    eviction.withdraw(sim, v, d)
    pages = pages_of(sim, d)
    here = sim.agents.objects[node.next, node.parent]
    loader = sim.agents.loaders[node.next]
    here.where = al.ABSENT
    loader.evicted += 1
    if here.fresh:
        here.fresh = 0
        loader.fresh_pages -= pages
    owner = sim.agents.things[node.parent].owner
    if owner >= 0 and sim.agents.policy.loading != al.AT_LAUNCH and sim.agents.agents[owner].worker == node.next:
        row = node.next if here.on_host == al.COPIED else agents_line.read_row(sim, node.next)
        agents_line.stand(sim, row, owner)
    sim.trees[v].free_pages += pages
    sim.trees[v].evictable_pages -= pages
    return pages
