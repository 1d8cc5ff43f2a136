"""Prompts of a recording, from the rule that its file names, and the prefix tree over their characters.

Notation
    N   prompts; M nodes of the tree, node 0 is the root
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import I4, I8

#: Rule ``words``: what texts are made of.
_TEXT = (
    "the of and to in is it you that he was for on are with as I his they be at one have this from or had by hot but "
    "some what there we can out other were all your when up use word how said an each she which do their time if will "
    "way about many then them would write like so these her long make thing see him two has look more day could go come"
)
WORDS = _TEXT.split()
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _numbers(content: int) -> Iterable[int]:
    """A linear congruential generator's numbers for a content."""
    x = (content * 2654435761 + 12345) % 2**32
    while True:
        x = (1103515245 * x + 12345) % 2**31
        yield x


def _clean(content: int, length: int) -> str:
    """Contents that differ in their first character; the letters behind it depend on the place too."""
    letters = (_LETTERS[(content + 7 * k + k * k // 11) % 26] for k in range(1, length))
    return (chr(0x4E00 + content) + "".join(letters))[:length]


def _words(content: int, length: int) -> str:
    """Words of ``WORDS``, of which different contents may begin alike."""
    parts, have = [], 0
    for x in _numbers(content):
        if have >= length:
            break
        parts.append(WORDS[(x >> 16) % len(WORDS)] + " ")
        have += len(parts[-1])
    return "".join(parts)[:length]


def _ids(content: int, length: int) -> str:
    """So many token ids in decimal, as the router writes them."""
    return " ".join(str((x >> 8) % 128000) for x, _ in zip(_numbers(content), range(length), strict=False))


RULES: dict[str, Callable[[int, int], str]] = {"clean": _clean, "words": _words, "ids": _ids}


def prompts_of(
    rule: str, segments: Sequence[tuple[int, int]], prompts: Sequence[Sequence[int]], join: str
) -> list[str]:
    """Texts of prompts that are lists of segments, each a (content, length)."""
    texts: dict[int, str] = {}
    for index in {index for prompt in prompts for index in prompt}:
        texts[index] = RULES[rule](*segments[index])
    return [join.join(texts[index] for index in prompt) for prompt in prompts]


class TextTree(NamedTuple):
    """Path-compressed prefix tree of texts; a parent has a smaller number than its children.

    parent, start, end: of each node, shape (M,), in characters from the root. prompt_node: where each text ends, shape
    (N,); 0 for an empty one.
    """

    parent: I4
    start: I8
    end: I8
    prompt_node: I4


def text_tree(texts: Sequence[str]) -> TextTree:
    """The tree in which two texts share exactly the characters that they begin with alike."""
    parent, end = [-1], [0]
    node_of = np.zeros(len(texts), np.int64)
    path = [0]
    before = ""
    for index in sorted(range(len(texts)), key=texts.__getitem__):
        text = texts[index]
        shared = _shared(before, text)
        below = -1
        while end[path[-1]] > shared:
            below = path.pop()
        if end[path[-1]] < shared:
            parent.append(path[-1])
            end.append(shared)
            parent[below] = len(end) - 1
            path.append(len(end) - 1)
        if len(text) > shared:
            parent.append(path[-1])
            end.append(len(text))
            path.append(len(end) - 1)
        node_of[index] = path[-1]
        before = text
    return _numbered(np.array(parent), np.array(end), node_of)


def _numbered(parent: np.ndarray, end: np.ndarray, node_of: np.ndarray) -> TextTree:
    """Nodes in order of where they start, which is after where their parents do."""
    start = np.where(parent >= 0, end[parent], -1)
    order = np.argsort(start, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    above = np.where(parent >= 0, rank[parent], -1)[order]
    return TextTree(
        above.astype(np.int32), np.maximum(start[order], 0), end[order].astype(np.int64), rank[node_of].astype(np.int32)
    )


def _shared(first: str, second: str) -> int:
    """Characters that two texts begin with alike."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
