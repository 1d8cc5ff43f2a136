"""LMCache's tiers: chunks of KV in host memory, and in stores behind it, each of one worker or shared.

Looked up in LMCache's ``v1/storage_backend`` (``local_cpu_backend.py``, ``local_disk_backend.py``,
``remote_backend.py``, ``storage_manager.py``, ``cache_policy``) and ``v1/cache_engine.py`` (of spring 2026), unless
marked *assumed*:

- A look-up takes the leading chunks that the first tier has, then those that the next one has behind them, and so on;
  it pins what it finds and counts it as used, last chunk first. (cache_engine.lookup, storage_manager batched_contains,
  touch_cache)
- A chunk to be stored is given host memory before anything asks whether it is there already; that comes afterwards and
  leaves its place in the order alone. Room is made one chunk at a time, of chunks neither pinned nor in use; where
  there is none, this chunk and those behind it are not stored. (cache_engine.store, local_cpu_backend)
- A stored chunk is written to every store behind host memory as well, be it there already, unless such a write is under
  way; while it is, its host memory is in use. Room is made when the write is asked for, of chunks not pinned; without
  room it is not written. It can be found when the write has ended; one written again counts as used then.
  (storage_manager batched_put, local_disk_backend)
- What is read from a store behind host memory is used there, and goes into host memory (over the link to it, where
  workers share it: *assumed*), not into the stores between.
  When it is read, each chunk comes from the nearest tier that has it. (storage_manager batched_get, get_block_mapping,
  local_disk_backend get_blocking)
- What goes first: ``lru`` the chunk whose last use is longest ago; ``mru`` the one used last; ``fifo`` the one that
  came first; ``lfu`` the one used least often, among those the one that has been used so often for longest.
  (cache_policy/lru.py, mru.py, fifo.py, lfu.py)
- Workers of a node may share host memory and the stores behind it, of the node's LMCache server, and all workers the
  store at ``remote_url``. (docs/source/mp, remote_backend.py)
- *Assumed*: a server's tiers follow the same rules (it evicts a share of its memory in the background once that is
  filled to a watermark), and so does a remote store, whose look-ups count as uses and whose chunks can be pinned.
- *Assumed*: memory is in whole chunks; there is no fragmentation. One chunk is written or read after another (the
  engine has four threads). A chunk written again takes no more room than before (the engine's own count grows). Where
  host memory has no room for what is read from behind it, it is read without being kept (the engine tries again until
  there is). Times within a step may be noted ahead of others' look-ups, which find what is there by their own time.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from hisearch.validate.restatement.transfers import Link, send_over

Eviction = Literal["lru", "lfu", "fifo", "mru"]


@dataclass(eq=False)
class Chunk:
    """A chunk in a store, or the host memory of one.

    Attributes:
        users: of host memory: the cache, a save, a read, or a write that use it; nobody: it is free.
        pins: look-ups that found it and have not been served.
        uses: since it came.
        ready_s: when it can be found.
    """

    users: int = 1
    pins: int = 0
    uses: int = 1
    ready_s: float = 0.0


class ChunkStore:
    """One store of a tier, with room for ``chunks`` chunks.

    Attributes:
        held: what it can offer, by key, in the order in which chunks came or, if uses matter, were used.
        used: chunks of room taken, by writes under way and whatever else uses it too.
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
        """How many of the first keys it has by ``now``."""
        count = 0
        while count < len(keys) and keys[count] in self.held and self.held[keys[count]].ready_s <= now:
            count += 1
        return count

    def use(self, key: Hashable) -> None:
        """A chunk is used."""
        self.held[key].uses += 1
        if self.eviction != "fifo":
            self.held.move_to_end(key)

    def room(self) -> bool:
        """Take room for one chunk, evicting if need be. Returns whether there is some."""
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
        """One user less; without any its room is free."""
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
    """What a look-up found in each tier, nearest first, all pinned."""

    tiers: list[list[Hashable]]

    @property
    def chunks(self) -> int:
        """How many in all."""
        return sum(map(len, self.tiers))


@dataclass(frozen=True)
class Ways:
    """The links between a worker's node and a store, all of which a transfer passes at once, in each direction."""

    write: tuple[Link, ...] = ()
    read: tuple[Link, ...] = ()


class LmcacheStore:
    """A worker's tiers, which others may share: host memory, then the stores behind it, with the ways to them."""

    def __init__(self, tiers: Sequence[tuple[ChunkStore, Ways]], chunk_tokens: int) -> None:
        self.stores = [store for store, _ in tiers]
        self.ways = [ways for _, ways in tiers]
        self.host = self.stores[0]
        self.chunk_tokens = chunk_tokens

    # ---- look-ups --------------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[Hashable], now: float) -> Find:
        """Pin and touch the leading chunks that are there."""
        self.advance(now)
        found: list[list[Hashable]] = []
        for store in self.stores:
            begin = sum(map(len, found))
            found.append(list(keys[begin : begin + store.leading(keys[begin:], now)]))
            for key in reversed(found[-1]):
                store.held[key].pins += 1
                store.use(key)
        return Find(found)

    def unpin(self, find: Find) -> None:
        """The look-up has been served."""
        for store, keys in zip(self.stores, find.tiers, strict=True):
            for key in keys:
                store.held[key].pins -= 1

    def advance(self, now: float) -> None:
        """Note the writes that have ended by ``now``."""
        for store in self.stores[1:]:
            store.advance(now)

    # ---- host memory -----------------------------------------------------------------------------------------------

    def _offer(self, key: Hashable, memory: Chunk, ready_s: float) -> None:
        """Cache the memory, unless the host has its content already."""
        if key not in self.host.held:
            memory.users += 1
            memory.ready_s = ready_s
            self.host.held[key] = memory

    def read(self, keys: Sequence[Hashable], now: float) -> float:
        """Bring chunks that a look-up found into host memory; returns when all are there."""
        self.advance(now)
        rest = list(keys[self.host.leading(keys, now) :])
        at_s = now
        fresh: list[tuple[Hashable, Chunk]] = []
        for store, ways in zip(self.stores[1:], self.ways[1:], strict=True):
            count = store.leading(rest, now)
            for key in rest[:count]:
                store.use(key)
                at_s = send_over((*ways.read, *self.ways[0].write), at_s, self.chunk_tokens)
                if self.host.room():
                    fresh.append((key, Chunk()))
            rest = rest[count:]
        assert not rest
        for key, memory in fresh:
            self._offer(key, memory, at_s)
        for _, memory in fresh:
            self.host.let_go(memory)
        return at_s

    def reserve(self, keys: Sequence[Hashable], now: float) -> list[tuple[Hashable, Chunk]]:
        """Host memory for as many of the first ``keys`` as there is room for."""
        self.advance(now)
        taken: list[tuple[Hashable, Chunk]] = []
        for key in keys:
            if not self.host.room():
                break
            taken.append((key, Chunk()))
        return taken

    def save(self, taken: list[tuple[Hashable, Chunk]], now: float) -> None:
        """Reserved memory holds its chunks at ``now``: they can be found from then on, and are written behind it."""
        for key, memory in taken:
            self._offer(key, memory, now)
        for key, memory in taken:
            for store, ways in zip(self.stores[1:], self.ways[1:], strict=True):
                self._begin_write(store, ways, key, memory, now)
        for _, memory in taken:
            self.host.let_go(memory)

    def _begin_write(self, store: ChunkStore, ways: Ways, key: Hashable, memory: Chunk, now: float) -> None:
        if any(key == write[1] for write in store.writes) or not store.room():
            return
        memory.users += 1
        end_s = send_over(ways.write, now, self.chunk_tokens)
        insort(store.writes, (end_s, key, self.host, memory), key=lambda write: write[0])

    def check(self) -> None:
        """Raise AssertionError unless all tiers are within their capacity and all use is accounted for (law L3)."""
        writes = [write for store in self.stores[1:] for write in store.writes if write[2] is self.host]
        chunks = {id(chunk): chunk for chunk in self.host.held.values()} | {id(write[3]): write[3] for write in writes}
        assert self.host.used == len(chunks) <= self.host.chunks
        for store in self.stores[1:]:
            assert store.used == len(store.held) + len(store.writes) <= store.chunks
        for chunk in chunks.values():
            asked = sum(chunk is write[3] for write in writes)
            assert chunk.users == asked + (chunk in self.host.held.values())
