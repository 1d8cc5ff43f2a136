"""Host tier and storage of SGLang 0.5.9: its own tree and controller, copies and storage by law."""

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
        ticks: time as the tree sees it.
    """
    import torch
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import hiradix_cache, memory_pool_host, storage

    torch.distributed.get_world_size = lambda group=None: 1
    device = Device(timeline)
    threads = VirtualThreads(lambda: timeline.clock)
    timeline.threads = threads
    timeline.wakes.append(threads.next_time)
    laws = Storage(hicache.get("storage"), threads, timeline)
    cache_controller.device_module = device
    cache_controller.threading = SimpleNamespace(Thread=threads.thread, Event=threading.Event, Lock=threading.Lock)
    cache_controller.Queue = threads.queue_class()
    cache_controller.time = SimpleNamespace(monotonic=threads.time)
    storage.StorageBackendFactory.create_backend = staticmethod(lambda *_, **__: laws)

    class HostPool(memory_pool_host.MHATokenToKVPoolHost):  # type: ignore[misc, name-defined]
        """Slots of the host, and copies that only take time."""

        def __init__(self, device_pool, ratio, size, page_size, layout, pin_memory=True, allocator_type="default"):  # type: ignore[no-untyped-def]
            memory_pool_host.HostKVCache.__init__(
                self, device_pool, ratio, size, page_size, layout, False, "cpu", "default"
            )

        def get_size_per_token(self) -> int:
            return 0

        def init_kv_buffer(self) -> None:
            return None

        def backup_from_device_all_layer(self, device_pool, host_indices, device_indices, io_backend) -> None:  # type: ignore[no-untyped-def]
            device.copy(len(host_indices), hicache["d2h_base_s"], hicache["d2h_per_token_s"])

        def load_to_device_per_layer(self, device_pool, host_indices, device_indices, layer_id, io_backend) -> None:  # type: ignore[no-untyped-def]
            device.copy(len(host_indices), hicache["h2d_base_s"], hicache["h2d_per_token_s"])
            timeline.load_back = (len(host_indices), device.current.free_at)

        def get_data_page(self, index: Any, flat: bool = True) -> Any:
            return None

        def get_dummy_flat_data_page(self) -> Any:
            return None

        def set_from_flat_data_page(self, index: int, data_page: Any) -> None:
            pass

    queried: dict[Any, int] = {}

    class Controller(cache_controller.HiCacheController):  # type: ignore[misc, name-defined]
        def _storage_hit_query(self, operation: Any) -> Any:
            laws.query()
            hashes, tokens = super()._storage_hit_query(operation)
            queried[operation.request_id] = tokens
            return hashes, tokens

        def _page_transfer(self, operation: Any) -> None:
            laws.log(operation.request_id, "reading", len(operation.hash_value) * self.page_size)
            super()._page_transfer(operation)
            laws.log(operation.request_id, "read", operation.completed_tokens)

        def _start_storage_threads(self) -> None:
            super()._start_storage_threads()
            revoke = self.prefetch_revoke_queue.put
            self.prefetch_revoke_queue.put = lambda name: (laws.log(name, "revoked", queried[name]), revoke(name))

    hiradix_cache.MHATokenToKVPoolHost = HostPool
    hiradix_cache.HiCacheController = Controller

    class Tree(_tree_class(hiradix_cache)):  # type: ignore[misc]
        def _prefetch_timeout_check_linear_func(self, operation: Any) -> bool:
            ticks.real = True
            expired = super()._prefetch_timeout_check_linear_func(operation)
            ticks.real = False
            return bool(expired)

        def next_deadline(self) -> float | None:
            """When the next prefetch times out, and a microsecond more."""
            if self.prefetch_stop_policy != "timeout":
                return None
            times = [
                operation.start_time
                + self.prefetch_timeout_base
                + len(operation.hash_value) * self.prefetch_timeout_per_page
                + 1e-6
                for _, _, _, operation in self.ongoing_prefetch.values()
            ]
            return min((time for time in times if time > timeline.clock), default=None)

        def check_hicache_events(self) -> None:
            threads.advance()
            super().check_hicache_events()

        def check_prefetch_progress(self, req_id: str) -> bool:
            threads.advance()
            return bool(super().check_prefetch_progress(req_id))

    hiradix_cache.HiRadixCache = Tree


def _tree_class(module: Any) -> Any:
    """The engine's own tree, also after it was replaced for an earlier case."""
    cls = module.HiRadixCache
    return cls.__mro__[1] if cls.__name__ == "Tree" else cls


def kv_cache(size: int) -> Any:
    """What the controller asks a device pool of one layer; it holds nothing."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    class Pool(MHATokenToKVPool):  # type: ignore[misc]
        def __init__(self) -> None:
            self.size, self.layer_num, self.start_layer, self.end_layer = size, 1, 0, 0
            self.device, self.store_dtype = "cpu", None
            self.register_layer_transfer_counter = Ignored()

        def __del__(self) -> None:
            pass

    return Pool()
