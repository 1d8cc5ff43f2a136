"""Templates of the files that an export writes."""

from __future__ import annotations

import shlex
from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
    """Shell and Markdown, so nothing is HTML-escaped: shell words pass the filter ``q``, free text ``line``."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hisearch.export"),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["q"] = lambda value: shlex.quote(str(value))
    environment.filters["word"] = shell_word
    environment.filters["line"] = one_line
    return environment.get_template(template).render(**values)


def shell_word(text: str) -> str:
    """A word of a script: the shell expands variables in it; everything else is literal."""
    if "$" not in text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
    return f'"{escaped}"'


def one_line(text: str) -> str:
    """Printable characters on a single line, safe in a comment or in Markdown code."""
    return "".join(c if c.isprintable() else " " for c in str(text)).replace("`", "'")
