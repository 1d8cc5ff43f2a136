"""LoRA adapters in recordings: a row's ``adapter`` is a number from 1 on; rows without one ask for the base model.

``config.lora`` has the engine's limits and laws: a step takes ``load_s`` longer for each adapter that it copies into a
slot, ``read_s`` for each that it reads from the disk first (vLLM); ``step_s`` if it has adapters, ``adapter_s`` for
each of them, ``token_s`` for each of their tokens. Engines go through a step's adapters in the order of a hash;
recorded is the order of their numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from hisearch.record.cases import CaseError
from hisearch.record.workload import Row

#: Keys of ``config.lora``, by engine, with their defaults; None: required.
_LAWS = {"load_s": 0.0, "step_s": 0.0, "adapter_s": 0.0, "token_s": 0.0}
LORA_KEYS: dict[str, dict[str, Any]] = {
    "vllm": {"max_loras": None, "max_cpu_loras": 0, "read_s": 0.0} | _LAWS,
    "sglang": {
        "max_loras_per_batch": None, "lora_eviction_policy": "lru", "lora_drain_wait_threshold": 0.0,
        "enable_lora_overlap_loading": False,
    } | _LAWS,
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


def step_more_s(lora: Mapping[str, Any], work: Iterable[tuple[Any, int]]) -> float:
    """Seconds that adapters add to a step, without loads; ``work``: (adapter or None, new tokens) of each request."""
    tokens = [(adapter, new) for adapter, new in work if adapter is not None]
    if not tokens:
        return 0.0
    adapters = len({adapter for adapter, _ in tokens})
    more = lora["step_s"] + adapters * lora["adapter_s"] + sum(new for _, new in tokens) * lora["token_s"]
    return float(more)


def draw_laws(rng: random.Random) -> dict[str, float]:
    """Laws of loads and steps: free in half of the cases."""
    return {
        "load_s": rng.choice((0.0, 0.0005, 0.003)), "step_s": rng.choice((0.0, 0.001)),
        "adapter_s": rng.choice((0.0, 0.0002)), "token_s": rng.choice((0.0, 1e-5)),
    }  # fmt: skip


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
