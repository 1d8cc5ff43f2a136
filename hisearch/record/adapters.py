"""LoRA adapters in recordings: a row's ``adapter`` is a number from 1 on; rows without one ask for the base model.

``config.lora`` has the engine's limits and two laws: ``load_s`` seconds for each adapter that a step copies into a
slot, ``read_s`` for each that it reads from the disk first (vLLM). A step that does so takes that much longer. Engines
go through a step's adapters in the order of a hash; recorded is the order of their numbers.
"""

from __future__ import annotations

import random
from typing import Any

from hisearch.record.cases import CaseError
from hisearch.record.workload import Row

#: Keys of ``config.lora``, by engine, with their defaults; None: required.
LORA_KEYS: dict[str, dict[str, Any]] = {
    "vllm": {"max_loras": None, "max_cpu_loras": 0, "load_s": 0.0, "read_s": 0.0},
    "sglang": {
        "max_loras_per_batch": None, "lora_eviction_policy": "lru", "load_s": 0.0, "lora_drain_wait_threshold": 0.0,
        "enable_lora_overlap_loading": False,
    },
}  # fmt: skip


def checked_lora(engine: str, given: dict[str, Any]) -> dict[str, Any]:
    """``config.lora`` with defaults filled in.

    Raises:
        CaseError: an unknown key, or one missing.
    """
    known = LORA_KEYS[engine]
    for key in given:
        if key not in known:
            raise CaseError(f"lora: {key}: unknown key; expected one of {', '.join(known)}")
    lora = {**known, **given}
    for key, value in lora.items():
        if value is None:
            raise CaseError(f"lora: {key}: missing")
    return lora


def draw_adapters(rng: random.Random, rows: list[Row]) -> int:
    """Give rows adapters by a Zipf law, in place; some ask for the base model. Returns how many adapters there are."""
    count = rng.choice((1, 2, 3, 5, 8, 12))
    base = rng.choice((0.0, 0.0, 0.1, 0.4))
    skew = rng.choice((0.0, 0.8, 1.5))
    weights = [(rank + 1) ** -skew for rank in range(count)]
    names = rng.sample(range(1, count + 1), count)
    for row in rows:
        row.pop("adapter", None)
        if rng.random() >= base:
            row["adapter"] = rng.choices(names, weights)[0]
    return count
