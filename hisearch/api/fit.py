"""Which workers of a search space or a deployment fit into device memory: arithmetic alone, nothing is simulated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from hisearch.latency.memory import GIB, DoesNotFit, plan_memory
from hisearch.latency.sharding import InvalidParallelism
from hisearch.search.deployments import starting_memory_fraction
from hisearch.specs.base import DType, EngineName
from hisearch.specs.deployment import EngineSpec, PoolSpec
from hisearch.specs.hardware import AcceleratorSpec
from hisearch.specs.model import ModelSpec
from hisearch.specs.resolved import ResolvedDeployment, ResolvedStudy


@dataclass(frozen=True)
class Fit:
    """A worker and its room for KV.

    kv_capacity_tokens: of the roomiest of its chunk sizes and batch limits; 0 where none fits.
    gib_short: GiB missing on each rank where none fits, of the nearest; infinite where the model cannot be split so.
    problem: why none fits, or "".
    """

    accelerator: str
    engine: EngineName
    tensor_parallel: int
    weight_dtype: DType
    kv_dtype: DType
    kv_capacity_tokens: int
    gib_short: float = 0.0
    problem: str = ""

    @property
    def ok(self) -> bool:
        """True where the worker fits."""
        return not self.problem


def study_fits(study: ResolvedStudy) -> list[Fit]:
    """Every worker of a study's space, chunk sizes and batch limits folded together.

    Memory fraction and host tier are those that stages 1 and 2 of the search start from.
    """
    execution, model = study.space.spec.execution, study.model.spec
    fits = []
    for accelerator, engine, ranks, weight, kv in itertools.product(
        execution.accelerators,
        execution.engines,
        execution.tensor_parallel,
        execution.weight_dtypes or [model.weight_dtype],
        execution.kv_dtypes,
    ):
        variants = [
            PoolSpec(accelerator=accelerator, engine=spec, tensor_parallel=ranks, weight_dtype=weight, kv_dtype=kv)
            for spec in _engines(study, engine)
        ]
        tried = [fit_of(pool, model, study.accelerators[accelerator].spec) for pool in variants]
        if tried:
            fits.append(max(tried, key=lambda fit: (fit.kv_capacity_tokens, -fit.gib_short)))
    return fits


def deployment_fit(resolved: ResolvedDeployment) -> Fit:
    """The deployment's worker."""
    pool = resolved.deployment.pool
    return fit_of(pool, resolved.model.spec, resolved.accelerators[pool.accelerator].spec)


def fit_of(pool: PoolSpec, model: ModelSpec, accelerator: AcceleratorSpec) -> Fit:
    """One pool's worker."""
    weight = pool.weight_dtype or model.weight_dtype
    tokens, short, problem = 0, 0.0, ""
    try:
        plan = plan_memory(
            model,
            accelerator,
            tensor_parallel=pool.tensor_parallel,
            weight_dtype=weight,
            kv_dtype=pool.kv_dtype,
            engine=pool.engine,
            accelerator_name=pool.accelerator,
        )
        tokens = plan.kv_capacity_tokens
    except DoesNotFit as error:
        short, problem = error.bytes_short / GIB, str(error)
    except InvalidParallelism as error:
        short, problem = float("inf"), str(error)
    return Fit(pool.accelerator, pool.engine.name, pool.tensor_parallel, weight, pool.kv_dtype, tokens, short, problem)


def _engines(study: ResolvedStudy, name: EngineName) -> Iterator[EngineSpec]:
    """Engine settings of the space that do not contradict themselves (vLLM's budget covers its running requests)."""
    space = study.space.spec
    fraction = starting_memory_fraction(space.cache)
    for chunk, running in itertools.product(space.execution.chunk_tokens, space.execution.max_running_requests):
        if name != "vllm" or chunk >= running:
            yield EngineSpec(name=name, chunk_tokens=chunk, max_running_requests=running, memory_fraction=fraction)
