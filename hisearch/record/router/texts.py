"""Texts of prompts by content and length. Readers of a recording make them by the same rules (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Iterator

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TEXT = (
    "the of and to in is it you that he was for on are with as I his they be at one have this from or had by hot but "
    "some what there we can out other were all your when up use word how said an each she which do their time if will "
    "way about many then them would write like so these her long make thing see him two has look more day could go come"
)
_WORDS = _TEXT.split()


def text_of(rule: str, content: int, length: int) -> str:
    """The first ``length`` characters (rule ``ids``: token ids) of a content's text."""
    if rule == "clean":
        letters = (_LETTERS[(content + 7 * k + k * k // 11) % 26] for k in range(1, length))
        return (chr(0x4E00 + content) + "".join(letters))[:length]
    numbers = _numbers(content)
    if rule == "ids":
        return " ".join(str((next(numbers) >> 8) % 128000) for _ in range(length))
    words, have = [], 0
    while have < length:
        words.append(_WORDS[(next(numbers) >> 16) % len(_WORDS)] + " ")
        have += len(words[-1])
    return "".join(words)[:length]


def _numbers(content: int) -> Iterator[int]:
    x = (content * 2654435761 + 12345) % 2**32
    while True:
        x = (1103515245 * x + 12345) % 2**31
        yield x
