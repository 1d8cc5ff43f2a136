"""Populations of other sizes: how many agents a deployment can serve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.traces.compiled import CompiledTrace


@dataclass(frozen=True)
class Population:
    """The workload's population; seed: the study's."""

    spec: AgentWorkloadSpec
    seed: int

    def agents(self, factor: float) -> int:
        """Agents of a population ``factor`` times as large; at least one."""
        return max(round(self.spec.agents * factor), 1)

    def trace(self, factor: float, name: str) -> CompiledTrace:
        """Calls of a population ``factor`` times as large.

        Raises:
            ValueError: see ``resized``.
        """
        from hisearch.traces.compiler import compile_trace
        from hisearch.traces.generators import generate_agents, resized

        return compile_trace(generate_agents(resized(self.spec, self.agents(factor)), seed=self.seed), name)

    def figures(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Agents per accelerator and hourly price of an agent, in the largest population that meets the SLO.

        Args:
            metrics: ``capacity_load``, the factor on this population; accelerators and price of the deployment,
                electricity as with this population.
        """
        most = self.agents(metrics["capacity_load"]) if metrics["capacity_load"] > 0.0 else 0
        per_accelerator = most / metrics["accelerators"] if metrics["accelerators"] > 0 else math.nan
        return {
            "agents": float(most),
            "agents_per_accelerator": per_accelerator,
            "usd_per_agent_hour": metrics["usd_per_hour"] / most if most else math.inf,
        }
