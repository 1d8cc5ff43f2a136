"""The environment of all HTML templates: user text is escaped, and an undefined name is an error."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

#: The space between a number and its ``%``.
_BEFORE_PERCENT = re.compile(r"(?<=\d) (?=%)")


def render_page(template: str, **facts: Any) -> str:
    """A template of ``hisearch/report/templates`` with the style sheet of all pages as ``css``."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hisearch.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_unbroken,
    )
    return environment.get_template(template).render(css=asset("report.css"), **facts)


def _unbroken(value: Any) -> Any:
    """Text without line breaks between a number and its percent sign; markup stays as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return _BEFORE_PERCENT.sub("\N{NO-BREAK SPACE}", value)


def asset(name: str) -> str:
    """Text of a file in the templates' folder."""
    return (files("hisearch.report") / "templates" / name).read_text(encoding="utf-8")
