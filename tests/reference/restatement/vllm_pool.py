"""vLLM's block pool: a free queue that is also the LRU order, and full blocks indexed by content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class BlockPool:
    """Blocks 1 … num_blocks - 1 (block 0 is vLLM's null block, never handed out).

    ``unhashed_first``: blocks freed without content go to the front of the free queue.

    Attributes:
        free: blocks without a holder, in the order in which they will be taken; they keep their content until then.
        holders: block -> number of requests that hold it.
        content: block -> identity of the page it holds, for findable blocks.
        findable: identity -> its blocks, first hashed first.
        evicted_blocks: findable blocks that lost their content by being taken.
    """

    def __init__(self, num_blocks: int, unhashed_first: bool = False) -> None:
        self.unhashed_first = unhashed_first
        self.usable_blocks = num_blocks - 1
        self.free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(1, num_blocks))
        self.holders: dict[int, int] = dict.fromkeys(range(1, num_blocks), 0)
        self.content: dict[int, Hashable] = {}
        self.findable: dict[Hashable, list[int]] = {}
        self.evicted_blocks = 0

    @property
    def held_blocks(self) -> int:
        """Blocks that some request holds."""
        return self.usable_blocks - len(self.free)

    def find(self, identity: Hashable) -> int | None:
        """The block of this page that was hashed first among those still findable."""
        blocks = self.findable.get(identity)
        return blocks[0] if blocks else None

    def is_free(self, block: int) -> bool:
        """Whether no request holds the block (it may still be findable)."""
        return block in self.free

    def hold(self, block: int) -> None:
        """Add a holder of a found block, and remove the block from the free queue."""
        self.free.pop(block, None)
        self.holders[block] += 1

    def take(self) -> int:
        """Take the front of the free queue; its content can no longer be hit."""
        block, _ = self.free.popitem(last=False)
        if block in self.content:
            identity = self.content.pop(block)
            self.findable[identity].remove(block)
            if not self.findable[identity]:
                del self.findable[identity]
            self.evicted_blocks += 1
        self.holders[block] = 1
        return block

    def publish(self, block: int, identity: Hashable) -> None:
        """Make a full block findable. Another block with equal content stays as it is."""
        if block in self.content:
            raise ValueError(f"block {block} is findable already, as {self.content[block]}")
        self.content[block] = identity
        self.findable.setdefault(identity, []).append(block)

    def release(self, blocks: list[int]) -> None:
        """Release a request's blocks, given first to last: the last is taken again first."""
        for block in blocks:
            self.holders[block] -= 1
        freed = [block for block in reversed(blocks) if self.holders[block] == 0]
        for block in freed:
            self.free[block] = None
        if self.unhashed_first:
            for block in reversed(freed):
                if block not in self.content:
                    self.free.move_to_end(block, last=False)

    def check(self) -> None:
        """Raise AssertionError unless the pool is consistent (law L3)."""
        assert all((count == 0) == (block in self.free) for block, count in self.holders.items())
        assert len(self.free) + self.held_blocks == self.usable_blocks
        listed = [block for blocks in self.findable.values() for block in blocks]
        assert sorted(listed) == sorted(self.content)
