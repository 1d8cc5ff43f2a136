"""Engine settings for agents' objects: flags of LoRA adapters, and notes on settings without a flag.

Flags were read in SGLang's documentation ("LoRA Serving") and ``server_args.py`` (0.5.9). Those of vLLM, with the
ranks that it accepts, are from its argument parser (0.19.1); ``tests/export`` checks them against it.
"""

from __future__ import annotations

from typing import get_args

from hisearch.export.rendering import render_notes
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.deployments.agent_memory import OWN_KV_EVICTION, AgentMemorySpec, TargetName
from hisearch.specs.deployments.deployment import PoolSpec

#: Policies that each engine has; for others the nearest is written, with a note.
_POLICIES = {"sglang": ("lru", "queued"), "vllm": ("lru",)}
#: Values that vLLM accepts for the largest rank.
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def _with_adapters(pool: PoolSpec) -> AgentMemorySpec | None:
    """The agents section, where it has adapters."""
    return pool.agents if pool.agents is not None and pool.agents.adapters is not None else None


def enable_lora(pool: PoolSpec) -> bool | None:
    """``--enable-lora``."""
    return True if _with_adapters(pool) is not None else None


def max_lora_rank(pool: PoolSpec) -> str | None:
    """``--max-lora-rank``."""
    agents = _with_adapters(pool)
    return str(agents.adapters.rank) if agents is not None and agents.adapters is not None else None


def vllm_lora_rank(pool: PoolSpec) -> str | None:
    """VLLM's ``--max-lora-rank``: the smallest accepted value that suffices; the largest where none does."""
    rank = max_lora_rank(pool)
    return None if rank is None else str(next((known for known in _VLLM_RANKS if known >= int(rank)), _VLLM_RANKS[-1]))


def lora_targets(pool: PoolSpec) -> str | None:
    """``--lora-target-modules``: "all", or absent, so that the loaded adapters decide."""
    agents = _with_adapters(pool)
    if agents is None or agents.adapters is None:
        return None
    return "all" if set(agents.adapters.targets) == set(get_args(TargetName)) else None


def max_loras_per_batch(pool: PoolSpec) -> str | None:
    """SGLang's ``--max-loras-per-batch``, vLLM's ``--max-loras``: slots of the adapter pool."""
    agents = _with_adapters(pool)
    return str(agents.slots) if agents is not None and agents.slots is not None else None


def lora_eviction_policy(pool: PoolSpec) -> str | None:
    """``--lora-eviction-policy``."""
    return "lru" if _with_adapters(pool) is not None else None


def overlap_loading(pool: PoolSpec) -> bool | None:
    """``--enable-lora-overlap-loading``: loads while other requests run."""
    agents = _with_adapters(pool)
    return True if agents is not None and agents.policy not in OWN_KV_EVICTION else None


def notes(pool: PoolSpec) -> list[str]:
    """Notes on settings of the section that the engine lacks, as sentences."""
    if pool.agents is None:
        return []
    engine = pool.engine.name
    return render_notes(
        "agents.md.j2",
        agents=pool.agents,
        engine=engine,
        title=ENGINE_TITLES[engine],
        policies=_POLICIES[engine],
        largest_rank=_VLLM_RANKS[-1],
    )
