"""SGLang's radix cache: a tree of token runs whose leaves are evicted whole.

Times are ticks: every match and every insertion is one tick later than the one before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from .content import Content, page


@dataclass(eq=False)
class RadixNode:
    """A run of pages.

    Attributes:
        pages: identities of its pages.
        children: by the identity of their first page.
        locks: requests that use it or something below it.
        access_tick, creation_tick: when it was last walked over, and made.
        serial: order of creation, which decides between equal ticks.
    """

    pages: list[Hashable]
    parent: RadixNode | None
    creation_tick: int
    serial: int
    access_tick: int
    children: dict[Hashable, RadixNode] = field(default_factory=dict)
    locks: int = 0


class RadixTree:
    """The cache of one worker.

    Attributes:
        page_size: tokens per page.
        policy: eviction order of leaves. Without a host tier the engine keeps no hit counts, so ``lfu`` is ``lru``.
        total_tokens: tokens in the tree.
        evicted_tokens: tokens evicted so far.
    """

    def __init__(self, page_size: int, policy: Literal["lru", "lfu", "fifo"]) -> None:
        self.page_size = page_size
        self.policy = policy
        self.tick = 0
        self.serial = 0
        self.evicted_tokens = 0
        self._identities: dict[int, tuple[Content, list[Hashable]]] = {}
        self.root = RadixNode([], None, 0, 0, 0, locks=1)

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    @property
    def total_tokens(self) -> int:
        return sum(map(self._tokens, self.nodes()))

    @property
    def evictable_tokens(self) -> int:
        """Tokens of nodes without a lock."""
        return sum(self._tokens(node) for node in self.nodes() if node.locks == 0)

    def match(self, content: Content, tokens: int) -> tuple[int, RadixNode]:
        """Walk along the whole pages of the first ``tokens`` tokens, splitting the node in which the match ends.

        Returns:
            The matched tokens and the node at whose end the match ends.
        """
        node, matched = self._walk(self._keys(content, tokens))
        return matched * self.page_size, node

    def insert(self, content: Content, tokens: int) -> int:
        """Add the whole pages of the first ``tokens`` tokens; returns how many tokens were there already."""
        keys = self._keys(content, tokens)
        node, matched = self._walk(keys)
        if matched < len(keys):
            node.children[keys[matched]] = self._new_node(keys[matched:], node)
        return matched * self.page_size

    def lock(self, node: RadixNode, change: Literal[1, -1]) -> None:
        """Add or remove one lock on a node and all above it."""
        at: RadixNode | None = node
        while at is not None and at is not self.root:
            at.locks += change
            at = at.parent

    def evict(self, tokens: int) -> int:
        """Evict leaves, lowest priority first, until at least ``tokens`` are gone or none is left; returns how many."""
        gone = 0
        while gone < tokens:
            leaves = [node for node in self.nodes() if not node.children and node.locks == 0]
            if not leaves:
                break
            victim = min(leaves, key=self._priority)
            assert victim.parent is not None
            del victim.parent.children[victim.pages[0]]
            gone += self._tokens(victim)
        self.evicted_tokens += gone
        return gone

    def _priority(self, node: RadixNode) -> tuple[int, int]:
        return (node.creation_tick if self.policy == "fifo" else node.access_tick, node.serial)

    def _tokens(self, node: RadixNode) -> int:
        return len(node.pages) * self.page_size

    def _keys(self, content: Content, tokens: int) -> list[Hashable]:
        """Identities of the whole pages, kept per content (with it, so that its ``id`` stays its own)."""
        count = tokens // self.page_size
        keys = self._identities.setdefault(id(content), (content, []))[1]
        keys.extend(page(content, index, self.page_size) for index in range(len(keys), count))
        return keys[:count]

    def _walk(self, keys: list[Hashable]) -> tuple[RadixNode, int]:
        """Follow ``keys`` from the root. Every node on the way, also one matched in part, gets this walk's tick."""
        self.tick += 1
        node, matched = self.root, 0
        while matched < len(keys) and keys[matched] in node.children:
            child = node.children[keys[matched]]
            child.access_tick = self.tick
            common = _common_length(child.pages, keys, matched)
            matched += common
            if common < len(child.pages):
                return self._split(child, common), matched
            node = child
        return node, matched

    def _split(self, child: RadixNode, at: int) -> RadixNode:
        """Cut a node after ``at`` pages; the upper part is a new node."""
        assert child.parent is not None
        upper = self._new_node(child.pages[:at], child.parent)
        upper.locks = child.locks
        child.parent.children[child.pages[0]] = upper
        upper.children[child.pages[at]] = child
        child.parent = upper
        child.pages = child.pages[at:]
        return upper

    def _new_node(self, pages: list[Hashable], parent: RadixNode) -> RadixNode:
        self.serial += 1
        return RadixNode(pages, parent, self.tick, self.serial, self.tick)


def _common_length(pages: list[Hashable], keys: list[Hashable], offset: int) -> int:
    length = 0
    while length < len(pages) and offset + length < len(keys) and pages[length] == keys[offset + length]:
        length += 1
    return length
