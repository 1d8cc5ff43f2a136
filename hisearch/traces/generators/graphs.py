"""Graphs of agents that know each other, as lists of neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hisearch.specs.workloads.agent_workload import GraphSpec
from hisearch.traces.reading.errors import TraceError

#: Neighbours of each agent, in rising order.
Neighbours = list[list[int]]


def build_graph(spec: GraphSpec, agents: int, edges: Neighbours | None, rng: np.random.Generator) -> Neighbours:
    """The graph that ``spec`` describes; ``edges``: what its file says."""
    if spec.model == "edges":
        if edges is None:
            raise ValueError("graph.path: the file's edges are needed")
        return edges
    if spec.model == "small_world":
        return _small_world(agents, spec.degree, spec.rewire, rng)
    return _scale_free(agents, spec.degree, rng)


def edge_list(path: Path, agents: int) -> Neighbours:
    """Read a file of two agents' numbers per line.

    Raises:
        TraceError: with file and line: a line that is none, a number that is no agent's; a file without edges.
    """
    linked: list[set[int]] = [set() for _ in range(agents)]
    any_edge = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise TraceError.at(f"expected two agents' numbers, got '{line.strip()[:80]}'", path=path, line=number)
        first, second = map(int, words)
        if max(first, second) >= agents:
            message = f"agent {max(first, second)}: the workload has {agents}, numbered from 0"
            raise TraceError.at(message, path=path, line=number)
        if first != second:
            linked[first].add(second)
            linked[second].add(first)
            any_edge = True
    if not any_edge:
        raise TraceError.at("no edges in the file", path=path)
    return [sorted(others) for others in linked]


def _scale_free(agents: int, degree: int, rng: np.random.Generator) -> Neighbours:
    """Each new agent links to ``degree`` others, drawn by how many links they have (Barabási and Albert, 1999)."""
    linked: list[set[int]] = [set() for _ in range(agents)]
    # Each agent once for each of its links.
    ends = list(range(degree))
    for new in range(degree, agents):
        chosen: set[int] = set()
        while len(chosen) < degree:
            chosen.add(ends[int(rng.integers(len(ends)))])
        for neighbour in sorted(chosen):
            linked[new].add(neighbour)
            linked[neighbour].add(new)
            ends += [new, neighbour]
    return [sorted(others) for others in linked]


def _small_world(agents: int, degree: int, rewire: float, rng: np.random.Generator) -> Neighbours:
    """A ring of neighbours, each edge led elsewhere with a chance of ``rewire`` (Watts and Strogatz, 1998)."""
    linked: list[set[int]] = [set() for _ in range(agents)]
    for agent in range(agents):
        for ahead in range(1, degree // 2 + 1):
            neighbour = (agent + ahead) % agents
            if rng.random() < rewire:
                elsewhere = int(rng.integers(agents))
                if elsewhere != agent and elsewhere not in linked[agent]:
                    neighbour = elsewhere
            linked[agent].add(neighbour)
            linked[neighbour].add(agent)
    return [sorted(others) for others in linked]
