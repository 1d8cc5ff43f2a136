"""The same population with another number of agents."""

from __future__ import annotations

import math
from typing import Any

from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec


def resized(spec: AgentWorkloadSpec, agents: int) -> AgentWorkloadSpec:
    """``spec`` with this many agents, who behave as before: calls, messages and the plane's area grow in proportion.

    A number of adapters that agents share stays as it is, as long as there are as many agents.

    Raises:
        ValueError: its graph is a file's, whose number of agents is fixed; or there are too few agents (the plane is
            crossed in a tick, the graph has more edges than agents).
    """
    if spec.graph.model == "edges":
        raise ValueError("graph.model edges: a graph from a file has the agents that it has")
    factor = agents / spec.agents
    changes: dict[str, Any] = {
        "agents": agents,
        "calls": max(round(spec.calls * factor), 1),
        "world": spec.world.model_dump() | {"size_m": spec.world.size_m * math.sqrt(factor)},
    }
    if spec.adapters is not None:
        changes["adapters"] = min(spec.adapters, agents)
    if spec.kind == "diffusion":
        changes["seeds"] = min(max(round(spec.seeds * factor), 1), agents)
    return AgentWorkloadSpec.model_validate(spec.model_dump() | changes)
