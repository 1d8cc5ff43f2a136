"""Where a first token can be expected in time."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import AdmissionPolicy, Parameter
from hisearch.kernels.traffic import flow

ADMISSION = AdmissionPolicy(
    "Where a first token can be expected in time.",
    parameters=(
        Parameter(
            "max_wait_s",
            10.0,
            "prompt tokens waiting for their first token on the least loaded worker, over the tokens it computes a "
            "second, must not exceed this.",
            above=0.0,
        ),
    ),
)


@kernel
def admits(fleet, r, now):
    """Whether the member with the shortest wait computes its waiting prompts within ``max_wait_s``."""
    route = fleet.routes[flow.front_of(fleet, r)]
    least = np.inf
    for k in range(route.ups):
        member = fleet.members[fleet.up[route.first + k]]
        least = min(least, member.outstanding_tokens / member.prefill_tokens_per_s)
    return least <= fleet.config.max_wait_s
