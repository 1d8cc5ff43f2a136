"""Random cases for SGLang: every setting, and pools small enough for pressure in a good share of them."""

from __future__ import annotations

import random
from typing import Any

from hisearch.record.workload import Row, make_requests


def draw_case(rng: random.Random, version: str) -> tuple[dict[str, Any], list[Row], int]:
    """Settings, requests, tokens of an entry of ``block_ids``; the same for every version but for slru."""
    page = rng.choice((1, 1, 8, 16, 16, 32, 64))
    count = rng.randint(20, 120)
    longest = rng.choice((200, 600, 1500))
    outputs = rng.choice((30, 120, 300))
    priorities = rng.random() < 0.15
    rows = make_requests(
        {
            "requests": count,
            "seed": rng.randrange(2**31),
            "rate_per_s": rng.choice((5.0, 20.0, 80.0, 300.0)),
            "burst": rng.choice((1, 1, 4)),
            "input_tokens": [10, longest],
            "output_tokens": [1, outputs],
            "shared_prefixes": {
                "count": rng.choice((0, 2, 6)),
                "tokens": [20, longest],
                "share": rng.choice((0.4, 0.8)),
            },
            "turns": rng.choice((0.0, 0.2, 0.5)),
            "repeats": rng.choice((0.0, 0.1)),
            "priorities": rng.choice((2, 4)) if priorities else 0,
            "limits": rng.choice((0.0, 0.0, 0.5, 1.0)),
            "eos": rng.choice((0.5, 1.0)),
            "max_tokens": 6000,
        }
    )
    need = max(row["input_tokens"] + row.get("max_output_tokens", row["output_tokens"]) for row in rows) + 4 * page + 4
    config: dict[str, Any] = {
        "page_size": page,
        "chunked_prefill_size": rng.choice((-1, 64, 128, 256, 512, 2048)),
        "max_prefill_tokens": rng.choice((512, 1024, 4096, 16384)),
        "max_running_requests": rng.choice((4, 8, 16, 32, 64)),
        # Half of the pools hold little more than the longest request.
        "max_total_tokens": int(need * rng.choice((1.1, 1.5, 2.0, 3.0, 6.0, 20.0))) + page,
        "schedule_policy": rng.choice(("fcfs", "fcfs", "fcfs", "lpm", "lof", "dfs-weight")),
        "schedule_conservativeness": rng.choice((0.1, 0.3, 1.0, 1.0, 1.4)),
        "radix_eviction_policy": rng.choice(("lru", "lru", "lru", "lfu", "fifo", "mru", "filo", "priority")),
        "disable_radix_cache": rng.random() < 0.12,
        "enable_mixed_chunk": rng.random() < 0.25,
        "disable_overlap_schedule": rng.random() < 0.5,
    }
    config["chunked_prefill_size"] = _whole_pages(config["chunked_prefill_size"], page)
    if priorities:
        config["enable_priority_scheduling"] = True
        config["schedule_low_priority_values_first"] = rng.random() < 0.5
        config["priority_scheduling_preemption_threshold"] = rng.choice((0, 1, 2))
        config["schedule_policy"] = rng.choice(("fcfs", "lof"))
    if rng.random() < 0.1:
        config["prefill_max_requests"] = rng.choice((1, 2, 4))
    if rng.random() < 0.05:
        config["scheduler_recv_interval"] = rng.choice((2, 5))
    hicache = _hicache(rng)
    if hicache is not None and not config["disable_radix_cache"]:
        config["hicache"] = hicache
    config["block_ids_size"] = page if page > 1 else 16
    return config, rows, config["block_ids_size"]


def random_context_case(rng: random.Random, version: str) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case whose ranks share each sequence's KV: pages of the radix cache are those of all of them."""
    config, rows, block = draw_case(rng, version)
    config.pop("hicache", None)
    config["dcp_size"] = ranks = rng.choice((2, 4, 8))
    config["max_total_tokens"] += 4 * (ranks - 1) * config["page_size"]
    return config, rows, block


def _whole_pages(tokens: int, page: int) -> int:
    return tokens if tokens < 0 else max(tokens // page, 1) * page


def _hicache(rng: random.Random) -> dict[str, Any] | None:
    """Arguments and laws of the host tier, or None; write_back has a host pool that never fills (0.5.9 fails there)."""
    if rng.random() > 0.3:
        return None
    policy = rng.choice(("write_through", "write_through_selective", "write_back"))
    slow = rng.choice((4e-6, 4e-6, 1e-4))
    hicache: dict[str, Any] = {
        "hicache_ratio": 200.0 if policy == "write_back" else rng.choice((1.3, 2.0, 4.0)),
        "hicache_write_policy": policy,
        "d2h_base_s": 1e-4, "d2h_per_token_s": slow, "h2d_base_s": 1e-4, "h2d_per_token_s": rng.choice((4e-6, 2e-5)),
    }  # fmt: skip
    if policy != "write_back" and rng.random() < 0.35:
        hicache["storage"] = {
            "query_s": 0.002, "read_base_s": 0.001, "read_per_token_s": rng.choice((3e-6, 3e-5)),
            "write_base_s": 0.001, "write_per_token_s": rng.choice((3e-6, 3e-5)),
        }  # fmt: skip
        hicache["hicache_storage_prefetch_policy"] = rng.choice(("best_effort", "wait_complete", "timeout"))
        hicache["prefetch_threshold"] = rng.choice((64, 128, 256))
        hicache["prefetch_timeout_base"] = rng.choice((0.02, 1))
        hicache["prefetch_timeout_per_ki_token"] = rng.choice((0.02, 0.25))
    return hicache
