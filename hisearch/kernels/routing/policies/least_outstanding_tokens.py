"""The worker with the fewest prompt tokens in flight for its capacity."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import RouterPolicy
from hisearch.kernels.core import tournament
from hisearch.kernels.traffic import flow

ROUTER = RouterPolicy(
    "Fewest prompt tokens in flight for its capacity.",
    tracks=("tokens",),
    sees=("tokens", "speed"),
    cost="log(workers)",
)


@kernel
def choose(fleet, route, k, r, now):
    """Fewest prompt tokens in flight for its weight; of equals the lower one."""
    return fleet.at_place[route.first + tournament.best(fleet.winners[flow.ROWS * k + flow.LIGHTEST])]
