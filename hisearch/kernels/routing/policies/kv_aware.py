"""The least load, counting the part of the prompt that is not cached there; it sees the workers' caches."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State
from hisearch.kernels.routing import prefix_index

ROUTER = RouterPolicy(
    "Sees the workers' caches: least load, counting what of the prompt is not cached.",
    parameters=(
        Parameter(
            "overlap_weight",
            1.0,
            "what a prompt token that is not cached weighs, in prompt tokens in flight.",
            above=0.0,
            search=(1.0,),
        ),
        Parameter(
            "staleness_s",
            0.0,
            "seconds between two looks at the caches; 0: it always sees them as they are.",
            at_least=0.0,
            search=(0.0,),
        ),
    ),
    state=(State("look_s", "f8"),),
    reads_prompts=True,
    sees=("caches", "tokens", "speed"),
    age="staleness_s",
    cost="workers x the prompt's path",
)


@kernel
def choose(fleet, route, k, r, now):
    """Least load: prompt tokens in flight, and those of this prompt that are not cached there, by their weight."""
    prefix_index.look_where_due(fleet, route, now)
    chosen = -1
    least = np.inf
    for place in range(route.ups):
        m = fleet.up[route.first + place]
        member = fleet.members[m]
        missing = fleet.trace.input_tokens[r] - prefix_index.match(fleet, route, m, r, now)
        load = (route.overlap_weight * missing + member.inflight_tokens) / member.weight
        if load < least:
            least = load
            chosen = m
    return chosen
