"""Schedules of a recording's requests: by the engine itself and by the kernels.

Both are a ``Run``, in which a request is its index in the order of (arrival, id).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory import state_pools, window_pools
from hisearch.latency.step_cost import law_costs
from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.simulate.plans.groups_plan import GroupsPlan, StatesPlan, WindowsPlan
from hisearch.simulate.plans.speculation_plan import SpeculationPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_of
from hisearch.specs.deployments.speculation import SGLANG_SINCE, simulates_drafts
from hisearch.specs.machines.parallelism import Parallelism
from hisearch.validate import recorded_adapters
from hisearch.validate.hicache_settings import HostTierConfig
from hisearch.validate.recorded_settings import LmcacheSettings, SglangSettings, VllmSettings
from hisearch.validate.recorded_trace import compiled_trace
from hisearch.validate.recording import EngineRecording
from hisearch.validate.step_law import StepLaw, parse_step_law

#: Names of the kinds of logged steps; vLLM has only one.
_KINDS = ("", "prefill", "decode", "mixed")
#: Chunk of an engine without chunked prefill: more than any prompt has.
_NO_CHUNK_TOKENS = 2**31 - 1
#: Capacity of a recorded storage tier, which is unlimited.
_NO_LIMIT_TOKENS = 2**40


class Decision(NamedTuple):
    """One step.

    Attributes:
        start_s, scheduled_s: when the device began it, and when it was formed (None where not recorded).
        end_s: when it ended; NaN where not recorded.
        kind: SGLang's ``prefill``, ``decode`` or ``mixed``; "" for vLLM.
        batch: (request, tokens computed before, tokens computed now), in batch order.
        lost: requests preempted (vLLM: by index) or retracted (SGLang: in order) while it was formed.
        pool: (free, evictable) KV tokens after it was formed, and where recorded behind them those of SGLang's window
            layers, or its states; None where not recorded.
    """

    start_s: float
    scheduled_s: float | None
    end_s: float
    kind: str
    batch: list[tuple[int, int, int]]
    lost: list[int]
    pool: tuple[int, ...] | None


@dataclass(frozen=True)
class Run:
    """Decisions for all requests.

    Attributes:
        steps: in order.
        first_token_s, finish_s: shape (N,), seconds; NaN where it did not happen.
        reused_tokens: shape (N,), tokens found in the cache at first scheduling; None where not recorded.
        copied_tokens: (to host memory, from it) by vLLM's offloading connector; None where not recorded.
    """

    steps: list[Decision]
    first_token_s: np.ndarray
    finish_s: np.ndarray
    reused_tokens: np.ndarray | None
    copied_tokens: tuple[int, int] | None = None


def recorded_law(recording: EngineRecording) -> StepLaw:
    """The latency law of the recording's steps.

    Raises:
        RecordingError: absent, or of a form that is not understood.
    """
    if recording.law_text is None:
        raise recording.error("step_latency_s", "required, and missing")
    try:
        return parse_step_law(recording.law_text)
    except ValueError as error:
        raise recording.error("step_latency_s", str(error)) from None


def recorded_run(recording: EngineRecording) -> Run:
    """The engine's decisions.

    Raises:
        RecordingError: the file holds no steps.
    """
    if recording.steps is None or recording.first_token_s is None or recording.finish_s is None:
        raise recording.error("steps", "required, and missing")
    index = {row.id: position for position, row in enumerate(recording.requests)}
    steps = []
    for step in recording.steps:
        batch = [(index[name], computed, tokens) for name, computed, tokens in step.batch]
        preempted = sorted(index[name] for name in step.preempted)
        lost = preempted if recording.engine == "vllm" else [index[name] for name in (*step.preempted, *step.retracted)]
        end_s = float("nan")
        steps.append(Decision(step.start_s, step.scheduled_s, end_s, step.kind or "", batch, lost, step.pool))
    names = [str(row.id) for row in recording.requests]
    reused = recording.reused_tokens
    return Run(
        steps,
        np.array([recording.first_token_s[name] for name in names]),
        np.array([recording.finish_s[name] for name in names]),
        None if reused is None else np.array([reused[name] for name in names]),
        recording.copied_tokens,
    )


def simulated_run(recording: EngineRecording, law: StepLaw) -> Run:
    """The kernels' decisions, under the recording's settings and ``law``.

    Raises:
        RecordingError: a setting that is not simulated, or one that the engine itself would refuse or fail on.
    """
    plan = worker_plan(recording, law)
    try:
        result = simulate(plan, compiled_trace(recording), log=True)
    except EngineOutOfMemory as error:
        raise recording.error("config", str(error)) from None
    requests = result.requests
    reused = requests.hit_tokens + requests.host_hit_tokens + requests.storage_hit_tokens
    copied = None
    if recording.copied_tokens is not None:
        copied = _copied(recording, result)
    return Run(_decisions(result, recording.engine), requests.first_token_s, requests.finish_s, reused, copied)


def _copied(recording: EngineRecording, result: Result) -> tuple[int, int]:
    """Tokens copied to host memory and back; LMCache copies chunks that it has too.

    Copies count when they begin. Recordings of the first offloading connector end with the last request.
    """
    by_chunk = "offloads_by_chunk" in rules_of("vllm", recording.version)
    if by_chunk or isinstance(getattr(recording.settings, "offload", None), LmcacheSettings):
        to_host, to_device = (next(use for use in result.links if use.write is write) for write in (True, False))
        return to_host.tokens, to_device.tokens
    host = next(store for store in result.stores if store.tier == 1)
    return host.stored_tokens + host.coming_tokens, host.read_tokens


def _decisions(result: Result, engine: EngineName) -> list[Decision]:
    log = result.log
    assert log is not None
    entries = list(zip(*(log.entries[name].tolist() for name in ("request", "computed", "tokens")), strict=True))
    lost_requests = log.lost.tolist()
    columns = (
        "start_s", "scheduled_s", "end_s", "kind", "free_tokens", "evictable_tokens", "first_entry", "entries",
        "first_lost", "lost",
    )  # fmt: skip
    steps = []
    for row in zip(*(log.steps[name].tolist() for name in columns), strict=True):
        start_s, scheduled_s, end_s, kind, free, evictable, first_entry, count, first_lost, lost_count = row
        batch = entries[first_entry : first_entry + count]
        lost = lost_requests[first_lost : first_lost + lost_count]
        lost = sorted(lost) if engine == "vllm" else lost
        steps.append(Decision(start_s, scheduled_s, end_s, _KINDS[kind], batch, lost, (free, evictable)))
    return steps


def worker_plan(recording: EngineRecording, law: StepLaw) -> WorkerPlan:
    """The recording's engine as a worker.

    Raises:
        RecordingError: as ``simulated_run``.
    """
    settings = recording.settings
    more: dict[str, Any] = {}
    try:
        if isinstance(settings, VllmSettings):
            engine, capacity = _vllm(settings), (settings.num_blocks - 1) * settings.block_tokens
            more = _offloading(settings) | _groups(settings) | _speculation(settings)
            more |= recorded_adapters.of_vllm(settings)
            _refuse_long_requests(recording, settings.max_model_len)
        else:
            more = _hicache(recording, settings) | _sglang_speculation(recording, settings)
            more |= _windows(recording, settings) | _states(recording, settings) | recorded_adapters.of_sglang(settings)
            engine, page = _sglang(settings, recording.version), settings.block_tokens
            more["split"] = Parallelism(settings.dcp_size, decode_context=settings.dcp_size)
            capacity = settings.max_total_tokens // page * page
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise recording.error("config", problem["msg"].removeprefix("Value error, ")) from None
    more |= recorded_adapters.grammars(settings)
    tables = law_costs(*law)
    costs = CompiledCosts(tables, tables, 0.0, "law of the recording", "measured", 0.0)
    # A simulation does not read the memory plan of a worker.
    engine = engine.model_copy(update={"version": recording.version})
    pinned = tuple(row.max_output_tokens is None for row in recording.requests)
    return WorkerPlan(engine, costs, None, capacity, ignore_eos=pinned, **more)  # type: ignore[arg-type]


def _vllm(settings: VllmSettings) -> EngineSpec:
    return EngineSpec(
        name="vllm",
        max_running_requests=settings.max_num_seqs,
        chunk_tokens=settings.max_tokens,
        page_tokens=settings.block_tokens,
        prefix_caching=settings.prefix,
        schedule=settings.policy,
        overlap=settings.async_scheduling,
        chunked_prefill=settings.chunked_prefill,
        long_prefill_tokens=settings.long_prefill_token_threshold,
        long_prefill_adaptive=settings.long_prefill_token_threshold_adaptive,
        reserve_full_prompt=settings.scheduler_reserve_full_isl,
        watermark=settings.watermark,
    )


def _sglang(settings: SglangSettings, version: str) -> EngineSpec:
    chunked = settings.chunked_prefill_size > 0
    return EngineSpec(
        name="sglang",
        version=version,
        max_running_requests=settings.max_running_requests,
        chunk_tokens=settings.chunked_prefill_size if chunked else _NO_CHUNK_TOKENS,
        chunked_prefill=chunked,
        page_tokens=settings.block_tokens,
        prefix_caching=not settings.disable_radix_cache,
        max_prefill_tokens=settings.max_prefill_tokens,
        schedule_conservativeness=settings.schedule_conservativeness,
        eviction=settings.radix_eviction_policy,
        schedule=settings.schedule_policy,
        overlap=not settings.disable_overlap_schedule,
        mixed_chunk=settings.enable_mixed_chunk and chunked,
        receive_interval=settings.scheduler_recv_interval,
        priority_scheduling=settings.enable_priority_scheduling,
        high_priority_first=settings.enable_priority_scheduling and not settings.schedule_low_priority_values_first,
        preemption_threshold=settings.priority_scheduling_preemption_threshold,
        prefill_max_requests=settings.prefill_max_requests,
    )


def _groups(settings: VllmSettings) -> dict[str, Any]:
    """Arguments of a plan for the recording's groups of KV blocks, and the longest request that they are made for."""
    if not settings.has_groups:
        return {}
    groups = GroupsPlan(
        full=0 if settings.sliding_window else 1,
        windowed=0 if settings.mamba_groups else 1,
        states=settings.mamba_groups,
        checkpoints=settings.mamba_prefill_checkpoints,
        window_tokens=settings.hybrid_window or settings.sliding_window,
        retention_tokens=settings.prefix_cache_retention_interval,
    )
    return {"groups": groups, "max_request_tokens": settings.max_model_len}


def _speculation(settings: VllmSettings) -> dict[str, Any]:
    """Arguments of a plan for the recording's drafted tokens."""
    drafts = settings.speculation
    if drafts is None:
        return {}
    eagle = drafts.method == "eagle"
    plan = SpeculationPlan(
        drafts.draft_tokens, drafts.draft_tokens if eagle else 0, eagle, tuple(drafts.accepted), drafts.seed
    )
    return {"speculation": plan, "max_request_tokens": settings.max_model_len}


def _sglang_speculation(recording: EngineRecording, settings: SglangSettings) -> dict[str, Any]:
    """Likewise of SGLang.

    Raises:
        RecordingError: a release whose scheduler goes by other rules.
    """
    drafts = settings.speculation
    if drafts is None:
        return {}
    if not simulates_drafts(recording.version):
        message = f"speculation is simulated by the rules of {SGLANG_SINCE}; this is {recording.version}"
        raise recording.error("config.speculation", message)
    headed = drafts.method == "eagle"
    return {"speculation": SpeculationPlan(drafts.draft_tokens, 0, headed, tuple(drafts.accepted), drafts.seed)}


def _windows(recording: EngineRecording, settings: SglangSettings) -> dict[str, Any]:
    """Arguments of a plan for the recording's pool of layers with a sliding window.

    Raises:
        RecordingError: a release whose scheduler goes by other rules.
    """
    if settings.sliding_window_size is None or settings.swa_max_total_num_tokens is None:
        return {}
    if not window_pools.simulates_windows(recording.version):
        message = f"pools for windows are simulated by the rules of {window_pools.SINCE}; this is {recording.version}"
        raise recording.error("config.sliding_window_size", message)
    page = settings.page_size
    capacity = settings.swa_max_total_num_tokens // page * page
    return {"windows": WindowsPlan(settings.sliding_window_size, capacity)}


def _states(recording: EngineRecording, settings: SglangSettings) -> dict[str, Any]:
    """Arguments of a plan for the recording's pool of states.

    Raises:
        RecordingError: a release whose scheduler goes by other rules, or what is not simulated.
    """
    if settings.max_mamba_cache_size is None:
        return {}
    if not window_pools.simulates_windows(recording.version):
        message = f"pools of states are simulated by the rules of {window_pools.SINCE}; this is {recording.version}"
        raise recording.error("config.max_mamba_cache_size", message)
    for name, missing in (
        ("mamba_radix_cache_strategy", settings.state_strategy == "extra_buffer_lazy"),
        ("mamba_max_states_per_path", settings.mamba_max_states_per_path >= 0 and not settings.disable_radix_cache),
    ):
        if missing:
            raise recording.error(f"config.{name}", f"{getattr(settings, name)} is not simulated")
    grid = state_pools.grid_tokens(settings.page_size, settings.mamba_chunk_size)
    interval = state_pools.interval_tokens(settings.page_size, settings.mamba_chunk_size, settings.mamba_track_interval)
    return {"states": StatesPlan(settings.max_mamba_cache_size, settings.state_buffers, grid, interval)}


def _offloading(settings: VllmSettings) -> dict[str, Any]:
    """Arguments of a plan for the recording's host memory behind vLLM's offloading connector or LMCache's."""
    offload = settings.offload
    if offload is None:
        return {}
    if isinstance(offload, LmcacheSettings):
        size = offload.chunk_tokens
        movement = MovementPlan(
            "lmcache",
            chunk_tokens=size,
            save_decode=offload.save_decode,
            host_read=TransferLaw(*offload.to_device),
            host_write=TransferLaw(*offload.to_host),
        )
        tier = TierPlan("host", "worker", offload.capacity_tokens // size * size, size, offload.eviction)
        return {"tiers": (tier,), "movement": movement}
    block_tokens = settings.block_size * offload.block_size_factor
    capacity = offload.capacity_tokens // block_tokens * block_tokens
    movement = MovementPlan(
        "offload",
        store_threshold=offload.store_threshold,
        host_read=TransferLaw(*offload.to_device),
        host_write=TransferLaw(*offload.to_host),
    )
    return {"tiers": (TierPlan("host", "worker", capacity, block_tokens, offload.eviction),), "movement": movement}


def _hicache(recording: EngineRecording, settings: SglangSettings) -> dict[str, Any]:
    """Arguments of a plan for the recording's host and storage tiers.

    Raises:
        RecordingError: settings that are not understood.
    """
    if settings.hicache is None:
        return {}
    try:
        config = HostTierConfig.from_recording(settings.hicache)
    except ValueError as error:
        raise recording.error("config", str(error)) from None
    page = settings.page_size
    device_tokens = settings.max_total_tokens // page * page
    tiers = [TierPlan("host", "worker", config.host_tokens(device_tokens, page), page)]
    movement = MovementPlan(
        "hicache",
        write_policy=config.write_policy,
        parameters=config.parameters,
        host_write=TransferLaw(config.to_host.base_s, config.to_host.per_token_s),
        host_read=TransferLaw(config.to_device.base_s, config.to_device.per_token_s),
    )
    if (storage := config.storage) is not None:
        read = TransferLaw(storage.read.base_s, storage.read.per_token_s)
        write = TransferLaw(storage.write.base_s, storage.write.per_token_s)
        tiers.append(
            TierPlan("storage", "worker", _NO_LIMIT_TOKENS, page, read=read, write=write, query_s=storage.query_s)
        )
        movement = replace(
            movement,
            prefetch=storage.prefetch_policy,
            prefetch_threshold_tokens=storage.prefetch_threshold,
            parameters=config.parameters + storage.parameters,
            jumps=recording.jumps,
        )
    return {"tiers": tuple(tiers), "movement": movement}


def _refuse_long_requests(recording: EngineRecording, window_tokens: int) -> None:
    for row in recording.requests:
        if row.input_tokens + row.output_tokens > window_tokens:
            raise recording.error(
                "config.max_model_len",
                f"request {row.id} of {row.input_tokens} + {row.output_tokens} tokens exceeds {window_tokens}; how the "
                "engine cuts it is not simulated",
            )
