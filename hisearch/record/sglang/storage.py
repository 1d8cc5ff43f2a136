"""The storage behind the host tier: a set of keys without limit, whose queries, reads and writes take time by law."""

# ruff: noqa: D102 - methods named after those of the library or the engine that they stand in for

from __future__ import annotations

from typing import Any

from hisearch.record.sglang.timeline import Timeline
from hisearch.record.sglang.virtual_threads import VirtualThreads


class Storage:
    """A storage backend of SGLang.

    Args:
        laws: ``query_s``, ``read_base_s``, ``read_per_token_s``, ``write_base_s``, ``write_per_token_s``; None without
            storage.
        threads: who waits for it.
        timeline: where prefetches are noted.
    """

    def __init__(self, laws: dict[str, float] | None, threads: VirtualThreads, timeline: Timeline) -> None:
        self._laws = laws or {}
        self._threads = threads
        self._timeline = timeline
        self._keys: set[str] = set()
        self._page_tokens = 1

    def query(self) -> None:
        """The wait for a list of hits."""
        self._threads.sleep(self._laws["query_s"])

    def log(self, name: Any, what: str, tokens: int) -> None:
        """Note what a prefetch came to."""
        self._timeline.storage_log.append([round(self._threads.time(), 9), name, what, tokens])

    def register_mem_pool_host(self, pool: Any) -> None:
        self._page_tokens = pool.page_size

    def register_mem_host_pool_v2(self, pool: Any, name: Any = None) -> None:
        self._page_tokens = pool.page_size

    def on_host_pools_registered(self) -> None:
        pass

    def clear(self) -> None:
        self._keys.clear()

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many leading keys are there."""
        return next((index for index, key in enumerate(keys) if key not in self._keys), len(keys))

    def batch_get(self, keys: list[str], *_: Any, **__: Any) -> list[bool | None]:
        """Read pages; they arrive together."""
        self._threads.sleep(self._laws["read_base_s"] + self._laws["read_per_token_s"] * len(keys) * self._page_tokens)
        return [True if key in self._keys else None for key in keys]

    def batch_set(self, keys: list[str], *_: Any, **__: Any) -> bool:
        """Write pages; they are there as soon as all are written."""
        self._threads.sleep(
            self._laws["write_base_s"] + self._laws["write_per_token_s"] * len(keys) * self._page_tokens
        )
        self._keys.update(keys)
        return True

    def close(self) -> None:
        pass

    def get_stats(self) -> None:
        return None
