"""Agents that walk on a plane: a meeting makes both call before their plans would.

The world is simulated beforehand, tick by tick, as if responses took no time. They change when a call is made, not
where its agent then is. With frames a tick is a frame.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec, WorldSpec
from hisearch.traces.agents import AT_START
from hisearch.traces.generators.independent import action_frames
from hisearch.traces.generators.schedule import Call, Chains, Frames, Hint, Schedule
from hisearch.traces.sampling import draw_think_s, stream

#: An estimate is given anew once it has moved by more than this share of what was left.
_REVISED = 0.25


class _World:
    """Places, headings and plans of all agents; arrays of shape (A,) or (A, 2)."""

    def __init__(self, spec: AgentWorkloadSpec, seeds: tuple[int, int]) -> None:
        self.spec = spec
        self.rng = stream("world", *seeds)
        self.plans = stream("actions", *seeds)
        self.tick = 0
        self.at_m = self.rng.random((spec.agents, 2)) * spec.world.size_m
        self.heading = self._headings(spec.agents)
        durations = self._durations(spec.agents)
        self.next_call = (self.plans.random(spec.agents) * durations).astype(np.int64)
        self.open = np.ones(spec.agents, dtype=bool)

    def _headings(self, count: int) -> F8:
        angle = self.rng.random(count) * 2 * np.pi
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def _durations(self, count: int) -> I8:
        """Ticks that new plans take."""
        if self.spec.pacing == "frames":
            return action_frames(self.spec, self.tick, count, self.plans)
        seconds = draw_think_s(self.spec.action, count, self.plans)
        return np.maximum(np.rint(seconds / self.spec.world.tick_s), 1).astype(np.int64)

    def callers(self) -> tuple[I8, I8]:
        """Who calls at this tick: by plan, and by a meeting; each in order."""
        from scipy.spatial import cKDTree

        planned = self.next_call == self.tick
        self.open |= planned
        pairs = cKDTree(self.at_m).query_pairs(self.spec.world.radius_m, output_type="ndarray")
        met = _first_pairs(pairs, self.open & ~planned)
        self.open &= ~met
        return np.flatnonzero(planned), np.flatnonzero(met)

    def replan(self, agents: I8) -> None:
        """Draw new plans and headings for ``agents``."""
        self.next_call[agents] = self.tick + self._durations(len(agents))
        self.heading[agents] = self._headings(len(agents))

    def left(self) -> F8:
        """Ticks to each agent's next call as far as its world can predict; shape (A,).

        To its plan's end, or to the first meeting to which the places, headings and plans of all lead. What an agent
        does after its next call is not known, and no part of the estimate.
        """
        from scipy.spatial import cKDTree

        world = self.spec.world
        left = (self.next_call - self.tick).astype(np.float64)
        on_plan = np.flatnonzero(self.open & (left > 1))
        at_m, heading = self.at_m[on_plan], self.heading[on_plan]
        ahead = 0
        while len(on_plan) > 1:
            ahead += 1
            at_m, heading = _walked(world, at_m, heading)
            pairs = cKDTree(at_m).query_pairs(world.radius_m, output_type="ndarray")
            left[on_plan[_first_pairs(pairs, np.ones(len(on_plan), dtype=bool))]] = ahead
            kept = left[on_plan] > ahead + 1
            on_plan, at_m, heading = on_plan[kept], at_m[kept], heading[kept]
        return left

    def advance(self) -> None:
        """One tick: everybody walks, edges turn them back."""
        self.at_m, self.heading = _walked(self.spec.world, self.at_m, self.heading)
        self.tick += 1


def _walked(world: WorldSpec, at_m: F8, heading: F8) -> tuple[F8, F8]:
    """Places and headings a tick later; both of shape (A, 2)."""
    at_m = at_m + heading * (world.speed_m_per_s * world.tick_s)
    for _ in range(2):
        outside = (at_m < 0) | (at_m > world.size_m)
        at_m = np.where(at_m < 0, -at_m, np.where(at_m > world.size_m, 2 * world.size_m - at_m, at_m))
        heading = np.where(outside, -heading, heading)
    return np.clip(at_m, 0.0, world.size_m), heading


def _first_pairs(pairs: I8, free: np.ndarray) -> np.ndarray:
    """Which agents are in one of ``pairs``, taken in order, with both ``free`` and in no pair before; shape (A,)."""
    paired = np.zeros(len(free), dtype=bool)
    for first, second in pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].tolist():
        if free[first] and free[second] and not (paired[first] or paired[second]):
            paired[[first, second]] = True
    return paired


def interaction(spec: AgentWorkloadSpec, seeds: tuple[int, int]) -> Schedule:
    """Who calls when."""
    world = _World(spec, seeds)
    return _by_frames(spec, world) if spec.pacing == "frames" else _free(spec, world)


def _revised(predicted: F8, tick: int, left: F8) -> np.ndarray:
    """Agents whose estimate has moved; ``predicted``: tick of the call in the last hint. Shape (A,)."""
    return np.abs(tick + left - predicted) > np.maximum(_REVISED * left, 1.0)


def _by_frames(spec: AgentWorkloadSpec, world: _World) -> Schedule:
    frames = Frames(spec.frame_s)
    predicted = np.full(spec.agents, np.inf)
    while len(frames.agent) < spec.calls:
        planned, met = world.callers()
        callers = np.concatenate((planned, met))
        calls = [frames.call(agent, world.tick) for agent in callers.tolist()]
        world.replan(callers)
        left = world.left()
        for call, agent in zip(calls, callers.tolist(), strict=True):
            frames.hint_after(call, agent, float(left[agent]))
        predicted[callers] = world.tick + left[callers]
        for agent in np.flatnonzero(_revised(predicted, world.tick, left)).tolist():
            frames.hint_at(world.tick, agent, float(left[agent]))
            predicted[agent] = world.tick + left[agent]
        world.advance()
    return frames.schedule(spec.calls)


def _free(spec: AgentWorkloadSpec, world: _World) -> Schedule:
    chains = Chains()
    tick_s = spec.world.tick_s
    newest = np.full(spec.agents, -1)
    called = np.zeros(spec.agents)
    predicted = np.full(spec.agents, np.inf)
    while True:
        for agent in np.concatenate(world.callers()).tolist():
            if len(chains.calls) == spec.calls:
                return chains.schedule()
            now_s = world.tick * tick_s
            if newest[agent] < 0:
                newest[agent] = chains.add(Call(agent, arrival_s=now_s))
            else:
                newest[agent] = chains.add(Call(agent, previous=int(newest[agent]), think_s=now_s - called[agent]))
            called[agent] = now_s
            predicted[agent] = np.inf
            world.replan(np.array([agent]))
        left = world.left()
        for agent in np.flatnonzero(_revised(predicted, world.tick, left)).tolist():
            trigger = int(newest[agent])
            after_s = world.tick * tick_s - (called[agent] if trigger >= 0 else 0.0)
            chains.hints.append(
                Hint(trigger if trigger >= 0 else AT_START, agent, after_s=after_s, seconds=float(left[agent]) * tick_s)
            )
            predicted[agent] = world.tick + left[agent]
        world.advance()
