"""Benchmark cases: a workload on a deployment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hisearch.specs.deployments.agent_memory import AdaptersSpec, AgentMemorySpec
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.deployments.tiers import MovementSpec, TierSpec
from hisearch.specs.documents.catalogue import Catalogue

if TYPE_CHECKING:
    from hisearch.simulate.plans.plan import WorkerPlan
    from hisearch.specs.base import EngineName
    from hisearch.specs.deployments.routing import RouterName
    from hisearch.specs.workloads.workload import GeneratorSpec
    from hisearch.traces.compiled import CompiledTrace

#: A simulation, or a batch of them; returns (requests, steps).
Run = Callable[[], tuple[int, int]]

#: Tokens of SGLang's pages in pools with cache tiers.
_TIER_PAGE_TOKENS = 64


@dataclass(frozen=True)
class Case:
    """A workload on a deployment.

    router: of the pool's replicas. shipped: the workload needs no download. afresh: the benchmark's process generates
    the trace, so that its memory counts. in_full: each run compiles the trace and the step costs too.
    """

    workload: str
    model: str
    pool: PoolSpec
    router: RouterName = "round_robin"
    shipped: bool = True
    afresh: bool = False
    in_full: bool = False


def _pool(accelerator: str, engine: EngineName, tensor_parallel: int, replicas: int = 1, **settings: Any) -> PoolSpec:
    """A pool with the engine settings of all cases; ``settings``: further keys of the pool."""
    page = _TIER_PAGE_TOKENS if "tiers" in settings and engine == "sglang" else None
    spec = EngineSpec(name=engine, chunk_tokens=8192, max_running_requests=256, memory_fraction=0.9, page_tokens=page)
    return PoolSpec(
        accelerator=accelerator, engine=spec, tensor_parallel=tensor_parallel, replicas=replicas, **settings
    )


def _coder(engine: EngineName, **settings: Any) -> Case:
    return Case("coder-6h", "qwen3-coder-480b-a35b", _pool("h200", engine, 8, weight_dtype="fp8", **settings))


def _coder_tiers() -> Case:
    """Three tiers: HBM, write-through DRAM, and NVMe from which requests prefetch misses."""
    tiers = [TierSpec(medium="ddr5", gib=1024), TierSpec(medium="nvme-gen5", gib=7000, scope="node")]
    return _coder("sglang", tiers=tiers, movement=MovementSpec(prefetch="timeout"))


def _agents() -> Case:
    """Eight nodes with DRAM, and one pool of remote DRAM that they share."""
    tiers = [TierSpec(medium="ddr5", gib=1024), TierSpec(medium="rdma-pool", gib=16000, scope="cluster")]
    movement = MovementSpec(prefetch="timeout")
    pool = _pool("h200", "sglang", 8, 8, weight_dtype="fp8", tiers=tiers, movement=movement)
    return Case("weka-agents", "qwen3-coder-480b-a35b", pool, "cache_aware", shipped=False)


def _agents_10k() -> Case:
    """Adapters in device memory, with all of them in host memory; loaded before the calls that need them."""
    objects = AgentMemorySpec(policy="distance", adapters=AdaptersSpec(rank=16), slots=500)
    return Case("agents-10k", "qwen2.5-7b", _pool("h100-sxm", "sglang", 1, agents=objects))


def _mooncake(workload: str, *, shipped: bool) -> Case:
    return Case(workload, "llama-3.1-70b", _pool("h200", "vllm", 2, 8), shipped=shipped)


def _million(engine: EngineName) -> Case:
    return Case("million", "qwen3-32b", _pool("h100-sxm", engine, 2, 6), "cache_aware", afresh=True)


def _cluster() -> Case:
    """Sixty-four workers on eight-slot nodes: HBM, DRAM of a node, and one pool of remote DRAM that all share."""
    tiers = [TierSpec(medium="ddr5", gib=128), TierSpec(medium="rdma-pool", gib=16000, scope="cluster")]
    pool = _pool("h100-sxm", "sglang", 2, 64, tiers=tiers, movement=MovementSpec(prefetch="timeout"))
    return Case("cluster-1m", "qwen3-32b", pool, "cache_aware", afresh=True)


CASES: dict[str, Case] = {
    "mooncake-like": _mooncake("mooncake-like", shipped=True),
    "mooncake-conversation": _mooncake("mooncake-conversation", shipped=False),
    "chat-multiturn": Case("chat-multiturn", "qwen3-32b", _pool("h100-sxm", "sglang", 2, 4), "cache_aware"),
    "coder-6h": _coder("sglang"),
    "coder-6h-vllm": _coder("vllm"),
    "coder-6h-tiers": _coder_tiers(),
    "weka-agents": _agents(),
    "agents-10k": _agents_10k(),
    "million": _million("sglang"),
    "million-vllm": _million("vllm"),
    "cluster-64x1m": _cluster(),
    "cluster-2048": Case("gpt3-10k", "gpt3-175b", _pool("h100-sxm", "vllm", 8, 32, pipeline_parallel=8), in_full=True),
}


def plan_of(case: Case, catalogue: Catalogue) -> WorkerPlan:
    """A case's worker, compiled.

    Raises:
        SpecError: the catalogue's own entry of that name cannot be used.
    """
    from hisearch.simulate import plan_worker

    accelerator = catalogue.get("Accelerator", case.pool.accelerator).spec
    return plan_worker(
        case.pool,
        model=catalogue.get("Model", case.model).spec,
        accelerator=accelerator,
        host=catalogue.get("Host", accelerator.host).spec if accelerator.host else None,
        media={tier.medium: catalogue.get("Medium", tier.medium).spec for tier in case.pool.tiers},
        profile=catalogue.get("LatencyProfile", "roofline").spec,
    )


def generator_of(workload: str, catalogue: Catalogue) -> GeneratorSpec:
    """The generator of a shipped workload.

    Raises:
        ValueError: the workload reads a file.
    """
    generator: GeneratorSpec | None = catalogue.get("Workload", workload).spec.generator
    if generator is None:
        raise ValueError(f"workload {workload} reads a file; a generator is needed here")
    return generator


def compiling(workload: str, catalogue: Catalogue) -> Callable[[], CompiledTrace]:
    """A function that compiles a shipped workload, generated once, anew at each call; the cache is not used."""
    from hisearch.traces.compiler import compile_trace
    from hisearch.traces.generate import generate_trace

    trace = generate_trace(generator_of(workload, catalogue))
    return lambda: compile_trace(trace, workload)


def simulation_of(name: str, trace: str | None = None, limit: int | None = None) -> Run:
    """A benchmark's simulation with compiled inputs; a call returns (requests, steps).

    Args:
        name: one of ``CASES``.
        trace: a workload or trace file instead of its own.
        limit: keep the first requests only.

    Raises:
        SpecError, TraceError: the workload cannot be used.
    """
    from hisearch.api.deployments.workload import load_trace

    case, catalogue = CASES[name], Catalogue()
    whole = trace is None and limit is None
    if case.in_full and whole:
        return _in_full(case, catalogue)
    if case.afresh and whole:
        compiled = compiling(case.workload, catalogue)()
    else:
        compiled = load_trace(trace or case.workload, limit=limit, catalogue=catalogue)
    return replay(case, plan_of(case, catalogue), compiled)


def _in_full(case: Case, catalogue: Catalogue) -> Run:
    """The case from its generated trace and its specs; every run compiles both anew."""
    from hisearch.latency.estimator import forget

    compiled = compiling(case.workload, catalogue)

    def run() -> tuple[int, int]:
        forget()
        return replay(case, plan_of(case, catalogue), compiled())()

    return run


def replay(case: Case, plan: WorkerPlan, trace: CompiledTrace) -> Run:
    """One simulation of the case's replicas of a worker as a call without arguments; returns (requests, steps)."""
    from hisearch.simulate import simulate

    spec = RouterSpec(policy=case.router)

    def run() -> tuple[int, int]:
        result = simulate(plan, trace, replicas=case.pool.replicas, router=spec)
        return len(trace), int(result.workers.steps.sum())

    return run
