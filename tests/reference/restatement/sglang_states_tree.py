"""SGLang's radix tree for models with linear attention: KV of full attention on every node, a state at the end of some.

A match ends at a state. Rules of 0.5.23. Source: ``mem_cache/unified_cache/unified_tree_core.py``,
``components/full.py`` and ``components/mamba.py``.

Times are ticks of one counter: a node takes two when it is made, its first access and its creation.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

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


@dataclass(eq=False)
class StateNode(RadixNode):
    """A run of pages; ``locks`` are those of full attention.

    Attributes:
        stateful: whether the state after its last token is there.
        state_locks: requests whose cached prefix ends here, also where no state is.
    """

    stateful: bool = False
    state_locks: int = 0


class StateTree(RadixTree):
    """The cache of one worker.

    Attributes:
        limit: states that a path keeps where it can, None for any number.
        recency: nodes with a state, the one used last first.
    """

    root: StateNode

    def __init__(self, page_size: int, policy: EvictionPolicy, limit: int | None = None) -> None:
        super().__init__(page_size, policy, keeps_creation=True, counts_hits=True)
        self.limit = limit
        self.recency: list[StateNode] = []
        self.root = StateNode([], None, 0, 0, 0, locks=1, state_locks=1)

    @property
    def states(self) -> int:
        """States in the tree."""
        return len(self.recency)

    @property
    def evictable_states(self) -> int:
        """Those at which no request's cached prefix ends."""
        return sum(node.state_locks == 0 for node in self.recency)

    # ---- matching --------------------------------------------------------------------------------------------------

    def match(self, content: Content, tokens: int) -> tuple[int, StateNode]:
        """As of ``RadixTree``; the match ends at a state."""
        matched, node, _ = self.match_state(content, tokens)
        return matched, node

    def match_state(self, content: Content, tokens: int) -> tuple[int, StateNode, int]:
        """Walk as far as full attention's KV goes, splitting the node in which that ends.

        Returns:
            The tokens that can be used, the node at whose end they end, and the tokens that full attention has.
        """
        keys = self._keys(content, tokens)
        if not keys:
            return 0, self.root, 0
        node, depth = self.root, 0
        best, usable = self.root, 0
        while depth < len(keys) and keys[depth] in node.children:
            child = _state_node(node.children[keys[depth]])
            common = common_length(child.pages, keys, depth)
            node = child if common == len(child.pages) else self._split(child, common)
            depth += common
            if node.stateful:
                best, usable = node, depth
            if node is not child:
                break
        if best.stateful:
            self._bring_to_front(best)
        self.tick += 1
        above: RadixNode | None = best
        units = self.tick * UNITS
        while above is not None:
            above.access_tick = units
            units -= 1
            above = above.parent
        return usable * self.page_size, best, depth * self.page_size

    # ---- inserting -------------------------------------------------------------------------------------------------

    def insert_state(
        self, content: Content, tokens: int, priority: int, *, inserted: int, protected: int
    ) -> tuple[int, bool, StateNode]:
        """Add the whole pages of the first ``tokens`` tokens, and the state after them.

        Args:
            content: of the request.
            tokens: how many.
            priority: of the request.
            inserted: tokens that the request put in before; nodes that end by then are not hit again.
            protected: its tokens that belong to the tree.

        Returns:
            Tokens behind ``protected`` that the tree had already, of which the request's copies are duplicates; whether
            the state is the tree's now, which it is not where there was one; and the node at the end.
        """
        keys = self._keys(content, tokens)
        self._touch(self.root)
        self.root.priority = max(self.root.priority, priority)
        node, depth, duplicates = self.root, 0, 0
        while depth < len(keys) and keys[depth] in node.children:
            child = _state_node(node.children[keys[depth]])
            self._touch(child)
            common = common_length(child.pages, keys, depth)
            node = child if common == len(child.pages) else self._split(child, common)
            node.priority = max(node.priority, priority)
            start, depth = depth * self.page_size, depth + common
            end = depth * self.page_size
            duplicates += max(end - max(start, protected), 0)
            if end > inserted:
                node.hits += 1
        if depth < len(keys):
            node = self._add_leaf(keys[depth:], node, priority)
        elif node is self.root:
            return 0, False, node
        else:
            self._touch(node)
            if node.stateful:
                self._bring_to_front(node)
                return duplicates, False, node
        node.stateful = True
        self.recency.insert(0, node)
        return duplicates, True, node

    def drop_excess(self, tail: StateNode) -> int:
        """Free the states nearest to the root of a path that has more than ``limit``; returns how many.

        Those at its end, at forks and at the end of a request's prefix stay, and those of leaves.
        """
        if self.limit is None:
            return 0
        holders, node = [], tail
        while node is not self.root:
            if node.stateful:
                holders.append(node)
            node = _state_node(node.parent)
        excess = len(holders) - self.limit
        gone = 0
        for node in reversed(holders):
            if gone >= excess or node is tail:
                break
            if node.state_locks == 0 and len(node.children) == 1:
                self._drop_state(node)
                gone += 1
        return gone

    def _add_leaf(self, pages: list[Hashable], parent: StateNode, priority: int) -> StateNode:
        leaf = self._new_node(pages, parent, priority)
        parent.children[pages[0]] = leaf
        leaf.hits += 1
        return leaf

    def _touch(self, node: StateNode) -> None:
        self.tick += 1
        node.access_tick = self.tick * UNITS

    def _bring_to_front(self, node: StateNode) -> None:
        self.recency.remove(node)
        self.recency.insert(0, node)

    def _new_node(self, pages: list[Hashable], parent: RadixNode, priority: int) -> StateNode:
        self.tick += 2
        return StateNode(pages, parent, self.tick, (self.tick - 1) * UNITS, priority)

    def _split(self, child: RadixNode, at: int) -> StateNode:
        """Cut a node after ``at`` pages; the lower part keeps the state and its locks, and has been used later."""
        upper = _state_node(super()._split(child, at))
        self._touch(_state_node(child))
        return upper

    # ---- locks and eviction ----------------------------------------------------------------------------------------

    def lock(self, node: RadixNode, change: Literal[1, -1]) -> None:
        """As of ``RadixTree``; and a lock on the node's own state."""
        super().lock(node, change)
        self.lock_state(node, change)

    def lock_state(self, node: RadixNode, change: Literal[1, -1]) -> None:
        """Add or remove a lock on the node's state alone."""
        if node is not self.root:
            _state_node(node).state_locks += change

    def evict_tokens(self, tokens: int) -> tuple[int, int]:
        """Evict leaves by policy until ``tokens`` are gone or none is left; returns tokens and states freed."""
        gone, states = 0, 0
        while gone < tokens:
            leaves = [_state_node(node) for node in self.nodes() if self._is_evictable_leaf(node)]
            if not leaves:
                break
            victim = min(leaves, key=lambda node: eviction_key(self.policy, node))
            states += victim.stateful
            gone += self._delete(victim)
        return gone, states

    def evict_states(self, states: int) -> tuple[int, int]:
        """Free ``states`` states, the one used longest ago first; returns tokens and states freed.

        A leaf goes with its state; other nodes lose their state alone.
        """
        tokens, gone = 0, 0
        for node in reversed(list(self.recency)):
            if gone >= states:
                break
            if node.state_locks > 0:
                continue
            gone += 1
            if self._is_evictable_leaf(node):
                tokens += self._delete(node)
            else:
                self._drop_state(node)
        return tokens, gone

    def _drop_state(self, node: StateNode) -> None:
        node.stateful = False
        self.recency.remove(node)

    def _is_evictable_leaf(self, node: RadixNode) -> bool:
        return not node.children and node.locks == 0 and _state_node(node).state_locks == 0

    def _delete(self, leaf: StateNode) -> int:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.pages[0]]
        if leaf.stateful:
            self._drop_state(leaf)
        tokens = self.tokens_of(leaf)
        self.evicted_tokens += tokens
        return tokens

    def check(self) -> None:
        """Raise AssertionError unless locks and the list of states fit the nodes."""
        nodes = [_state_node(node) for node in self.nodes()]
        assert {id(node) for node in nodes if node.stateful} == {id(node) for node in self.recency}
        assert len(self.recency) == len({id(node) for node in self.recency})
        assert all(node.locks >= node.state_locks >= 0 for node in nodes)


def _state_node(node: RadixNode | None) -> StateNode:
    assert isinstance(node, StateNode)
    return node
