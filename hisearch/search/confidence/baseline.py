"""The baseline of a recommendation: the same accelerator with the engine's own defaults, sized to meet the load.

The baseline is a deployment without any tuning: the recommended engine on the recommended accelerator, with the
engine's default flags. It has the model's own weight format, no cache below device memory, and a round-robin load
balancer. Its tensor parallelism is the least that holds the model, or the least above it with which some number of
replicas meets the SLO. It has the fewest replicas that do. It may lie outside the search space, except for the numbers
of ranks, replicas and accelerators. It also includes what agents' calls need besides KV: adapters in the engine's
default number of slots, by last use.

Defaults are those of the engines' documentation: vLLM 0.19 (``max_num_batched_tokens`` and ``max_num_seqs`` of the API
server), SGLang 0.5.9 (``chunked_prefill_size`` by device memory; its limit on running requests, thousands, only matters
after memory), TensorRT-LLM 1.1 (``max_batch_size``, ``max_num_tokens``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hisearch.search.confidence.assessment import Assessor
from hisearch.search.model.deployments import deployment_of, parameters_of
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.sizing import Sizing
from hisearch.search.model.trial import Trial
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.agent_memory import AgentMemorySpec
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec

#: Trial number of the baseline, which is no trial of the search.
BASELINE = -1

_GIB = 2**30

#: (least device memory in GiB, default tokens a step, default running requests), largest first.
DEFAULTS: dict[EngineName, tuple[tuple[float, int, int], ...]] = {
    "vllm": ((70.0, 8192, 1024), (0.0, 2048, 256)),
    "sglang": ((160.0, 16384, 2048), (60.0, 8192, 2048), (35.0, 4096, 2048), (0.0, 2048, 2048)),
    "trtllm": ((0.0, 8192, 2048),),
}

#: Default number of adapter slots of an engine (SGLang ``max_loras_per_batch``, vLLM ``max_loras``).
DEFAULT_SLOTS: dict[EngineName, int] = {"sglang": 8, "vllm": 1}

#: Most simulations for the baseline.
SIMULATIONS = 12


def default_engine(name: EngineName, memory_bytes: float, version: str = "") -> EngineSpec:
    """The engine's release ``version`` with its defaults for an accelerator with ``memory_bytes`` of memory."""
    gib = memory_bytes / _GIB
    chunk, running = next((chunk, running) for least, chunk, running in DEFAULTS[name] if gib >= least)
    return EngineSpec(name=name, version=version, chunk_tokens=chunk, max_running_requests=running)


def find_baseline(problem: Problem, assessor: Assessor, best: Trial, memory_bytes: float) -> Trial | None:
    """Size the baseline of a recommendation; None if the model fits none of the space's numbers of ranks.

    It follows the recommendation's first pool. memory_bytes: of that pool's accelerator.
    """
    #: The fewest replicas that meet the SLO so far, else the deployment with the smallest miss.
    kept: tuple[DeploymentSpec, Evaluation] | None = None
    left = SIMULATIONS
    for pool in _pools(problem, best, memory_bytes):
        most = problem.max_replicas(pool)
        ranks = best.deployment.pools[0].parallelism.ranks * best.deployment.pools[0].replicas
        sizing = Sizing(math.ceil(ranks / pool.tensor_parallel), most)
        while (counts := sizing.next) is not None and left > 0:
            deployment = deployment_of(
                problem.model, problem.profile, pool, counts[0], RouterSpec(policy="round_robin")
            )
            evaluation = assessor.supposing(deployment, {})
            left -= 1
            if evaluation.error:
                break
            if kept is None or evaluation.feasible or evaluation.worst_violation < kept[1].worst_violation:
                kept = deployment, evaluation  # feasible ones come with ever fewer replicas
            healable = not any(check.label == "rejected_fraction" and not check.holds for check in evaluation.slo)
            sizing.tell(counts, evaluation.feasible, evaluation.worst_violation, healable)
        if sizing.fewest is not None or left == 0:
            break
    if kept is None:
        return None
    deployment, evaluation = kept
    return evaluation.trial(BASELINE, Job(0, deployment, parameters_of(deployment)))


def _pools(problem: Problem, best: Trial, memory_bytes: float) -> Iterator[PoolSpec]:
    """Workers that hold the model, in order of increasing tensor parallelism."""
    ours = best.deployment.pools[0]
    engine = default_engine(ours.engine.name, memory_bytes, ours.engine.version)
    for ranks in sorted(problem.space.execution.tensor_parallel):
        pool = PoolSpec(
            accelerator=ours.accelerator,
            host=ours.host,
            engine=engine,
            tensor_parallel=ranks,
            agents=_default_agents(ours),
        )
        if problem.max_replicas(pool) > 0 and problem.planner.can_build(pool):
            yield pool


def _default_agents(ours: PoolSpec) -> AgentMemorySpec | None:
    """Default memory of the agents' objects that calls need besides KV."""
    agents = ours.agents
    if agents is None or not (agents.adapters or agents.objects):
        return None
    slots = DEFAULT_SLOTS[ours.engine.name]
    return AgentMemorySpec(policy="lru", adapters=agents.adapters, objects=agents.objects, slots=slots)
