"""Sliding windows for SGLang 0.5.23's scheduler: two pools of KV slots, without the KV, and random cases.

A case's ``sliding_window_size`` is the scheduler's: the tokens before a token that its window layers read (gpt-oss:
the model's window of 128 less one). ``max_total_tokens`` is the pool of the layers with full attention,
``swa_max_total_num_tokens`` that of the window layers.
"""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import random
from typing import Any

from hisearch.record.cases import EngineError
from hisearch.record.sglang.random_cases import draw_case
from hisearch.record.workload import Row, make_requests

#: Tokens behind the window at which a running request's slots are freed: SGLANG_SWA_EVICTION_INTERVAL's default.
EVICTION_INTERVAL = 128
KEYS = ("sliding_window_size", "swa_max_total_num_tokens")


def has_windows(config: dict[str, Any]) -> bool:
    """Whether some layers of the case's model have a sliding window."""
    return config.get("sliding_window_size") is not None


def check_windows(version: str, config: dict[str, Any]) -> None:
    """Refuse what the engine would refuse, or what is not recorded.

    Raises:
        EngineError: names the setting.
    """
    if all(config.get(key) is None for key in KEYS):
        return
    for key in KEYS:
        if config.get(key) is None:
            raise EngineError(f"{key}: missing; expected both of {' and '.join(KEYS)}")
    if version != "0.5.23":
        raise EngineError(f"sliding_window_size: recorded of sglang 0.5.23, not {version}")
    for key in ("hicache", "speculation"):
        if config.get(key) is not None:
            raise EngineError(f"sliding_window_size beside {key} is not recorded")
    page = config["page_size"]
    full, window = (config[key] // page * page for key in ("max_total_tokens", "swa_max_total_num_tokens"))
    floor = config["sliding_window_size"] + page
    if window <= floor:
        raise EngineError(
            f"swa_max_total_num_tokens: {window}; the engine needs more than sliding_window_size and a page, {floor}"
        )
    if window > full:
        raise EngineError(
            f"swa_max_total_num_tokens: {window}; the engine has no more than max_total_tokens, {full} (its "
            "swa_full_tokens_ratio is at most 1)"
        )


def window_pools(full_tokens: int, window_tokens: int, page: int) -> Any:
    """The engine's allocator over both pools, in whole pages; paged ones lay their slots out without GPU kernels."""
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool

    class Slots(BaseSWAKVPool):  # type: ignore[misc]
        """Which slot of the window layers goes with a slot of the others; no KV."""

        full_kv_pool = swa_kv_pool = None

        def __init__(self) -> None:
            self.full_to_swa_index_mapping: Any = None

        def register_mapping(self, full_to_swa_index_mapping: Any) -> None:
            self.full_to_swa_index_mapping = full_to_swa_index_mapping

        def translate_loc_from_full_to_swa(self, kv_indices: Any) -> Any:
            return self.full_to_swa_index_mapping[kv_indices]

        def get_state_buf_infos(self) -> Any:
            return [], [], []

    Slots.__abstractmethods__ = frozenset()
    allocator = SWATokenToKVPoolAllocator(full_tokens, window_tokens, page, torch.int64, "cpu", Slots(), False)
    for pool in (allocator.full_attn_allocator, allocator.swa_attn_allocator):
        pool.use_triton_kernels = False
    return allocator


def random_window_case(rng: random.Random, version: str) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with windows from below a page to longer than any request, and one or both pools short."""
    config, rows, block = draw_case(rng, version)
    config.pop("hicache", None)
    if rng.random() < 0.1:
        config["radix_eviction_policy"] = "slru"
    page = config["page_size"]
    if rng.random() < 0.5:
        # Outputs beyond the interval at which running requests' slots are freed.
        rows = long_outputs(rng, config)
    longest = max(row["input_tokens"] + row.get("max_output_tokens", row["output_tokens"]) for row in rows)
    around_page = rng.choice((1, 3, 7, max(page - 1, 1), page, page + 1))
    usual = rng.choice((15, 31, 63, 127, 127, 127, 200))
    window = rng.choice((around_page, usual, usual, usual, usual, longest + 50))
    # Of most pools one request may hold a window in the tree and another of its own, with what is freed at intervals.
    least = 2 * min(window, longest) + EVICTION_INTERVAL + 4 * page
    # In a smaller pool the engine may wait for ever for room that a cached prefix takes.
    if config["chunked_prefill_size"] < 0:
        least = max(least, min(window, longest) + longest + 4 * page)
    elif rng.random() < 0.8:
        least += min(config["chunked_prefill_size"], longest)
    tokens = max(int(least * rng.choice((1.0, 1.0, 1.1, 1.3, 1.5, 2.0, 4.0))), window + 2 * page + 1)
    if rng.random() < 0.4:
        config["max_total_tokens"] = int(config["max_total_tokens"] * rng.choice((2, 4)))
    config["max_total_tokens"] = max(config["max_total_tokens"], window + 3 * page + 1)
    config["sliding_window_size"] = window
    config["swa_max_total_num_tokens"] = min(tokens, config["max_total_tokens"])
    return config, rows, block


def long_outputs(rng: random.Random, config: dict[str, Any]) -> list[Row]:
    """Requests with outputs of hundreds of tokens, and a pool for the longest; changes ``config``."""
    rows = make_requests(
        {
            "requests": rng.randint(10, 40), "seed": rng.randrange(2**31), "rate_per_s": rng.choice((20.0, 200.0)),
            "input_tokens": [10, rng.choice((60, 400))], "output_tokens": [50, rng.choice((200, 500))],
            "shared_prefixes": {"count": rng.choice((0, 3)), "tokens": [20, 200], "share": 0.5},
            "turns": rng.choice((0.0, 0.3)), "limits": rng.choice((0.0, 1.0)), "eos": rng.choice((0.3, 1.0)),
            "priorities": 4 if config.get("enable_priority_scheduling") else 0, "max_tokens": 2500,
        }
    )  # fmt: skip
    need = max(row["input_tokens"] + row.get("max_output_tokens", row["output_tokens"]) for row in rows)
    config["schedule_conservativeness"] = rng.choice((0.1, 0.3, 1.0))
    config["max_total_tokens"] = int((need + 4 * config["page_size"] + 4) * rng.choice((1.1, 1.5, 2.0, 4.0)))
    return rows
