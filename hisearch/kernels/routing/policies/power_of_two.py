"""The less loaded of two random workers, by loads that workers told some time ago.

Rule: ``power_of_two`` of sglang-router 0.3.2 (``policies/power_of_two.rs``, ``core/worker_manager.rs: LoadMonitor``).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State
from hisearch.kernels.routing import draws, loads

ROUTER = RouterPolicy(
    "Of two random workers the less loaded by tokens, as polled.",
    parameters=(
        Parameter(
            "load_poll_s",
            30.0,
            "seconds between two polls of the workers' loads (--worker-startup-check-interval); 0: loads are of now. "
            "Workers other than SGLang's answer none, which makes every choice uniformly random.",
            at_least=0.0,
            search=(30.0,),
        ),
    ),
    state=(State("poll_s", "f8"),),
    member_state=(State("polled_tokens", "i8"),),  # what it held when it was asked; -1: it does not answer
    sees=("loads",),
    age="load_poll_s",
    product="sglang-router",
    hash_order=True,
    cost="2 workers",
)


@kernel
def choose(fleet, route, k, r, now):
    """Two distinct random members; the first unless it had more tokens at the last poll."""
    if route.ups == 1:
        return fleet.up[route.first]
    loads.poll_where_due(fleet, route, now)
    first, second = draws.two_up(fleet, route, k)
    if fleet.members[second].polled_tokens < fleet.members[first].polled_tokens:
        return second
    return first
