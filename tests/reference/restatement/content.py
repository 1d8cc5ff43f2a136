"""Identity of a request's tokens, as caches see it.

The *identity* of the token at position t stands for the whole sequence up to and including t: two requests agree on
their tokens 0 … t exactly when their identities at t are equal. A page's identity is that of its last token, so pages
are chained by construction and no cache ever has to hash.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Content(Protocol):
    """Anything that names the tokens of one request's prompt + output."""

    def token(self, position: int) -> Hashable:
        """Identity of the token at ``position`` (0-based)."""


def page(content: Content, index: int, page_tokens: int) -> Hashable:
    """Identity of the ``index``-th page of ``page_tokens`` tokens."""
    return content.token((index + 1) * page_tokens - 1)


@dataclass(frozen=True)
class BlockContent:
    """Chained ids of full blocks, as in recordings; tokens behind the last full block belong to the request alone.

    Attributes:
        owner: the request's id.
        block_ids: id of every full block of prompt + output.
        block_tokens: tokens per block.
    """

    owner: Hashable
    block_ids: Sequence[int]
    block_tokens: int

    def token(self, position: int) -> Hashable:
        """Identity of the token at ``position``."""
        block, offset = divmod(position, self.block_tokens)
        if block < len(self.block_ids):
            return (self.block_ids[block], offset)
        return (("owner", self.owner), position)


@dataclass(frozen=True)
class AdapterContent:
    """What a LoRA adapter makes of a request's tokens: those of other adapters, and of none, are different."""

    adapter: int
    content: Content

    def token(self, position: int) -> Hashable:
        """Identity of the token at ``position``."""
        return (self.adapter, self.content.token(position))


@dataclass(frozen=True)
class PathContent:
    """A path in a prefix tree: runs ``(node, start_token, end_token)`` from the root, gapless.

    Tokens behind the last run belong to the request alone.
    """

    owner: Hashable
    runs: Sequence[tuple[int, int, int]]

    def __post_init__(self) -> None:
        depth = 0
        for node, start, end in self.runs:
            if start != depth or end <= start:
                raise ValueError(
                    f"request {self.owner}: run of node {node} is [{start}, {end}), expected to start at {depth}"
                )
            depth = end

    def token(self, position: int) -> Hashable:
        """Identity of the token at ``position``."""
        for node, _, end in self.runs:
            if position < end:
                return (node, position)
        return (("owner", self.owner), position)
