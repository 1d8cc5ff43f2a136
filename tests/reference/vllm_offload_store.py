"""vLLM 0.19's offloading manager: the blocks in host memory, their users, and their eviction.

Looked up in vLLM's ``v1/kv_offload`` as of 0.19 (``cpu/manager.py``, ``cpu/policies/lru.py`` and ``arc.py``,
``reuse_manager.py``); rule by rule:

- A block being stored can neither be hit nor be evicted; a block being loaded cannot be evicted. (manager)
- A look-up counts leading blocks that can be hit, and changes no order. (manager)
- A store leaves out blocks that exist already, including those still being stored. It gets space for all its blocks or
  for none; requested blocks are not evicted for it. (manager)
- A store evicts only as many blocks as it lacks. (manager)
- LRU: one order. A stored block goes to its end. A touch moves blocks there, last block first, so that of a sequence
  touched together the last block is evicted first. (lru)
- ARC: a stored block goes to the end of T1. A touch, last block first, moves a block from T1 to the end of T2 (a block
  being stored to the end of T1), and within T2 to its end. A touch of a ghost moves it to its list's end. It also moves
  the target of T1, by the ratio of the two ghost lists and at least 1, between 0 and the capacity. (arc)
- ARC evicts from T1 while T1 is not smaller than the target's integer part and has a block to evict; else from T2. If
  T2 has none, nothing is evicted. Ghost lists are cut to the capacity after an eviction. (arc)
- With a store threshold of 2 or more, every looked-up block is counted, hit or not; only blocks with at least that
  count are stored. The 64,001st block replaces the count of the block counted longest ago. (reuse_manager)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tests.reference.restatement.transfers import CopyLaw

#: Blocks whose look-ups are counted at a time (``max_tracker_size``).
TRACKED_BLOCKS = 64_000
#: Lower thresholds disable the counts.
LEAST_THRESHOLD = 2


@dataclass
class HostBlock:
    """A block in host memory: ``loads`` transfers read it; it is not ``ready`` while it is being stored."""

    ready: bool = False
    loads: int = 0

    @property
    def idle(self) -> bool:
        """Whether it may be evicted."""
        return self.ready and self.loads == 0


class Policy(Protocol):
    """An order of eviction over the blocks that it holds."""

    def get(self, key: Hashable) -> HostBlock | None:
        """The block, or None."""

    def insert(self, key: Hashable, block: HostBlock) -> None:
        """Hold a new block."""

    def touch(self, keys: Iterable[Hashable]) -> None:
        """Count a use of ``keys``, given first to last block."""

    def evict(self, count: int, spared: set[Hashable]) -> list[Hashable] | None:
        """Drop ``count`` idle blocks other than ``spared`` ones, or none; None if there are not enough."""

    def blocks(self) -> dict[Hashable, HostBlock]:
        """All that is held."""


class LruPolicy:
    """Least recently used first."""

    def __init__(self) -> None:
        self.order: OrderedDict[Hashable, HostBlock] = OrderedDict()

    def get(self, key: Hashable) -> HostBlock | None:
        """The block, or None."""
        return self.order.get(key)

    def insert(self, key: Hashable, block: HostBlock) -> None:
        """Hold a new block, at the end of the order."""
        self.order[key] = block

    def touch(self, keys: Iterable[Hashable]) -> None:
        """Move held blocks to the end of the order, the first of them last."""
        for key in reversed(list(keys)):
            if key in self.order:
                self.order.move_to_end(key)

    def evict(self, count: int, spared: set[Hashable]) -> list[Hashable] | None:
        """Drop from the front."""
        victims = [key for key, block in self.order.items() if block.idle and key not in spared][:count]
        if len(victims) < count:
            return None
        for key in victims:
            del self.order[key]
        return victims

    def blocks(self) -> dict[Hashable, HostBlock]:
        """All that is held."""
        return dict(self.order)


class ArcPolicy:
    """Adaptive replacement.

    Attributes:
        recent, frequent: T1 and T2.
        recent_ghosts, frequent_ghosts: B1 and B2.
        target: target size of T1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0
        self.recent: OrderedDict[Hashable, HostBlock] = OrderedDict()
        self.frequent: OrderedDict[Hashable, HostBlock] = OrderedDict()
        self.recent_ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self.frequent_ghosts: OrderedDict[Hashable, None] = OrderedDict()

    def get(self, key: Hashable) -> HostBlock | None:
        """The block, or None."""
        return self.recent.get(key) or self.frequent.get(key)

    def insert(self, key: Hashable, block: HostBlock) -> None:
        """Hold a new block in T1; remove it from the ghosts."""
        self.recent[key] = block
        self.recent_ghosts.pop(key, None)
        self.frequent_ghosts.pop(key, None)

    def touch(self, keys: Iterable[Hashable]) -> None:
        """Promote held blocks, and adapt the target to ghosts."""
        for key in reversed(list(keys)):
            if key in self.recent:
                block = self.recent.pop(key)
                (self.frequent if block.ready else self.recent)[key] = block
            elif key in self.frequent:
                self.frequent.move_to_end(key)
            elif key in self.recent_ghosts:
                grown = self.target + max(1, len(self.frequent_ghosts) / len(self.recent_ghosts))
                self.target = min(grown, self.capacity)
                self.recent_ghosts.move_to_end(key)
            elif key in self.frequent_ghosts:
                shrunk = self.target - max(1, len(self.recent_ghosts) / len(self.frequent_ghosts))
                self.target = max(shrunk, 0)
                self.frequent_ghosts.move_to_end(key)

    def evict(self, count: int, spared: set[Hashable]) -> list[Hashable] | None:
        """Drop from T1 or T2, one by one, each before the next is chosen."""
        recent = [key for key, block in self.recent.items() if block.idle and key not in spared]
        frequent = [key for key, block in self.frequent.items() if block.idle and key not in spared]
        size = len(self.recent)
        victims: list[Hashable] = []
        for _ in range(count):
            if recent and size >= int(self.target):
                victims.append(recent.pop(0))
                size -= 1
            elif frequent:
                victims.append(frequent.pop(0))
            else:
                return None
        for key in victims:
            if key in self.recent:
                del self.recent[key]
                self.recent_ghosts[key] = None
            else:
                del self.frequent[key]
                self.frequent_ghosts[key] = None
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return victims

    def blocks(self) -> dict[Hashable, HostBlock]:
        """All that is held."""
        return {**self.recent, **self.frequent}


class OffloadStore:
    """Host memory of ``capacity`` blocks.

    Attributes:
        evicted: blocks dropped so far.
        stored: blocks taken in so far.
        counts: look-ups of each block, while a threshold is set.
    """

    def __init__(self, capacity: int, eviction: Literal["lru", "arc"] = "lru", store_threshold: int = 0) -> None:
        self.capacity = capacity
        self.threshold = store_threshold
        self.policy: Policy = LruPolicy() if eviction == "lru" else ArcPolicy(capacity)
        self.counts: OrderedDict[Hashable, int] = OrderedDict()
        self.evicted = 0
        self.stored = 0

    def __len__(self) -> int:
        return len(self.policy.blocks())

    def touch(self, keys: Sequence[Hashable]) -> None:
        """Touch a request's blocks, given first to last."""
        self.policy.touch(keys)

    def lookup(self, keys: Sequence[Hashable]) -> int:
        """The number of leading ``keys`` that can be loaded."""
        if self.threshold >= LEAST_THRESHOLD:
            self._count(keys)
        hits = 0
        for key in keys:
            block = self.policy.get(key)
            if block is None or not block.ready:
                break
            hits += 1
        return hits

    def _count(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            if key not in self.counts and len(self.counts) >= TRACKED_BLOCKS:
                self.counts.popitem(last=False)
            self.counts[key] = self.counts.get(key, 0) + 1
            self.counts.move_to_end(key)

    def begin_load(self, keys: Sequence[Hashable]) -> None:
        """Begin to load hit blocks."""
        for key in keys:
            self._held_block(key).loads += 1

    def end_load(self, keys: Sequence[Hashable]) -> None:
        """End the load of blocks."""
        for key in keys:
            self._held_block(key).loads -= 1

    def begin_store(self, keys: Sequence[Hashable]) -> list[Hashable] | None:
        """Make space for missing ``keys`` above the threshold; returns these, or None without space."""
        if self.threshold >= LEAST_THRESHOLD:
            keys = [key for key in keys if self.counts.get(key, 0) >= self.threshold]
        missing = [key for key in keys if self.policy.get(key) is None]
        short = len(self) + len(missing) - self.capacity
        if missing and short > 0:
            victims = self.policy.evict(short, set(keys))
            if victims is None:
                return None
            self.evicted += len(victims)
        for key in missing:
            self.policy.insert(key, HostBlock())
        self.stored += len(missing)
        return missing

    def end_store(self, keys: Iterable[Hashable]) -> None:
        """Publish blocks being stored, which can be hit from now on."""
        for key in keys:
            self._held_block(key).ready = True

    def _held_block(self, key: Hashable) -> HostBlock:
        block = self.policy.get(key)
        if block is None:
            raise KeyError(key)
        return block

    def check(self) -> None:
        """Raise AssertionError unless within capacity and no block is read before it is stored (law L3)."""
        assert len(self) <= self.capacity
        assert all(block.ready or block.loads == 0 for block in self.policy.blocks().values())
        assert all(block.loads >= 0 for block in self.policy.blocks().values())


@dataclass(frozen=True)
class OffloadConfig:
    """Settings of the connector.

    Attributes:
        capacity_tokens: host memory; a remainder of less than an offloaded block is unused.
        to_host, to_device: laws of the two directions.
        block_size_factor: device blocks per offloaded block.
        eviction: ``lru`` or ``arc``.
        store_threshold: look-ups from which a block is stored; below 2: all are.
    """

    capacity_tokens: int
    to_host: CopyLaw
    to_device: CopyLaw
    block_size_factor: int = 1
    eviction: Literal["lru", "arc"] = "lru"
    store_threshold: int = 0

    def block_tokens(self, block_size: int) -> int:
        """Tokens of an offloaded block."""
        return self.block_size_factor * block_size

    def new_store(self, block_size: int) -> OffloadStore:
        """Empty host memory."""
        capacity = self.capacity_tokens // self.block_tokens(block_size)
        return OffloadStore(capacity, self.eviction, self.store_threshold)
