"""Writes docs/python.md: what ``import hisearch`` offers, from signatures and docstrings.

Usage::

    python docs/generate_python.py            # prints it
    python docs/generate_python.py --write    # writes docs/python.md
    python docs/generate_python.py --check    # exits with 1 where docs/python.md differs
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hisearch

TARGET = Path(__file__).resolve().parent / "python.md"

INTRODUCTION = """\
# Python

<!-- Written by docs/generate_python.py from the code; `make docs` writes it again. -->

Names of `import hisearch`. Everything is imported at first use. What a verb of the command line calls is in
[cli.md](cli.md); fields of documents are in [specs.md](specs.md).
"""

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example):?:?$")


def page() -> str:
    """The page: functions, then classes with their public methods and properties."""
    names = [name for name in hisearch.__all__ if not name.startswith("_")]
    values = {name: getattr(hisearch, name) for name in names}
    functions = [function(name, value) for name, value in values.items() if not inspect.isclass(value)]
    classes = [part for name, value in values.items() if inspect.isclass(value) for part in class_(name, value)]
    return "\n".join([INTRODUCTION, "## Functions\n", *functions, "## Classes\n", *classes]).rstrip() + "\n"


def function(name: str, value: Any, level: int = 3) -> str:
    """A function's heading, signature and docstring."""
    title = f"{'#' * level} `{name}`\n\n```py\n{signature(name.rpartition('.')[2], value)}\n```\n"
    return f"{title}\n{description(value)}\n"


def class_(name: str, value: type) -> Iterator[str]:
    """A class's heading and docstring, then its members'."""
    yield f"### `{name}`\n\n{description(value)}\n"
    rows = []
    for key, member in inspect.getmembers_static(value):
        if key.startswith("_") or key not in vars(value):
            continue
        inner = member.fget if isinstance(member, property) else getattr(member, "func", member)
        if not callable(inner):
            continue
        call = "" if inner is not member else _arguments(member)
        rows.append(f"| `{key}{call}` | {first_sentence(inner)} |")
    if rows:
        yield "| member | what |\n| --- | --- |\n" + "\n".join(rows) + "\n"


def signature(name: str, value: Any) -> str:
    """A call as one would write it, an argument a line."""
    parameters = [_parameter(parameter) for parameter in inspect.signature(value).parameters.values()]
    if len(parameters) < 3:
        return f"{name}({', '.join(parameters)})"
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + ")"


def _parameter(parameter: inspect.Parameter) -> str:
    """An argument with its type and default; annotations are text already."""
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{star}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is parameter.empty:
        return text
    # A function's own text names its place in memory.
    return f"{text} = ..." if inspect.isfunction(parameter.default) else f"{text} = {parameter.default!r}"


def _arguments(value: Any) -> str:
    """Names of a method's arguments."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return "()"
    named = [parameter.name for parameter in parameters if parameter.name not in ("self", "cls")]
    return f"({', '.join(named)})"


def first_sentence(value: Any) -> str:
    """Of a docstring."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return _plain(text).replace("|", "\\|")


def description(value: Any) -> str:
    """A docstring as Markdown: paragraphs, then a list for each section."""
    parts: list[str] = []
    section = ""
    for block in (inspect.getdoc(value) or "").split("\n\n"):
        head, _, rest = block.partition("\n")
        match = _SECTION.match(head.strip())
        if match and rest.strip():
            section = match[1]
            parts.append(f"**{section}**\n\n{_entries(rest)}")
        elif not section:
            parts.append(_plain(" ".join(block.split())))
    return "\n\n".join(parts)


def _entries(text: str) -> str:
    """A section's entries as a list; lines that are indented further belong to the entry before."""
    lines = inspect.cleandoc(text).splitlines()
    entries: list[str] = []
    for line in lines:
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line.strip())
    return "\n".join("- " + re.sub(r"^([\w.*]+):", r"`\1`:", _plain(entry)) for entry in entries)


def _plain(text: str) -> str:
    """Without roles of reStructuredText."""
    return text.replace("``", "`")


def main(arguments: list[str]) -> int:
    """Print, write or check the page."""
    text = page()
    if "--write" in arguments:
        TARGET.write_text(text, encoding="utf-8")
    elif "--check" in arguments:
        if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != text:
            print("docs/python.md is not what the code says: python docs/generate_python.py --write")
            return 1
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
