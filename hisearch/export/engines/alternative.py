"""A pool on the engine that was not simulated: the nearest settings, and notes on those that are dropped."""

from __future__ import annotations

from typing import Any

from hisearch.specs.deployments.deployment import SCHEDULES, EngineSpec, PoolSpec
from hisearch.specs.deployments.tiers import CONNECTOR_EVICTIONS, KV_CONNECTORS, MovementSpec, kv_connector_title

#: Settings that only one engine has, and their values without an effect.
_VLLM_ALONE = {
    "long_prefill_tokens": 0,
    "long_prefill_adaptive": False,
    "reserve_full_prompt": True,
    "watermark": 0.0,
    "cudagraph_mode": None,
}
_SGLANG_ALONE = {
    "mixed_chunk": False,
    "receive_interval": 1,
    "high_priority_first": False,
    "preemption_threshold": 10,
    "prefill_max_requests": None,
}


def _left_behind(engine: EngineSpec, alone: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Settings that the other engine lacks, reset; adds a note for each that had an effect."""
    for name, neutral in alone.items():
        if getattr(engine, name) != neutral:
            notes.append(f"{name} {getattr(engine, name)} has no counterpart and is left out.")
    return dict(alone)


def other_engine(engine: EngineSpec) -> tuple[EngineSpec, tuple[str, ...]]:
    """The nearest settings of another engine (SGLang for vLLM, else vLLM), and notes on dropped settings."""
    notes: list[str] = []
    engine = engine.model_copy(update={"version": ""})  # The newest modelled release of the other engine.
    if engine.name == "vllm":
        update = {"name": "sglang", "page_tokens": engine.page_size} | _left_behind(engine, _VLLM_ALONE, notes)
        notes.append("SGLang runs prefill batches before decode batches; vLLM mixes them in one step.")
        if engine.speculation is not None:
            update |= {"overlap": engine.overlap or engine.speculation.method == "ngram"}
        return EngineSpec.model_validate(engine.model_dump() | update), tuple(notes)
    if engine.name == "sglang":
        notes.append("vLLM mixes prefill and decode in one step; SGLang runs prefill batches first.")
    elif engine.capacity_policy == "guaranteed_no_evict":
        notes.append("vLLM admits a request once its prompt fits, and preempts where outputs outgrow the memory.")
    chunk_tokens = engine.chunk_tokens
    if chunk_tokens < engine.max_running_requests:
        chunk_tokens = engine.max_running_requests
        notes.append(f"The step's token budget is raised to {chunk_tokens}: one token for each running request.")
    if engine.eviction != "lru":
        notes.append(f"vLLM evicts by lru alone; the simulated policy is {engine.eviction}.")
    page_tokens = engine.page_tokens if engine.page_tokens is not None and engine.page_tokens % 16 == 0 else 16
    if page_tokens != engine.page_size:
        notes.append(f"KV pages of {page_tokens} tokens; simulated with {engine.page_size}.")
    if engine.priority_scheduling:
        if engine.schedule == "lof":
            notes.append("vLLM serves requests of one priority first come first served; simulated with lof.")
        engine = engine.model_copy(update={"schedule": "priority", "priority_scheduling": False})
    if engine.schedule not in SCHEDULES["vllm"]:
        notes.append(f"vLLM has no schedule {engine.schedule}: requests are served first come first served.")
        engine = engine.model_copy(update={"schedule": "fcfs"})
    update = _left_behind(engine, _SGLANG_ALONE, notes)
    update |= {
        "name": "vllm",
        "eviction": "lru",
        "capacity_policy": "guaranteed_no_evict",
        "chunk_tokens": chunk_tokens,
        "page_tokens": page_tokens,
    }
    if engine.speculation is not None and engine.speculation.method == "ngram" and engine.overlap:
        notes.append("vLLM has no asynchronous scheduling with n-gram drafts; simulated with overlap.")
        update["overlap"] = False
    return EngineSpec.model_validate(engine.model_dump() | update), tuple(notes)


def on_other_engine(pool: PoolSpec, other: EngineSpec) -> tuple[PoolSpec, list[str]]:
    """The pool on another engine with the nearest tiers of its KV connector, and notes on dropped settings."""
    if not pool.tiers or (pool.kv_connector == "lmcache" and "lmcache" in KV_CONNECTORS[other.name]):
        return pool.model_copy(update={"engine": other}), []
    moved = pool.model_copy(update={"engine": other, "movement": MovementSpec()})
    title, lines = kv_connector_title(other.name, moved.kv_connector), list[str]()
    nearest = pool.tiers[0]
    if len(pool.tiers) > 1:
        lines.append(f"Tiers behind host memory are left out: {title} was given {nearest.medium} alone.")
    if nearest.eviction not in CONNECTOR_EVICTIONS.get(moved.kv_connector, ("lru",)):
        lines.append(f"Host memory evicts by lru; the simulated policy is {nearest.eviction}.")
        nearest = nearest.model_copy(update={"eviction": "lru"})
    changed = (
        name for name, value in MovementSpec() if value != getattr(pool.movement, name) and name != "kv_connector"
    )
    lines += [f"{name} {getattr(pool.movement, name)} has no counterpart and is left out." for name in changed]
    return moved.model_copy(update={"tiers": [nearest]}), lines
