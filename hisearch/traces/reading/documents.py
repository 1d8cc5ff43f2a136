"""JSON documents in text, one after another: each on a line, or indented over several."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

#: Characters of a document that takes several lines.
MAX_DOCUMENT = 1 << 28
#: A string of JSON, which ends on its line.
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def documents(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Documents with the line on which each begins; blank lines between them are left out.

    Documents take several lines if the first does. Else each line is one, so that a broken line costs no other.

    Args:
        lines: numbers and contents of lines, with their ends.
    """
    starts = ((number, content) for number, content in lines if content.strip())
    first = next(starts, None)
    if first is None:
        return
    if _is_json(first[1]):
        yield first
        yield from starts
        return
    begun = _several([first], lines)
    text = "".join(content for _, content in begun)
    if len(begun) == 1 or not _is_json(text):
        yield from ((number, content) for number, content in begun if content.strip())
        yield from starts
        return
    yield first[0], text
    for start in starts:
        yield start[0], "".join(content for _, content in _several([start], lines))


def _several(first: list[tuple[int, str]], more: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    """``first`` with the lines after it, up to that on which its brackets are closed."""
    depth, size = _opened(first[0][1]), len(first[0][1])
    while depth > 0 and size <= MAX_DOCUMENT:
        number, content = next(more, (0, ""))
        if not number:
            break
        first.append((number, content))
        depth, size = depth + _opened(content), size + len(content)
    return first


def _opened(line: str) -> int:
    """Brackets that a line opens, less those that it closes."""
    bare = _STRING.sub("", line)
    return bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
