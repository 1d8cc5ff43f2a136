"""Host tier and storage of SGLang 0.5.23: its own tree and controller, copies and storage by law."""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from hisearch.record.sglang.copies import Device
from hisearch.record.sglang.settings import Ignored
from hisearch.record.sglang.storage import Storage
from hisearch.record.sglang.timeline import Ticks, Timeline
from hisearch.record.sglang.virtual_threads import VirtualThreads


def install_laws(hicache: dict[str, Any], timeline: Timeline, ticks: Ticks) -> None:
    """Let the engine's modules of the host tier run on the virtual clock.

    Args:
        hicache: ``config.hicache`` of a case.
        timeline: the clock.
        ticks: unused; the tree counts its own ticks.
    """
    import torch
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import l2_transfer, storage, unified_radix_cache
    from sglang.srt.mem_cache.hybrid_cache import hybrid_cache_controller, hybrid_pool_assembler
    from sglang.srt.mem_cache.pool_host.base import HostKVCache
    from sglang.srt.utils import poll_timer

    torch.distributed.get_world_size = lambda group=None: 1
    device = Device(timeline)
    threads = VirtualThreads(lambda: timeline.clock)
    timeline.threads = threads
    timeline.wakes.append(threads.next_time)
    laws = Storage(hicache.get("storage"), threads, timeline)
    l2_transfer.device_module = device
    l2_transfer.make_timing_event_pair = lambda: (device.Event(), device.Event(), False)
    cache_controller.device_module = device
    clock = SimpleNamespace(monotonic=threads.time, perf_counter=threads.time, time=threads.time, sleep=threads.sleep)
    for module in (cache_controller, hybrid_cache_controller):
        module.threading = SimpleNamespace(
            Thread=threads.thread,
            Event=threading.Event,
            Lock=threading.Lock,
            RLock=threading.RLock,
            Condition=threading.Condition,
        )
        module.Queue = threads.queue_class()
        module.time = clock
    unified_radix_cache.time = clock
    # Deadlines of prefetches are timed outside of the tree's modules.
    poll_timer.time = clock
    storage.StorageBackendFactory.create_backend = staticmethod(lambda *_, **__: laws)

    class HostPool(HostKVCache):  # type: ignore[misc]
        """Slots of the host, and copies that only take time."""

        layer_num = target_layer_num = 1

        def prepare_transfer_indices(self, host_indices, device_indices, io_backend):  # type: ignore[no-untyped-def]
            return host_indices, device_indices

        def backup_from_device_all_layer_physical(self, pool, host_indices, device_indices, io_backend):  # type: ignore[no-untyped-def]
            device.copy(len(host_indices), hicache["d2h_base_s"], hicache["d2h_per_token_s"])

        def load_to_device_per_layer_physical(
            self, pool, host_indices, device_indices, layer, io_backend, is_draft=False
        ):  # type: ignore[no-untyped-def]
            device.copy(len(host_indices), hicache["h2d_base_s"], hicache["h2d_per_token_s"])
            timeline.load_back = (len(host_indices), device.current.free_at)

        def _nothing(self, *args: Any, **kwargs: Any) -> Any:
            return None

        get_size_per_token = init_kv_buffer = load_to_device_per_layer = backup_from_device_all_layer = _nothing
        get_data_page = get_dummy_flat_data_page = set_from_flat_data_page = get_hybrid_pool_buffer = _nothing

    HostPool.__abstractmethods__ = frozenset()

    def host_pool(*, kv_pool: Any, page_size: int, **_: Any) -> HostPool:
        return HostPool(
            dtype=None, device_capacity_tokens=kv_pool.size, size_per_token=0, start_layer=0, end_layer=0,
            host_to_device_ratio=hicache["hicache_ratio"], host_size=0, page_size=page_size, layout="layer_first",
            pin_memory=False, device="cpu", is_dummy=True,
        )  # fmt: skip

    hybrid_pool_assembler.build_kv_host_pool = host_pool

    base = hybrid_cache_controller.HybridCacheController
    base = base.__mro__[1] if base.__name__ == "Controller" else base
    queried: dict[Any, int] = {}

    class Controller(base):  # type: ignore[misc, valid-type]
        def _storage_hit_query(self, operation: Any) -> Any:
            laws.query()
            answer = super()._storage_hit_query(operation)
            queried[operation.request_id] = answer[1]
            return answer

        def _page_transfer(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
            laws.log(operation.request_id, "reading", len(operation.hash_value) * self.page_size)
            answer = super()._page_transfer(operation, *args, **kwargs)
            laws.log(operation.request_id, "read", operation.completed_tokens)
            return answer

    hybrid_cache_controller.HybridCacheController = hybrid_pool_assembler.HybridCacheController = Controller


def next_deadline(tree: Any, timeline: Timeline) -> float | None:
    """When the next prefetch times out that a request waits for, and a microsecond more."""
    waits = (tree._storage_prefetch_wait.get(handle) for handle in tree.ongoing_prefetch)
    times = [wait.timer.started_at + wait.timeout_s + 1e-6 for wait in waits if wait is not None and wait.timer.running]
    return min((time for time in times if time > timeline.clock), default=None)


def kv_cache(size: int, page: int) -> Any:
    """What the controller asks a device pool of one layer; it holds nothing."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    class Pool(MHATokenToKVPool):  # type: ignore[misc]
        def __init__(self) -> None:
            self.size, self.page_size, self.layer_num, self.start_layer, self.end_layer = size, page, 1, 0, 0
            self.device, self.store_dtype, self.dtype = "cpu", None, None
            self.register_layer_transfer_counter = Ignored()
            self.host_capacity_tokens = None

        def host_pool_decls(self) -> tuple[Any, ...]:
            return ()

        def __del__(self) -> None:
            pass

    return Pool()
