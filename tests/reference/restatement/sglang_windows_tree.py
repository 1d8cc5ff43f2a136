"""SGLang's radix tree over two pools: KV of full attention on every node, that of the window layers on some.

A node whose window layers' KV has been freed is a tombstone. Rules of 0.5.23. Source:
``mem_cache/unified_cache/unified_tree_core.py``, ``components/full.py`` and ``components/swa.py``.

Times are ticks of one counter: a node takes two when it is made, its first access and its creation.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tests.reference.restatement.content import Content
from tests.reference.restatement.sglang_tree import (
    EvictionPolicy,
    RadixNode,
    RadixTree,
    common_length,
    eviction_key,
)

#: Units of a tick: of the nodes that a match touches, each is older than the one below it by one unit.
UNITS = 1 << 20


class Mark:
    """Where the window part of locks ends: it stays at the upper end of the node at which it was set."""


@dataclass(eq=False)
class WindowNode(RadixNode):
    """A run of pages; ``locks`` are those of full attention.

    Attributes:
        windowed: whether its window layers' KV is there.
        window_locks: requests whose window it is a part of, also of a tombstone.
        mark: of the locks that end here.
    """

    windowed: bool = False
    window_locks: int = 0
    mark: Mark | None = None


@dataclass(frozen=True)
class Receipt:
    """What a lock holds: ``node`` and all above it of full attention, of windows those up to ``mark`` (None: all)."""

    node: WindowNode
    mark: Mark | None


class WindowTree(RadixTree):
    """The cache of one worker.

    Attributes:
        window: tokens that have to be there before a match's end.
        recency: nodes with their window layers' KV, the one used last first.
    """

    root: WindowNode

    def __init__(self, page_size: int, policy: EvictionPolicy, window: int) -> None:
        super().__init__(page_size, policy, keeps_creation=True, counts_hits=True)
        self.window = window
        self.recency: list[WindowNode] = []
        self.root = WindowNode([], None, 0, 0, 0, locks=1, window_locks=1)

    @property
    def window_tokens(self) -> int:
        """Tokens of the window layers in the tree."""
        return sum(self.tokens_of(node) for node in self.recency)

    @property
    def evictable_window_tokens(self) -> int:
        """Those that no request's window holds."""
        return sum(self.tokens_of(node) for node in self.recency if node.window_locks == 0)

    # ---- matching --------------------------------------------------------------------------------------------------

    def match(self, content: Content, tokens: int) -> tuple[int, WindowNode]:
        """As of ``RadixTree``; the match ends where a window's KV is there."""
        matched, node, _ = self.match_window(content, tokens)
        return matched, node

    def match_window(self, content: Content, tokens: int) -> tuple[int, WindowNode, int]:
        """Walk as far as full attention's KV goes, splitting the node in which that ends.

        Returns:
            The tokens that can be used, the node at whose end they end, and the tokens that full attention has.
        """
        keys = self._keys(content, tokens)
        if not keys:
            return 0, self.root, 0
        node, depth = self.root, 0
        best, usable = self.root, 0
        # Up to the first tombstone all of the prefix is there.
        run = float("inf")
        while depth < len(keys) and keys[depth] in node.children:
            child = _window_node(node.children[keys[depth]])
            common = common_length(child.pages, keys, depth)
            node = child if common == len(child.pages) else self._split(child, common)
            depth += common
            run = run + self.tokens_of(node) if node.windowed else 0
            if run >= self.window and node.windowed:
                best, usable = node, depth
            if node is not child:
                break
        self._refresh(best)
        self.tick += 1
        above: RadixNode | None = best
        units = self.tick * UNITS
        while above is not None:
            above.access_tick = units
            units -= 1
            above = above.parent
        return usable * self.page_size, best, depth * self.page_size

    def _refresh(self, node: WindowNode) -> None:
        """Bring what is there of a node's window, and a page before it, to the front; the node itself is first."""
        covered, at, place = 0, node, 0
        while at is not self.root and covered < self.window + self.page_size:
            if at.windowed:
                self.recency.remove(at)
                self.recency.insert(place, at)
                place += 1
            covered += self.tokens_of(at)
            at = _window_node(at.parent)

    # ---- inserting -------------------------------------------------------------------------------------------------

    def insert_window(
        self, content: Content, tokens: int, priority: int, *, inserted: int, protected: int, freed: int
    ) -> tuple[int, int, WindowNode]:
        """Add the whole pages of the first ``tokens`` tokens.

        Args:
            content: of the request.
            tokens: how many.
            priority: of the request.
            inserted: tokens that the request put in before; nodes that end by then are not hit again.
            protected: its tokens that belong to the tree.
            freed: those before which its window layers' KV is gone.

        Returns:
            Tokens behind ``protected`` that the tree had already: of full attention and of windows, of which the
            request's copies are duplicates; and the node at the end.
        """
        keys = self._keys(content, tokens)
        self._touch(self.root)
        self.root.priority = max(self.root.priority, priority)
        node, depth = self.root, 0
        full = windows = 0
        while depth < len(keys) and keys[depth] in node.children:
            child = _window_node(node.children[keys[depth]])
            self._touch(child)
            common = common_length(child.pages, keys, depth)
            node = child if common == len(child.pages) else self._split(child, common)
            node.priority = max(node.priority, priority)
            start, depth = depth * self.page_size, depth + common
            end = depth * self.page_size
            if end > protected:
                full += end - max(start, protected)
                if node.windowed:
                    windows += max(end - max(start, protected, freed), 0)
                else:
                    self._recover(node, start, end, freed)
            if end > inserted:
                node.hits += 1
        if depth < len(keys):
            node = self._add_leaf(keys[depth:], node, priority, depth * self.page_size, freed)
        self._refresh(node)
        return full, windows, node

    def _recover(self, node: WindowNode, start: int, end: int, freed: int) -> bool:
        """Give a node the window layers' KV of tokens [start, end) behind ``freed``; what is before is split off."""
        live = max(start, freed)
        if live >= end:
            return False
        if live > start:
            self._split(node, (live - start) // self.page_size)
        self._publish(node)
        return True

    def _publish(self, node: WindowNode) -> None:
        node.windowed = True
        self.recency.insert(0, node)

    def _add_leaf(self, pages: list[Hashable], parent: WindowNode, priority: int, start: int, freed: int) -> WindowNode:
        leaf = self._new_node(pages, parent, priority)
        parent.children[pages[0]] = leaf
        live = max(start, freed)
        if live < start + self.tokens_of(leaf):
            if live > start:
                self._split(leaf, (live - start) // self.page_size)
            # A lock of the leaf is to hold no more than a window.
            tail = -(-self.window // self.page_size)
            if len(leaf.pages) > tail:
                self._publish(self._split(leaf, len(leaf.pages) - tail))
            self._publish(leaf)
        leaf.hits += 1
        return leaf

    def _touch(self, node: WindowNode) -> None:
        self.tick += 1
        node.access_tick = self.tick * UNITS

    def _new_node(self, pages: list[Hashable], parent: RadixNode, priority: int) -> WindowNode:
        self.tick += 2
        return WindowNode(pages, parent, self.tick, (self.tick - 1) * UNITS, priority)

    def _split(self, child: RadixNode, at: int) -> WindowNode:
        """Cut a node after ``at`` pages; the upper part is the new node, and the lower one has been used later."""
        lower = _window_node(child)
        upper = _window_node(super()._split(child, at))
        upper.window_locks, upper.mark = lower.window_locks, lower.mark
        lower.mark = None
        upper.windowed = lower.windowed
        if lower.windowed:
            self.recency.insert(self.recency.index(lower) + 1, upper)
        self._touch(lower)
        return upper

    # ---- locks -----------------------------------------------------------------------------------------------------

    def acquire(self, node: WindowNode) -> Receipt:
        """Keep a node and all above it, and what is there of its window."""
        self.lock(node, 1)
        covered, at, mark = 0, node, None
        while at is not self.root and covered < self.window:
            at.window_locks += 1
            covered += self.tokens_of(at)
            if covered >= self.window:
                at.mark = at.mark or Mark()
                mark = at.mark
            at = _window_node(at.parent)
        return Receipt(node, mark)

    def release(self, receipt: Receipt) -> None:
        """Undo ``acquire``; nodes may have been split since."""
        self.lock(receipt.node, -1)
        at = receipt.node
        while at is not self.root:
            assert at.window_locks > 0
            at.window_locks -= 1
            if receipt.mark is not None and at.mark is receipt.mark:
                break
            at = _window_node(at.parent)

    # ---- evicting --------------------------------------------------------------------------------------------------

    def evict_both(self, full: int, windows: int) -> tuple[int, int]:
        """Evict for both pools: leaves by policy for full attention, then by the windows' recency.

        Args:
            full: tokens to free of full attention.
            windows: of the window layers; those that go with leaves count.

        Returns:
            Tokens freed of each.
        """
        gone, gone_windows = 0, 0
        while gone < full:
            leaves = [_window_node(node) for node in self.nodes() if self._is_evictable_leaf(node)]
            if not leaves:
                break
            victim = min(leaves, key=lambda node: eviction_key(self.policy, node))
            gone_windows += self.tokens_of(victim) if victim.windowed else 0
            gone += self._delete(victim)
        for node in reversed(list(self.recency)):
            if gone_windows >= windows:
                break
            if node.window_locks > 0:
                continue
            gone_windows += self.tokens_of(node)
            if self._is_evictable_leaf(node):
                gone += self._delete(node)
            else:
                node.windowed = False
                self.recency.remove(node)
        self.evicted_tokens += gone
        return gone, gone_windows

    def _is_evictable_leaf(self, node: RadixNode) -> bool:
        return not node.children and node.locks == 0 and _window_node(node).window_locks == 0

    def _delete(self, leaf: WindowNode) -> int:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.pages[0]]
        if leaf.windowed:
            self.recency.remove(leaf)
        return self.tokens_of(leaf)

    def check(self) -> None:
        """Raise AssertionError unless locks and the list of windows fit the nodes."""
        nodes = [_window_node(node) for node in self.nodes()]
        assert {id(node) for node in nodes if node.windowed} == {id(node) for node in self.recency}
        assert all(node.locks >= node.window_locks >= 0 for node in nodes)


def _window_node(node: RadixNode | None) -> WindowNode:
    assert isinstance(node, WindowNode)
    return node
