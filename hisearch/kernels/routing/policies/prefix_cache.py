"""AIBrix's prefix-cache routing: the longest prefix among workers without unusually many requests.

Rule: AIBrix 0.5 (``pkg/plugins/gateway/algorithms/prefix_cache.go: routeOriginal``, ``getTargetPodFromMatchedPods``,
``getTargetPodListOnLoadImbalance``; ``pkg/utils/prefixcacheindexer/hash.go``, ``pkg/utils/lrustore``). It counts
requests in flight itself. Its index is one LRU of blocks for all workers, each block with those that were sent it; the
fields of the route's first member hold it. Here a block is of whole tokens, and the index has room for the longest
prompt at least. Not simulated: its index by the workers' KV events. Defaults are those that its chart sets
(``dist/chart/values.yaml``); its code's are 8 requests, 1 deviation and 4 characters.
"""

from __future__ import annotations

import math

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy
from hisearch.kernels.routing import block_index, draws, prefix_index

ROUTER = RouterPolicy(
    "The longest prefix among workers without unusually many requests.",
    parameters=(
        Parameter(
            "imbalance_requests",
            16,
            "where the most and the fewest requests in flight differ by more, prefixes of workers with the fewest "
            "alone count (AIBRIX_PREFIX_CACHE_POD_RUNNING_REQUEST_IMBALANCE_ABS_COUNT).",
            at_least=0,
            search=(16, 8),
        ),
        Parameter(
            "deviation_factor",
            2,
            "a worker is taken for its prefix where it has at most the mean of requests in flight plus so many "
            "standard deviations (AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR).",
            at_least=0,
            search=(2, 1),
        ),
        Parameter(
            "block_characters",
            128,
            "characters of a block (AIBRIX_PREFIX_CACHE_BLOCK_SIZE, with the tokenizer character).",
            at_least=1,
            search=(128,),
        ),
        Parameter(
            "index_blocks_in_all",
            200000,
            "blocks that the index keeps of all workers together (AIBRIX_PREFIX_CACHE_BLOCK_NUMBER).",
            at_least=1,
            search=(200000,),
        ),
        Parameter(
            "index_ttl_s",
            1200.0,
            "seconds after which a block is forgotten that was not sent again, looked for every second "
            "(AIBRIX_PREFIX_CACHE_EVICTION_DURATION_MINS).",
            above=0.0,
            search=(1200.0,),
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
    sees=("requests", "prompts", "prefills"),
    remembers="until its LRU drops them, 20 min at most",
    product="aibrix",
    cost="workers x the prompt's path",
)


@kernel
def _enter(fleet, route, m, r, now):
    """The blocks of ``r``'s prompt are sent to member ``m``: from the root on, each makes room for itself."""
    trace, owner = fleet.trace, np.int64(route.first)
    send = block_index.begin_send(fleet, owner, r, now)
    word, bit = prefix_index.column(route, fleet.members[m].place)
    depth = 0
    s = np.int64(trace.prompt_node[r])
    while s > 0:
        fleet.path[depth] = s
        depth += 1
        s = np.int64(trace.parent[s])
    for d in range(depth - 1, -1, -1):
        s = np.int64(fleet.path[d])
        if not block_index.touch_node(fleet, route, owner, s, send):
            for other in range(route.word, route.word + route.words):
                fleet.prefix_index[s, other] = 0
        fleet.prefix_index[s, word] |= bit
        block_index.trim(fleet, route, owner, route.lru_capacity_blocks)


@kernel
def _matched(fleet, route, m, r):
    """Leading blocks of ``r``'s prompt that were sent to member ``m``."""
    trace, owner = fleet.trace, fleet.members[route.first]
    word, bit = prefix_index.column(route, fleet.members[m].place)
    s = end = np.int64(trace.prompt_node[r])
    while s > 0:
        gone = fleet.stamps[s, route.first + owner.place] == 0 or s == owner.cut_node
        if block_index.blocks_of(route, trace, s) > 0 and (gone or not fleet.prefix_index[s, word] & bit):
            end = np.int64(trace.parent[s])
        s = np.int64(trace.parent[s])
    return trace.end_tokens[end] // route.block_tokens


@kernel
def _most_requests(fleet, route):
    """Most requests in flight with which a worker is taken for its prefix."""
    mean = 0.0
    for place in range(route.ups):
        mean += fleet.members[fleet.up[route.first + place]].inflight_requests
    mean /= route.ups
    squares = 0.0
    for place in range(route.ups):
        squares += (fleet.members[fleet.up[route.first + place]].inflight_requests - mean) ** 2
    return mean + route.deviation_factor * math.sqrt(squares / (route.ups - 1)) if route.ups > 1 else mean


@kernel
def _longest(fleet, route, r, highest):
    """Make the members candidates that ``r`` may go to for its prefix; returns how many.

    Of those with at most ``highest`` requests the longest match, of equal ones the fewest requests; none without any.
    """
    blocks = fleet.trace.input_tokens[r] // route.block_tokens
    most = _most_requests(fleet, route)
    count, best, fewest = 0, 0, 0
    for place in range(route.ups):
        m = np.int64(fleet.up[route.first + place])
        requests = fleet.members[m].inflight_requests
        matched = _matched(fleet, route, m, r) if requests <= min(highest, most) else 0
        if matched == 0:
            continue
        percent = matched * 100 // blocks
        if count > 0 and (percent < best or (percent == best and requests > fewest)):
            continue
        if count == 0 or percent > best or requests < fewest:
            count, best, fewest = 0, percent, requests
        fleet.candidates[route.first + count] = fleet.members[m].place
        count += 1
    return count


@kernel
def choose(fleet, route, k, r, now):
    """The longest match that is not too busy, else any with the fewest requests in flight."""
    block_index.expire(fleet, route, np.int64(route.first), np.nextafter(math.floor(now), -1.0), route.index_ttl_s)
    fewest, most = fleet.members[fleet.up[route.first]].inflight_requests, 0
    for place in range(route.ups):
        requests = fleet.members[fleet.up[route.first + place]].inflight_requests
        fewest, most = min(fewest, requests), max(most, requests)
    count = _longest(fleet, route, r, fewest if most - fewest > route.imbalance_requests else most)
    if count == 0:
        for place in range(route.ups):
            member = fleet.members[fleet.up[route.first + place]]
            if member.inflight_requests == fewest:
                fleet.candidates[route.first + count] = member.place
                count += 1
    chosen = np.int64(fleet.at_place[route.first + draws.one_of(fleet, route, k, count, route.drawn)])
    if fleet.trace.input_tokens[r] >= route.block_tokens:
        _enter(fleet, route, chosen, r, now)
    return chosen
