"""A pool's section ``lora`` of what servers say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Arguments -> key of the section, by engine. vLLM's configuration names some otherwise.
_TABLES: dict[str, dict[str, str]] = {
    "vllm": {"max_loras": "max_loras", "max_lora_rank": "rank", "max_cpu_loras": "max_cpu_loras"},
    "sglang": {
        "max_loras_per_batch": "max_loras", "max_lora_rank": "rank", "lora_eviction_policy": "eviction",
        "enable_lora_overlap_loading": "overlap_loading", "lora_drain_wait_threshold": "drain_wait_s",
    },
}  # fmt: skip
#: Names of modules -> targets.
_TARGETS = {
    "q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",), "qkv_proj": ("q", "k", "v"), "o_proj": ("o",),
    "gate_proj": ("gate",), "up_proj": ("up",), "gate_up_proj": ("gate", "up"), "down_proj": ("down",),
}  # fmt: skip


def lora_of(engine: str, stated: Mapping[str, Any]) -> dict[str, Any] | None:
    """The section by the engine's arguments or configuration; None where adapters are off."""
    enabled = stated.get("enable_lora") in (True, "True", "true")
    # vLLM's configuration has a section of adapters where they are on, without that argument.
    if not enabled and not (engine == "vllm" and "enable_lora" not in stated and "max_loras" in stated):
        return None
    section = {
        key: stated[name] for name, key in _TABLES[engine].items() if stated.get(name) not in (None, "None", False)
    }
    if section.get("drain_wait_s") == 0:
        del section["drain_wait_s"]
    section.setdefault("max_loras", 1 if engine == "vllm" else 8)
    given = stated.get("lora_target_modules") or stated.get("target_modules")
    if isinstance(given, list) and set(given) <= set(_TARGETS):
        targets = {target for name in given for target in _TARGETS[name]}
        order = [target for names in _TARGETS.values() for target in names]
        section["targets"] = [target for target in dict.fromkeys(order) if target in targets]
    return section
