"""LMCache's tiers: chunks of KV in host memory, and in stores behind it, each of one worker or shared.

Looked up in LMCache's ``v1/storage_backend`` (``local_cpu_backend.py``, ``local_disk_backend.py``,
``remote_backend.py``, ``storage_manager.py``, ``cache_policy``) and ``v1/cache_engine.py`` (of spring 2026), unless
marked *assumed*:

- A look-up takes the leading chunks of the first tier, then those of the next one behind them, and so on. It pins its
  hits and counts them as used, last chunk first. (cache_engine.lookup, storage_manager batched_contains, touch_cache)
- A chunk to be stored gets host memory before the check whether it exists already. That check does not change its place
  in the order. Chunks are evicted one at a time, neither pinned nor in use. Without one to evict, this chunk and those
  behind it are not stored. (cache_engine.store, local_cpu_backend)
- A stored chunk is also written to every store behind host memory, even if it exists there, unless such a write is
  under way. During the write its host memory is in use. Space is freed when the write is issued, from chunks not
  pinned; without space the chunk is not written. It can be hit when the write has ended; a chunk written again then
  counts as used. (storage_manager batched_put, local_disk_backend)
- A chunk read from a store behind host memory counts as used there. It goes into host memory (over the link to it, if
  workers share it: *assumed*), not into the stores between. Each chunk is read from the nearest tier that has it.
  (storage_manager batched_get, get_block_mapping, local_disk_backend get_blocking)
- Evicted first: ``lru`` the chunk whose last use is longest ago; ``mru`` the one used last; ``fifo`` the one that
  came first; ``lfu`` the one used least often, among equals the one that reached its count first.
  (cache_policy/lru.py, mru.py, fifo.py, lfu.py)
- Workers of a node may share host memory and the stores behind it, of the node's LMCache server, and all workers the
  store at ``remote_url``. (docs/source/mp, remote_backend.py)
- *Assumed*: a server's tiers follow the same rules (it evicts a share of its memory in the background once that is
  filled to a watermark). So does a remote store, whose look-ups count as uses and whose chunks can be pinned.
- *Assumed*: memory is in whole chunks; there is no fragmentation. One chunk is written or read after another (the
  engine has four threads). A chunk written again takes no more space than before (the engine's own count grows). If
  host memory has no space for a chunk read from behind it, the chunk is read without being stored (the engine retries
  until there is space). Times within a step may be recorded ahead of others' look-ups, which only hit chunks that exist
  at their own time.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.reference.restatement.transfers import Link, send_over

Eviction = Literal["lru", "lfu", "fifo", "mru"]


@dataclass(eq=False)
class Chunk:
    """A chunk in a store, or the host memory of one.

    Attributes:
        users: of host memory: the cache, a save, a read, or a write that use it; 0: it is free.
        pins: look-ups that hit it and have not been served.
        uses: since it was stored.
        ready_s: when it can be hit.
    """

    users: int = 1
    pins: int = 0
    uses: int = 1
    ready_s: float = 0.0


class ChunkStore:
    """One store of a tier, of ``chunks`` chunks.

    Attributes:
        held: its chunks by key, in the order in which they came or, if uses matter, were used.
        used: occupied chunks, including those of writes under way.
        writes: under way, by the time of their end: (end, key, host store, host memory).
        evicted, written: chunks so far.
    """

    def __init__(self, chunks: int, eviction: Eviction = "lru") -> None:
        self.chunks = chunks
        self.eviction = eviction
        self.held: OrderedDict[Hashable, Chunk] = OrderedDict()
        self.used = 0
        self.writes: list[tuple[float, Hashable, ChunkStore, Chunk]] = []
        self.evicted = 0
        self.written = 0

    def leading(self, keys: Sequence[Hashable], now: float) -> int:
        """The number of leading keys that it has by ``now``."""
        count = 0
        while count < len(keys) and keys[count] in self.held and self.held[keys[count]].ready_s <= now:
            count += 1
        return count

    def use(self, key: Hashable) -> None:
        """Count a use of a chunk."""
        self.held[key].uses += 1
        if self.eviction != "fifo":
            self.held.move_to_end(key)

    def room(self) -> bool:
        """Take space for one chunk, evicting if necessary. Returns whether that succeeded."""
        if self.used == self.chunks:
            idle = [key for key, chunk in self.held.items() if chunk.users == 1 and chunk.pins == 0]
            if not idle:
                return False
            fewest = min(self.held[key].uses for key in idle)
            rare = [key for key in idle if self.held[key].uses == fewest]
            victim = {"lru": idle[0], "fifo": idle[0], "mru": idle[-1], "lfu": rare[0]}[self.eviction]
            self.let_go(self.held.pop(victim))
            self.evicted += 1
        self.used += 1
        return True

    def let_go(self, chunk: Chunk) -> None:
        """Remove a user; without any the chunk's space is free."""
        chunk.users -= 1
        if chunk.users == 0:
            self.used -= 1

    def advance(self, now: float) -> None:
        """Note the writes that have ended by ``now``."""
        while self.writes and self.writes[0][0] <= now:
            end_s, key, host, memory = self.writes.pop(0)
            host.let_go(memory)
            self.written += 1
            if key in self.held:
                self.use(key)
                self.used -= 1
            else:
                self.held[key] = Chunk(ready_s=end_s)


@dataclass
class Find:
    """Hits of a look-up in each tier, nearest first, all pinned."""

    tiers: list[list[Hashable]]

    @property
    def chunks(self) -> int:
        """Number of chunks over all tiers."""
        return sum(map(len, self.tiers))


@dataclass(frozen=True)
class Ways:
    """The links between a worker's node and a store; a transfer passes all of a direction at once."""

    write: tuple[Link, ...] = ()
    read: tuple[Link, ...] = ()


class LmcacheStore:
    """A worker's tiers, which others may share: host memory, then the stores behind it, with the links to them."""

    def __init__(self, tiers: Sequence[tuple[ChunkStore, Ways]], chunk_tokens: int) -> None:
        self.stores = [store for store, _ in tiers]
        self.ways = [links for _, links in tiers]
        self.host = self.stores[0]
        self.chunk_tokens = chunk_tokens

    # ---- look-ups --------------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[Hashable], now: float) -> Find:
        """Pin and touch the leading chunks that exist."""
        self.advance(now)
        hits: list[list[Hashable]] = []
        for store in self.stores:
            begin = sum(map(len, hits))
            hits.append(list(keys[begin : begin + store.leading(keys[begin:], now)]))
            for key in reversed(hits[-1]):
                store.held[key].pins += 1
                store.use(key)
        return Find(hits)

    def unpin(self, find: Find) -> None:
        """Release the pins of a look-up that has been served."""
        for store, keys in zip(self.stores, find.tiers, strict=True):
            for key in keys:
                store.held[key].pins -= 1

    def advance(self, now: float) -> None:
        """Note the writes that have ended by ``now``."""
        for store in self.stores[1:]:
            store.advance(now)

    # ---- host memory -----------------------------------------------------------------------------------------------

    def _offer(self, key: Hashable, memory: Chunk, ready_s: float) -> None:
        """Add the chunk to the cache, unless the host has its content already."""
        if key not in self.host.held:
            memory.users += 1
            memory.ready_s = ready_s
            self.host.held[key] = memory

    def read(self, keys: Sequence[Hashable], now: float) -> float:
        """Read a look-up's hits into host memory; returns when all are there."""
        self.advance(now)
        missing = list(keys[self.host.leading(keys, now) :])
        at_s = now
        fresh: list[tuple[Hashable, Chunk]] = []
        for store, links in zip(self.stores[1:], self.ways[1:], strict=True):
            count = store.leading(missing, now)
            for key in missing[:count]:
                store.use(key)
                at_s = send_over((*links.read, *self.ways[0].write), at_s, self.chunk_tokens)
                if self.host.room():
                    fresh.append((key, Chunk()))
            missing = missing[count:]
        assert not missing
        for key, memory in fresh:
            self._offer(key, memory, at_s)
        for _, memory in fresh:
            self.host.let_go(memory)
        return at_s

    def reserve(self, keys: Sequence[Hashable], now: float) -> list[tuple[Hashable, Chunk]]:
        """Reserve host memory for as many leading ``keys`` as fit."""
        self.advance(now)
        reserved: list[tuple[Hashable, Chunk]] = []
        for key in keys:
            if not self.host.room():
                break
            reserved.append((key, Chunk()))
        return reserved

    def save(self, reserved: list[tuple[Hashable, Chunk]], now: float) -> None:
        """Publish reserved chunks, filled at ``now``, and write them to the stores behind the host."""
        for key, memory in reserved:
            self._offer(key, memory, now)
        for key, memory in reserved:
            for store, links in zip(self.stores[1:], self.ways[1:], strict=True):
                self._begin_write(store, links, key, memory, now)
        for _, memory in reserved:
            self.host.let_go(memory)

    def _begin_write(self, store: ChunkStore, links: Ways, key: Hashable, memory: Chunk, now: float) -> None:
        if any(key == write[1] for write in store.writes) or not store.room():
            return
        memory.users += 1
        end_s = send_over(links.write, now, self.chunk_tokens)
        insort(store.writes, (end_s, key, self.host, memory), key=lambda write: write[0])

    def check(self) -> None:
        """Raise AssertionError unless all tiers are within their capacity and all use is accounted for (law L3)."""
        writes = [write for store in self.stores[1:] for write in store.writes if write[2] is self.host]
        chunks = {id(chunk): chunk for chunk in self.host.held.values()} | {id(write[3]): write[3] for write in writes}
        assert self.host.used == len(chunks) <= self.host.chunks
        for store in self.stores[1:]:
            assert store.used == len(store.held) + len(store.writes) <= store.chunks
        for chunk in chunks.values():
            writers = sum(chunk is write[3] for write in writes)
            assert chunk.users == writers + (chunk in self.host.held.values())
