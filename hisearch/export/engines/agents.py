"""Engine settings for agents' objects: flags of LoRA adapters, and notes on settings without a flag.

Flags were read in SGLang's documentation ("LoRA Serving") and ``server_args.py``. Those of vLLM, with the ranks
that it accepts, are from its argument parser; ``tests/export`` checks them against the parsers of two releases each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from hisearch.export.rendering import render_notes
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.deployments.agent_memory import OWN_KV_EVICTION, AdaptersSpec, AgentMemorySpec, TargetName
from hisearch.specs.deployments.deployment import PoolSpec

#: Policies that each engine has; for others the nearest is written, with a note.
_POLICIES = {"sglang": ("lru", "queued"), "vllm": ("lru",)}
#: Values that vLLM accepts for the largest rank.
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


#: Engine -> flag -> its value for a section with adapters. "all" targets or none, so that the loaded adapters decide.
#: Slots are those of the adapter pool.
TABLES: dict[str, tuple[tuple[str, Callable[[AgentMemorySpec, AdaptersSpec], Any]], ...]] = {
    "sglang": (
        ("--enable-lora", lambda agents, adapters: True),
        ("--max-lora-rank", lambda agents, adapters: adapters.rank),
        (
            "--lora-target-modules",
            lambda agents, adapters: "all" if set(adapters.targets) == set(get_args(TargetName)) else None,
        ),
        ("--max-loras-per-batch", lambda agents, adapters: agents.slots),
        ("--lora-eviction-policy", lambda agents, adapters: "lru"),
        ("--enable-lora-overlap-loading", lambda agents, adapters: agents.policy not in OWN_KV_EVICTION),
    ),
    "vllm": (
        ("--enable-lora", lambda agents, adapters: True),
        ("--max-loras", lambda agents, adapters: agents.slots),
        # The smallest value that vLLM accepts and that suffices; the largest where none does.
        (
            "--max-lora-rank",
            lambda agents, adapters: next((rank for rank in _VLLM_RANKS if rank >= adapters.rank), _VLLM_RANKS[-1]),
        ),
    ),
}


def notes(pool: PoolSpec, objects_bytes: float = 0.0) -> list[str]:
    """Notes on settings of the section that the engine lacks, as sentences.

    objects_bytes: of objects in host memory of one replica, outside its tiers.
    """
    if pool.agents is None:
        return []
    engine = pool.engine.name
    return render_notes(
        "agents.md.j2",
        agents=pool.agents,
        objects_gib=objects_bytes / 2**30,
        engine=engine,
        title=ENGINE_TITLES[engine],
        policies=_POLICIES[engine],
        largest_rank=_VLLM_RANKS[-1],
    )
