"""What its agents will need last (ScaleSim's invocation distance).

An agent's predicted call decides; see ``predicted_calls``. Pools with agents use it, no user names it.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.cache import predicted_calls, recency

EVICTION = EvictionPolicy("What its agents are predicted to need last.", stores=False)


@kernel
def entering(sim, d):
    """The key is when the first of the agents that use ``d`` is predicted to call."""
    sim.agents.keys[d] = predicted_calls.predicted_call_of(sim, d)


@kernel
def before(sim, a, b):
    """Latest predicted call, then last access."""
    ka = sim.agents.keys[a]
    kb = sim.agents.keys[b]
    return ka > kb if ka != kb else recency.older(sim, a, b)
