"""The environment of all HTML templates: what comes from the user is escaped, and a name that is missing an error."""

from __future__ import annotations

from importlib.resources import files
from typing import Any


def render_page(template: str, **facts: Any) -> str:
    """A template of ``hisearch/report/templates`` with the style sheet of all pages as ``css``."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hisearch.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(css=asset("report.css"), **facts)


def asset(name: str) -> str:
    """Text of a file beside the templates."""
    return (files("hisearch.report") / "templates" / name).read_text(encoding="utf-8")
