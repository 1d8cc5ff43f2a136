"""LMCache's connector: its scheduler's and worker's side as they are, copies that take time by a law.

What is LMCache's own: the adapter of both sides (``integration/vllm/vllm_v1_adapter.py``), the look-up client, the
cache engine, the token database, the storage manager, the CPU backend with its policy and its allocator, and the code
that says which tokens are copied. Replaced: the kernel that copies (it counts tokens), pinned memory (plain memory),
the message between look-up client and server (a call), and services that decide nothing (statistics, health, HTTP).

One worker in the scheduler's process, as vLLM runs a single rank (``UniProcExecutor``). A step is: loads, request by
request, once the device is free; computation; saves, request by request. LMCache waits for each of its copies, and the
process with it: the scheduler passes again once the loads, and the saves if there are any, have ended.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from hisearch.record.cases import CaseError, EngineError, offload_settings
from hisearch.record.standins import MissingPackages, StandInModule

#: Releases of vLLM -> those of LMCache that were made for it, and the one to install. vLLM 0.33 hands resumed requests
#: to the connector as new ones, by which both lose loads; LMCache 0.5 goes on where 0.4 stops.
VERSIONS = {"0.19": ("0.4", "0.4.4"), "0.33": ("0.5", "0.5.6")}
#: Key of ``offload`` with ``connector: lmcache`` -> default; None where it must be given.
KEYS: dict[str, Any] = {
    "connector": "lmcache", "capacity_tokens": None, "to_host": None, "to_device": None, "chunk_tokens": 256,
    "eviction": "lru", "save_decode": False,
}  # fmt: skip
_EVICTIONS = ("lru", "lfu", "fifo", "mru")
#: Tokens of the stub model in the 4 KiB to which LMCache's allocator rounds a chunk up.
_ALIGNED_TOKENS = 16
#: Seconds of a pin, beyond any case: LMCache drops pins by the wall clock.
_PIN_S = 10**9


def checked(given: dict[str, Any], block_tokens: int) -> dict[str, Any]:
    """``offload`` of a case, with its defaults.

    Raises:
        CaseError: an unknown key, one missing, or chunks that are not whole blocks.
    """
    offload = offload_settings(given, KEYS)
    if offload["chunk_tokens"] % block_tokens or offload["chunk_tokens"] % _ALIGNED_TOKENS:
        raise CaseError(f"offload: chunk_tokens: expected whole blocks of {block_tokens} and {_ALIGNED_TOKENS} tokens")
    if offload["eviction"] not in _EVICTIONS:
        raise CaseError(f"offload: eviction: expected one of {', '.join(_EVICTIONS)}, found {offload['eviction']!r}")
    return offload


def install(vllm: str) -> str:
    """Import LMCache with stand-ins for what needs a GPU; returns its version.

    Args:
        vllm: the installed vLLM's version.

    Raises:
        EngineError: not installed, or of a release that was not made for this vLLM.
    """
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    release = ".".join(vllm.split(".")[:2])
    if release not in VERSIONS:
        raise EngineError(f"LMCache is recorded under vLLM {' and '.join(VERSIONS)}, not {vllm}")
    fitting, newest = VERSIONS[release]
    try:
        version = installed_version("lmcache")
    except PackageNotFoundError:
        message = f"LMCache is not installed: pip install --no-deps lmcache=={newest} sortedcontainers"
        raise EngineError(message) from None
    if not version.startswith(f"{fitting}."):
        raise EngineError(f"LMCache {version} is installed; vLLM {vllm} expects {fitting}, such as {newest}")
    if "lmcache" not in sys.modules:
        os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
        os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
        sys.meta_path.append(MissingPackages("lmcache", ("torch", "numpy", "sortedcontainers", "vllm")))
        modules: dict[str, Any] = sys.modules
        modules["opentelemetry.sdk._logs"] = None  # LMCache does without; a stand-in could not take its messages.
        import lmcache

        if hasattr(lmcache, "device_ops"):  # Those of the CPU, from 0.5 on: its plain memory will do.
            lmcache.device_ops.multi_layer_kv_transfer = _COPIED.count
        else:  # Importing LMCache puts slow ones in Python in the place of its operations, which these replace.
            sys.modules["lmcache.c_ops"] = lmcache.c_ops = _operations()
    return version


class _Copied:
    """Stands for the kernel that copies a chunk: it counts tokens."""

    tokens = 0

    def count(self, chunk: Any, pages: Any, slots: Any, *_: Any, skip_prefix_n_tokens: int = 0, **__: Any) -> None:
        self.tokens += len(slots) - skip_prefix_n_tokens


_COPIED = _Copied()


def _operations() -> Any:
    """LMCache's operations in C, as of 0.4: memory that is not pinned, and copies that are counted."""
    operations: Any = StandInModule("lmcache.c_ops")
    memory: dict[int, Any] = {}

    def alloc_pinned_ptr(size: int, *_: Any) -> int:
        buffer = (ctypes.c_uint8 * size)()
        pointer = ctypes.addressof(buffer)
        memory[pointer] = buffer
        return pointer

    def free_pinned_ptr(pointer: int, *_: Any) -> None:
        memory.pop(pointer, None)

    operations.alloc_pinned_ptr, operations.free_pinned_ptr = alloc_pinned_ptr, free_pinned_ptr
    operations.multi_layer_kv_transfer = _COPIED.count
    return operations


def connector_config(offload: dict[str, Any], page_bytes: int, block_tokens: int, vllm: str) -> dict[str, Any]:
    """Arguments of ``VllmConfig`` that switch the connector on; the host holds whole chunks of ``capacity_tokens``."""
    from vllm.config import KVTransferConfig

    install(vllm)
    size = offload["chunk_tokens"]
    _configure(
        chunk_size=size,
        max_local_cpu_size=(offload["capacity_tokens"] // size * (size // block_tokens) * page_bytes) / 2**30,
        cache_policy=offload["eviction"].upper(),
        save_decode_cache=offload["save_decode"],
        pin_timeout_sec=_PIN_S,
        py_enable_gc=True,
    )
    return {"kv_transfer_config": KVTransferConfig(kv_connector="LMCacheConnectorV1", kv_role="kv_both")}


def _configure(**settings: Any) -> None:
    """LMCache's configuration, as its file would give it, and the services that it starts."""
    from lmcache.integration.vllm import utils, vllm_v1_adapter
    from lmcache.v1 import cache_engine
    from lmcache.v1.config import LMCacheEngineConfig

    cache_engine.LMCacheEngineBuilder.destroy(utils.ENGINE_NAME)
    utils._config_instance = LMCacheEngineConfig.from_defaults(**settings)
    vllm_v1_adapter.VllmServiceFactory = _service_factory()
    vllm_v1_adapter.get_pp_group = lambda: SimpleNamespace(is_last_rank=True)
    cache_engine.LMCacheStatsLogger = lambda *_, **__: SimpleNamespace(shutdown=lambda: None)


def _service_factory() -> type:
    """LMCache's factory of services, with those alone that decide what is stored and loaded."""
    from lmcache.integration.vllm import vllm_service_factory
    from lmcache.integration.vllm.utils import ENGINE_NAME
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.lookup_client.lmcache_lookup_client import LMCacheLookupClient

    class Factory(vllm_service_factory.VllmServiceFactory):  # type: ignore[misc]
        def get_or_create_metadata(self) -> Any:
            role: str = self.role
            self.role: str = "scheduler"  # The other asks for GPUs.
            metadata = super().get_or_create_metadata()
            self.role = metadata.role = role
            return metadata

        def get_or_create_lmcache_engine(self) -> Any:
            if self.role == "scheduler":
                return None
            self._ensure_metadata()
            together = SimpleNamespace(broadcast=lambda tensor, _: tensor, broadcast_object=lambda item, _: item)
            self.lmcache_engine = LMCacheEngineBuilder.get_or_create(
                ENGINE_NAME, self.lmcache_config, self.metadata, _copying_connector(self.metadata),
                together.broadcast, together.broadcast_object,
            )  # fmt: skip
            return self.lmcache_engine

        def maybe_create_lookup_client(self) -> Any:
            if self.role != "scheduler":
                return None
            return LMCacheLookupClient(self.lmcache_config, self.metadata, _Call())

        def maybe_create_lookup_server(self) -> Any:
            return None

        maybe_create_offload_server = maybe_create_lookup_server
        maybe_create_runtime_plugin_launcher = maybe_create_lookup_server

        def maybe_create_internal_api_server(self, lmcache_manager: Any) -> Any:
            return None

        maybe_create_health_monitor = maybe_create_internal_api_server

    return Factory


class _Call:
    """Between look-up client and engine: a call, where LMCache sends a message and waits for the answer."""

    world_size = 1

    def send_and_recv_all(self, message: list[Any]) -> list[bytes]:
        from lmcache.integration.vllm.utils import ENGINE_NAME
        from lmcache.v1.cache_engine import LMCacheEngineBuilder

        hashes, offsets, name, _ = message
        engine = LMCacheEngineBuilder.get(ENGINE_NAME)
        return [engine.lookup(hashes=hashes, offsets=offsets, lookup_id=name, pin=True).to_bytes(4, "big")]

    def close(self) -> None:
        pass


def _copying_connector(metadata: Any) -> Any:
    """LMCache's GPU connector on a clock (``_Clock``), which ``Worker`` sets."""
    from lmcache.v1.gpu_connector.gpu_connectors import VLLMPagedMemGPUConnectorV2

    class Connector(VLLMPagedMemGPUConnectorV2):  # type: ignore[misc]
        copies: Copies

        def __init__(self) -> None:
            self.use_mla, self.gpu_buffer, self.kvcaches = metadata.use_mla, None, None
            self.num_layers = metadata.kv_shape[0]
            self.hidden_dim_size = metadata.kv_shape[3] * metadata.kv_shape[4]
            self.store_stream = self.load_stream = SimpleNamespace(synchronize=lambda: None)
            self.device = self.page_buffer_size = self.gpu_kv_format = self.block_size = self.head_size = None
            self.engine_kv_format = self.block_stride_elems = None

        def initialize_kvcaches_ptr(self, **kwargs: Any) -> None:
            self.kvcaches = kwargs["kvcaches"]

        def _initialize_pointers(self, kv_caches: list[Any]) -> Any:
            return None

        def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
            _COPIED.tokens = 0
            super().batched_to_gpu(memory_objs, starts, ends, **kwargs)
            self.copies.load(_COPIED.tokens)

        def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
            _COPIED.tokens = 0
            super().batched_from_gpu(memory_objs, starts, ends, **kwargs)
            self.copies.store(_COPIED.tokens)

    return Connector()


class Copies:
    """Copies that the worker waits for, on a clock.

    Attributes:
        at_s: the time on the worker. stored_tokens, loaded_tokens: copied so far. waited: whether since ``begin``.
    """

    def __init__(self, to_host: list[float], to_device: list[float]) -> None:
        self.to_host, self.to_device = to_host, to_device
        self.at_s = 0.0
        self.stored_tokens = self.loaded_tokens = 0
        self.waited = False

    def load(self, tokens: int) -> None:
        """Copy ``tokens`` to the device."""
        self.loaded_tokens += tokens
        self._wait(self.to_device, tokens)

    def store(self, tokens: int) -> None:
        """Copy ``tokens`` to host memory."""
        self.stored_tokens += tokens
        self._wait(self.to_host, tokens)

    def _wait(self, law: list[float], tokens: int) -> None:
        self.at_s += law[0] + law[1] * tokens
        self.waited = True


class Worker:
    """The worker's side of the connector.

    Attributes:
        copies: what it has copied, and its clock.
    """

    def __init__(self, scheduler: Any, offload: dict[str, Any]) -> None:
        import torch
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        # Streams are the GPU's: without one nothing is queued on them.
        torch.cuda.stream = lambda stream: nullcontext()
        self.copies = Copies(offload["to_host"], offload["to_device"])
        config = scheduler.vllm_config
        self.side = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, scheduler.kv_cache_config)
        caches = {
            name: torch.empty((2, scheduler.kv_cache_config.num_blocks, config.cache_config.block_size, 1, 64),
                              dtype=torch.float16)
            for group in scheduler.kv_cache_config.kv_cache_groups for name in group.layer_names
        }  # fmt: skip
        self.side.register_kv_caches(caches)
        adapter = self.side._lmcache_engine
        adapter.lmcache_engine.gpu_connector.copies = self.copies
        if adapter._manager._init_failed:
            raise EngineError(f"LMCache cannot be started: {adapter._manager._init_failed_reason}")

    def run(self, output: Any, start_s: float, seconds: float) -> tuple[float, float | None]:
        """A step whose device work may begin at ``start_s`` and computes for ``seconds``.

        Returns:
            When it ends, and until when it holds the scheduler; None where it does not.
        """
        self.copies.at_s = start_s
        held_s = None
        self.side.bind_connector_metadata(output.kv_connector_metadata)
        self._step(self.side.start_load_kv, SimpleNamespace(attn_metadata=object(), no_compile_layers={}))
        if self.copies.waited:
            held_s = self.copies.at_s
        self.copies.at_s += seconds
        self._step(self.side.wait_for_save)
        if self.copies.waited:
            held_s = self.copies.at_s
        if errors := self.side.get_block_ids_with_load_errors():
            raise RuntimeError(f"LMCache lost blocks {sorted(errors)} that it had")
        self.side.clear_connector_metadata()
        return self.copies.at_s, held_s

    def _step(self, action: Any, *arguments: Any) -> None:
        self.copies.waited = False
        action(*arguments)
