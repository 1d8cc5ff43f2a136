"""LoRA adapters for SGLang's scheduler: the engine's own pool of slots, its drainer and its loader, without weights.

A case's ``lora`` has the server's arguments by their names and laws (see ``record.adapters``). Without
``enable_lora_overlap_loading`` a step waits for its copies; with it, they run on a stream of their own, one after
another.
"""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import builtins
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from hisearch.record.adapters import checked_lora, draw_adapters, draw_laws, step_more_s
from hisearch.record.cases import CaseError, EngineError
from hisearch.record.sglang.random_cases import draw_case
from hisearch.record.sglang.scheduler import OrderedSet
from hisearch.record.sglang.timeline import Timeline
from hisearch.record.workload import Row


def check_adapters(version: str, config: dict[str, Any], requests: list[Row]) -> None:
    """Refuse what the version does not have, or what is not recorded.

    Raises:
        EngineError: names the setting.
    """
    named = any("adapter" in row for row in requests)
    if named != bool(config.get("lora")):
        raise EngineError("lora: expected with requests that name an adapter, and with them alone")
    if not config.get("lora"):
        return
    try:
        lora = checked_lora("sglang", config["lora"])
    except CaseError as error:
        raise EngineError(str(error)) from None
    if version == "0.5.9" and lora["lora_drain_wait_threshold"]:
        raise EngineError("lora: lora_drain_wait_threshold: sglang 0.5.9 has none")
    if lora["enable_lora_overlap_loading"] and config.get("scheduler_recv_interval", 1) > 1:
        raise EngineError("lora: enable_lora_overlap_loading beside scheduler_recv_interval is not recorded")
    for key in ("hicache", "speculation", "sliding_window_size", "max_mamba_cache_size", "enable_priority_scheduling"):
        if config.get(key):
            raise EngineError(f"lora beside {key} is not recorded")


def adapter_id(adapter: int | None) -> str | None:
    """The engine's name of an adapter; in the order of their numbers."""
    return None if adapter is None else f"{adapter:08d}"


class Adapters:
    """A scheduler's adapters.

    Attributes:
        manager: the engine's ``LoRAManager``, with its pool of slots.
        drainer, loader: the engine's, or None.
    """

    def __init__(self, given: dict[str, Any], timeline: Timeline) -> None:
        from sglang.srt.lora import lora_manager, mem_pool

        lora = checked_lora("sglang", given)
        self.timeline, self.lora, self.load_s = timeline, lora, lora["load_s"]
        self.slots, self.overlaps = lora["max_loras_per_batch"], lora["enable_lora_overlap_loading"]
        self._loads, self._stream_s = 0, 0.0
        adapters = self

        class Pool(mem_pool.LoRAMemoryPool):  # type: ignore[misc]
            """Which adapter has which slot."""

            def __init__(self) -> None:
                self.max_loras_per_batch = adapters.slots
                self.eviction_policy = mem_pool.get_eviction_policy(lora["lora_eviction_policy"])
                self.uid_to_buffer_id = {}
                self.buffer_id_to_uid = [mem_pool.EMPTY_SLOT] * adapters.slots

            def prepare_lora_batch(self, cur_uids: Any, **others: Any) -> None:
                ordered = sorted(cur_uids, key=lambda uid: (uid is not None, uid or ""))
                super().prepare_lora_batch(OrderedSet(ordered), **others)

            def load_lora_weight_to_buffer(self, uid: Any, *others: Any) -> None:
                adapters._loads += uid is not None

        class Manager(lora_manager.LoRAManager):  # type: ignore[misc]
            """The rules of a batch."""

            def __init__(self) -> None:
                self.max_loras_per_batch, self.num_pinned_loras = adapters.slots, 0
                self.loras, self.lora_refs, self.lora_modules = {}, {}, []
                self.embed_tokens_module = self.lm_head_module = None
                self.pending_lora_load_events: dict[Any, Any] = {}
                self.memory_pool = Pool()
                self.fetch_new_loras({None})

        self.manager = Manager()
        self._loads = 0
        self.loader = self._loader() if self.overlaps else None
        self.drainer = None
        if lora["lora_drain_wait_threshold"] > 0:
            self.drainer = self._drainer(lora["lora_drain_wait_threshold"])

    def _drainer(self, threshold_s: float) -> Any:
        from sglang.srt.lora import lora_drainer

        lora_drainer.time = SimpleNamespace(monotonic=lambda: self.timeline.clock)

        # Of adapters that are alike the engine takes the first of a set.
        def ordered(items: Any) -> list[Any]:
            return builtins.sorted(items, key=lambda uid: (uid is not None, uid or ""))

        lora_drainer.sorted = lambda items, **others: builtins.sorted(ordered(items), **others)
        lora_drainer.min = lambda items, **others: builtins.min(ordered(items), **others)
        return lora_drainer.LoRADrainer(self.slots, threshold_s)

    def _loader(self) -> Any:
        from sglang.srt.lora import lora_overlap_loader

        adapters = self

        class Event:
            """The end of the copies queued by now."""

            def record(self, stream: Any = None) -> None:
                copies, adapters._loads = adapters._loads, 0
                begin = max(adapters._stream_s, adapters.timeline.clock)
                adapters._stream_s = self.end = begin + copies * adapters.load_s

            def query(self) -> bool:
                return bool(adapters.timeline.clock >= self.end)

        loader = lora_overlap_loader.LoRAOverlapLoader.__new__(lora_overlap_loader.LoRAOverlapLoader)
        loader.lora_manager, loader.load_stream = self.manager, None
        current = SimpleNamespace(wait_event=lambda event: None)
        lora_overlap_loader.torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event, current_stream=lambda: current))
        loader.device_module = SimpleNamespace(Event=Event, current_stream=lambda: current)
        loader.load_stream_context = _Nothing()
        loader.lora_to_overlap_load_event = self.manager.pending_lora_load_events
        self.timeline.wakes.append(
            lambda: min((event.end for event in loader.lora_to_overlap_load_event.values()), default=None)
        )
        return loader

    def apply(self, batch: Any, new: Iterable[int]) -> float:
        """Seconds that adapters add to a batch with ``new`` tokens of each request."""
        adapters = [request.lora_id for request in batch.reqs]
        more_s = step_more_s(self.lora, zip(adapters, new, strict=True))
        if self.overlaps:
            return more_s
        self._loads = 0
        self.manager.fetch_new_loras(set(adapters))
        return float(more_s + self._loads * self.load_s)


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *details: object) -> None:
        pass


def random_adapter_case(rng: random.Random, version: str) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with adapters, most of them with fewer slots than adapters."""
    config, rows, block = draw_case(rng, version)
    for key in ("hicache", "enable_priority_scheduling", "schedule_low_priority_values_first"):
        config.pop(key, None)
    config.pop("priority_scheduling_preemption_threshold", None)
    if config["radix_eviction_policy"] == "priority":
        config["radix_eviction_policy"] = "lru"
    for row in rows:
        row.pop("priority", None)
    draw_adapters(rng, rows)
    config["lora"] = {
        "max_loras_per_batch": rng.choice((1, 2, 2, 3, 4, 8)),
        "lora_eviction_policy": rng.choice(("lru", "lru", "fifo")),
        "enable_lora_overlap_loading": rng.random() < 0.25, **draw_laws(rng),
    }  # fmt: skip
    if config["lora"]["enable_lora_overlap_loading"]:
        config.pop("scheduler_recv_interval", None)
    threshold_s = rng.choice((0.0, 0.0, 0.05, 0.5))
    if version != "0.5.9":
        config["lora"]["lora_drain_wait_threshold"] = threshold_s
    return config, rows, block
