"""vLLM 0.19's offloading manager: which blocks host memory holds, who uses them, and which go first.

Looked up in vLLM's ``v1/kv_offload`` as of 0.19 (``cpu/manager.py``, ``cpu/policies/lru.py`` and ``arc.py``,
``reuse_manager.py``); rule by rule:

- A block being stored cannot be found and cannot be evicted; one being loaded cannot be evicted. (manager)
- A look-up counts leading blocks that can be found, and moves nothing. (manager)
- What is to be stored leaves out blocks that are there already, be they still being stored. All of it gets room or none
  of it; blocks that were asked for are not evicted for it. (manager)
- Nothing is stored without room: as many blocks are evicted as are missing, no more. (manager)
- LRU: one order; a stored block goes to its end, a touch moves there, last block first, so that of a sequence touched
  together the last block is evicted first. (lru)
- ARC: a stored block goes to the end of T1. A touch, last block first, moves a block from T1 to the end of T2 (one that
  is being stored to the end of T1), within T2 to its end; of a ghost it moves the target of T1, by the ratio of the two
  ghost lists and at least 1, within 0 and the capacity, and the ghost to its list's end. (arc)
- ARC evicts from T1 while T1 is not smaller than the target's whole part, and there is one to evict; else from T2, and
  where T2 has none, nothing at all. Ghost lists are cut to the capacity after an eviction. (arc)
- With a store threshold of 2 or more, every block that a look-up is asked about is counted, found or not; only blocks
  counted so often are stored. The count of the block counted longest ago is forgotten for the 64,001st. (reuse_manager)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from hisearch.validate.restatement.transfers import CopyLaw

#: Blocks whose look-ups are counted at a time (``max_tracker_size``).
TRACKED_BLOCKS = 64_000
#: Thresholds below count nothing.
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
        """``keys``, first to last block, are used."""

    def evict(self, count: int, spared: set[Hashable]) -> list[Hashable] | None:
        """Drop ``count`` idle blocks other than ``spared`` ones, or none; None where there are not so many."""

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
        """Hold a new block, as the last to go."""
        self.order[key] = block

    def touch(self, keys: Iterable[Hashable]) -> None:
        """Held blocks become the last to go, the first of them the very last."""
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
        target: wanted size of T1.
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
        """Hold a new block in T1; it is no ghost any more."""
        self.recent[key] = block
        self.recent_ghosts.pop(key, None)
        self.frequent_ghosts.pop(key, None)

    def touch(self, keys: Iterable[Hashable]) -> None:
        """Promote held blocks, learn from ghosts."""
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
        """Drop from T1 or T2, one by one, as if each were gone before the next is chosen."""
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
        """A request has these blocks, first to last."""
        self.policy.touch(keys)

    def lookup(self, keys: Sequence[Hashable]) -> int:
        """How many of the first ``keys`` can be loaded."""
        if self.threshold >= LEAST_THRESHOLD:
            self._count(keys)
        found = 0
        for key in keys:
            block = self.policy.get(key)
            if block is None or not block.ready:
                break
            found += 1
        return found

    def _count(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            if key not in self.counts and len(self.counts) >= TRACKED_BLOCKS:
                self.counts.popitem(last=False)
            self.counts[key] = self.counts.get(key, 0) + 1
            self.counts.move_to_end(key)

    def begin_load(self, keys: Sequence[Hashable]) -> None:
        """Found blocks are being loaded."""
        for key in keys:
            self._held(key).loads += 1

    def end_load(self, keys: Sequence[Hashable]) -> None:
        """They have been."""
        for key in keys:
            self._held(key).loads -= 1

    def begin_store(self, keys: Sequence[Hashable]) -> list[Hashable] | None:
        """Make room for those of ``keys`` that are missing, and wanted; these, or None where there is no room."""
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
        """Blocks being stored can be found from now on."""
        for key in keys:
            self._held(key).ready = True

    def _held(self, key: Hashable) -> HostBlock:
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
        capacity_tokens: host memory; what is less than an offloaded block has no use.
        to_host, to_device: laws of the two directions.
        block_size_factor: device blocks per offloaded block.
        eviction: ``lru`` or ``arc``.
        store_threshold: look-ups after which a block is worth storing; below 2: all are.
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
