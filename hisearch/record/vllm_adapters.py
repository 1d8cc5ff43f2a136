"""LoRA adapters for vLLM: the engine's own caches of them, in host memory and in slots, without weights."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from hisearch.record.adapters import draw_adapters, draw_laws, step_more_s
from hisearch.record.vllm_random import random_case
from hisearch.record.workload import Row


def lora_config(lora: dict[str, Any]) -> Any:
    """VLLM's settings."""
    from vllm.config.lora import LoRAConfig

    return LoRAConfig(
        max_lora_rank=16, max_loras=lora["max_loras"], max_cpu_loras=lora["max_cpu_loras"] or None,
        lora_dtype="float16",
    )  # fmt: skip


def lora_request(adapter: int | None) -> Any:
    """What a request for an adapter carries; None for the base model."""
    if adapter is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=f"adapter-{adapter}", lora_int_id=adapter, lora_path=f"/adapters/{adapter}")


class Slots:
    """The worker's adapters: vLLM's ``LRUCacheWorkerLoRAManager`` over its model manager, for a model without layers.

    Attributes:
        lora: the case's limits and laws.
    """

    def __init__(self, lora: dict[str, Any]) -> None:
        from vllm.lora import model_manager, worker_manager

        self.lora = lora
        self._loads = self._reads = 0
        slots = self

        class Manager(model_manager.LRUCacheLoRAModelManager):  # type: ignore[misc]
            """Its caches alone."""

            def __init__(self) -> None:
                self.lora_config = lora_config(lora)
                self.modules: dict[str, Any] = {}
                self.lora_index_to_id = [None] * self.lora_slots
                cache = model_manager.LoRALRUCache if hasattr(model_manager, "LoRALRUCache") else None
                cache = cache or model_manager.AdapterLRUCache
                self._registered_adapters = cache(self.capacity, self.deactivate_adapter)
                self._active_adapters = cache(self.lora_slots, self._deactivate_adapter)

            def _add_adapter(self, lora: Any) -> None:
                self._registered_adapters[lora.id] = lora

            def activate_adapter(self, lora_id: int) -> bool:
                activated = super().activate_adapter(lora_id)
                slots._loads += activated
                return bool(activated)

        class Worker(worker_manager.LRUCacheWorkerLoRAManager):  # type: ignore[misc]
            """What a step calls."""

            def __init__(self) -> None:
                self._adapter_manager = Manager()

            def _load_adapter(self, lora_request: Any) -> Any:
                slots._reads += 1
                return SimpleNamespace(id=lora_request.lora_int_id)

        self._worker = Worker()

    def apply(self, requests: list[Any], new: Mapping[str, int]) -> float:
        """Seconds that adapters add to the step of these requests, with ``new`` tokens of each."""
        asked = {request.lora_request.lora_int_id: request.lora_request for request in requests if request.lora_request}
        self._loads = self._reads = 0
        self._worker._apply_adapters([asked[number] for number in sorted(asked)])
        numbers = [request.lora_request and request.lora_request.lora_int_id for request in requests]
        work = zip(numbers, (new[request.request_id] for request in requests), strict=True)
        stall_s = self._loads * self.lora["load_s"] + self._reads * self.lora["read_s"]
        return float(step_more_s(self.lora, work) + stall_s)


def random_adapter_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with adapters: fewer slots than adapters in most, host memory for all or for few."""
    settings, rows, block = random_case(rng)
    count = draw_adapters(rng, rows)
    slots = rng.choice((1, 1, 2, 2, 3, 4, 8))
    settings["lora"] = {
        "max_loras": slots, "max_cpu_loras": rng.choice((0, slots + 1, 2 * slots, slots + count)),
        "read_s": rng.choice((0.0, 0.02)), **draw_laws(rng),
    }  # fmt: skip
    return settings, rows, block
