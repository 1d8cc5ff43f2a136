"""What SGLang can be told of agents' objects: flags of its LoRA adapters, and in words what has none.

Flags were read in SGLang's documentation ("LoRA Serving") and in ``server_args.py`` (0.5.9).
"""

from __future__ import annotations

from typing import get_args

from hisearch.specs.agent_memory import AgentMemorySpec, TargetName
from hisearch.specs.deployment import PoolSpec

#: Policies that the engine has; of the others the nearest is written, and a note says so.
_OWN = ("lru", "queued")


def _with_adapters(pool: PoolSpec) -> AgentMemorySpec | None:
    """The section, where it has adapters."""
    return pool.agents if pool.agents is not None and pool.agents.adapters is not None else None


def enable_lora(pool: PoolSpec) -> bool | None:
    """``--enable-lora``."""
    return True if _with_adapters(pool) is not None else None


def max_lora_rank(pool: PoolSpec) -> str | None:
    """``--max-lora-rank``."""
    agents = _with_adapters(pool)
    return str(agents.adapters.rank) if agents is not None and agents.adapters is not None else None


def lora_targets(pool: PoolSpec) -> str | None:
    """``--lora-target-modules``: all of them, or absent: as the adapters that the server is given say."""
    agents = _with_adapters(pool)
    if agents is None or agents.adapters is None:
        return None
    return "all" if set(agents.adapters.targets) == set(get_args(TargetName)) else None


def max_loras_per_batch(pool: PoolSpec) -> str | None:
    """``--max-loras-per-batch``: slots of the pool that SGLang keeps for adapters."""
    agents = _with_adapters(pool)
    return str(agents.slots) if agents is not None and agents.slots is not None else None


def lora_eviction_policy(pool: PoolSpec) -> str | None:
    """``--lora-eviction-policy``."""
    return "lru" if _with_adapters(pool) is not None else None


def overlap_loading(pool: PoolSpec) -> bool | None:
    """``--enable-lora-overlap-loading``: loads while other requests run."""
    agents = _with_adapters(pool)
    return True if agents is not None and agents.policy != "lru" else None


def notes(pool: PoolSpec) -> list[str]:
    """What of the section no setting of the engine says, as sentences."""
    agents, found = pool.agents, list[str]()
    if agents is None:
        return found
    if agents.policy not in _OWN:
        found.append(
            f"No engine has the policy {agents.policy} for what agents need: the flags are those of queued, under "
            "which calls wait for more loads than simulated. Simulate queued as well before you rely on it."
        )
    if agents.objects:
        names = ", ".join(other.name for other in agents.objects)
        found.append(f"SGLang does not manage {names}: device memory for them is the operator's to keep free.")
    if agents.adapters is not None and agents.slots is None:
        found.append(
            "SGLang keeps adapters in a pool of their own; simulated in one with KV. Set --max-loras-per-batch."
        )
    if agents.adapters is not None:
        found.append("Name the adapters with --lora-paths, or load them through the server's API.")
    return found
