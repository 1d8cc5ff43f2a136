"""Flags of LoRA adapters (section ``lora``), and notes on what they leave open.

Read in vLLM's ``config/lora.py``, ``lora/utils.py`` and SGLang's ``server_args.py``; ``tests/export`` checks the flags
against the parsers of two releases each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hisearch.export.engines.launch import Launch
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.lora import OVERLAPPED_ADAPTERS, LoraSpec, slot_rank

#: vLLM names linear layers, of which q, k and v are one, as gate and up are.
_VLLM_LAYERS = {
    "q": "qkv_proj", "k": "qkv_proj", "v": "qkv_proj", "o": "o_proj", "gate": "gate_up_proj", "up": "gate_up_proj",
    "down": "down_proj",
}  # fmt: skip
_VLLM_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def _of(value_of: Callable[[LoraSpec], Any]) -> Callable[[Launch], Any]:
    """A value of the section; None without one."""
    return lambda launch: None if launch.pool.lora is None else value_of(launch.pool.lora)


VLLM_TABLE: tuple[tuple[str, Callable[[Launch], Any]], ...] = (
    ("--enable-lora", _of(lambda lora: True)),
    ("--max-loras", _of(lambda lora: lora.max_loras)),
    ("--max-lora-rank", _of(lambda lora: slot_rank("vllm", lora.rank))),
    ("--max-cpu-loras", _of(lambda lora: lora.max_cpu_loras)),
    ("--lora-dtype", _of(lambda lora: _VLLM_DTYPES[lora.dtype])),
    (
        "--lora-target-modules",
        _of(lambda lora: list(dict.fromkeys(layer for name, layer in _VLLM_LAYERS.items() if name in lora.targets))),
    ),
)
SGLANG_TABLE: tuple[tuple[str, Callable[[Launch], Any]], ...] = (
    ("--enable-lora", _of(lambda lora: True)),
    ("--max-loras-per-batch", _of(lambda lora: lora.max_loras)),
    ("--max-lora-rank", _of(lambda lora: lora.rank)),
    ("--lora-target-modules", _of(lambda lora: [f"{name}_proj" for name in _VLLM_LAYERS if name in lora.targets])),
    ("--lora-eviction-policy", _of(lambda lora: lora.eviction)),
    ("--enable-lora-overlap-loading", _of(lambda lora: lora.overlap_loading)),
    ("--max-loaded-loras", _of(lambda lora: OVERLAPPED_ADAPTERS * lora.max_loras if lora.overlap_loading else None)),
    ("--lora-drain-wait-threshold", _of(lambda lora: lora.drain_wait_s or None)),
)


def notes(pool: PoolSpec) -> list[str]:
    """What the flags leave open, as sentences."""
    lora = pool.lora
    if lora is None:
        return []
    if pool.engine.name == "sglang":
        return ["Name the adapters with --lora-paths NAME=PATH, or load them through the server's API."]
    return ["Name the adapters with --lora-modules NAME=PATH, on a local disk: a step reads those that it misses."]


def on_other_engine(lora: LoraSpec | None) -> LoraSpec | None:
    """The section without what one engine alone has."""
    if lora is None:
        return None
    return LoraSpec(max_loras=lora.max_loras, rank=lora.rank, targets=lora.targets, dtype=lora.dtype)
