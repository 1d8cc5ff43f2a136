"""As long as fewer requests than a cap are in flight."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import AdmissionPolicy, Parameter
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.traffic import flow

ADMISSION = AdmissionPolicy(
    "As long as fewer than a cap are in flight.",
    parameters=(Parameter("requests_per_worker", 256, "in flight, for each worker that takes requests.", at_least=1),),
)


@kernel
def admits(fleet, r, now):
    """Whether the model has fewer requests in flight than the cap of all its members that are up."""
    front = flow.front_of(fleet, r)
    total = 0
    for k in range(front, front + fl.SIDES):
        route = fleet.routes[k]
        for m in range(route.first, route.first + route.members):
            total += fleet.members[m].inflight_requests
    return total < fleet.config.requests_per_worker * fleet.routes[front].ups
