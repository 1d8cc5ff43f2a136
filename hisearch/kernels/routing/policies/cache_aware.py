"""The worker that first came that way, unless load is uneven or too little of the prompt matches.

Rule: ``cache_aware`` of sglang-router 0.3.2 (``policies/cache_aware.rs``: ``CacheAwarePolicy.select_worker``); releases
differ by ``base.router_rules``. Characters are tokens times ``characters_per_token``. Behind disaggregated prefill and
decode 0.3.2 has no tree ("No tree found" in its log): it chooses at random while load is even.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State
from hisearch.kernels.core import tournament
from hisearch.kernels.routing import draws, router_tree
from hisearch.kernels.traffic import flow

ROUTER = RouterPolicy(
    "Balance first, then the worker that was first sent the longest prefix.",
    parameters=(
        Parameter(
            "cache_threshold",
            0.3,
            "share of a prompt that a match must exceed; else the worker with the fewest requests in flight is taken.",
            at_least=0.0,
            at_most=1.0,
            search=(0.3, 0.5),
        ),
        Parameter(
            "balance_abs_threshold",
            64,
            "the least loaded worker is taken where the spread of load (requests in flight; for bucket characters "
            "of the window) exceeds this and …",
            at_least=0,
            search=(16, 64),
        ),
        Parameter(
            "balance_rel_threshold",
            1.5,
            "… the most loaded worker has more than so many times the least loaded one's.",
            at_least=1.0,
            search=(1.5,),
        ),
        Parameter(
            "max_tree_characters",
            67108864,
            "most that the router's tree keeps of a worker's prompts once it is trimmed (--max-tree-size); null: it is "
            "never trimmed.",
            at_least=1,
            optional=True,
            search=(67108864,),
        ),
        Parameter(
            "eviction_interval_s",
            60.0,
            "seconds between two trimmings.",
            above=0.0,
            search=(60.0,),
        ),
        Parameter(
            "characters_per_token",
            4.0,
            "characters of text that a token stands for, as the router reads text; English: 4, other languages and "
            "code 1.5 to 5 (assumed).",
            at_least=1.0,
            at_most=16.0,
            search=(4.0,),
        ),
    ),
    state=(State("trim_s", "f8", "eviction_interval_s"), State("tree_clock", "i8")),
    member_state=(State("first_stamp", "i4"), State("last_stamp", "i4"), State("trimmed_until", "i4")),
    reads_prompts=True,
    tracks=("requests",),
    sees=("requests", "prompts"),
    remembers="until its tree is trimmed",
    product="sglang-router",
    hash_order=True,
    cost="log(workers) + the prompt's path",
)


@kernel
def choose(fleet, route, k, r, now):
    """Balance first; else the name of the longest match if it is long enough, else the fewest requests in flight."""
    row = flow.ROWS * k
    least = np.int64(fleet.at_place[route.first + tournament.best(fleet.winners[row + flow.FEWEST])])
    busiest = np.int64(fleet.at_place[route.first + tournament.best(fleet.winners[row + flow.MOST])])
    fewest, most = flow.counted_requests(fleet, least), flow.counted_requests(fleet, busiest)
    # The source compares in single precision.
    uneven = most - fewest > route.balance_abs_threshold and np.float32(most) > np.float32(fewest) * np.float32(
        route.balance_rel_threshold
    )
    if route.disaggregated:
        return least if uneven else np.int64(draws.any_up(fleet, route, k))
    router_tree.trim_where_due(fleet, route, k, now)
    chosen = least
    if not uneven:
        s = router_tree.deepest_match(fleet, k, r)
        matched, tokens = np.float32(fleet.trace.end_tokens[s]), np.float32(fleet.trace.input_tokens[r])
        if s > 0 and matched / tokens > np.float32(route.cache_threshold):
            chosen = np.int64(fleet.at_place[route.first + router_tree.worker_named(fleet, route, k, s, route.drawn)])
        elif not route.unmatched_to_fewest:
            chosen = np.int64(fleet.at_place[route.first + tournament.best(fleet.winners[row + flow.SMALLEST])])
        router_tree.note_match(fleet, route, k, s)
    router_tree.insert(fleet, route, k, chosen, r)
    return chosen
