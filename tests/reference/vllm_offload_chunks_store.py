"""vLLM 0.33's offloading manager: the blocks in host memory, which request used them, and their eviction.

Looked up in vLLM's ``v1/kv_offload`` as of 0.33 (``cpu/manager.py``, ``cpu/policies/lru.py`` and ``arc.py``):

- A block is *pending* from its store's preparation until its copy is noted. It can neither be hit nor be evicted. One
  that is being loaded cannot be evicted. (manager)
- A store leaves out blocks that are there, pending ones too. It gets space for all its blocks or for none, evicts what
  it lacks, and none of the blocks offered. (manager)
- With a threshold of 2 or more, every offered block is counted, and only blocks with at least that count are stored. Of
  64,000 counted blocks, the one offered longest ago makes place for a new one, but none of the present offer. (manager)
- A request uses blocks that it loads, that it stores or would store, and offered ones that are there and not pending.
  Its first use of any block gives it a place in the order. (manager: _record_request_cache_access)
- LRU: a block takes the place of the newest request that stored or used it, behind those of the request's later
  blocks. When a request ends, its blocks move to the end of the order, its first block last. (lru)
- ARC: a stored block goes to the end of T1. When a request ends, its blocks are treated last one first: of those that
  it only stored, one moves to its list's end; of the others, one moves to T2's end. (arc)
- ARC: a block that a request would store for the first time, and whose ghost is kept, moves the target of T1 as in
  0.19. (manager, arc: on_store_miss)
- ARC evicts from T1 while T1 is not below the target's integer part, else from T2; where the one has no block, from the
  other. Ghost lists are cut to the capacity after an eviction. (arc)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tests.reference.vllm_offload_store import LEAST_THRESHOLD, TRACKED_BLOCKS, ArcPolicy, HostBlock, OffloadConfig


@dataclass
class Uses:
    """What a request has used.

    Attributes:
        positions: by block, its number on the request's path.
        inserted, reused: blocks that it stored, and those that it found.
        missed: blocks that it would have stored at some time.
        rank: its place in LRU's order; 0 before its first use.
    """

    positions: dict[Hashable, int] = field(default_factory=dict)
    inserted: set[Hashable] = field(default_factory=set)
    reused: set[Hashable] = field(default_factory=set)
    missed: set[Hashable] = field(default_factory=set)
    rank: int = 0


class _Lru:
    """Least recently used request first, and of a request its last block."""

    def __init__(self) -> None:
        self.held: dict[Hashable, HostBlock] = {}
        self._ranks: dict[Hashable, tuple[int, int]] = {}
        self._newest = 0

    def get(self, key: Hashable) -> HostBlock | None:
        return self.held.get(key)

    def _next(self) -> int:
        self._newest += 1
        return self._newest

    def _rank_of(self, uses: Uses) -> int:
        uses.rank = uses.rank or self._next()
        return uses.rank

    def use(self, keys: Sequence[Hashable], uses: Uses) -> None:
        """A request's first use of each of ``keys``."""
        rank = self._rank_of(uses)
        for key in keys:
            if key in self.held:
                self._ranks[key] = max(self._ranks[key], (rank, -uses.positions[key]))

    def insert(self, key: Hashable, block: HostBlock, position: int, uses: Uses) -> None:
        self.held[key] = block
        self._ranks[key] = (self._rank_of(uses), -position)

    def miss(self, keys: Sequence[Hashable]) -> None:
        """Blocks that a request would store for the first time."""

    def finish(self, keys: Sequence[Hashable], uses: Uses) -> None:
        for key in reversed(keys):
            if key in self.held:
                self._ranks[key] = (self._next(), 0)

    def evict(self, count: int, spared: set[Hashable]) -> list[Hashable] | None:
        idle = [key for key, block in self.held.items() if block.idle and key not in spared]
        if len(idle) < count:
            return None
        victims = sorted(idle, key=lambda key: self._ranks[key])[:count]
        for key in victims:
            del self.held[key], self._ranks[key]
        return victims

    def blocks(self) -> dict[Hashable, HostBlock]:
        return self.held


class _Arc(ArcPolicy):
    """Adaptive replacement by request."""

    def use(self, keys: Sequence[Hashable], uses: Uses) -> None:
        """Uses count when their request ends."""

    def insert(  # type: ignore[override]
        self, key: Hashable, block: HostBlock, position: int, uses: Uses
    ) -> None:
        super().insert(key, block)

    def miss(self, keys: Sequence[Hashable]) -> None:
        self.touch([key for key in keys if key in self.recent_ghosts or key in self.frequent_ghosts])

    def finish(self, keys: Sequence[Hashable], uses: Uses) -> None:
        for key in reversed(keys):
            held = self.recent if key in self.recent else self.frequent if key in self.frequent else None
            if held is None:
                continue
            if key in uses.reused:
                self.frequent[key] = held.pop(key)
            elif key in uses.inserted:
                held.move_to_end(key)

    def evict(self, count: int, spared: set[Hashable]) -> list[Hashable] | None:
        recent = [key for key, block in self.recent.items() if block.idle and key not in spared]
        frequent = [key for key, block in self.frequent.items() if block.idle and key not in spared]
        size = len(self.recent)
        if len(recent) + len(frequent) < count:
            return None
        victims: list[Hashable] = []
        for _ in range(count):
            if recent and (size >= int(self.target) or not frequent):
                key = recent.pop(0)
                size -= 1
                del self.recent[key]
                self.recent_ghosts[key] = None
            else:
                key = frequent.pop(0)
                del self.frequent[key]
                self.frequent_ghosts[key] = None
            victims.append(key)
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return victims


class ChunkStore:
    """Host memory of ``capacity`` blocks.

    Attributes:
        evicted, stored: blocks so far.
        counts: offers of each block, while a threshold is set.
    """

    def __init__(self, config: OffloadConfig, block_size: int) -> None:
        self.capacity = config.capacity_tokens // config.block_tokens(block_size)
        self.threshold = config.store_threshold
        self.policy: _Lru | _Arc = _Lru() if config.eviction == "lru" else _Arc(self.capacity)
        self.counts: OrderedDict[Hashable, int] = OrderedDict()
        self.evicted = 0
        self.stored = 0

    def lookup(self, keys: Sequence[Hashable]) -> int | None:
        """The number of leading ``keys`` that can be loaded; None if one before the first miss is pending."""
        hits = 0
        pending = False
        for key in keys:
            block = self.policy.get(key)
            if block is None:
                break
            pending |= not block.ready
            hits += 1
        return None if pending else hits

    def begin_load(self, keys: Sequence[Hashable], first: int, uses: Uses) -> None:
        """Begin to load hit blocks, of which the first is the request's block ``first``."""
        for key in keys:
            self._held(key).loads += 1
        self._use(list(keys), {key: first + index for index, key in enumerate(keys)}, uses)
        uses.reused.update(key for key in keys if key not in uses.inserted)

    def end_load(self, keys: Sequence[Hashable]) -> None:
        """End the load of blocks."""
        for key in keys:
            self._held(key).loads -= 1

    def begin_store(self, keys: Sequence[Hashable], first: int, uses: Uses) -> list[Hashable] | None:
        """Offer blocks; returns those that are to be copied, or None without space."""
        positions = {key: first + index for index, key in enumerate(keys)}
        if self.threshold >= LEAST_THRESHOLD:
            self._count(keys)
        missing = [key for key in keys if self.policy.get(key) is None]
        if self.threshold >= LEAST_THRESHOLD:
            missing = [key for key in missing if self.counts.get(key, 0) >= self.threshold]
        matched = [key for key in keys if (block := self.policy.get(key)) is not None and block.ready]
        new = [key for key in missing if key not in uses.missed]
        self.policy.miss(new)
        uses.missed.update(new)
        used = set(missing) | set(matched)
        self._use([key for key in keys if key in used], positions, uses)
        uses.reused.update(key for key in matched if key not in uses.inserted)
        short = len(self.policy.blocks()) + len(missing) - self.capacity
        if missing and short > 0:
            victims = self.policy.evict(short, set(keys))
            if victims is None:
                return None
            self.evicted += len(victims)
        for key in missing:
            self.policy.insert(key, HostBlock(), positions[key], uses)
        uses.inserted.update(missing)
        self.stored += len(missing)
        return missing

    def _use(self, keys: Sequence[Hashable], positions: dict[Hashable, int], uses: Uses) -> None:
        new = [key for key in keys if key not in uses.positions]
        for key in new:
            uses.positions[key] = positions[key]
        if new:
            self.policy.use(new, uses)

    def _count(self, keys: Sequence[Hashable]) -> None:
        kept = {key for key in keys if key in self.counts}
        for key in keys:
            if key in kept:
                self.counts.move_to_end(key)
                self.counts[key] += 1
        others = len(self.counts) - len(kept)
        for key in keys:
            if key in self.counts:
                continue
            if len(self.counts) >= TRACKED_BLOCKS:
                if others == 0:
                    continue
                self.counts.popitem(last=False)
                others -= 1
            self.counts[key] = 1

    def end_store(self, keys: Sequence[Hashable]) -> None:
        """Blocks have been copied: they can be hit from now on."""
        for key in keys:
            self._held(key).ready = True

    def finish(self, uses: Uses) -> None:
        """End a request."""
        self.policy.finish(sorted(uses.positions, key=lambda key: uses.positions[key]), uses)

    def _held(self, key: Hashable) -> HostBlock:
        block = self.policy.get(key)
        if block is None:
            raise KeyError(key)
        return block
