"""LMCache's local tiers: chunks of KV in host memory, and on disk behind it.

Looked up in LMCache's ``v1/storage_backend`` (``local_cpu_backend.py``, ``local_disk_backend.py``,
``storage_manager.py``, ``cache_policy/lru.py``) and ``v1/cache_engine.py`` (of spring 2026), unless marked *assumed*:

- A look-up takes the leading chunks that host memory has, then those that the disk has behind them; it pins what it
  finds and moves it to the end of its tier's LRU order, last chunk first. (cache_engine.lookup, storage_manager
  batched_contains, touch_cache)
- A chunk to be stored is given host memory before anything asks whether it is there already; that comes afterwards and
  leaves its place in the order alone. Room is made one chunk at a time, from the front, of chunks neither pinned nor in
  use; where there is none, this chunk and those behind it are not stored. (cache_engine.store, local_cpu_backend)
- A stored chunk is written to disk as well, be it there already, unless such a write is under way; while it is, its
  host memory is in use. Room on disk is made when the write is asked for, from the front, of chunks not pinned; without
  room it is not written. It can be found on disk when the write has ended. (local_disk_backend)
- What is read from disk goes into host memory, at the end of the order, and to the end of the disk's. (storage_manager
  batched_get, local_disk_backend get_blocking)
- *Assumed*: memory is in whole chunks; there is no fragmentation. One chunk is written or read after another (the
  engine has four threads). A chunk written again takes no more disk than before (the engine's own count grows). Where
  host memory has no room for what is read from disk, it is read without being kept (the engine tries again until there
  is). Times within a step may be noted ahead of others' look-ups, which find what is there by their own time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from hisearch.validate.restatement.transfers import Link


@dataclass(eq=False)
class HostChunk:
    """Host memory of one chunk.

    Attributes:
        users: the cache, a save, a read, or a write to disk that use it; nobody: it is free.
        pins: look-ups that found it and have not been served.
        ready_s: when it can be found.
    """

    users: int = 1
    pins: int = 0
    ready_s: float = 0.0


@dataclass(eq=False)
class DiskChunk:
    """A chunk on disk, which can be found from ``ready_s`` on."""

    ready_s: float
    pins: int = 0


@dataclass
class Find:
    """What a look-up found: chunks in host memory, then chunks on disk, all pinned."""

    host: list[Hashable]
    disk: list[Hashable]

    @property
    def chunks(self) -> int:
        """How many in all."""
        return len(self.host) + len(self.disk)


class LmcacheStore:
    """Host memory of ``host_chunks`` chunks and a disk of ``disk_chunks`` (0: none).

    Attributes:
        cached: what host memory can offer, in LRU order.
        disk: what the disk can offer, in LRU order.
        used: chunks of host memory in use by anybody.
        claimed: chunks of disk in use, writes under way among them.
        evicted, disk_evicted, disk_written: chunks so far.
    """

    def __init__(
        self, host_chunks: int, disk_chunks: int, chunk_tokens: int, disk_write: Link, disk_read: Link
    ) -> None:
        self.host_chunks = host_chunks
        self.disk_chunks = disk_chunks
        self.chunk_tokens = chunk_tokens
        self.disk_write = disk_write
        self.disk_read = disk_read
        self.cached: OrderedDict[Hashable, HostChunk] = OrderedDict()
        self.disk: OrderedDict[Hashable, DiskChunk] = OrderedDict()
        self.used = 0
        self.claimed = 0
        self.evicted = 0
        self.disk_evicted = 0
        self.disk_written = 0
        self._writes: list[tuple[float, Hashable, HostChunk]] = []

    # ---- look-ups --------------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[Hashable], now: float) -> Find:
        """Pin and touch the leading chunks that are there."""
        self.advance(now)
        in_host = self._leading(keys, now)
        on_disk = self._leading_on_disk(keys[in_host:], now)
        find = Find(list(keys[:in_host]), list(keys[in_host : in_host + on_disk]))
        for key in reversed(find.host):
            self.cached[key].pins += 1
            self.cached.move_to_end(key)
        for key in reversed(find.disk):
            self.disk[key].pins += 1
            self.disk.move_to_end(key)
        return find

    def unpin(self, find: Find) -> None:
        """The look-up has been served."""
        for key in find.host:
            self.cached[key].pins -= 1
        for key in find.disk:
            self.disk[key].pins -= 1

    def _leading(self, keys: Sequence[Hashable], now: float) -> int:
        count = 0
        while count < len(keys) and keys[count] in self.cached and self.cached[keys[count]].ready_s <= now:
            count += 1
        return count

    def _leading_on_disk(self, keys: Sequence[Hashable], now: float) -> int:
        count = 0
        while count < len(keys) and keys[count] in self.disk and self.disk[keys[count]].ready_s <= now:
            count += 1
        return count

    # ---- host memory -----------------------------------------------------------------------------------------------

    def _allocate(self) -> HostChunk | None:
        """Host memory of one chunk, evicting if need be."""
        if self.used == self.host_chunks:
            victim = next((key for key, chunk in self.cached.items() if chunk.users == 1 and chunk.pins == 0), None)
            if victim is None:
                return None
            self._drop_user(self.cached.pop(victim))
            self.evicted += 1
        self.used += 1
        return HostChunk()

    def _drop_user(self, chunk: HostChunk) -> None:
        chunk.users -= 1
        if chunk.users == 0:
            self.used -= 1

    def _offer(self, key: Hashable, chunk: HostChunk, ready_s: float) -> None:
        """Cache the chunk, unless host memory has its content already."""
        if key not in self.cached:
            chunk.users += 1
            chunk.ready_s = ready_s
            self.cached[key] = chunk

    def read(self, keys: Sequence[Hashable], now: float) -> float:
        """Bring chunks that a look-up found into host memory; returns when all are there."""
        self.advance(now)
        in_host = self._leading(keys, now)
        at_s = now
        fresh: list[tuple[Hashable, HostChunk]] = []
        for key in keys[in_host:]:
            self.disk.move_to_end(key)
            at_s = self.disk_read.send(at_s, self.chunk_tokens)
            chunk = self._allocate()
            if chunk is not None:
                fresh.append((key, chunk))
        for key, chunk in fresh:
            self._offer(key, chunk, at_s)
        for _, chunk in fresh:
            self._drop_user(chunk)
        return at_s

    def reserve(self, keys: Sequence[Hashable], now: float) -> list[tuple[Hashable, HostChunk]]:
        """Host memory for as many of the first ``keys`` as there is room for."""
        self.advance(now)
        taken: list[tuple[Hashable, HostChunk]] = []
        for key in keys:
            chunk = self._allocate()
            if chunk is None:
                break
            taken.append((key, chunk))
        return taken

    def save(self, taken: list[tuple[Hashable, HostChunk]], now: float) -> None:
        """Reserved memory holds its chunks at ``now``: they can be found from then on, and are written to disk."""
        for key, chunk in taken:
            self._offer(key, chunk, now)
        if self.disk_chunks:
            for key, chunk in taken:
                self._begin_write(key, chunk, now)
        for _, chunk in taken:
            self._drop_user(chunk)

    # ---- disk ------------------------------------------------------------------------------------------------------

    def _begin_write(self, key: Hashable, chunk: HostChunk, now: float) -> None:
        if any(key == written for _, written, _ in self._writes):
            return
        if self.claimed == self.disk_chunks:
            victim = next((other for other, held in self.disk.items() if held.pins == 0), None)
            if victim is None:
                return
            del self.disk[victim]
            self.claimed -= 1
            self.disk_evicted += 1
        self.claimed += 1
        chunk.users += 1
        self._writes.append((self.disk_write.send(now, self.chunk_tokens), key, chunk))

    def advance(self, now: float) -> None:
        """Note the writes that have ended by ``now``."""
        while self._writes and self._writes[0][0] <= now:
            end_s, key, chunk = self._writes.pop(0)
            self._drop_user(chunk)
            self.disk_written += 1
            if key in self.disk:
                self.disk.move_to_end(key)
                self.claimed -= 1
            else:
                self.disk[key] = DiskChunk(end_s)

    def check(self) -> None:
        """Raise AssertionError unless both tiers are within their capacity and all use is accounted for (law L3)."""
        writing = {id(chunk): chunk for _, _, chunk in self._writes}
        chunks = {id(chunk): chunk for chunk in self.cached.values()} | writing
        assert self.used == len(chunks) <= self.host_chunks
        assert self.claimed == len(self.disk) + len(self._writes) <= self.disk_chunks
        for chunk in chunks.values():
            asked = sum(chunk is other for _, _, other in self._writes)
            assert chunk.users == asked + (chunk in self.cached.values())
