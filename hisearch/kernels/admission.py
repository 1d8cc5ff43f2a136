"""Which arriving requests a router lets in."""

from __future__ import annotations

import numpy as np

from hisearch.kernels import fleet_layout as fl
from hisearch.kernels.jit import kernel


@kernel
def _below_cap(fleet):
    """Whether fewer requests are in flight than all members that are up may have together."""
    front = fleet.routes[fl.FRONT]
    total = 0
    for m in range(fleet.members.shape[0]):
        total += fleet.members[m].inflight_requests
    return total < fleet.config.queue_cap * front.ups


@kernel
def _takes_token(fleet, now):
    """A bucket of tokens that fills at a rate: a request takes one, or is not let in."""
    config = fleet.config
    config.tokens = min(config.tokens_burst, config.tokens + (now - config.tokens_s) * config.tokens_rps)
    config.tokens_s = now
    if config.tokens < 1.0:
        return False
    config.tokens -= 1.0
    return True


@kernel
def _in_time(fleet):
    """Whether the prompts that wait on the member with the shortest wait are computed soon enough."""
    front = fleet.routes[fl.FRONT]
    least = np.inf
    for k in range(front.ups):
        member = fleet.members[fleet.up[front.first + k]]
        least = min(least, member.outstanding_tokens / (fleet.config.prefill_tokens_per_s * member.weight))
    return least <= fleet.config.shed_s


@kernel
def lets_in(fleet, now):
    """Whether the request that arrives at ``now`` is let in."""
    rule = fleet.config.admission
    if rule == fl.ADMIT_ALL:
        return True
    if rule == fl.QUEUE_CAP:
        return _below_cap(fleet)
    if rule == fl.TOKEN_BUCKET:
        return _takes_token(fleet, now)
    return _in_time(fleet)
