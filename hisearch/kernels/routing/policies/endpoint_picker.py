"""The scheduler of llm-d, of the Gateway API inference extension: a weighted sum of scores between 0 and 1.

Rules: Gateway API inference extension 1.4 and llm-d-inference-scheduler 0.6 (March 2026). Scorers ``queue-scorer``,
``kv-cache-utilization-scorer``, ``running-requests-size-scorer`` and ``prefix-cache-scorer`` with its indexer
(``pkg/epp/framework/plugins/scheduling/scorer``, ``requestcontrol/dataproducer/approximateprefix``), llm-d's
``active-request-scorer`` and ``no-hit-lru-scorer`` (``pkg/plugins/scorer``); pickers ``max-score-picker`` and
``weighted-random-picker``. Weights are those of ``pkg/epp/config/loader/defaults.go``, of a scorer that it lacks 0.

A token stands for four characters, as the scheduler counts them. Not simulated: its flow control, which is off by
default, filters by label, and ``lora-affinity-scorer``. No hit: workers that never had such a request go in the order
of the deployment, in the source in no order.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State
from hisearch.kernels.routing import block_index, draws, scrapes

ROUTER = RouterPolicy(
    "Llm-d's scheduler: the highest weighted sum of scores.",
    parameters=(
        Parameter(
            "queue_weight",
            2.0,
            "weight of the score by requests that wait: 1 for the fewest of all workers, 0 for the most.",
            at_least=0.0,
            search=(2.0,),
        ),
        Parameter(
            "kv_utilization_weight",
            2.0,
            "weight of the share of KV memory that no request holds.",
            at_least=0.0,
            search=(2.0,),
        ),
        Parameter(
            "prefix_weight",
            3.0,
            "weight of the share of the prompt's blocks that were sent there, by the router's index.",
            at_least=0.0,
            search=(3.0, 1.0, 6.0),
        ),
        Parameter(
            "running_weight",
            0.0,
            "weight of the score by running requests, as by those that wait.",
            at_least=0.0,
            search=(0.0,),
        ),
        Parameter(
            "active_requests_weight",
            0.0,
            "weight of the score by requests in flight, which the router counts itself: 1 for none, 0 for the most.",
            at_least=0.0,
            search=(0.0, 2.0),
        ),
        Parameter(
            "no_hit_weight",
            0.0,
            "weight of the score of prompts of which no worker has a block: the longer ago that a worker had such a "
            "one, the higher.",
            at_least=0.0,
            search=(0.0,),
        ),
        Parameter(
            "picker",
            "max_score",
            "takes the worker with the highest sum, ties at random, or one drawn by its share of all sums.",
            choices=("max_score", "weighted_random"),
            search=("max_score",),
        ),
        Parameter(
            "metrics_refresh_s",
            0.05,
            "seconds between two scrapes of the workers' metrics (--refresh-metrics-interval); 0: they are of now.",
            at_least=0.0,
            search=(0.05,),
        ),
        Parameter(
            "block_tokens",
            None,
            "tokens of a block; null: those of the workers' pages where their metrics tell them (vLLM's), else 16.",
            at_least=1,
            optional=True,
            search=(None,),
        ),
        Parameter(
            "max_prefix_blocks",
            256,
            "blocks of a prompt that the index looks at.",
            at_least=1,
            search=(256,),
        ),
        Parameter(
            "lru_capacity_blocks",
            None,
            "blocks that the index keeps of a worker, at least max_prefix_blocks; null: as many as the worker has "
            "where its metrics tell them (vLLM's), else 31,250.",
            at_least=1,
            optional=True,
            search=(None,),
        ),
    ),
    state=(State("scrape_s", "f8"), State("cold_sends", "i8")),
    member_state=(
        State("scraped_waiting", "i8"),  # by the last metrics: requests that wait, and that run
        State("scraped_running", "i8"),
        State("scraped_kv_usage", "f8"),  # and the share of pages that requests hold
        State("cold_send", "i8"),  # number of the latest request without a hit that it was sent; 0: none
    ),
    reads_prompts=True,
    sees=("metrics", "prompts", "requests"),
    remembers="until its LRU drops them",
    age="metrics_refresh_s",
    product="llm-d",
    cost="workers x the prompt's path",
)
MAX_SCORE = 0


@kernel
def _by_count(value, least, most):
    """Score of a count among those of all members."""
    return 1.0 if most == least else (most - value) / (most - least)


@kernel
def _by_cold_sends(fleet, route, place):
    """Score of the member at ``place`` of those that are up, for a prompt without a hit."""
    if route.ups == 1:
        return 1.0
    own = fleet.members[fleet.up[route.first + place]].cold_send
    before = 0
    for other in range(route.ups):
        send = fleet.members[fleet.up[route.first + other]].cold_send
        if send < own or (send == own and other < place):
            before += 1
    return 1.0 - before / (route.ups - 1)


@kernel
def _ranges(fleet, route):
    """Fewest and most requests that wait, that run, and most in flight."""
    first = fleet.members[fleet.up[route.first]]
    waits = most_wait = first.scraped_waiting
    runs = most_run = first.scraped_running
    in_flight = 0
    for place in range(route.ups):
        member = fleet.members[fleet.up[route.first + place]]
        waits, most_wait = min(waits, member.scraped_waiting), max(most_wait, member.scraped_waiting)
        runs, most_run = min(runs, member.scraped_running), max(most_run, member.scraped_running)
        in_flight = max(in_flight, member.inflight_requests)
    return waits, most_wait, runs, most_run, in_flight


@kernel
def _score(fleet, route, r, cold):
    """Set ``Fleet.scores`` for ``r``; ``cold``: no member has a block of it. Returns the highest and the sum."""
    blocks = min(fleet.trace.input_tokens[r] // route.block_tokens, route.max_prefix_blocks)
    waits, most_wait, runs, most_run, in_flight = _ranges(fleet, route)
    best, total = -1.0, 0.0
    for place in range(route.ups):
        member = fleet.members[fleet.up[route.first + place]]
        score = route.queue_weight * _by_count(member.scraped_waiting, waits, most_wait)
        score += route.kv_utilization_weight * (1.0 - member.scraped_kv_usage)
        score += route.prefix_weight * (member.matched_blocks / blocks if blocks > 0 else 0.0)
        score += route.running_weight * _by_count(member.scraped_running, runs, most_run)
        score += route.active_requests_weight * _by_count(member.inflight_requests, 0, in_flight)
        if route.no_hit_weight > 0.0:
            score += route.no_hit_weight * (_by_cold_sends(fleet, route, place) if cold else 0.5)
        fleet.scores[route.first + place] = score
        best = max(best, score)
        total += score
    return best, total


@kernel
def _pick(fleet, route, k, best, total):
    if route.picker != MAX_SCORE and total > 0.0:
        return draws.by_score(fleet, route, k, total)
    count = 0
    for place in range(route.ups):
        if fleet.scores[route.first + place] == best:
            fleet.candidates[route.first + count] = fleet.members[fleet.up[route.first + place]].place
            count += 1
    return np.int64(fleet.at_place[route.first + draws.one_of(fleet, route, k, count, route.drawn)])


@kernel
def choose(fleet, route, k, r, now):
    """Score all members that are up and pick one; the index learns that ``r`` goes there."""
    if route.metrics_refresh_s == 0.0:
        scrapes.scrape(fleet, route, now)
    cold = block_index.count_matches(fleet, route, r) == 0
    best, total = _score(fleet, route, r, cold)
    chosen = _pick(fleet, route, k, best, total)
    if cold:
        route.cold_sends += 1
        fleet.members[chosen].cold_send = route.cold_sends
    block_index.touch(fleet, route, chosen, r, now)
    block_index.trim(fleet, route, chosen, route.lru_capacity_blocks)
    return chosen
