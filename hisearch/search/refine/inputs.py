"""Deployments as rows of numbers, for a surrogate: their settings, and what stage 1 expects of their workers."""

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

#: A deployment by name: numbers are ordered settings or expectations, all else are kinds.
Part = Mapping[str, Any]


class Expectations:
    """Stage 1's estimates of workers, to be found by their settings."""

    def __init__(self, problem: Problem, workers: Sequence[Candidate]) -> None:
        """Of ``workers`` of stage 1."""
        self._problem = problem
        self._by_key = {_key(worker.pool): worker for worker in workers}

    def part(self, deployment: DeploymentSpec) -> Part | None:
        """Settings and expectations of a deployment; None where a worker of it is not known, or cannot be built."""
        pools = deployment.pools
        found = parameters_of(deployment)
        if len(pools) == 1 and pools[0].replicas == 1:  # whatever the router, it gets everything
            found = {name: value for name, value in found.items() if name not in _OF_A_ROUTER}
        for pool in pools:
            expected = self._of_pool(pool)
            if expected is None:
                return None
            start = "" if pool is pools[0] else f"{pool.name}."
            found |= {start + name: value for name, value in expected.items()}
        return found

    def _of_pool(self, pool: PoolSpec) -> Part | None:
        """What stage 1 expects of a pool's workers; None where they are not known, or do not fit as set."""
        worker = self._by_key.get(_key(pool))
        if worker is None:
            return None
        try:
            kv_tokens = self._problem.planner.kv_capacity_tokens(pool)
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
    """(names of the inputs, rows of shape (n, d)) of parts; what is the same in all of them is no input.

    Ordered settings stand on a logarithmic scale from 0 to 1, kinds are one-hot; an ordered one that does not apply is
    0.
    """
    names: list[str] = []
    columns: list[list[float]] = []
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part.get(name) for part in parts]
        present = [value for value in values if value is not None]
        if all(isinstance(value, int | float) for value in present):
            found = {name: _ordered(values, present)}
        else:
            kinds = sorted({str(value) for value in values})
            found = {f"{name}: {kind}": [float(str(value) == kind) for value in values] for kind in kinds}
        for column, numbers in found.items():
            if max(numbers) > min(numbers):
                names.append(column)
                columns.append(numbers)
    return names, np.array(columns, dtype=np.float64).reshape(len(columns), len(parts)).T


def _ordered(values: Sequence[Any], present: Sequence[float]) -> list[float]:
    """Logarithms scaled to 0 to 1."""
    log = math.log if min(present) > 0 else math.log1p
    low, high = log(min(present)), log(max(present))
    span = high - low or 1.0
    return [0.0 if value is None else (log(value) - low) / span for value in values]
