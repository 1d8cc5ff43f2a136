"""What workers hold: ``kv_usage`` of any engine's, ``tokens_of`` as SGLang's answer when a router asks for their load.

Rule of the latter: ``/get_load`` (0.5.9, ``managers/scheduler_metrics_mixin.py: get_load``), where ``num_tokens`` is
the tokens of requests that run, that is of the pool less what is free or evictable, and of prompts that wait; ranks are
added up. Prompts in the inbox wait too: the question stands behind them.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la
from hisearch.kernels.routing import outlook
from hisearch.kernels.traffic import pools


@kernel
def kv_usage(fleet, m, now):
    """Share of member ``m``'s KV pages that requests hold at ``now``, from 0 to 1, of any engine.

    A worker's own look at itself, as of now: a policy that asks declares ``sees=("kv",)``.
    """
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    pages = capacity = 0
    for w in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
        pages += outlook.pages_held(sim, w, now)
        capacity += sim.trees[sim.workers[w].cache_id].capacity_pages
    return pages / capacity


@kernel
def _scheduler_tokens(sim, w, now):
    """Tokens that scheduler ``w`` of a SGLang worker holds or has waiting."""
    worker = sim.workers[w]
    tokens = outlook.pages_held(sim, w, now) * sim.config.page_tokens + _prompt_tokens(sim, worker.waiting_head)
    if sim.config.receive_interval > 1 or sim.config.compiles_grammars:
        tokens += _prompt_tokens(sim, worker.held_head)
    return tokens


@kernel
def _prompt_tokens(sim, r):
    """Tokens of the prompts in the list that begins with ``r``."""
    tokens = 0
    while r >= 0:
        tokens += sim.trace.input_tokens[r]
        r = sim.requests[r].next
    return tokens


@kernel
def tokens_of(fleet, m, now):
    """Tokens that member ``m`` says it holds at ``now``; -1 where its engine has no such answer."""
    member = fleet.members[m]
    sim = pools.at(fleet, member.pool)
    if sim.config.engine != la.SGLANG:
        return -1
    tokens = 0
    for w in range(member.index * sim.config.schedulers, (member.index + 1) * sim.config.schedulers):
        tokens += _scheduler_tokens(sim, w, now)
    return tokens


@kernel
def poll_where_due(fleet, route, now):
    """Ask all members every ``load_poll_s``; the first request behind that time is what makes the router ask."""
    if now < route.poll_s:
        return
    while route.poll_s <= now and route.load_poll_s > 0.0:
        route.poll_s += route.load_poll_s
    for place in range(route.ups):
        m = fleet.up[route.first + place]
        fleet.members[m].polled_tokens = tokens_of(fleet, m, now)
