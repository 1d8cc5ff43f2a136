"""The longest prefix that the router believes to be cached, unless load is uneven.

Rule: ``cache_aware`` of SGLang's router (sgl-router 0.3). Its measure of a text, characters, is tokens here.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State
from hisearch.kernels.core import tournament
from hisearch.kernels.routing import prefix_index
from hisearch.kernels.traffic import flow

ROUTER = RouterPolicy(
    "Balance first, then the longest prefix believed to be cached.",
    parameters=(
        Parameter(
            "cache_threshold",
            0.3,
            "share of a prompt that a match must exceed; else the worker with the smallest cache is taken.",
            at_least=0.0,
            at_most=1.0,
            search=(0.3, 0.5),
        ),
        Parameter(
            "balance_abs_threshold",
            64,
            "the least loaded worker is taken where the spread of load (requests in flight; for bucket prompt tokens "
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
            "max_tree_tokens",
            None,
            "most that a worker is believed to hold once its tree is trimmed (SGLang router: --max-tree-size, in "
            "characters); never trimmed where absent.",
            at_least=1,
            optional=True,
            search=(None,),
        ),
        Parameter(
            "eviction_interval_s",
            120.0,
            "seconds between two trimmings.",
            above=0.0,
            search=(120.0,),
            only_with=("max_tree_tokens", None),
        ),
    ),
    state=(State("trim_s", "f8", "eviction_interval_s"),),
    reads_prompts=True,
    tracks=("requests",),
)


@kernel
def choose(fleet, route, k, r, now):
    """Balance first; else the best believed prefix if it is long enough, else the smallest believed cache."""
    prefix_index.trim_where_due(fleet, route, now)
    row = flow.ROWS * k
    least = route.first + tournament.best(fleet.winners[row + flow.FEWEST])
    fewest = fleet.members[least].inflight_requests
    most = fleet.members[route.first + tournament.best(fleet.winners[row + flow.MOST])].inflight_requests
    if most - fewest > route.balance_abs_threshold and most > route.balance_rel_threshold * fewest:
        chosen = least
    else:
        tokens, place = prefix_index.best_match(fleet, route, r)
        if place >= 0 and tokens / fleet.trace.input_tokens[r] > route.cache_threshold:
            chosen = route.first + place
        else:
            chosen = route.first + tournament.best(fleet.winners[row + flow.SMALLEST])
    prefix_index.believe(fleet, route, chosen, r, now)
    return chosen
