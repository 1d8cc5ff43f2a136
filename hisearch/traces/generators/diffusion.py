"""Messages that spread over a graph, breadth first: who gets one calls, then passes it on.

Messages follow one another. What is known of the next calls is the graph, who has the message, and who got it last:
whether it takes an edge (``spread``) is not known before it has.
"""

from __future__ import annotations

import itertools
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
        return _by_frames(spec, graph, messages)
    return _free(spec, graph, messages, stream("actions", *seeds))


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


def _hops_from(graph: Neighbours, senders: list[int], known: set[int], farther: int) -> np.ndarray:
    """Hops from ``senders`` to each agent over the graph, past none that is ``known``; shape (A,).

    Agents to which no path leads wait for the next message: one hop more than the farthest to which one does, and at
    least ``farther``.
    """
    hops = np.full(len(graph), -1)
    reach, ahead = senders, 0
    seen = known | set(senders)
    while reach:
        hops[reach] = ahead
        ahead += 1
        following = {neighbour for sender in reach for neighbour in graph[sender]} - seen
        seen |= following
        reach = sorted(following)
    hops[hops < 0] = max(ahead, farther)
    return hops


def _by_frames(spec: AgentWorkloadSpec, graph: Neighbours, messages: Iterator[list[_Reached]]) -> Schedule:
    """A hop is a frame. Before each the estimates that have changed are given anew."""
    frames = Frames(spec.frame_s)
    begin = 0
    while len(frames.agent) < spec.calls:
        message = next(messages)
        known: set[int] = set()
        predicted = np.full(spec.agents, -1)
        for hop, group in itertools.groupby(message, key=lambda reached: reached.hops):
            senders = [reached.agent for reached in group]
            for agent in senders:
                frames.call(agent, begin + hop)
            frame = begin + hop
            # Once nothing is lost on the way, the first estimate stands.
            if hop == 0 or spec.spread < 1:
                expected = frame + _hops_from(graph, senders, known, 1)
                changed = expected != predicted
                changed[senders] = False
                changed[sorted(known)] = False
                for agent in np.flatnonzero(changed).tolist():
                    frames.hint_at(frame, agent, float(expected[agent] - frame))
                predicted = expected
            known.update(senders)
        begin += message[-1].hops + 1
    return frames.schedule(spec.calls)


def _free(
    spec: AgentWorkloadSpec, graph: Neighbours, messages: Iterator[list[_Reached]], rng: np.random.Generator
) -> Schedule:
    """A message begins when all calls of the one before it have ended: with it, an estimate for everybody."""
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
        seeds = [reached.agent for reached in message if reached.by < 0]
        for agent, hops in enumerate(_hops_from(graph, seeds, set(), 1).tolist()):
            gates.append((begun - 1, agent, (hops + 1) * spec.action.p50_s, float(hops)))
        begun += 1
    for gate, agent, seconds, steps in gates:
        chains.hints.append(
            Hint(len(chains.calls) + gate if gate >= 0 else AT_START, agent, seconds=seconds, steps=steps)
        )
    return chains.schedule()
