"""Notes on settings that are not what they seem to be: for the reader to judge, never a refusal.

``hisearch doctor``, ``hisearch simulate`` and its JSON show the same notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from hisearch.base.policies import WRITE_POLICIES
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.checks.checks import cpu_memory_note
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.engine_settings import UNREAD
from hisearch.specs.deployments.tier_checks import TierProblem, capacity_problems, other_memory, spread_of
from hisearch.specs.documents.resolved import ResolvedDeployment
from hisearch.specs.errors import Problem
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.windows import blocks_of_page


def setting_notes(resolved: ResolvedDeployment) -> list[Problem]:
    """For each pool: settings without effect; tiers or CPUs with more memory than a full host, or other memory."""
    media = {name: document.spec for name, document in resolved.media.items()}
    problems = []
    for index, pool in enumerate(resolved.deployment.pools):
        host_name = pool.host or resolved.accelerators[pool.accelerator].spec.host
        notes = [*_unread(pool), *_without_effect(pool), *_without_windows(resolved, pool)]
        notes += _other_blocks(resolved.model_of(pool).spec, pool)
        notes += _other_engine(resolved.deployment, pool)
        if host_name is not None:
            host = resolved.hosts[host_name].spec
            notes += other_memory(pool.tiers, media, host_name, host)
            spread = spread_of(pool, resolved.model_of(pool).spec, host)
            notes += capacity_problems(pool.tiers, pool.parallelism, media, host_name, host, spread)
            block, devices = pool.devices, resolved.hardware.device_specs
            if block is not None and (note := cpu_memory_note(pool, block, devices, host_name, host)):
                notes.append(TierProblem("devices.attached", note))
        problems += [resolved.document.problem(f"spec.pools.{index}.{note.key}", note.message) for note in notes]
    return problems


def _unread(pool: PoolSpec) -> Iterator[TierProblem]:
    """Settings of the engine that another one has."""
    for name in UNREAD[pool.engine.name]:
        value = getattr(pool.engine, name)
        if value != type(pool.engine).model_fields[name].default:
            yield TierProblem(
                f"engine.{name}", f"{value}: {ENGINE_TITLES[pool.engine.name]} has none; it changes nothing"
            )


def _other_engine(deployment: DeploymentSpec, pool: PoolSpec) -> Iterator[TierProblem]:
    """Decode workers of another engine than the prefill workers that send them KV."""
    if pool.role != "decode":
        return
    for other in deployment.pools:
        alike = deployment.model_ref(other) == deployment.model_ref(pool)
        if other.role == "prefill" and alike and other.engine.name != pool.engine.name:
            message = f"{pool.engine.name}, but pool {other.name} runs {other.engine.name}: "
            yield TierProblem("engine.name", f"{message}as released no engine takes another one's KV")


def _without_effect(pool: PoolSpec) -> Iterator[TierProblem]:
    """Settings of HiCache that change nothing."""
    if pool.kv_connector != "hicache" or not pool.tiers:
        return
    if pool.tiers[0].eviction != pool.engine.eviction:
        message = f"SGLang evicts its host tier by engine.eviction, here {pool.engine.eviction}: no flag sets this one"
        yield TierProblem("tiers.0.eviction", message)
    if WRITE_POLICIES[pool.movement.write_policy].at_eviction and len(pool.tiers) > 1:
        behind = " and ".join(tier.medium for tier in pool.tiers[1:])
        message = (
            f"{pool.movement.write_policy}: SGLang writes nothing to storage then; nothing will ever be in {behind}, "
            "at full price"
        )
        yield TierProblem("movement.write_policy", message)


def _without_windows(resolved: ResolvedDeployment, pool: PoolSpec) -> Iterator[TierProblem]:
    """Layers with a sliding window behind vLLM's tiers."""
    model = resolved.model_of(pool).spec
    windows = model.sliding_window_tokens > 0 and not model.windows_are_chunks
    if pool.engine.name == "vllm" and pool.tiers and (windows or model.compressed_attention is not None):
        message = (
            "vLLM keeps, copies and finds blocks of layers with a sliding window apart; with tiers their memory is set "
            "aside, and every block is simulated as full attention's"
        )
        yield TierProblem("tiers", message)


def _other_blocks(model: ModelSpec, pool: PoolSpec) -> Iterator[TierProblem]:
    """Under vLLM, layers whose blocks hold fewer tokens than others'."""
    if pool.engine.name != "vllm" or pool.tiers or model.window_heads is None:
        return
    full, windowed = blocks_of_page(model, pool.tensor_parallel)
    if (most := max(full, windowed)) > 1:
        which, size = "with full attention" if full > 1 else "with a window", pool.engine.page_size
        yield TierProblem(
            "engine.name",
            f"vLLM keeps blocks of {size} tokens in layers {which}, of {size * most} in the others; all are simulated "
            f"in pages of {size * most} tokens, which take up to {most - 1} more of the small blocks per group and "
            "request",
        )
