"""States of linear attention for SGLang 0.5.23's scheduler: their pool beside the KV slots, and random cases.

The settings of a case are the engine's: ``max_mamba_cache_size`` is the pool of states, ``mamba_radix_cache_strategy``
how a request keeps states for the radix cache, ``mamba_track_interval`` the tokens between those kept while decoding.
``mamba_chunk_size`` is the model's: a prefill yields states at multiples of it (64 unless the model says otherwise).
"""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from hisearch.record.cases import EngineError
from hisearch.record.sglang.random_cases import draw_case
from hisearch.record.sglang.windows import long_outputs
from hisearch.record.workload import Row, make_requests

STRATEGIES = ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")
#: Tokens of a chunk of the linear-attention kernels, where the model states none (``chunk_delta_h.CHUNK_SIZE``).
CHUNK_TOKENS = 64
#: ``mamba_track_interval`` of the engine.
TRACK_INTERVAL = 256
KEYS = (
    "max_mamba_cache_size", "mamba_radix_cache_strategy", "mamba_track_interval", "mamba_chunk_size",
    "mamba_max_states_per_path",
)  # fmt: skip


def has_states(config: dict[str, Any]) -> bool:
    """Whether some layers of the case's model have a state instead of KV."""
    return config.get("max_mamba_cache_size") is not None


def strategy_of(config: dict[str, Any]) -> str:
    """The strategy in force: ``auto`` is an extra buffer unless there is neither overlap nor paging."""
    strategy = config.get("mamba_radix_cache_strategy", "auto")
    if strategy != "auto":
        return str(strategy)
    return "extra_buffer" if _overlaps(config) or config["page_size"] > 1 else "no_buffer"


def slots_per_request(config: dict[str, Any]) -> int:
    """States that the engine counts for a request when it bounds ``max_running_requests``."""
    if config.get("disable_radix_cache"):
        return 1
    strategy = strategy_of(config)
    buffers = {"no_buffer": 0, "extra_buffer_lazy": 1}.get(strategy, 2 if _overlaps(config) else 1)
    return 3 + buffers


def _overlaps(config: dict[str, Any]) -> bool:
    return not config.get("disable_overlap_schedule", True)


def check_states(version: str, config: dict[str, Any]) -> None:
    """Refuse what the engine would refuse, or what is not recorded.

    Raises:
        EngineError: names the setting.
    """
    given = [key for key in KEYS if config.get(key) is not None]
    if not given:
        return
    if not has_states(config):
        raise EngineError(f"max_mamba_cache_size: missing; expected beside {given[0]}")
    if version != "0.5.23":
        raise EngineError(f"max_mamba_cache_size: recorded of sglang 0.5.23, not {version}")
    for key in ("hicache", "speculation", "sliding_window_size"):
        if config.get(key) is not None:
            raise EngineError(f"max_mamba_cache_size beside {key} is not recorded")
    if not config.get("disable_radix_cache"):
        _check_strategy(config)
    states = config.get("mamba_max_states_per_path", -1)
    if states == 0 or states < -1:
        raise EngineError(f"mamba_max_states_per_path: {states}; the engine wants -1 (no limit) or a positive integer")
    slots = slots_per_request(config)
    most = config["max_mamba_cache_size"] // slots
    if config["max_running_requests"] > most:
        raise EngineError(
            f"max_running_requests: {config['max_running_requests']}; the engine runs no more than {most} requests "
            f"with {config['max_mamba_cache_size']} states, {slots} a request"
        )


def _check_strategy(config: dict[str, Any]) -> None:
    strategy, page = strategy_of(config), config["page_size"]
    if strategy == "no_buffer":
        if page != 1:
            raise EngineError(f"page_size: {page}; the engine has no_buffer with pages of 1 alone")
        if _overlaps(config):
            raise EngineError("disable_overlap_schedule: false; the engine has no_buffer without overlap alone")
        return
    if strategy == "extra_buffer_lazy" and not _overlaps(config):
        raise EngineError("disable_overlap_schedule: true; the engine has extra_buffer_lazy with overlap alone")
    interval, chunk = config.get("mamba_track_interval", TRACK_INTERVAL), config.get("mamba_chunk_size", CHUNK_TOKENS)
    if interval % page:
        raise EngineError(f"mamba_track_interval: {interval}; the engine wants a multiple of page_size, {page}")
    if max(chunk, page) % min(chunk, page):
        raise EngineError(f"mamba_chunk_size: {chunk}; the engine wants it to divide page_size, {page}, or be divided")


def state_arguments(config: dict[str, Any]) -> dict[str, Any]:
    """Server arguments that a case's states decide, by name; with the derived chunk, which is the model's."""
    if not has_states(config):
        return {}
    chunk = config.get("mamba_chunk_size", CHUNK_TOKENS)
    return {
        "max_mamba_cache_size": config["max_mamba_cache_size"],
        "mamba_radix_cache_strategy": strategy_of(config),
        "mamba_track_interval": config.get("mamba_track_interval", TRACK_INTERVAL),
        "mamba_max_states_per_path": config.get("mamba_max_states_per_path", -1),
        "_mamba_cache_chunk_size": max(chunk, config["page_size"]),
    }


def request_slots(config: dict[str, Any], requests: int, context: int) -> Any:
    """The engine's slots of requests, with the allocator of states; without the states."""
    import torch
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    # The lists of what a decode step tracks are pinned for a copy to the device.
    torch.Tensor.pin_memory = lambda self, *_: self

    class States:
        """Nothing to copy; no ring of inputs to replay."""

        replayssm_write_pos = replayssm_spec_write_pos = None

        def __init__(self, *, size: int, **_: Any) -> None:
            self.size = size

        def copy_from(self, src_index: Any, dst_index: Any) -> None:
            pass

    class Slots(HybridReqToTokenPool):  # type: ignore[misc]
        mamba_pool_cls = States

    radix = not config.get("disable_radix_cache")
    strategy = strategy_of(config)
    return Slots(
        size=requests, mamba_size=config["max_mamba_cache_size"], mamba_spec_state_size=0, max_context_len=context,
        device="cpu", enable_memory_saver=False,
        cache_params=SimpleNamespace(dtype=SimpleNamespace(conv=torch.float32)), mamba_layer_ids=[0],
        enable_mamba_extra_buffer=radix and strategy != "no_buffer",
        enable_mamba_extra_buffer_lazy=strategy == "extra_buffer_lazy", enable_overlap_schedule=_overlaps(config),
    )  # fmt: skip


def random_state_case(rng: random.Random, version: str) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with few states or many, prompts and outputs around the kernels' chunk and the track interval."""
    config, rows, block = draw_case(rng, version)
    config.pop("hicache", None)
    if rng.random() < 0.1:
        config["radix_eviction_policy"] = "slru"
    usual = rng.random()
    if usual < 0.3:
        rows = long_outputs(rng, config)
    elif usual < 0.7:
        rows = _long_prefixes(rng, config)
    strategy = rng.choice(("extra_buffer", "extra_buffer", "extra_buffer", "no_buffer", "extra_buffer_lazy", "auto"))
    if strategy == "no_buffer" and not config["disable_radix_cache"]:
        block = 16
        config.update(page_size=1, disable_overlap_schedule=True, block_ids_size=block)
    if strategy == "extra_buffer_lazy":
        config["disable_overlap_schedule"] = False
    config["mamba_radix_cache_strategy"] = strategy
    chunk = rng.choice((CHUNK_TOKENS, CHUNK_TOKENS, CHUNK_TOKENS, 1, 16, 128))
    if chunk != CHUNK_TOKENS:
        config["mamba_chunk_size"] = chunk
    config["mamba_track_interval"] = rng.choice((config["page_size"], 64, 64, 128, TRACK_INTERVAL))
    if rng.random() < 0.15:
        config["mamba_max_states_per_path"] = rng.choice((1, 2, 4))
    config["max_running_requests"] = rng.choice((1, 2, 3, 4, 4, 8, 8, 16, 32))
    if usual < 0.3 and rng.random() < 0.7:
        # Many outputs that outgrow the pool: some are retracted.
        config["max_running_requests"] = rng.choice((8, 16, 32))
        config["schedule_conservativeness"] = 0.1
    elif rng.random() < 0.3:
        config["max_total_tokens"] *= rng.choice((2, 4))
    more = rng.choice((0, 0, 1, 2, 4, 8, 20, 60))
    config["max_mamba_cache_size"] = slots_per_request(config) * config["max_running_requests"] + more
    return config, rows, block


def _long_prefixes(rng: random.Random, config: dict[str, Any]) -> list[Row]:
    """Requests that share prefixes of several chunks, and a pool for the longest; changes ``config``."""
    rows = make_requests(
        {
            "requests": rng.randint(20, 60), "seed": rng.randrange(2**31), "rate_per_s": rng.choice((5.0, 20.0, 100.0)),
            "input_tokens": [10, rng.choice((100, 500))], "output_tokens": [1, rng.choice((20, 100, 300))],
            "shared_prefixes": {"count": rng.choice((1, 3, 8)), "tokens": [100, rng.choice((300, 1200))], "share": 0.8},
            "turns": rng.choice((0.0, 0.3, 0.6)), "repeats": rng.choice((0.0, 0.1, 0.3)),
            "limits": rng.choice((0.0, 1.0)), "eos": rng.choice((0.3, 1.0)),
            "priorities": 4 if config.get("enable_priority_scheduling") else 0, "max_tokens": 4000,
        }
    )  # fmt: skip
    need = max(row["input_tokens"] + row.get("max_output_tokens", row["output_tokens"]) for row in rows)
    config["max_total_tokens"] = int((need + 4 * config["page_size"] + 4) * rng.choice((1.1, 1.5, 2.0, 4.0, 8.0)))
    return rows
