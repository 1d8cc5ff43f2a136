"""By when agents, and what they need, are due: the order of eviction under ``la.DISTANCE``, and of loading.

An agent's due is a time (or a frame, or a request's number) at which it is expected to call: it stays as it is while
time goes by, and changes with events alone. A cached page is due when the first of those agents is whose newest call
leads through it. Only *private* pages have one agent for good; those of trace-tree nodes that several agents use, and
objects with several users, are due by a minimum over a range of entries, kept in a tree of minima. A page that no
agent's newest call leads through is due never, and is evicted first.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import agents as al


@kernel
def set_entry(sim, k, value):
    """Entry ``k`` counts as ``value``."""
    least = sim.agents.least
    k += least.shape[0] >> 1
    least[k] = value
    k >>= 1
    while k > 0:
        value = min(least[2 * k], least[2 * k + 1])
        if least[k] == value:
            return
        least[k] = value
        k >>= 1


@kernel
def least_of(sim, begin, end):
    """The least of entries [begin, end)."""
    least = sim.agents.least
    size = least.shape[0] >> 1
    value = al.NOBODY
    begin += size
    end += size
    while begin < end:
        if begin & 1:
            value = min(value, least[begin])
            begin += 1
        if end & 1:
            end -= 1
            value = min(value, least[end])
        begin >>= 1
        end >>= 1
    return value


@kernel
def due_of(sim, d):
    """When node ``d`` of a cache, or an object's, is due."""
    agents = sim.agents
    s = sim.nodes[d].trace_node
    if s < 0:
        thing = agents.things[sim.nodes[d].parent]
        if thing.owner >= 0:
            return agents.agents[thing.owner].due
        return least_of(sim, thing.first, thing.after)
    a = agents.owner[s]
    if a < 0:
        return least_of(sim, agents.entries_begin[s], agents.entries_end[s])
    place = agents.first[agents.agents[a].trace_node]
    if agents.first[s] <= place < agents.after[s]:
        return agents.agents[a].due
    return al.NOBODY


@kernel
def makes_way(sim, w, d, a):
    """Whether node ``d`` of worker ``w`` is evicted for agent ``a``: what is due later.

    For a call also KV that is due no sooner, and an object whose only agent calls at another worker.
    """
    key = sim.agents.keys[d]
    agent = sim.agents.agents[a]
    if key > agent.due or agent.calls == 0:
        return key > agent.due
    if sim.nodes[d].trace_node >= 0:
        return key == agent.due
    owner = sim.agents.things[sim.nodes[d].parent].owner
    return owner >= 0 and sim.agents.agents[owner].worker != w
