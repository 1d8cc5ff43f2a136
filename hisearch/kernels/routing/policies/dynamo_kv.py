"""NVIDIA Dynamo's KV router: the least of prompt blocks to compute, by their weight, plus blocks in flight.

Rule: Dynamo 1.1 (``lib/kv-router/src/scheduling/selector.rs: DefaultWorkerSelector.select_worker``,
``lib/kv-router/src/sequences/single.rs``, ``lib/kv-router/src/approx.rs`` and ``indexer``). Prompt tokens count until
the first token of their request, blocks until its end. Defaults are those of its ``kv_router_args.py``.

Without events ties go to the smaller index, which counts for workers with a match alone, and else are drawn: so does
the real router of 1.1.1 choose (``validate router``). With events ties are drawn, where the source takes the worker
with the fewest cached blocks. Not simulated: the router's queue (``--router-queue-threshold``), pruning to
``--router-max-tree-size``, tracking of output blocks, and that a request counts for five minutes at most.
"""

from __future__ import annotations

import math

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, RouterPolicy, State
from hisearch.kernels.layout import sim as la
from hisearch.kernels.routing import block_index, draws, prefix_index
from hisearch.kernels.traffic import active_blocks, pools
from hisearch.kernels.vllm import held

ROUTER = RouterPolicy(
    "Dynamo's cost: prompt blocks to compute, by their weight, plus blocks in flight.",
    parameters=(
        Parameter(
            "overlap_weight",
            1.0,
            "what a prompt block to compute weighs, in blocks in flight (--router-kv-overlap-score-weight).",
            above=0.0,
            search=(1.0, 0.5, 2.0),
            search_key="dynamo_overlap_weight",
        ),
        Parameter(
            "router_temperature",
            0.0,
            "0: the least cost is taken; above, workers are drawn by the softmax of costs over their spread, divided "
            "by this (--router-temperature).",
            at_least=0.0,
            search=(0.0,),
        ),
        Parameter(
            "block_tracking",
            "events",
            "how the router knows what is cached: by events of the workers, or approximately, by what it sent within "
            "router_ttl_s (--no-router-kv-events).",
            choices=("events", "approximate"),
            search=("events",),
        ),
        Parameter(
            "router_ttl_s",
            120.0,
            "approximate: seconds after which a block is forgotten that was not sent again (--router-ttl-secs).",
            above=0.0,
            search=(120.0,),
            only_with=("block_tracking", "approximate"),
        ),
        Parameter(
            "staleness_s",
            0.0,
            "by events: seconds between two looks at the caches; 0: events are there at once.",
            at_least=0.0,
            search=(0.0,),
        ),
        Parameter(
            "block_tokens",
            None,
            "tokens of a block; null: those of the workers' pages.",
            at_least=1,
            optional=True,
            search=(None,),
        ),
    ),
    member_state=(
        State("uncached_tokens", "i8"),  # of prompts in flight without a first token, those that it has to compute
        State("active_blocks", "i8"),  # of prompts in flight
        State("prefills_ending", "i8"),  # first of the list of requests with a known first token, plus 1; 0: none
        State("new_tokens", "i8"),  # that it would have to compute of the prompt now being routed
    ),
    reads_prompts=True,
    tracks=("blocks",),
    sees=("blocks", "prompts", "caches"),
    remembers="up to `router_ttl_s`, 120 s, where it is told no events",
    age="staleness_s",
    approximates=("block_tracking", "events", "router_ttl_s"),
    product="dynamo",
    cost="workers x the prompt's path",
)
EVENTS = 0


@kernel
def _taken_in(sim, w, r, now):
    """Whether worker ``w`` has taken in the first token of ``r``, which is there at ``now``.

    A worker that is about to form a batch may have a step outstanding that ends at ``now``, where a copy of that step
    kept the results before it waiting.
    """
    worker = sim.workers[w]
    if worker.phase == la.FORMING:
        pending = worker.outstanding > 0 and worker.newest_end_s <= now
        return not (pending and held.newest_makes_first(sim, w, r))
    return worker.phase == la.IDLE or worker.event_s > now


@kernel
def _end_prefills(fleet, m, now):
    """Prompts count no more once member ``m`` has made their first token; a step's end at ``now`` may be to come."""
    r = np.int64(fleet.members[m].prefills_ending) - 1
    while r >= 0:
        prefill = fleet.uncached[r]
        following = np.int64(prefill.next) - 1
        if prefill.at_s <= now:
            sim = pools.at(fleet, fleet.members[m].pool)
            if prefill.at_s < now or _taken_in(sim, sim.requests[r].worker, r, now):
                active_blocks.unlink(fleet, m, r)
                prefill.at_s = np.inf
                active_blocks.end_prefill(fleet, m, r)
        r = following


@kernel
def _cost(fleet, route, m, r, now):
    """Cost of ``r`` on member ``m``, in blocks; sets ``new_tokens``."""
    member = fleet.members[m]
    tokens = fleet.trace.input_tokens[r]
    _end_prefills(fleet, m, now)
    if route.block_tracking == EVENTS:
        cached = prefix_index.match(fleet, route, m, r, now) // route.block_tokens
    else:
        block_index.expire(fleet, route, m, now, route.router_ttl_s)
        cached = block_index.prefix_blocks(fleet, route, m, r)
    member.new_tokens = max(tokens - cached * route.block_tokens, 0)
    prefill = (member.uncached_tokens + member.new_tokens) / route.block_tokens
    new = tokens // route.block_tokens - active_blocks.active_prefix(fleet, m, r, route.block_tokens)
    return route.overlap_weight * prefill + np.float64(member.active_blocks + new)


@kernel
def _index_size(fleet, route, place, r):
    """Blocks that the index has of the worker at ``place``; the source knows them of workers with a match alone."""
    member = fleet.members[fleet.at_place[route.first + place]]
    return np.int64(member.index_blocks) if member.new_tokens < fleet.trace.input_tokens[r] else np.int64(0)


@kernel
def _smallest(fleet, route, k, count, r):
    """Of the first ``count`` candidates any of those whose index is the smallest."""
    least = _index_size(fleet, route, np.int64(fleet.candidates[route.first]), r)
    for c in range(1, count):
        least = min(least, _index_size(fleet, route, np.int64(fleet.candidates[route.first + c]), r))
    smallest = 0
    for c in range(count):
        place = np.int64(fleet.candidates[route.first + c])
        if _index_size(fleet, route, place, r) == least:
            fleet.candidates[route.first + smallest] = place
            smallest += 1
    return np.int64(draws.one_of(fleet, route, k, smallest, route.drawn))


@kernel
def _cheapest(fleet, route, k, least, r):
    """A place whose cost is the ``least``."""
    count = 0
    for place in range(route.ups):
        if fleet.scores[route.first + place] == least:
            fleet.candidates[route.first + count] = fleet.members[fleet.up[route.first + place]].place
            count += 1
    return np.int64(fleet.at_place[route.first + _smallest(fleet, route, k, count, r)])


@kernel
def _by_softmax(fleet, route, k, least, most):
    """A member drawn by the softmax of its negated cost, as a share of the costs' spread, over the temperature."""
    total = 0.0
    for place in range(route.ups):
        share = 1.0
        if most > least:
            scaled = -(fleet.scores[route.first + place] / (most - least)) / route.router_temperature
            share = math.exp(scaled + least / (most - least) / route.router_temperature)
        fleet.scores[route.first + place] = share
        total += share
    return draws.by_score(fleet, route, k, total)


@kernel
def choose(fleet, route, k, r, now):
    """The least cost, or one drawn by costs; ``r`` counts there from now on."""
    if route.block_tracking == EVENTS:
        prefix_index.look_where_due(fleet, route, now)
    least, most = np.inf, -np.inf
    for place in range(route.ups):
        cost = _cost(fleet, route, np.int64(fleet.up[route.first + place]), r, now)
        fleet.scores[route.first + place] = cost
        least, most = min(least, cost), max(most, cost)
    if route.router_temperature == 0.0:
        chosen = _cheapest(fleet, route, k, least, r)
    else:
        chosen = _by_softmax(fleet, route, k, least, most)
    fleet.uncached[r].tokens = fleet.members[chosen].new_tokens
    if route.block_tracking != EVENTS:
        block_index.touch(fleet, route, chosen, r, now)
    return chosen
