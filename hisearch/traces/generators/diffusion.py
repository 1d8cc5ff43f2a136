"""Messages that spread over a graph, breadth first: who gets one calls, then passes it on.

Messages follow one another. The agents that a message will reach, and in how many hops, are known at its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.traces.agents import AT_START
from hisearch.traces.generators.graphs import Neighbours, build_graph
from hisearch.traces.generators.schedule import Call, Chains, Frames, Hint, Schedule
from hisearch.traces.sampling import draw_think_s, stream


class _Reached(NamedTuple):
    """An agent that a message reaches: after how many hops, and from which agent reached before (-1: a seed)."""

    agent: int
    hops: int
    by: int


def diffusion(spec: AgentWorkloadSpec, seeds: tuple[int, int], edges: Neighbours | None) -> Schedule:
    """Who calls when."""
    graph = build_graph(spec.graph, spec.agents, edges, stream("graph", *seeds))
    messages = _messages(spec, graph, stream("messages", *seeds))
    if spec.pacing == "frames":
        return _by_frames(spec, messages)
    return _free(spec, messages, stream("actions", *seeds))


def _messages(spec: AgentWorkloadSpec, graph: Neighbours, rng: np.random.Generator) -> Iterator[list[_Reached]]:
    """One message after another: all that it reaches, in order of hops."""
    while True:
        starts = np.sort(rng.choice(spec.agents, spec.seeds, replace=False))
        reached = [_Reached(agent, 0, -1) for agent in starts.tolist()]
        known = set(starts.tolist())
        position = 0
        while position < len(reached):
            sender = reached[position]
            for neighbour in graph[sender.agent]:
                if neighbour not in known and rng.random() < spec.spread:
                    known.add(neighbour)
                    reached.append(_Reached(neighbour, sender.hops + 1, position))
            position += 1
        yield reached


def _by_frames(spec: AgentWorkloadSpec, messages: Iterator[list[_Reached]]) -> Schedule:
    """A hop is a frame."""
    frames = Frames(spec.frame_s)
    begin = 0
    while len(frames.agent) < spec.calls:
        message = next(messages)
        for reached in message:
            frames.call(reached.agent, begin + reached.hops)
            if reached.hops > 0:
                frames.hint_at(begin, reached.agent, reached.hops)
        begin += message[-1].hops + 1
    return frames.schedule(spec.calls)


def _free(spec: AgentWorkloadSpec, messages: Iterator[list[_Reached]], rng: np.random.Generator) -> Schedule:
    """A message begins when all calls of the one before it have ended."""
    chains = Chains()
    gates: list[tuple[int, int, float, float]] = []
    assert spec.action is not None  # the spec's own check
    begun = 0
    while len(chains.calls) < spec.calls:
        message = next(messages)[: spec.calls - len(chains.calls)]
        first = len(chains.calls)
        for reached, think_s in zip(message, draw_think_s(spec.action, len(message), rng).tolist(), strict=True):
            if reached.by >= 0:
                chains.add(Call(reached.agent, previous=first + reached.by, think_s=think_s, gate=begun))
            elif begun:
                chains.add(Call(reached.agent, previous=first - 1, think_s=think_s, gate=begun, behind=begun - 1))
            else:
                chains.add(Call(reached.agent, arrival_s=think_s, gate=begun))
            gates.append((begun - 1, reached.agent, (reached.hops + 1) * spec.action.p50_s, float(reached.hops)))
        begun += 1
    for gate, agent, seconds, steps in gates:
        chains.hints.append(
            Hint(len(chains.calls) + gate if gate >= 0 else AT_START, agent, seconds=seconds, steps=steps)
        )
    return chains.schedule()
