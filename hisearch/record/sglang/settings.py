"""SGLang's server arguments from a case's settings, and the memory pools of a model that has no weights."""

from __future__ import annotations

import json
from typing import Any

from hisearch.record.sglang import drafts
from hisearch.record.sglang.states import state_arguments

#: Longer than any request of a recording.
CONTEXT_TOKENS = 1 << 20
#: Settings of a case that are server arguments of the same name, with the values used where they are absent.
SERVER_ARGUMENTS: dict[str, Any] = {
    "page_size": 1,
    "chunked_prefill_size": 2048,
    "max_prefill_tokens": 16384,
    "max_running_requests": 64,
    "max_total_tokens": 20000,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "radix_eviction_policy": "lru",
    "disable_radix_cache": False,
    "enable_mixed_chunk": False,
    "disable_overlap_schedule": True,
    "enable_priority_scheduling": False,
    "schedule_low_priority_values_first": False,
    "priority_scheduling_preemption_threshold": 10,
    "prefill_max_requests": None,
    "scheduler_recv_interval": 1,
}
#: The same for the host tier and storage.
HICACHE_ARGUMENTS: dict[str, Any] = {
    "hicache_ratio": 2.0,
    "hicache_write_policy": "write_through",
    "hicache_storage_prefetch_policy": "best_effort",
}


class Ignored:
    """Stands in for parts that report or communicate: methods do nothing, values are False."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing."""
        return None

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *details: object) -> None:
        pass


def arguments(config: dict[str, Any]) -> dict[str, Any]:
    """Server arguments that a case's settings and the lack of a device decide, by name.

    Args:
        config: settings of a case.
    """
    chosen = {name: config.get(name, default) for name, default in SERVER_ARGUMENTS.items()}
    chosen.update(device="cpu", attention_backend="torch_native", skip_tokenizer_init=True, enable_metrics=False)
    chosen.update(state_arguments(config))
    if config.get("speculation") is not None:
        chosen.update(drafts.arguments(config["speculation"]))
    if config.get("hicache") is not None:
        hicache = config["hicache"]
        chosen.update({name: hicache.get(name, default) for name, default in HICACHE_ARGUMENTS.items()})
        chosen.update(
            enable_hierarchical_cache=True,
            hicache_size=0,
            hicache_io_backend="direct",
            hicache_mem_layout="layer_first",
            disable_hicache_numa_detect=True,
        )
        if hicache.get("storage") is not None:
            names = ("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token")
            chosen["hicache_storage_backend"] = "file"
            chosen["hicache_storage_backend_extra_config"] = json.dumps(
                {name: hicache[name] for name in names if name in hicache}
            )
    return chosen


def pool_tokens(config: dict[str, Any]) -> int:
    """The device pool in whole pages."""
    page = block_tokens(config)
    return int(config["max_total_tokens"]) // page * page


def block_tokens(config: dict[str, Any]) -> int:
    """Tokens of a page of the allocator and the radix cache: each rank that shares a sequence's KV has a page of it."""
    return int(config.get("page_size", 1)) * int(config.get("dcp_size", 1))
