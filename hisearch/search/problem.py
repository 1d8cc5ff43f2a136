"""What a search is given: the question, the trace's demand, and means to size and to simulate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hisearch.latency.costs import CompiledCosts
from hisearch.search.demand import Demand
from hisearch.specs.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.slo import SloSpec
from hisearch.specs.study import BudgetSpec, SearchSpaceSpec


class Planner(Protocol):
    """Facts about workers that need no simulation."""

    def kv_capacity_tokens(self, pool: PoolSpec) -> int:
        """KV tokens that one worker holds; cheap.

        Raises:
            ValueError: the model does not fit, or cannot be split so (``DoesNotFit``, ``InvalidParallelism``).
        """

    def can_build(self, pool: PoolSpec) -> bool:
        """True where the worker fits its accelerator, and its host tier suits the engine."""

    def costs(self, pool: PoolSpec) -> CompiledCosts:
        """Step costs of one worker; tens of milliseconds where they are not yet known."""

    def usd_per_hour(self, deployment: DeploymentSpec) -> float:
        """Dollars per hour of a deployment.

        Raises:
            ValueError: the host cannot carry such a worker.
        """


@dataclass(frozen=True)
class Problem:
    """The question.

    model, profile: names that the deployments carry. objectives: 2 to 4 names of ``hisearch.specs.study.Objective``.
    """

    model: str
    slo: SloSpec
    space: SearchSpaceSpec
    objectives: tuple[str, ...]
    budget: BudgetSpec
    seed: int
    demand: Demand
    planner: Planner

    @property
    def profile(self) -> str:
        """Name of the latency profile."""
        return self.space.profile

    def max_replicas(self, pool: PoolSpec) -> int:
        """Most replicas of a pool that the space allows; 0 where a single worker is too many."""
        execution = self.space.execution
        return min(execution.max_replicas, execution.max_accelerators // pool.tensor_parallel)
