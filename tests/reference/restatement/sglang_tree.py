"""SGLang's radix cache: a tree of token runs whose leaves are evicted whole.

Times are ticks: every match and every insertion is one tick later than the one before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.reference.restatement.content import Content, page

#: Hits from which ``slru`` evicts a node after all others.
PROTECTED_HITS = 2

EvictionPolicy = Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority"]


@dataclass(eq=False)
class RadixNode:
    """A run of pages.

    Attributes:
        pages: identities of its pages.
        children: by the identity of their first page.
        locks: requests that use it or something below it.
        access_tick: when it was last walked over.
        serial: order of creation, which decides between equal ticks.
        priority: highest value among the requests whose insertions passed through it.
        hits: insertions that passed through it (counted by the host tier alone).
        on_device, on_host: where its KV is; on the host from the beginning of the copy.
        host_locks: storage operations that use its host copy.
    """

    pages: list[Hashable]
    parent: RadixNode | None
    serial: int
    access_tick: int
    priority: int
    children: dict[Hashable, RadixNode] = field(default_factory=dict)
    locks: int = 0
    hits: int = 0
    on_device: bool = True
    on_host: bool = False
    host_locks: int = 0


def eviction_key(policy: EvictionPolicy, node: RadixNode) -> tuple[int, ...]:
    """Leaves with the least key go first.

    Without a host tier the engine keeps no hit counts: ``lfu`` and ``slru`` (which protects nodes with at least
    ``PROTECTED_HITS``) are then ``lru``. ``priority`` is by the requests' own values, the lowest first, however the
    queue is ordered.
    Source: the strategies of SGLang's ``mem_cache/evict_policy.py`` (0.5.9), and the recordings for ``lfu``.
    """
    return {
        "lru": (node.access_tick, node.serial),
        "lfu": (node.hits, node.access_tick, node.serial),
        "slru": (node.hits >= PROTECTED_HITS, node.access_tick, node.serial),
        "mru": (-node.access_tick, -node.serial),
        "fifo": (node.serial,),
        "filo": (-node.serial,),
        "priority": (node.priority, node.access_tick, node.serial),
    }[policy]


class RadixTree:
    """The cache of one worker.

    Attributes:
        page_size: tokens per page.
        policy: eviction order of leaves (see ``eviction_key``).
        keeps_creation, counts_hits: dated rules, see ``hisearch.base.engine_rules``.
        total_tokens: tokens in the tree.
        evicted_tokens: tokens evicted so far.
    """

    def __init__(
        self, page_size: int, policy: EvictionPolicy, *, keeps_creation: bool = False, counts_hits: bool = False
    ) -> None:
        self.keeps_creation = keeps_creation
        self.counts_hits = counts_hits
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
        """Tokens in the tree."""
        return sum(map(self.tokens_of, self.nodes()))

    @property
    def evictable_tokens(self) -> int:
        """Tokens of nodes without a lock."""
        return sum(self.tokens_of(node) for node in self.nodes() if node.locks == 0)

    def match(self, content: Content, tokens: int) -> tuple[int, RadixNode]:
        """Walk along the whole pages of the first ``tokens`` tokens, splitting the node in which the match ends.

        Returns:
            The matched tokens and the node at whose end the match ends.
        """
        node, matched = self._walk(self._keys(content, tokens))
        return matched * self.page_size, node

    def insert(self, content: Content, tokens: int, priority: int, *, counted_from: int | None = 0) -> int:
        """Add the whole pages of the first ``tokens`` tokens; returns how many tokens were there already.

        It is a hit of each node that ends behind ``counted_from``, where hits are counted and that is not None.
        """
        keys = self._keys(content, tokens)
        node, matched = self._walk(keys)
        if matched < len(keys):
            above, node = node, self._new_node(keys[matched:], node, priority)
            above.children[keys[matched]] = node
        at: RadixNode | None = node
        while at is not None and at is not self.root:
            at.priority = max(at.priority, priority)
            at = at.parent
        at, end = node, len(keys) * self.page_size
        while self.counts_hits and counted_from is not None and at is not None and end > counted_from:
            at.hits += 1
            end -= self.tokens_of(at)
            at = at.parent
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
            victim = min(leaves, key=lambda node: eviction_key(self.policy, node))
            assert victim.parent is not None
            del victim.parent.children[victim.pages[0]]
            gone += self.tokens_of(victim)
        self.evicted_tokens += gone
        return gone

    def page_keys(self, content: Content, start: int, end: int) -> list[Hashable]:
        """Identities of the whole pages of tokens [start, end)."""
        return self._keys(content, end)[start // self.page_size :]

    def tokens_of(self, node: RadixNode) -> int:
        """Tokens of one node."""
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
            common = common_length(child.pages, keys, matched)
            matched += common
            if common < len(child.pages):
                return self._split(child, common), matched
            node = child
        return node, matched

    def _split(self, child: RadixNode, at: int) -> RadixNode:
        """Cut a node after ``at`` pages; the upper part is a new node."""
        assert child.parent is not None
        upper = self._new_node(child.pages[:at], child.parent, child.priority)
        upper.locks = child.locks
        upper.hits = child.hits
        if self.keeps_creation:
            upper.serial = child.serial
        child.parent.children[child.pages[0]] = upper
        upper.children[child.pages[at]] = child
        child.parent = upper
        child.pages = child.pages[at:]
        return upper

    def _new_node(self, pages: list[Hashable], parent: RadixNode, priority: int) -> RadixNode:
        self.serial += 1
        return RadixNode(pages, parent, self.serial, self.tick, priority)


def common_length(pages: Sequence[object], keys: Sequence[object], offset: int) -> int:
    """Pages that ``pages`` shares with ``keys`` from ``offset`` on."""
    length = 0
    while length < len(pages) and offset + length < len(keys) and pages[length] == keys[offset + length]:
        length += 1
    return length
