"""The environment of all templates: pages escape user text, and an undefined name is an error.

``templates/NAME.html.j2`` are pages. ``templates/NAME.txt.j2`` hold sentences, one macro each, which pages and the
terminal share.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hisearch.report.data.intervals import CONFIDENCE
from hisearch.report.words.terms import far_off, seconds
from hisearch.score.quantities import HOURS_PER_MONTH, percent, quantity, significant, usd
from hisearch.search.model.deployments import (
    SHAPES,
    format_devices,
    format_kv_connector,
    formats,
    formats_of,
    shape_of,
    stores,
)
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.wording import SURE, counted, format_percent, listed

if TYPE_CHECKING:
    import jinja2

#: The space between a number and its ``%``.
_BEFORE_PERCENT = re.compile(r"(?<=\d) (?=%)")

_FILTERS = (
    *(counted, format_percent, listed, percent, quantity, seconds, significant, usd),
    *(far_off, format_devices, format_kv_connector, formats, formats_of, shape_of, stores),
)
_GLOBALS = {
    "CONFIDENCE": CONFIDENCE,
    "ENGINE_TITLES": ENGINE_TITLES,
    "HOURS_PER_MONTH": HOURS_PER_MONTH,
    "SHAPES": SHAPES,
    "SURE": SURE,
}


def render_page(template: str, **facts: Any) -> str:
    """A template of ``hisearch/report/templates`` with the style sheet of all pages as ``css``."""
    return _environment().get_template(template).render(css=asset("report.css"), **facts)


def text(template: str, macro: str, *values: Any) -> str:
    """The sentences of a macro of ``TEMPLATE.txt.j2``; a line break in it is a space."""
    return _one_line(_render(template, macro, values))


def texts(template: str, macro: str, *values: Any) -> tuple[str, ...]:
    """The same of a macro of several texts, with lines of ``---`` between them."""
    return tuple(_one_line(part) for part in _render(template, macro, values).split("\n---\n"))


def _render(template: str, macro: str, values: Sequence[Any]) -> str:
    return str(getattr(_environment().get_template(f"{template}.txt.j2").module, macro)(*values))


def _one_line(sentences: str) -> str:
    return re.sub(r"\s*\n\s*", " ", sentences.strip())


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    @jinja2.pass_eval_context
    def unbroken(context: jinja2.nodes.EvalContext, value: Any) -> Any:
        """A page's text without line breaks between a number and its percent sign; markup stays as it is."""
        if not context.autoescape or not isinstance(value, str) or hasattr(value, "__html__"):
            return value
        return _BEFORE_PERCENT.sub("\N{NO-BREAK SPACE}", value)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hisearch.report"),
        autoescape=jinja2.select_autoescape(("html.j2",)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=unbroken,
    )
    environment.filters |= {function.__name__: function for function in (*_FILTERS, age, simulated_of)}
    environment.filters["engine_title"] = ENGINE_TITLES.__getitem__
    environment.globals |= {**_GLOBALS, "text": text}
    return environment


def age(seconds_ago: float) -> str:
    """``40 s``, ``12 min``, ``3 h``, ``5 days``."""
    for unit, length_s in (("day", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds_ago >= 2 * length_s:
            return f"{seconds_ago // length_s:.0f} {unit}{'s' if unit == 'day' else ''}"
    return f"{seconds_ago:.0f} s"


def simulated_of(simulations: int, budget: int) -> str:
    """``40 of at most 60 simulations``; what comes after the search may use more than its budget."""
    if simulations <= budget:
        return f"{simulations:,} of at most {counted(budget, 'simulation')}"
    return f"{counted(simulations, 'simulation')}, some beyond the search's {budget:,}"


def asset(name: str) -> str:
    """Text of a file in the templates' folder."""
    return (files("hisearch.report") / "templates" / name).read_text(encoding="utf-8")
