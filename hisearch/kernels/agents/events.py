"""Events that change agents' predicted calls: calls arrive and end, the trace gives hints, gates open."""

from __future__ import annotations

import math

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.agents import estimates, loads, pending_loads, worth
from hisearch.kernels.agents import kv as agents_kv
from hisearch.kernels.cache import eviction, predicted_calls
from hisearch.kernels.core import rng
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import hicache as hl

#: Weight of a new pair in the moving averages by which predictions are tested.
EVIDENCE = 1.0 / 128
#: Pairs of agents after which tested predictions are compared with last use again. Assumed.
PAIRS = 64
#: Idle agents whose estimate is renewed with each call, in turn, where a call that does not come moves away: each some
#: four times in the time that all take to call once. Assumed.
RENEWED = 4


@kernel
def _resift_in(sim, v, d):
    """Move node ``d``, whose predicted call changed, in the eviction order of tree ``v``."""
    if sim.nodes[d].heap_slot >= 0:
        sim.agents.keys[d] = predicted_calls.predicted_call_of(sim, d)
        eviction.moved(sim, v, d)


@kernel
def _resift(sim, w, d):
    """Move node ``d`` of KV, in HBM or on the host, in the eviction order."""
    if sim.nodes[d].heap_slot < 0:
        return
    v = w
    if sim.config.hicache and sim.hosted[d].where == hl.ON_HOST:
        v = hicache_nodes.host_pool(sim, w)
    _resift_in(sim, v, d)


@kernel
def _resift_path(sim, trace_node):
    """Update the eviction order of all workers' caches at the end of the path to ``trace_node``."""
    trees = sim.trees.shape[0]
    for w in range(sim.config.workers):
        s = trace_node
        while s > 0 and sim.deepest_cached[w, s] < 0:
            s = sim.trace.parent[s]
        if s <= 0:
            continue
        d = sim.deepest_cached[w, s]
        _resift(sim, w, d)
        while sim.config.hicache and d >= trees and sim.hosted[d].where == hl.ON_HOST:
            d = sim.nodes[d].parent
            if d >= trees:
                _resift(sim, w, d)


@kernel
def _resift_objects(sim, a):
    agents = sim.agents
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        for w in range(sim.config.workers):
            obj = agents.objects[w, agents.uses[k]]
            _resift_in(sim, agents.loaders[w].pool, obj.node)
            if agents.policy.host_pages > 0:
                _resift_in(sim, agents.loaders[w].copies, obj.copy_node)


@kernel
def _set_predicted_call(sim, a, predicted):
    """Set the predicted call of agent ``a``, and so the eviction keys of its objects and KV."""
    agents = sim.agents
    agent = agents.agents[a]
    if agent.predicted_call == predicted:
        return
    agent.predicted_call = predicted
    if agent.entry >= 0:
        predicted_calls.set_entry(sim, agent.entry, predicted)
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        if agents.uses_entry[k] >= 0:
            predicted_calls.set_entry(sim, agents.uses_entry[k], predicted)
    _resift_path(sim, agent.trace_node)
    _resift_objects(sim, a)


@kernel
def _reload_is_cheaper(sim, a):
    """Whether keeping agent ``a``'s objects until its next call costs more than loading them again.

    The cost is memory times time, as in InferCept: the agent's pages for the time between calls, against the whole
    pool's pages for the time of the load, which delays all calls.
    """
    agents = sim.agents
    agent = agents.agents[a]
    pages = 0
    load_s = 0.0
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        pages += agents.things[agents.uses[k]].pages
        load_s += agents.things[agents.uses[k]].load_s
    capacity = sim.trees[agents.loaders[max(agent.worker, 0)].pool].capacity_pages
    return agent.duration_s * pages > load_s * capacity


@kernel
def settle(sim, a):
    """Set agent ``a``'s predicted call from what is known, and its places in its worker's load queues."""
    agents = sim.agents
    policy = agents.policy
    agent = agents.agents[a]
    if policy.loading == al.AT_LAUNCH:
        # The engine's own policy evicts, and nothing is loaded before its step.
        return
    if agent.calls > 0:
        # Ranks are unique: the first agent can always evict for its objects.
        predicted = al.CALLING + agent.rank
    elif policy.order == al.BY_USE or (policy.tested and not agents.population.trusted):
        predicted = -agent.end_s
    elif policy.order == al.BY_DURATION:
        predicted = -agent.end_s - (0.0 if _reload_is_cheaper(sim, a) else -0.5 * al.CALLING)
    elif (
        policy.order == al.BY_STEPS
        and agent.raw_prediction < al.NOBODY
        and agents.population.step_s > 0.0
        and not policy.by_frames
    ):
        predicted = math.floor(agent.raw_prediction / agents.population.step_s) * agents.population.step_s
    else:
        predicted = agent.raw_prediction
    _set_predicted_call(sim, a, predicted)
    pending_loads.line_up(sim, a)


@kernel
def _prediction_error(sim):
    """A random factor: a predicted time to the next call over the true one."""
    policy = sim.agents.policy
    if policy.noise == 0.0:
        return policy.bias
    u1 = (float(rng.next_u64(sim.agents.rng) >> np.uint64(11)) + 1.0) / 9007199254740993.0
    u2 = float(rng.next_u64(sim.agents.rng) >> np.uint64(11)) / 9007199254740992.0
    normal = math.sqrt(-2.0 * math.log(u1)) * math.cos(2.0 * math.pi * u2)
    return policy.bias * math.exp(policy.noise * normal)


@kernel
def _predict_call(sim, a, seconds, steps, now):
    """Predict that agent ``a`` calls in ``seconds`` plus ``steps`` steps."""
    policy = sim.agents.policy
    population = sim.agents.population
    agent = sim.agents.agents[a]
    factor = _prediction_error(sim)
    agent.duration_s = (seconds + steps * population.step_s) * factor
    agent.predicted_at_s = now
    if policy.by_frames and policy.source == al.HINTS:
        agent.raw_prediction = population.steps + steps * factor
    else:
        agent.raw_prediction = now + agent.duration_s
    settle(sim, a)


@kernel
def _predict_after_call(sim, a, now):
    """Agent ``a`` has ended its call: predict the next one, unless hints do."""
    source = sim.agents.policy.source
    agent = sim.agents.agents[a]
    agent.raw_prediction = al.NOBODY
    if source == al.ORACLE and agent.next_call >= 0:
        mean_s = now / max(sim.agents.population.arrivals, 1)
        agent.duration_s = max(agent.next_call - sim.agents.population.arrivals, 0) * mean_s
        agent.raw_prediction = float(agent.next_call)
    elif source != al.HINTS and source != al.ORACLE:
        seconds = estimates.from_past(sim, a, 0.0)
        if seconds >= 0.0:
            _predict_call(sim, a, seconds, 0.0, now)


@kernel
def _renew_estimates(sim, now):
    """Estimate the next calls of a few idle agents anew: they have been away for longer."""
    agents = sim.agents
    for _ in range(min(RENEWED, agents.agents.shape[0])):
        a = (agents.population.refreshed + 1) % agents.agents.shape[0]
        agents.population.refreshed = a
        agent = agents.agents[a]
        if agent.calls == 0 and agent.end_s >= 0.0:
            seconds = estimates.from_past(sim, a, now - agent.end_s)
            if seconds >= 0.0:
                _predict_call(sim, a, seconds, 0.0, now)


@kernel
def _compare(sim, a):
    """Agent ``a`` calls before another, drawn at random: note whether predictions and last use ordered the two so."""
    agents = sim.agents
    population = agents.population
    b = rng.below(agents.rng, agents.agents.shape[0])
    caller = agents.agents[a]
    peer = agents.agents[b]
    predicted = (
        caller.raw_prediction < al.NOBODY
        and peer.raw_prediction < al.NOBODY
        and caller.raw_prediction != peer.raw_prediction
    )
    if not predicted or peer.calls > 0 or caller.end_s == peer.end_s:
        return
    population.right += EVIDENCE * ((1.0 if caller.raw_prediction < peer.raw_prediction else 0.0) - population.right)
    population.right_by_use += EVIDENCE * ((1.0 if caller.end_s > peer.end_s else 0.0) - population.right_by_use)
    population.pairs += 1
    if population.pairs % PAIRS:
        return
    trusted = population.right >= population.right_by_use
    if trusted == (population.trusted != 0):
        return
    population.trusted = 1 if trusted else 0
    population.switches += 1
    for c in range(agents.agents.shape[0]):
        settle(sim, c)


@kernel
def call_arrives(sim, w, r, now):
    """Note that request ``r`` has reached worker ``w``."""
    agents = sim.agents
    a = agents.agent[r]
    agent = agents.agents[a]
    agents.population.arrivals += 1
    if agent.calls == 0 and worth.measured(sim):
        worth.call_comes(sim, a, now)
    if agent.calls == 0 and agent.end_s >= 0.0:
        if agents.policy.tested:
            _compare(sim, a)
        estimates.note_gap(sim, a, now - agent.end_s)
    agents_kv.note_call(sim, w, a)
    previous_node = agent.trace_node
    if agent.worker >= 0 and agent.worker != w and agent.calls == 0:
        pending_loads.step_out(sim, agent.worker, a)
    if agent.entry != agents.entry[r] and agent.entry >= 0:
        predicted_calls.set_entry(sim, agent.entry, al.NOBODY)
    agent.entry = agents.entry[r]
    agent.trace_node = sim.trace.output_node[r]
    agent.newest = r
    agent.worker = w
    agent.next_call = agents.next_call[r]
    if agent.calls == 0:
        agent.rank = float(agents.population.arrivals)
    agent.calls += 1
    if agents.policy.loading != al.AT_LAUNCH:
        agent.predicted_call = al.NOBODY
        _resift_path(sim, previous_node)
        settle(sim, a)
        if agents.policy.source == al.SURVIVAL:
            _renew_estimates(sim, now)


@kernel
def _give_hints(sim, trigger, now):
    """Give the hints of ``trigger``, at once or after their delay."""
    agents = sim.agents
    for h in range(agents.hint_begin[trigger + 1], agents.hint_begin[trigger + 2]):
        if agents.hint_after_s[h] > 0.0:
            agents.hint_at_s[h] = now + agents.hint_after_s[h]
            _hint_push(sim, h)
        else:
            _predict_call(sim, agents.hint_agent[h], agents.hint_s[h], agents.hint_steps[h], now)


@kernel
def _hint_sooner(sim, h, g):
    at = sim.agents.hint_at_s
    return at[h] < at[g] or (at[h] == at[g] and h < g)


@kernel
def _hint_push(sim, h):
    line = sim.agents.hint_line
    slot = sim.agents.population.hints
    sim.agents.population.hints = slot + 1
    while slot > 0:
        up = (slot - 1) >> 1
        if not _hint_sooner(sim, h, line[up]):
            break
        line[slot] = line[up]
        slot = up
    line[slot] = h
    loads.look_again(sim, 0, sim.agents.hint_at_s[line[0]])


@kernel
def _hint_pop(sim):
    line = sim.agents.hint_line
    top = line[0]
    size = sim.agents.population.hints - 1
    sim.agents.population.hints = size
    h = line[size]
    slot = 0
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _hint_sooner(sim, line[down + 1], line[down]):
            down += 1
        if not _hint_sooner(sim, line[down], h):
            break
        line[slot] = line[down]
        slot = down
    line[slot] = h
    return top


@kernel
def give_late_hints(sim, now):
    """Give delayed hints whose time has come; skip those whose agent has called meanwhile."""
    agents = sim.agents
    while agents.population.hints > 0 and agents.hint_at_s[agents.hint_line[0]] <= now:
        h = _hint_pop(sim)
        a = agents.hint_agent[h]
        if agents.agents[a].calls == 0:
            _predict_call(sim, a, agents.hint_s[h], agents.hint_steps[h], now)
    if agents.population.hints > 0:
        loads.look_again(sim, 0, agents.hint_at_s[agents.hint_line[0]])


@kernel
def _opened(sim, k):
    """Place in ``Fleet.gate`` of the first gate, from place ``k`` on, that a request's end has opened; -1: none."""
    if sim.fleet.gates.shape[0] == 0:
        return -1
    while k >= 0:
        g = sim.fleet.gate[k]
        if g >= 0 and sim.fleet.gates[g].left == 0:
            return k
        k = sim.fleet.gate_next[k]
    return -1


@kernel
def call_ends(sim, r, now):
    """Note that request ``r`` has made its last token."""
    agents = sim.agents
    population = agents.population
    a = agents.agent[r]
    agent = agents.agents[a]
    agent.calls -= 1
    agent.end_s = now
    _predict_after_call(sim, a, now)
    opens = _opened(sim, r) >= 0
    if not agents.policy.by_frames:
        population.step_count += 1
        population.step_s += (now - sim.requests[r].arrival_s - population.step_s) / population.step_count
    elif opens:
        population.step_count += 1
        population.step_s += (now - population.opened_s - population.step_s) / population.step_count
    if agents.policy.source == al.HINTS:  # steps are counted from this call's own
        _give_hints(sim, r, now)
    if opens:
        population.steps += 1
        population.opened_s = now
    if agents.policy.source == al.HINTS:
        k = _opened(sim, r)
        while k >= 0:
            _give_hints(sim, agents.agent.shape[0] + sim.fleet.gate[k], now)
            k = _opened(sim, sim.fleet.gate_next[k])
    settle(sim, a)


@kernel
def begin(sim):
    """Set the agents' predictions at the start of a run."""
    agents = sim.agents
    for a in range(agents.agents.shape[0]):
        agent = agents.agents[a]
        agent.predicted_call = al.NOBODY
        agent.raw_prediction = al.NOBODY
        if agents.policy.source == al.ORACLE and agent.next_call >= 0:
            agent.raw_prediction = float(agent.next_call)
            settle(sim, a)
    if agents.policy.source == al.HINTS:
        _give_hints(sim, -1, 0.0)
