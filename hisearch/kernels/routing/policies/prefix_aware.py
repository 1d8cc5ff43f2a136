"""vLLM production-stack's prefix-aware router: any of the workers that were sent the longest prefix.

Rule: production-stack 0.1.11 (``src/vllm_router/routers/routing_logic.py: PrefixAwareRouter``, ``prefix/hashtrie.py:
HashTrie``). Prompts are cut into chunks of characters, the last of which may be shorter: it matches the same prompt
alone. A worker that was sent a chunk was sent all before it, as nothing is ever forgotten. Its ``roundrobin`` is
``round_robin``, its ``session`` ``consistent_hash`` without bounded loads; its ``kvaware`` is not simulated.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy
from hisearch.kernels.routing import draws, prefix_index

ROUTER = RouterPolicy(
    "Any of the workers that were sent the longest prefix, whatever their load.",
    parameters=(
        Parameter(
            "chunk_characters",
            128,
            "characters of a prompt that are matched at once.",
            at_least=1,
            search=(128,),
        ),
        Parameter(
            "characters_per_token",
            4.0,
            "as for cache_aware.",
            at_least=1.0,
            at_most=16.0,
            search=(4.0,),
        ),
    ),
    reads_prompts=True,
    sees=("prompts", "prefills"),
    remembers="for ever",
    product="production-stack",
    cost="workers + the prompt's path",
)


@kernel
def _chunks(route, tokens):
    """Whole chunks of a prompt's first ``tokens``."""
    return np.int64(tokens * route.characters_per_token) // route.chunk_characters


@kernel
def _collect(fleet, route, s, behind):
    """Make the members candidates that were sent trace node ``s``, or whose prompts ended there; returns how many."""
    count = 0
    for place in range(route.ups):
        member = fleet.members[fleet.up[route.first + place]]
        word, bit = prefix_index.column(route, member.place)
        if fleet.prefix_index[s, word + behind] & bit:
            fleet.candidates[route.first + count] = member.place
            count += 1
    return count


@kernel
def _longest(fleet, route, r):
    """Make those with the longest match of ``r``'s prompt candidates; all that are up where none has any."""
    trace, half = fleet.trace, route.words // 2
    s = np.int64(trace.prompt_node[r])
    characters = np.int64(trace.input_tokens[r] * route.characters_per_token)
    count = _collect(fleet, route, s, half) if characters % route.chunk_characters > 0 else 0
    while count == 0 and s > 0:
        if _chunks(route, trace.end_tokens[s]) > _chunks(route, trace.start_tokens[s]):
            count = _collect(fleet, route, s, 0)
        s = np.int64(trace.parent[s])
    if count > 0:
        return count
    for place in range(route.ups):
        fleet.candidates[route.first + place] = fleet.members[fleet.up[route.first + place]].place
    return route.ups


@kernel
def choose(fleet, route, k, r, now):
    """Any of those with the longest match; its chunks are known to have been sent there from now on."""
    count = _longest(fleet, route, r)
    chosen = np.int64(fleet.at_place[route.first + draws.one_of(fleet, route, k, count, route.drawn)])
    word, bit = prefix_index.column(route, fleet.members[chosen].place)
    s = np.int64(fleet.trace.prompt_node[r])
    fleet.prefix_index[s, word + route.words // 2] |= bit
    while s > 0 and not fleet.prefix_index[s, word] & bit:
        fleet.prefix_index[s, word] |= bit
        s = np.int64(fleet.trace.parent[s])
    return chosen
