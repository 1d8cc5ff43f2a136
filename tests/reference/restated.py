"""Schedules of a recording's requests by the engine's rules restated, in the form of ``hisearch.validate.replay``."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args, get_type_hints

import numpy as np

from hisearch.specs.base import EngineName
from hisearch.validate.recorded_settings import SglangSettings, VllmSettings
from hisearch.validate.recorded_trace import declared_limit
from hisearch.validate.recording import EngineRecording, RequestRow
from hisearch.validate.replay import Decision, Run
from hisearch.validate.step_law import StepLaw
from tests.reference.restatement import (
    grammars,
    lora,
    sglang,
    sglang_states,
    sglang_windows,
    vllm,
    vllm_groups,
    vllm_states,
)
from tests.reference.restatement.content import AdapterContent, BlockContent, Content
from tests.reference.restatement.recording import Cost, Recording, Request, Step
from tests.reference.restatement.sglang_state import SglangConfig

#: Schedule policies of SGLang that look at the cache; without a cache the engine uses fcfs.
_CACHE_AWARE = ("lpm", "dfs-weight")


def without_cache(recording: EngineRecording) -> EngineRecording:
    """The same requests and settings with every cache off, also the host tier; every hit is then 0."""
    settings = recording.settings
    if isinstance(settings, VllmSettings):
        off: VllmSettings | SglangSettings = settings.model_copy(update={"prefix": False})
    else:
        policy = "fcfs" if settings.schedule_policy in _CACHE_AWARE else settings.schedule_policy
        update = {"disable_radix_cache": True, "hicache": None, "schedule_policy": policy}
        off = settings.model_copy(update={**update, "radix_eviction_policy": "lru"})
    return replace(recording, settings=off)


def restated_run(recording: EngineRecording, law: StepLaw) -> Run:
    """Decisions by the rules restated in plain Python, under the recording's settings and ``law``.

    Raises:
        RecordingError: a request that the engine would refuse, settings on which it would fail, or a setting that the
            restatement does not have.
    """
    settings = recording.settings

    def cost(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
        del sampling
        return law.seconds([*chunks, *((1, context) for context in decodes)])

    requests = [_restated(index, row, recording) for index, row in enumerate(recording.requests)]
    try:
        if isinstance(settings, VllmSettings):
            done = _replay_vllm(recording, settings, requests, cost)
        else:
            done = _replay_sglang(recording, settings, requests, cost)
    except (ValueError, RuntimeError) as error:
        raise recording.error("", f"the engine cannot serve this: {error}") from None
    count = len(requests)
    return Run(
        [_restated_step(step, recording.engine) for step in done.steps],
        np.array([done.first_token_s.get(index, np.nan) for index in range(count)]),
        np.array([done.finish_s.get(index, np.nan) for index in range(count)]),
        np.array([done.reused_tokens.get(index, 0) for index in range(count)]),
    )


def _replay_vllm(recording: EngineRecording, settings: VllmSettings, requests: list[Request], cost: Cost) -> Recording:
    given = settings.model_dump()
    if settings.mamba_groups:
        return vllm_states.replay(vllm_states.StatesConfig.from_recording(given, recording.version), requests, cost)
    if settings.has_groups:
        return vllm_groups.replay(vllm_groups.GroupsConfig.from_recording(given, recording.version), requests, cost)
    if settings.lora is not None:
        worker = vllm.VllmConfig.from_recording(given, recording.version)
        return lora.replay_vllm(worker, lora.LoraConfig.from_recording(given["lora"]), requests, cost)
    if settings.structured is not None:
        worker = vllm.VllmConfig.from_recording(given, recording.version)
        laws = grammars.GrammarConfig.from_recording(given["structured"])
        return grammars.replay_vllm(worker, laws, requests, cost)
    return vllm.replay(vllm.VllmConfig.from_recording(given, recording.version), requests, cost)


def _replay_sglang(
    recording: EngineRecording, settings: SglangSettings, requests: list[Request], cost: Cost
) -> Recording:
    policies = get_args(get_type_hints(SglangConfig)["schedule_policy"])
    if settings.schedule_policy not in policies:
        raise recording.error(
            "config.schedule_policy", f"{settings.schedule_policy} is not restated; known: {', '.join(policies)}"
        )
    if settings.has_windows:
        windows = sglang_windows.WindowsConfig.from_recording(settings.model_dump(), recording.version)
        return sglang_windows.replay(windows, requests, cost)
    if settings.has_states:
        states = sglang_states.StatesConfig.from_recording(settings.model_dump(), recording.version)
        return sglang_states.replay(states, requests, cost)
    try:
        config = SglangConfig.from_recording(settings.model_dump(), recording.version)
        config = replace(config, jumps=recording.jumps)
    except ValueError as error:
        raise recording.error("config", str(error)) from None
    if settings.lora is not None:
        limits = lora.LoraConfig.from_recording(settings.lora.model_dump())
        return lora.replay_sglang(config, limits, requests, cost)
    if settings.structured is not None:
        laws = grammars.GrammarConfig.from_recording(settings.structured.model_dump())
        return grammars.replay_sglang(config, laws, requests, cost)
    return sglang.replay(config, requests, cost)


def _restated(index: int, row: RequestRow, recording: EngineRecording) -> Request:
    """A request whose output length the engine knows."""
    content: Content = BlockContent(index, row.block_ids, recording.block_tokens)
    if row.adapter is not None:
        content = AdapterContent(row.adapter, content)
    limit = declared_limit(recording, row)
    return Request(
        index,
        row.arrival_s,
        row.input_tokens,
        row.output_tokens,
        limit,
        content,
        row.priority,
        row.max_output_tokens is None,
        adapter=row.adapter,
        grammar=row.grammar,
    )


def _restated_step(step: Step, engine: EngineName) -> Decision:
    batch = [(cast(int, entry.id), entry.computed, entry.new) for entry in step.batch]
    pool = step.pool if engine == "sglang" else None
    return Decision(step.start_s, step.scheduled_s, step.end_s, step.kind, batch, step.preempted, pool)
