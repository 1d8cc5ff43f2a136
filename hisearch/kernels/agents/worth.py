"""What predictions of calls turn out to be worth: measured in a run, and read by no decision.

Pairs: at each call another idle agent is drawn. Was the caller predicted to call first? And had it called last?
Calibration: of an idle agent drawn at each call the predicted time to its next call is kept until that call, and held
against the time that it took. Drawn so, an agent counts by the time that it waits. Lead time: from an agent's newest
prediction to its call, against what loading its objects takes.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core import rng
from hisearch.kernels.layout import agents as al


@kernel
def measured(sim):
    """Whether there are predictions to measure."""
    policy = sim.agents.policy
    return policy.loading != al.AT_LAUNCH and policy.order != al.BY_USE and policy.source != al.ORACLE


@kernel
def _clock(sim, now):
    """The present in the unit of predictions."""
    policy = sim.agents.policy
    return float(sim.agents.population.steps) if policy.by_frames and policy.source == al.HINTS else now


@kernel
def _near(sim):
    """Predicted times to a call up to which objects are loaded ahead, in the unit of predictions."""
    policy = sim.agents.policy
    return policy.ahead_steps if policy.by_frames and policy.source == al.HINTS else policy.ahead_s


@kernel
def _load_s(sim, a):
    agents = sim.agents
    seconds = 0.0
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        seconds += agents.things[agents.uses[k]].load_s
    return seconds


@kernel
def _score_sample(sim, a, now):
    """Agent ``a`` calls: hold its sampled prediction, if any, against the time that the call took to come."""
    population = sim.agents.population
    agent = sim.agents.agents[a]
    if agent.sampled_at < 0.0:
        return
    came = _clock(sim, now) - agent.sampled_at
    near = _near(sim)
    population.samples += 1
    population.said += agent.sampled_left
    population.came += came
    population.said_near += 1 if agent.sampled_left <= near else 0
    population.came_near += 1 if came <= near else 0
    population.near_as_said += 1 if agent.sampled_left <= near and came <= near else 0
    agent.sampled_at = -1.0


@kernel
def call_comes(sim, a, now):
    """Idle agent ``a`` calls: score what was predicted of it, and sample what is predicted of another."""
    agents = sim.agents
    population = agents.population
    caller = agents.agents[a]
    if caller.raw_prediction < al.NOBODY:
        lead_s = now - caller.predicted_at_s
        population.predicted_calls += 1
        population.lead_s += lead_s
        population.in_time += 1 if lead_s >= _load_s(sim, a) else 0
    _score_sample(sim, a, now)
    b = rng.below(agents.worth_rng, agents.agents.shape[0])
    peer = agents.agents[b]
    if b == a or peer.calls > 0 or peer.raw_prediction >= al.NOBODY:
        return
    predicted = caller.raw_prediction < al.NOBODY and caller.raw_prediction != peer.raw_prediction
    if predicted and caller.end_s != peer.end_s:
        population.compared += 1
        population.ordered += 1 if caller.raw_prediction < peer.raw_prediction else 0
        population.ordered_by_use += 1 if caller.end_s > peer.end_s else 0
    if peer.sampled_at < 0.0:
        peer.sampled_at = _clock(sim, now)
        peer.sampled_left = max(peer.raw_prediction - peer.sampled_at, 0.0)
