"""Engine settings for agents' objects: flags of LoRA adapters, and notes on settings without a flag.

Flags were read in SGLang's documentation ("LoRA Serving") and ``server_args.py`` (0.5.9). Those of vLLM, with the
ranks that it accepts, are from its argument parser (0.19.1); ``tests/export`` checks them against it.
"""

from __future__ import annotations

from typing import get_args

from hisearch.specs.deployments.agent_memory import OWN_KV_EVICTION, AgentMemorySpec, TargetName
from hisearch.specs.deployments.deployment import PoolSpec

#: Policies that each engine has; for others the nearest is written, with a note.
_POLICIES = {"sglang": ("lru", "queued"), "vllm": ("lru",)}
#: Values that vLLM accepts for the largest rank.
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_NAMES = {"sglang": "SGLang", "vllm": "vLLM"}


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
    agents, lines, engine = pool.agents, list[str](), pool.engine.name
    if agents is None:
        return lines
    known = _POLICIES[engine]
    if agents.policy == "by_slot":
        lines.append(
            "SGLang evicts adapters by slot only before it had --lora-eviction-policy: the flags are those of lru, "
            "under which calls wait for fewer loads than simulated."
        )
    elif agents.policy not in known:
        lines.append(
            f"{_NAMES[engine]} has no policy {agents.policy} for what agents need: the flags are those of {known[-1]}, "
            f"under which calls wait for more loads than simulated. Simulate {known[-1]} as well before you rely on it."
        )
    if agents.objects:
        names = ", ".join(agent_object.name for agent_object in agents.objects)
        lines.append(
            f"{_NAMES[engine]} does not manage {names}: device memory for them is the operator's to keep free."
        )
    if agents.host == "tier":
        lines.append(
            "SGLang's host pool is its own: give it, with --hicache-size, what the adapters leave of the first tier."
        )
    if agents.host_gib is not None:
        lines.append(
            f"Set --max-loaded-loras to the adapters that {agents.host_gib:g} GiB hold; the second tier's disk has all "
            "of them. SGLang loads none from there ahead of its call."
        )
    if agents.adapters is not None and agents.slots is None:
        lines.append(
            "SGLang keeps adapters in a pool of their own; simulated in one with KV. Set --max-loras-per-batch."
        )
    if agents.adapters is not None and engine == "vllm":
        lines.append(
            "Name the adapters with --lora-modules, and set --max-cpu-loras to how many there are: in the simulation "
            "host memory has them all."
        )
        if agents.adapters.rank > _VLLM_RANKS[-1]:
            lines.append(f"vLLM takes adapters of rank {_VLLM_RANKS[-1]} at most.")
    if agents.adapters is not None and engine == "sglang":
        lines.append("Name the adapters with --lora-paths, or load them through the server's API.")
    return lines
