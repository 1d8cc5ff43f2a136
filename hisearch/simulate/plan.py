"""One worker, compiled: its step costs, its KV room, its host tier."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import compile_costs
from hisearch.latency.memory import MemoryPlan, plan_memory
from hisearch.simulate.tiers import MovementPlan, TierPlan
from hisearch.specs.deployment import EngineSpec, PoolSpec
from hisearch.specs.hardware import AcceleratorSpec, MediumSpec
from hisearch.specs.model import ModelSpec
from hisearch.specs.profile import LatencyProfileSpec

_GIB = float(2**30)
_GB = 1e9


#: A window that no request exceeds.
NO_WINDOW = 2**62


class HostTierTooSmall(ValueError):  # noqa: N818
    """A host tier that its engine cannot use."""


@dataclass(frozen=True)
class WorkerPlan:
    """Everything a simulation needs to know about a worker.

    kv_capacity_tokens: whole pages of HBM. host_capacity_tokens: whole pages of the host tier, 0 where it is off.
    host_latency_s, host_s_per_token: law of a load-back, per operation and per token of KV.
    max_request_tokens: the model's window: requests whose prompt and declared output exceed it are refused.
    ignore_eos: requests say that they make exactly as many tokens as they declare, as benchmarks do.
    tiers: below HBM, nearest first. movement: how KV moves between them, None where there are none.
    workers_per_node: workers that share a node's tiers.
    """

    engine: EngineSpec
    costs: CompiledCosts
    memory: MemoryPlan
    kv_capacity_tokens: int
    host_capacity_tokens: int = 0
    host_latency_s: float = 0.0
    host_s_per_token: float = 0.0
    max_request_tokens: int = NO_WINDOW
    ignore_eos: bool = False
    tiers: tuple[TierPlan, ...] = ()
    movement: MovementPlan | None = None
    workers_per_node: int = 1


def plan_worker(
    pool: PoolSpec,
    *,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    medium: MediumSpec | None,
    profile: LatencyProfileSpec,
    profile_name: str = "roofline",
) -> WorkerPlan:
    """Compile a pool's worker.

    Args:
        pool: engine settings, parallelism, formats, host tier.
        model: architecture.
        accelerator: what each rank runs on.
        medium: the host tier's medium; needed where ``pool.host_tier.gib_per_worker`` > 0.
        profile: constants of the latency estimator.
        profile_name: how results name the profile.

    Raises:
        DoesNotFit: the model leaves no room for KV; says how many bytes are short.
        InvalidParallelism: the model cannot be split over that many ranks.
        HostTierTooSmall: less than one page; for SGLang, no more than the device pool (it refuses to start then).
        ValueError: a host tier without a medium.
    """
    engine = pool.engine
    memory = plan_memory(
        model,
        accelerator,
        tensor_parallel=pool.tensor_parallel,
        weight_dtype=pool.weight_dtype,
        kv_dtype=pool.kv_dtype,
        engine=engine,
        accelerator_name=pool.accelerator,
    )
    costs = compile_costs(
        profile_name,
        profile,
        model,
        accelerator,
        tensor_parallel=pool.tensor_parallel,
        weight_dtype=pool.weight_dtype,
        kv_dtype=pool.kv_dtype,
        engine=engine,
        max_tokens=max(engine.chunk_tokens, engine.max_running_requests),
        max_sequences=engine.max_running_requests,
        max_context_tokens=memory.kv_capacity_tokens,
    )
    if pool.host_tier.gib_per_worker == 0:
        return WorkerPlan(engine, costs, memory, memory.kv_capacity_tokens, max_request_tokens=model.max_context_tokens)
    if medium is None:
        raise ValueError(f"pool {pool.name}: a host tier needs its medium")
    host_tokens = _host_tokens(pool, memory)
    if engine.name == "sglang" and host_tokens <= memory.kv_capacity_tokens:
        raise HostTierTooSmall(
            f"pool {pool.name}: host_tier.gib_per_worker {pool.host_tier.gib_per_worker:g} holds {host_tokens} tokens; "
            f"SGLang's host pool must exceed its device pool of {memory.kv_capacity_tokens}"
        )
    return WorkerPlan(
        engine,
        costs,
        memory,
        memory.kv_capacity_tokens,
        host_tokens,
        accelerator.host_link.latency_s + medium.latency_s,
        _host_seconds_per_token(pool, memory, accelerator, medium),
        model.max_context_tokens,
    )


def _host_tokens(pool: PoolSpec, memory: MemoryPlan) -> int:
    """KV tokens that the worker's host memory holds; every rank keeps its own shard there.

    SGLang takes a size in whole gigabytes (10^9 bytes) for each rank: what is left over is paid for and not used.
    """
    per_token = memory.kv_bytes_per_token_per_rank * pool.tensor_parallel
    page = pool.engine.page_size
    size_bytes = pool.host_tier.gib_per_worker * _GIB
    if pool.engine.name == "sglang":
        size_bytes = size_bytes / pool.tensor_parallel // _GB * _GB * pool.tensor_parallel
    pages = int(size_bytes / (per_token * page))
    if pages < 1:
        raise HostTierTooSmall(
            f"pool {pool.name}: host_tier.gib_per_worker {pool.host_tier.gib_per_worker:g} is less than one page of "
            f"{page} tokens ({per_token * page / _GIB:.4g} GiB)"
        )
    return pages * page


def _host_seconds_per_token(
    pool: PoolSpec, memory: MemoryPlan, accelerator: AcceleratorSpec, medium: MediumSpec
) -> float:
    """Ranks load their shards at once, each over its own link; the medium's read bandwidth is shared by all."""
    per_rank = memory.kv_bytes_per_token_per_rank
    link = per_rank / accelerator.host_link.bandwidth_bytes_per_s
    dram = per_rank * pool.tensor_parallel / medium.read_bytes_per_s
    return max(link, dram)
