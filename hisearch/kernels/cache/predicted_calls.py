"""Predicted next calls of agents, objects and cached pages: the order of eviction (``la.DISTANCE``) and of loading.

An agent's predicted call (``AGENT.predicted_call``) is a time, a frame or a request's number. It changes with events
only, not with the passage of time. A cached page's eviction key is the earliest predicted call of the agents whose
newest call's path leads through it. *Private* pages have one agent for good. The key of a trace node, or an object,
that several agents use is a minimum over a range of entries, kept in a tree of minima. A page on no agent's newest path
has the key ``NOBODY`` and is evicted first.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import agents as al


@kernel
def set_entry(sim, k, value):
    """Set entry ``k`` to ``value``."""
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
def predicted_call_of(sim, d):
    """Eviction key of node ``d``, of a cache or of an object: its earliest predicted call."""
    agents = sim.agents
    s = sim.nodes[d].trace_node
    if s < 0:
        thing = agents.things[sim.nodes[d].parent]
        if thing.owner >= 0:
            return agents.agents[thing.owner].predicted_call
        return least_of(sim, thing.first, thing.after)
    a = agents.owner[s]
    if a < 0:
        return least_of(sim, agents.entries_begin[s], agents.entries_end[s])
    place = agents.first[agents.agents[a].trace_node]
    if agents.first[s] <= place < agents.after[s]:
        return agents.agents[a].predicted_call
    return al.NOBODY


@kernel
def may_evict(sim, w, d, a):
    """Whether node ``d`` of worker ``w`` may be evicted for agent ``a``: its predicted call is later.

    For a call that has arrived also KV with an equal key, and an object whose only agent calls at another worker.
    """
    key = sim.agents.keys[d]
    agent = sim.agents.agents[a]
    if key > agent.predicted_call or agent.calls == 0:
        return key > agent.predicted_call
    if sim.nodes[d].trace_node >= 0:
        return key == agent.predicted_call
    owner = sim.agents.things[sim.nodes[d].parent].owner
    return owner >= 0 and sim.agents.agents[owner].worker != w
