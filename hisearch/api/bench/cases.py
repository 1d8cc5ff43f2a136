"""Benchmark cases: a workload on a deployment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hisearch.specs.deployments.agent_memory import AdaptersSpec, AgentMemorySpec
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.deployments.tiers import MovementSpec, TierSpec
from hisearch.specs.documents.catalogue import Catalogue

if TYPE_CHECKING:
    from hisearch.simulate.plans.plan import WorkerPlan
    from hisearch.specs.base import DType, EngineName
    from hisearch.specs.deployments.routing import RouterName
    from hisearch.specs.workloads.workload import GeneratorSpec
    from hisearch.traces.compiled import CompiledTrace


_TIER_PAGE_TOKENS = 64


@dataclass(frozen=True)
class Case:
    """A workload on a deployment.

    replicas, tensor_parallel: of ``accelerator``. weight_dtype: the model's own where None. shipped: the workload needs
    no download. afresh: the benchmark's process generates the trace, so that its memory counts. tiers, movement: as a
    pool's; with tiers SGLang's pages have 64 tokens. pipeline_parallel: stages of a worker. in_full: each run compiles
    the trace and the step costs too. agents: as a pool's.
    """

    workload: str
    model: str
    accelerator: str
    engine: EngineName
    tensor_parallel: int
    replicas: int = 1
    router: RouterName = "round_robin"
    weight_dtype: DType | None = None
    shipped: bool = True
    afresh: bool = False
    tiers: tuple[TierSpec, ...] = ()
    movement: MovementSpec = field(default_factory=MovementSpec)
    pipeline_parallel: int = 1
    in_full: bool = False
    agents: AgentMemorySpec | None = None

    @property
    def deployment(self) -> str:
        """A short description: ``4 x (2 x h100-sxm), sglang, cache_aware``."""
        worker = f"{self.tensor_parallel * self.pipeline_parallel} x {self.accelerator}"
        worker += f" in {self.pipeline_parallel} stages" if self.pipeline_parallel > 1 else ""
        workers = f"{self.replicas} x ({worker})" if self.replicas > 1 else worker
        tiers = " + ".join(tier.medium for tier in self.tiers)
        return ", ".join(
            [workers, self.engine, *([self.router] if self.replicas > 1 else []), *([tiers] if tiers else [])]
        )


def _coder(engine: EngineName) -> Case:
    return Case("coder-6h", "qwen3-coder-480b-a35b", "h200", engine, 8, weight_dtype="fp8")


def _coder_tiers() -> Case:
    """Three tiers: HBM, write-through DRAM, and NVMe from which requests prefetch misses."""
    tiers = (TierSpec(medium="ddr5", gib=1024), TierSpec(medium="nvme-gen5", gib=7000, scope="node"))
    return replace(_coder("sglang"), tiers=tiers, movement=MovementSpec(prefetch="timeout"))


def _agents() -> Case:
    """Eight nodes with DRAM, and one pool of remote DRAM that they share."""
    tiers = (TierSpec(medium="ddr5", gib=1024), TierSpec(medium="rdma-pool", gib=16000, scope="cluster"))
    return Case(
        "weka-agents", "qwen3-coder-480b-a35b", "h200", "sglang", 8, 8, "cache_aware", weight_dtype="fp8",
        shipped=False, tiers=tiers, movement=MovementSpec(prefetch="timeout"),
    )  # fmt: skip


def _agents_10k() -> Case:
    """Adapters in device memory, with all of them in host memory; loaded before the calls that need them."""
    objects = AgentMemorySpec(policy="distance", adapters=AdaptersSpec(rank=16), slots=500)
    return Case("agents-10k", "qwen2.5-7b", "h100-sxm", "sglang", 1, agents=objects)


def _million(engine: EngineName) -> Case:
    return Case("million", "qwen3-32b", "h100-sxm", engine, 2, 6, "cache_aware", afresh=True)


def _cluster() -> Case:
    """Sixty-four workers on eight-slot nodes: HBM, DRAM of a node, and one pool of remote DRAM that all share."""
    tiers = (TierSpec(medium="ddr5", gib=128), TierSpec(medium="rdma-pool", gib=16000, scope="cluster"))
    return Case(
        "cluster-1m", "qwen3-32b", "h100-sxm", "sglang", 2, 64, "cache_aware", afresh=True, tiers=tiers,
        movement=MovementSpec(prefetch="timeout"),
    )  # fmt: skip


CASES: dict[str, Case] = {
    "mooncake-like": Case("mooncake-like", "llama-3.1-70b", "h200", "vllm", 2, 8),
    "mooncake-conversation": Case("mooncake-conversation", "llama-3.1-70b", "h200", "vllm", 2, 8, shipped=False),
    "chat-multiturn": Case("chat-multiturn", "qwen3-32b", "h100-sxm", "sglang", 2, 4, "cache_aware"),
    "coder-6h": _coder("sglang"),
    "coder-6h-vllm": _coder("vllm"),
    "coder-6h-tiers": _coder_tiers(),
    "weka-agents": _agents(),
    "agents-10k": _agents_10k(),
    "million": _million("sglang"),
    "million-vllm": _million("vllm"),
    "cluster-64x1m": _cluster(),
    "cluster-2048": Case("gpt3-10k", "gpt3-175b", "h100-sxm", "vllm", 8, 32, pipeline_parallel=8, in_full=True),
}


def plan_of(case: Case, catalogue: Catalogue) -> WorkerPlan:
    """A case's worker, compiled.

    Raises:
        SpecError: the catalogue's own entry of that name cannot be used.
    """
    from hisearch.simulate import plan_worker

    page = _TIER_PAGE_TOKENS if case.tiers and case.engine == "sglang" else None
    engine = EngineSpec(
        name=case.engine, chunk_tokens=8192, max_running_requests=256, memory_fraction=0.9, page_tokens=page
    )
    accelerator = catalogue.get("Accelerator", case.accelerator).spec
    pool = PoolSpec(
        accelerator=case.accelerator,
        engine=engine,
        tensor_parallel=case.tensor_parallel,
        pipeline_parallel=case.pipeline_parallel,
        replicas=case.replicas,
        weight_dtype=case.weight_dtype,
        tiers=list(case.tiers),
        movement=case.movement,
        agents=case.agents,
    )
    return plan_worker(
        pool,
        model=catalogue.get("Model", case.model).spec,
        accelerator=accelerator,
        host=catalogue.get("Host", accelerator.host).spec if accelerator.host else None,
        media={tier.medium: catalogue.get("Medium", tier.medium).spec for tier in case.tiers},
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


def generated(workload: str, catalogue: Catalogue) -> CompiledTrace:
    """A shipped workload, generated and compiled without using the cache."""
    return _compiling(workload, catalogue)()


def _compiling(workload: str, catalogue: Catalogue) -> Callable[[], CompiledTrace]:
    """A function that compiles a shipped workload, generated once, anew at each call."""
    from hisearch.traces.compiler import compile_trace
    from hisearch.traces.generate import generate_trace

    trace = generate_trace(generator_of(workload, catalogue))
    return lambda: compile_trace(trace, workload)


def simulation_of(name: str, trace: str | None = None, limit: int | None = None) -> Callable[[], tuple[int, int]]:
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
    if case.in_full and trace is None and limit is None:
        return _in_full(case, catalogue)
    if case.afresh and trace is None and limit is None:
        compiled = generated(case.workload, catalogue)
    else:
        compiled = load_trace(trace or case.workload, limit=limit, catalogue=catalogue)
    return replay(plan_of(case, catalogue), compiled, replicas=case.replicas, router=case.router)


def _in_full(case: Case, catalogue: Catalogue) -> Callable[[], tuple[int, int]]:
    """The case from its generated trace and its specs; every run compiles both anew."""
    from hisearch.latency.estimator import forget

    compiling = _compiling(case.workload, catalogue)

    def run() -> tuple[int, int]:
        forget()
        return replay(plan_of(case, catalogue), compiling(), replicas=case.replicas, router=case.router)()

    return run


def replay(
    plan: WorkerPlan, trace: CompiledTrace, *, replicas: int, router: RouterName
) -> Callable[[], tuple[int, int]]:
    """One simulation as a call without arguments; returns (requests, steps)."""
    from hisearch.simulate import simulate

    spec = RouterSpec(policy=router)

    def run() -> tuple[int, int]:
        result = simulate(plan, trace, replicas=replicas, router=spec)
        return len(trace), int(result.workers.steps.sum())

    return run
