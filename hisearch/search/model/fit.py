"""Which workers of a search space or a deployment fit into their host and into device memory.

Arithmetic only; nothing is simulated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hisearch.latency.device_memory.constants import GIB
from hisearch.latency.device_memory.loading import full_load
from hisearch.latency.device_memory.plan import DoesNotFit, MemoryPlan
from hisearch.latency.devices.build import DevicesRefused
from hisearch.latency.sharding import InvalidParallelism, window_layers
from hisearch.search.model.deployments import format_devices, starting_memory_fraction
from hisearch.simulate.plans.draw import ffn_accelerator_name, worker_devices
from hisearch.simulate.plans.plan import plan_pool_memory
from hisearch.specs.base import DType, EngineName
from hisearch.specs.deployments.deployment import KV_DTYPES, EngineSpec, PoolSpec
from hisearch.specs.documents.resolved import Hardware, ResolvedDeployment, ResolvedStudy
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.parallelism import Parallelism, degrees_of, engine_problem, slots_problem
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.pages import PAGE_TOKENS, kept_page_tokens
from hisearch.specs.models.windows import keeps_window_pool


@dataclass(frozen=True)
class Fit:
    """A worker and its KV capacity.

    chunk_tokens, max_running_requests, memory_fraction: the settings used; of a study's chunk sizes and batch limits,
    those with the largest KV capacity.
    accelerator: with its attached devices.
    kv_capacity_tokens: of one worker, in requests of ``request_tokens`` tokens; 0 where it does not fit.
    request_tokens: of models whose layers keep a window, the longest request: KV that is not kept takes no memory, set
    aside (as under tiers) or not. 0 of other models, where a token's KV takes the same in every request.
    gib_short: GiB missing on each rank where nothing fits, for the nearest settings; infinite where the model cannot
    be split so, or the host has too few slots.
    pool: name of the deployment's pool; "" for a study.
    problem: why nothing fits, or "".
    note: a further requirement of a worker that fits, or "".
    """

    accelerator: str
    engine: EngineName
    tensor_parallel: int
    pipeline_parallel: int
    attention_data_parallel: int
    expert_parallel: int
    weight_dtype: DType
    kv_dtype: DType
    chunk_tokens: int
    max_running_requests: int
    memory_fraction: float
    kv_capacity_tokens: int = 0
    gib_short: float = 0.0
    problem: str = ""
    note: str = ""
    pool: str = ""
    request_tokens: int = 0
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1

    @property
    def parallelism(self) -> Parallelism:
        """How the worker's copy of the model is split."""
        return Parallelism(
            self.tensor_parallel,
            self.attention_data_parallel,
            self.expert_parallel,
            self.pipeline_parallel,
            decode_context=self.decode_context_parallel,
            prefill_context=self.prefill_context_parallel,
        ).under(self.engine)

    @property
    def ok(self) -> bool:
        """True where the worker fits."""
        return not self.problem


def study_fits(study: ResolvedStudy) -> list[Fit]:
    """Every worker of a study's space, in KV formats that its engine supports.

    Chunk sizes and batch limits are merged into one row.
    Memory fraction and host tier are the starting values of stages 1 and 2 of the search.
    """
    execution, model = study.space.spec.execution, study.model.spec
    fits = []
    for accelerator, engine, split, weight, kv, devices in itertools.product(
        execution.accelerators,
        execution.engines,
        execution.splits,
        execution.weight_dtypes or [model.weight_dtype],
        execution.kv_dtypes,
        execution.devices,
    ):
        variants = [
            _pool(accelerator, spec, weight, kv, devices, split)
            for spec in _engines(study, engine)
            if kv in KV_DTYPES[engine] and engine_problem(engine, split) is None
        ]
        tried = [fit_of(pool, model, study.hardware, study.profile.spec) for pool in variants if pool is not None]
        if tried:
            fits.append(max(tried, key=lambda fit: (fit.kv_capacity_tokens, -fit.gib_short)))
    return fits


def _pool(
    accelerator: str, engine: EngineSpec, weight: DType, kv: DType, devices: DevicesSpec | None, split: Parallelism
) -> PoolSpec | None:
    """A unified worker; None where the engine refuses these settings together, as the search leaves it out."""
    try:
        return PoolSpec(
            accelerator=accelerator, engine=engine, weight_dtype=weight, kv_dtype=kv, devices=devices,
            **degrees_of(split),
        )  # fmt: skip
    except ValueError:
        return None


def deployment_fits(resolved: ResolvedDeployment) -> list[Fit]:
    """A worker of each of the deployment's pools."""
    hardware, profile = resolved.hardware, resolved.profile.spec
    return [
        replace(fit_of(pool, resolved.model_of(pool).spec, hardware, profile), pool=pool.name)
        for pool in resolved.deployment.pools
    ]


def fit_of(pool: PoolSpec, model: ModelSpec, hardware: Hardware, profile: LatencyProfileSpec) -> Fit:
    """One pool's worker; ``hardware`` holds its accelerator, its host and its devices."""
    accelerator = hardware.accelerators[pool.accelerator].spec
    weight = pool.weight_dtype or model.weight_dtype
    engine = pool.engine
    empty = Fit(
        pool.accelerator if pool.devices is None else f"{pool.accelerator} + {format_devices(pool.devices)}",
        engine.name,
        pool.tensor_parallel,
        pool.pipeline_parallel,
        pool.attention_data_parallel,
        pool.expert_parallel,
        weight,
        pool.kv_dtype,
        engine.chunk_tokens,
        engine.max_running_requests,
        engine.memory_fraction,
        request_tokens=model.max_context_tokens if window_layers(model) else 0,
        decode_context_parallel=pool.decode_context_parallel,
        prefill_context_parallel=pool.prefill_context_parallel,
    )
    host = pool.host or accelerator.host
    if host is not None and (problem := slots_problem(pool.parallelism, host, hardware.hosts[host].spec)):
        return replace(empty, gib_short=math.inf, problem=problem.message)
    try:
        ffn = ffn_accelerator_name(pool)
        ffn_accelerator = hardware.accelerators[ffn].spec if ffn is not None else None
        machine = hardware.hosts[host].spec if host is not None else None
        devices = worker_devices(pool, hardware.device_specs, ffn_accelerator, machine)
        plan = plan_pool_memory(pool, model, accelerator, profile, devices)
    except DoesNotFit as error:
        return replace(empty, gib_short=error.bytes_short / GIB, problem=str(error))
    except (InvalidParallelism, DevicesRefused) as error:
        return replace(empty, gib_short=math.inf, problem=str(error))
    tokens = int(plan.requests_tokens(model.max_context_tokens))
    return replace(empty, kv_capacity_tokens=tokens, note=_note(pool, model, accelerator, plan))


def _note(pool: PoolSpec, model: ModelSpec, accelerator: AcceleratorSpec, plan: MemoryPlan) -> str:
    """What to know of a worker that fits; "": nothing."""
    notes = [_loading_note(pool, model, accelerator)]
    asked, pools = pool.engine.max_running_requests, plan.state_pools
    if pools is not None and pools.running_requests < asked:
        notes.append(
            f"{pool.parallelism}: SGLang's {pools.states:,} states of linear attention let {pools.running_requests:,} "
            f"requests run at a time; engine.max_running_requests is {asked:,}"
        )
    return "; ".join(note for note in notes if note)


def _loading_note(pool: PoolSpec, model: ModelSpec, accelerator: AcceleratorSpec) -> str:
    """Why the published weights cannot be loaded as fp8; "" where they can."""
    held = full_load(
        model,
        accelerator,
        engine=pool.engine.name,
        tensor_parallel=pool.tensor_parallel,
        parallelism=pool.parallelism,
        weight_dtype=pool.weight_dtype,
    )
    if held is None or held.fits:
        return ""
    sentence = held.sentence(model.weight_dtype, pool.accelerator)
    return f"{pool.parallelism}: {sentence}; this needs a checkpoint with fp8 weights"


def _engines(study: ResolvedStudy, name: EngineName) -> Iterator[EngineSpec]:
    """Consistent engine settings of the space.

    The token budget of vLLM and TensorRT-LLM is at least their running requests; TensorRT-LLM's at least one block.
    """
    space = study.space.spec
    fraction = starting_memory_fraction(space.cache)
    page = kept_page_tokens(study.model.spec)
    for speculation, settings in itertools.product(
        space.execution.speculations(name),
        space.execution.engine_settings(name, keeps_window_pool(name, study.model.spec)),
    ):
        chunk, running = settings["chunk_tokens"], settings["max_running_requests"]
        least = max(running, page or PAGE_TOKENS[name]) if name == "trtllm" else running
        if name == "sglang" or chunk >= least:
            yield EngineSpec(**settings, speculation=speculation, memory_fraction=fraction, page_tokens=page)
