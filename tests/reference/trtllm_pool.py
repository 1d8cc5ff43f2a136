"""TensorRT-LLM's primary and secondary pool: blocks in device memory, and what leaves them in host memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from tests.reference.restatement.transfers import Link
from tests.reference.restatement.vllm_pool import BlockPool

from .trtllm_state import TrtllmConfig


class TwoPools(BlockPool):
    """The device's blocks, and behind them the host's, which nobody ever holds for longer than it takes to copy them.

    Attributes:
        host_free: host blocks, in the order in which they will be taken.
        host_content, on_host: page of a host block, and block of a page, for those that have content.
        host_evicted_blocks, host_read_blocks, host_stored_blocks: counts.
        to_host, to_device: the links.
        copies_begin_s: when copies that are asked for now can begin.
        copies_end_s: when all that were asked for have ended.
    """

    def __init__(self, config: TrtllmConfig) -> None:
        super().__init__(config.num_blocks + 1)
        self.block_tokens = config.tokens_per_block
        self.host_blocks = config.host_blocks
        self.host_free: OrderedDict[int, None] = OrderedDict((slot, None) for slot in range(config.host_blocks))
        self.host_content: dict[int, Hashable] = {}
        self.on_host: dict[Hashable, int] = {}
        self.host_evicted_blocks = 0
        self.host_read_blocks = 0
        self.host_stored_blocks = 0
        self.to_host = Link(config.to_host)
        self.to_device = Link(config.to_device)
        self.copies_begin_s = 0.0
        self.copies_end_s = 0.0

    def is_on_host(self, identity: Hashable) -> bool:
        """Whether a host block has this page."""
        return identity in self.on_host

    def take(self) -> int:
        """The front of the device's free queue; the page that it held goes to the host, where a block is free there."""
        block = next(iter(self.free))
        if block in self.content and self.host_free:
            self._offload(self.content[block])
        return super().take()

    def claim(self, identity: Hashable) -> int:
        """Take the host block of this page out of the queue; its content cannot be found any more."""
        slot = self.on_host.pop(identity)
        del self.host_content[slot]
        del self.host_free[slot]
        return slot

    def give_back(self, slot: int) -> None:
        """A claimed host block, empty, to the back of the queue."""
        self.host_free[slot] = None

    def onboard(self, claimed: list[tuple[Hashable, int]]) -> list[int]:
        """Bring claimed host blocks to the device; returns the blocks there, held."""
        blocks = [self.take() for _ in claimed]
        for block, (identity, slot) in zip(blocks, claimed, strict=True):
            self._copy(self.to_device)
            self.host_read_blocks += 1
            self.publish(block, identity)
            self.give_back(slot)
        return blocks

    def check(self) -> None:
        """Raise AssertionError unless both pools are consistent (law L3)."""
        super().check()
        assert len(self.host_free) == self.host_blocks
        assert {slot: page for page, slot in self.on_host.items()} == self.host_content
        assert not set(self.on_host) & set(self.findable)

    def _offload(self, identity: Hashable) -> None:
        slot, _ = self.host_free.popitem(last=False)
        if slot in self.host_content:
            del self.on_host[self.host_content.pop(slot)]
            self.host_evicted_blocks += 1
        self.host_content[slot] = identity
        self.on_host[identity] = slot
        self.host_free[slot] = None
        self.host_stored_blocks += 1
        self._copy(self.to_host)

    def _copy(self, link: Link) -> None:
        self.copies_end_s = max(self.copies_end_s, link.send(self.copies_begin_s, self.block_tokens))
