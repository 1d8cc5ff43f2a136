"""Workers' metrics as a router has them: of the last time that it got them, at regular times whatever arrives.

What is counted: requests in the scheduler's queue, all others in flight, and pages that requests hold, as a share of
all (vLLM's ``num_requests_waiting``, ``num_requests_running`` and ``kv_cache_usage_perc``). Engines refresh theirs
after each step; here they are of the moment.
"""

from __future__ import annotations

import math

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import ROUTERS
from hisearch.kernels.routing import loads
from hisearch.kernels.traffic import pools

_SCRAPES = ROUTERS.mask(lambda policy: "metrics" in policy.sees)


@kernel
def scrape(fleet, route, now):
    """Get the metrics of all members of ``route`` that are up, as of ``now``."""
    for place in range(route.ups):
        member = fleet.members[fleet.up[route.first + place]]
        sim = pools.at(fleet, member.pool)
        waiting = 0
        for w in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
            waiting += sim.workers[w].waiting
        member.scraped_waiting = waiting
        member.scraped_running = member.inflight_requests - waiting
        member.scraped_kv_usage = loads.kv_usage(fleet, fleet.up[route.first + place], now)


@kernel
def scrape_where_due(fleet, now):
    """Let the routers that have been due by ``now`` get metrics; no event has been handled since the time of that."""
    following = np.inf
    for k in range(fleet.routes.shape[0]):
        route = fleet.routes[k]
        if not _SCRAPES >> route.policy & 1 or route.metrics_refresh_s == 0.0:
            continue
        if route.scrape_s <= now:
            due = (
                route.scrape_s + math.floor((now - route.scrape_s) / route.metrics_refresh_s) * route.metrics_refresh_s
            )
            scrape(fleet, route, min(due, now))
            route.scrape_s = due + route.metrics_refresh_s
        following = min(following, route.scrape_s)
    fleet.config.scrape_s = following
