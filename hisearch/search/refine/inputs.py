"""Deployments as rows of numbers for a surrogate: their settings, and stage 1's estimates of their workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.base.policies import ROUTERS
from hisearch.search.model.candidates import Candidate
from hisearch.search.model.deployments import parameters_of
from hisearch.search.model.problem import Problem
from hisearch.search.stages.execution import choices_of
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec

#: A deployment's inputs by name: numbers are ordered settings or estimates, anything else is a category.
Part = Mapping[str, Any]


class Expectations:
    """Stage 1's estimates of workers, looked up by their settings."""

    def __init__(self, problem: Problem, workers: Sequence[Candidate]) -> None:
        """Index ``workers`` of stage 1."""
        self._problem = problem
        self._by_key = {_key(worker.pool): worker for worker in workers}

    def part(self, deployment: DeploymentSpec) -> Part | None:
        """Settings and estimates of a deployment; None if one of its workers is unknown or cannot be built."""
        pools = deployment.pools
        features = parameters_of(deployment)
        if len(pools) == 1 and pools[0].replicas == 1:  # the router is irrelevant to a single replica
            features = {name: value for name, value in features.items() if name not in _OF_A_ROUTER}
        for pool in pools:
            expected = self._of_pool(pool)
            if expected is None:
                return None
            start = "" if pool is pools[0] else f"{pool.name}."
            features |= {start + name: value for name, value in expected.items()}
        return features

    def rate_rps(self, deployment: DeploymentSpec) -> float:
        """Requests per second that its slower side carries by stage 1's estimates; 0.0 if a worker is unknown."""
        rates: dict[str, float] = {}
        for pool in deployment.pools:
            worker = self._by_key.get(_key(pool))
            rate = worker.estimate.capacity_rps if worker is not None else 0.0
            rates[pool.role] = rates.get(pool.role, 0.0) + rate * pool.replicas
        return min(rates.values())

    def _of_pool(self, pool: PoolSpec) -> Part | None:
        """Stage 1's estimates of a pool's workers; None if they are unknown or do not fit as set."""
        worker = self._by_key.get(_key(pool))
        if worker is None:
            return None
        try:
            kv_tokens = self._problem.planner.requests_kv_tokens(pool, self._problem.demand.mean_context_tokens)
        except ValueError:  # stage 1 knows the worker with another memory fraction
            return None
        estimate = worker.estimate
        return {
            "expected ttft": estimate.ttft_s,
            "expected tpot": estimate.tpot_s,
            "expected share of the load": estimate.capacity_rps * pool.replicas / self._problem.demand.peak_rps,
            "KV tokens": kv_tokens * pool.replicas,
            "GiB below": sum(tier.gib for tier in pool.tiers) * pool.replicas,
        }


#: Parameters that say how a router chooses.
_OF_A_ROUTER = frozenset({"router", *ROUTERS.parameters()})


def _key(pool: PoolSpec) -> str:
    return repr((pool.role, choices_of(pool)))


def encode(parts: Sequence[Part]) -> tuple[list[str], F8]:
    """(names of the inputs, rows of shape (n, d)) of parts; a value that is the same in all of them is no input.

    Ordered settings use a logarithmic scale from 0 to 1, categories are one-hot; an ordered one that does not apply is
    0.
    """
    names: list[str] = []
    columns: list[list[float]] = []
    for name in dict.fromkeys(name for features in parts for name in features):
        values = [features.get(name) for features in parts]
        present = [value for value in values if value is not None]
        if all(isinstance(value, int | float) for value in present):
            numbers_by_column = {name: _ordered(values, present)}
        else:
            kinds = sorted({str(value) for value in values})
            numbers_by_column = {f"{name}: {kind}": [float(str(value) == kind) for value in values] for kind in kinds}
        for column, numbers in numbers_by_column.items():
            if max(numbers) > min(numbers):
                names.append(column)
                columns.append(numbers)
    return names, np.array(columns, dtype=np.float64).reshape(len(columns), len(parts)).T


def _ordered(values: Sequence[Any], present: Sequence[float]) -> list[float]:
    """Logarithms scaled to the range 0 to 1."""
    log = math.log if min(present) > 0 else math.log1p
    low, high = log(min(present)), log(max(present))
    span = high - low or 1.0
    return [0.0 if value is None else (log(value) - low) / span for value in values]
