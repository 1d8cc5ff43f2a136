"""Random cases for vLLM's scheduler: small traces over its settings, most of them short of memory."""

from __future__ import annotations

import random
from typing import Any

from hisearch.record.workload import Row, make_requests


def random_lmcache_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with LMCache's connector: chunks of few blocks, and host memory of few or many requests."""
    settings, rows, block = random_case(rng)
    size = block * rng.choice((1, 2, 4, 4, 16))
    size = max(size, 16)
    tokens = [row["input_tokens"] + row["output_tokens"] for row in rows]
    held = sum(tokens) * rng.choice((0.02, 0.05, 0.1, 0.2, 0.5, 2.0))
    base_s, per_token_s = rng.choice((0.0, 1e-4, 2e-3)), rng.choice((1e-7, 2e-6, 2e-5))
    settings["offload"] = {
        "connector": "lmcache", "capacity_tokens": max(int(held), 2 * size), "chunk_tokens": size,
        "to_host": [base_s, per_token_s], "to_device": [base_s * rng.choice((0.5, 1, 2)), per_token_s],
        "eviction": rng.choice(("lru", "lru", "lru", "lfu", "fifo", "mru")), "save_decode": rng.random() < 0.5,
    }  # fmt: skip
    return settings, rows, block


def random_offload_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with the OffloadingConnector, whose host memory holds few or many requests."""
    settings, rows, block = random_case(rng)
    factor = rng.choice((1, 1, 1, 2, 4))
    tokens = [row["input_tokens"] + row["output_tokens"] for row in rows]
    held = sum(tokens) * rng.choice((0.02, 0.05, 0.1, 0.2, 0.5, 2.0))
    base_s, per_token_s = rng.choice((0.0, 1e-4, 2e-3)), rng.choice((1e-7, 2e-6, 2e-5))
    settings["offload"] = {
        "capacity_tokens": max(int(held), 4 * factor * block), "block_size_factor": factor,
        "to_host": [base_s, per_token_s], "to_device": [base_s * rng.choice((0.5, 1, 2)), per_token_s],
        "eviction": rng.choice(("lru", "lru", "arc")), "store_threshold": rng.choice((0, 0, 0, 2, 3)),
    }  # fmt: skip
    return settings, rows, block


def random_window_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case whose layers have a sliding window, all of them or some beside full attention."""
    settings, rows, block = random_case(rng)
    window = max(2, int(block * rng.choice((0.5, 1, 2, 2, 4, 8, 16)) + rng.choice((0, 0, 1, -1, 5))))
    settings["sliding_window" if rng.random() < 0.35 else "hybrid_window"] = window
    if "hybrid_window" in settings:
        settings["num_blocks"] += int(settings["num_blocks"] * rng.uniform(0.3, 1.0))
    settings["prefix_cache_retention_interval"] = rng.choice((None, 0, 0, 0, 2 * block, 4 * block))
    return settings, rows, block


def random_context_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case whose ranks share each sequence's KV: a block has tokens on every one of them."""
    settings, rows, block = random_case(rng)
    ranks = rng.choice((2, 4, 8))
    settings |= {"block_size": block // ranks, "decode_context_parallel_size": ranks}
    return settings, rows, block // ranks


def random_state_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with groups of recurrent states (linear attention, Mamba) beside full attention."""
    settings, rows, block = random_case(rng)
    groups = rng.choice((1, 2, 3, 3))
    settings["mamba_groups"] = groups
    settings["mamba_prefill_checkpoints"] = rng.random() < 0.5
    interval = rng.choice((None, 0, 0, 0, 2 * block, 4 * block))
    running = min(settings["max_num_seqs"], len(rows))
    states = groups * (4 + int(running * rng.choice((0.0, 0.5, 1, 2, 3))))
    longest = max(row["input_tokens"] + row.get("max_output_tokens", row["output_tokens"]) for row in rows)
    settings["num_blocks"] = max(settings["num_blocks"], 1 + -(-longest // block)) + states
    if settings["prefix"]:
        # States are cached at the ends of chunks.
        settings |= {"chunked_prefill": True, "prefix_cache_retention_interval": interval}
    return settings, rows, block


def random_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw settings (by their names in a recording), requests and the block size.

    Most pools are smaller than what the requests that may run at once would like to hold.
    """

    def spread(low: float, high: float) -> float:
        return float(low * (high / low) ** rng.random())

    block = rng.choice((8, 16, 16, 16, 32, 64))
    seqs = rng.choice((1, 2, 4, 8, 16, 16, 32, 32, 64, 128))
    budget = max(seqs, rng.choice((64, 128, 256, 512, 1024, 2048)))
    settings: dict[str, Any] = {
        "max_num_seqs": seqs, "max_tokens": budget, "block_size": block, "async_scheduling": rng.random() < 0.5,
        "policy": rng.choice(("fcfs", "fcfs", "priority")), "prefix": rng.random() < 0.8,
        "scheduler_reserve_full_isl": rng.random() < 0.8,
        "chunked_prefill": budget < 512 or rng.random() < 0.85,
        "long_prefill_token_threshold": rng.choice((0, 0, 0, int(spread(16, budget)))),
        "watermark": rng.choice((0.0, 0.0, 0.0, round(spread(0.005, 0.3), 3))),
    }  # fmt: skip
    # Of odd thresholds, without a draw: the rest of a seed's case does not depend on the engine's settings.
    settings["long_prefill_token_threshold_adaptive"] = settings["long_prefill_token_threshold"] % 2 == 1
    inputs = rng.choice(([1, 60], [1, 60], [16, 300], [100, 900], [1, 1200]))
    outputs = rng.choice(([1, 4], [1, 40], [20, 80], [1, 150], [40, 200], [100, 250]))
    # Without chunks no request may be longer than the budget.
    longest = inputs[1] + outputs[1] + 200 if settings["chunked_prefill"] else budget - 1
    rows = make_requests({
        "requests": rng.randint(20, 120), "seed": rng.randrange(2**31), "rate_per_s": spread(5, 2000),
        "burst": rng.choice((1, 1, 1, 2, 5, 20)), "input_tokens": inputs, "output_tokens": outputs,
        "shared_prefixes": {"count": rng.choice((0, 1, 3, 8)), "tokens": [16, 200], "share": round(rng.random(), 2)},
        "turns": rng.choice((0.0, 0.3, 0.6)), "repeats": rng.choice((0.0, 0.0, 0.2)),
        "samples": rng.choice((1,) * 8 + (2, 5)), "max_tokens": longest,
        "priorities": rng.choice((2, 4, 10)) if settings["policy"] == "priority" else 0,
        "limits": rng.choice((0.0, 0.0, 0.5, 1.0)), "eos": round(rng.random(), 2),
    })[:120]  # fmt: skip
    needs = [-(-(row["input_tokens"] + row["output_tokens"]) // block) for row in rows]
    demand = min(seqs, len(rows)) * sum(needs) / len(needs)
    settings["num_blocks"] = 1 + max(*needs, int(demand * spread(0.1, 1.2)))
    if not settings["chunked_prefill"]:
        settings["max_model_len"] = budget
    return settings, rows, block
