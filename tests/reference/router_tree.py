"""The tree of sglang-router's cache_aware over characters, as plainly as it can be written.

A text is any sequence of hashable characters. Rules: sglang-router 0.3.2, ``policies/tree.rs``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

Text = Sequence[Hashable]


@dataclass(eq=False)
class _Node:
    text: Text
    above: _Node | None
    name: int = -1
    children: dict[Hashable, _Node] = field(default_factory=dict)
    #: Worker -> stamp.
    stamps: dict[int, int] = field(default_factory=dict)


class RouterTree:
    """Who was sent what.

    Args:
        draw: one of several workers, ascending, where the source takes any.
    """

    def __init__(self, draw: Callable[[list[int]], int]) -> None:
        self._root = _Node((), None)
        self._draw = draw
        self._clock = 0

    def match(self, text: Text) -> tuple[int, Callable[[], int]]:
        """Characters that match, and who has the name of the node where the match ends, drawn when it is asked for."""
        node, matched = self._walk(text)
        return matched, lambda: self._named(node)

    def stamp_match(self, text: Text) -> None:
        """The clock goes on; every eighth match stamps the node where it ended, for its name."""
        now, self._clock = self._clock, self._clock + 1
        node, _ = self._walk(text)
        if node is self._root:
            return
        if now % 8 == 0:
            node.stamps[self._named(node)] = now
        elif node.name not in node.stamps:
            node.name = -1

    def _walk(self, text: Text) -> tuple[_Node, int]:
        node, matched = self._root, 0
        while matched < len(text) and text[matched] in node.children:
            node = node.children[text[matched]]
            shared = _shared(text[matched:], node.text)
            matched += shared
            if shared < len(node.text):
                break
        return node, matched

    def _named(self, node: _Node) -> int:
        if node.name not in node.stamps:
            node.name = self._draw(sorted(node.stamps))
        return node.name

    def insert(self, text: Text, worker: int) -> None:
        """The whole text, for a worker."""
        node = self._root
        while text:
            below = node.children.get(text[0])
            if below is None:
                below = node.children[text[0]] = _Node(text, node, worker)
            shared = _shared(text, below.text)
            if shared < len(below.text):
                below = self._split(below, shared)
            below.stamps.setdefault(worker, 0)
            node, text = below, text[shared:]
        node.stamps[worker] = self._clock
        self._clock += 1

    def _split(self, node: _Node, at: int) -> _Node:
        assert node.above is not None
        upper = _Node(node.text[:at], node.above, node.name, {node.text[at]: node}, dict(node.stamps))
        node.above.children[node.text[0]] = upper
        node.text, node.above = node.text[at:], upper
        return upper

    def size(self, worker: int) -> int:
        """Characters that a worker holds."""
        return sum(len(node.text) for node in self._nodes() if worker in node.stamps)

    def trim(self, worker: int, most: int) -> None:
        """Take nodes from the ends of a worker's paths, the lowest stamp first, until it holds at most ``most``."""
        while self.size(worker) > most:
            ends = [
                node
                for node in self._nodes()
                if worker in node.stamps and not any(worker in below.stamps for below in node.children.values())
            ]
            node = min(ends, key=lambda end: end.stamps[worker])
            del node.stamps[worker]
            if not node.stamps:
                assert node.above is not None
                del node.above.children[node.text[0]]

    def _nodes(self) -> Iterator[_Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()


def _shared(a: Text, b: Text) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count
