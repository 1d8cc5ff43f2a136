"""Agents that act for a while, then call, without regard to one another."""

from __future__ import annotations

import heapq

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.traces.agents import AT_START
from hisearch.traces.generators.schedule import Call, Chains, Frames, Hint, Schedule
from hisearch.traces.sampling import draw_think_s, stream


def independent(spec: AgentWorkloadSpec, seeds: tuple[int, int]) -> Schedule:
    """Who calls when."""
    rng = stream("actions", *seeds)
    return _by_frames(spec, rng) if spec.pacing == "frames" else _free(spec, rng)


def action_frames(spec: AgentWorkloadSpec, frame: int, count: int, rng: np.random.Generator) -> I8:
    """Frames taken by the actions of ``count`` agents that begin in ``frame``, at least 1; shape (count,).

    1 / ``active_rate`` on average, before ``burst`` prolongs some to a common frame.
    """
    mean = 1.0 / spec.active_rate
    drawn = spec.regularity * mean + (1.0 - spec.regularity) * rng.geometric(spec.active_rate, count)
    frames = np.maximum(np.rint(drawn), 1).astype(np.int64)
    common = max(round(mean), 1)
    late = -(-(frame + frames) // common) * common - frame
    return np.asarray(np.where(rng.random(count) < spec.burst, late, frames))


def _by_frames(spec: AgentWorkloadSpec, rng: np.random.Generator) -> Schedule:
    frames = Frames(spec.frame_s)
    first = action_frames(spec, 0, spec.agents, rng)
    next_call = (rng.random(spec.agents) * first).astype(np.int64)
    for agent in range(spec.agents):
        frames.hint_at(0, agent, float(next_call[agent]))
    frame = 0
    while len(frames.agent) < spec.calls:
        callers = np.flatnonzero(next_call == frame)
        durations = action_frames(spec, frame, len(callers), rng)
        next_call[callers] = frame + durations
        for agent, ahead in zip(callers.tolist(), durations.tolist(), strict=True):
            frames.hint_after(frames.call(agent, frame), agent, ahead)
        frame += 1
    return frames.schedule(spec.calls)


def _free(spec: AgentWorkloadSpec, rng: np.random.Generator) -> Schedule:
    """By nominal time: as if responses took no time."""
    chains = Chains()
    first = _actions_s(spec, spec.agents, rng) * rng.random(spec.agents)
    queue = [(call_s, agent) for agent, call_s in enumerate(first.tolist())]
    for call_s, agent in queue:
        chains.hints.append(Hint(AT_START, agent, seconds=call_s))
    heapq.heapify(queue)
    newest = [-1] * spec.agents
    think = first.tolist()
    actions = _actions_s(spec, spec.calls, rng).tolist()
    for action in actions:
        call_s, agent = queue[0]
        before = newest[agent]
        if before < 0:
            newest[agent] = chains.add(Call(agent, arrival_s=call_s))
        else:
            newest[agent] = chains.add(Call(agent, previous=before, think_s=think[agent]))
        chains.hints.append(Hint(newest[agent], agent, seconds=action))
        think[agent] = action
        heapq.heapreplace(queue, (call_s + action, agent))
    return chains.schedule()


def _actions_s(spec: AgentWorkloadSpec, count: int, rng: np.random.Generator) -> F8:
    return draw_think_s(spec.action, count, rng)
