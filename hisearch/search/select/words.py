"""Sentences of recommendations and conclusions, from templates in ``search/templates``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from hisearch.score.quantities import quantity, titled, usd
from hisearch.score.steady_state import format_growth
from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import price_of
from hisearch.specs.wording import counted, format_percent, listed


class Words:
    """The macros of one template."""

    def __init__(
        self, template: str, filters: Mapping[str, Callable[..., Any]], names: Mapping[str, Any] | None = None
    ) -> None:
        """Of a file, with filters and names of its own in addition to those of all files."""
        self._template, self._filters, self._names = template, filters, names or {}

    @cached_property
    def _macros(self) -> Any:
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("hisearch.search"),
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        environment.filters |= {
            "cents": lambda dollars: f"${dollars:,.2f}",
            "counted": counted,
            "growth": format_growth,
            "line": describe,
            "listed": listed,
            "load": lambda factor: f"{factor:.3g}",
            "percent": format_percent,
            "quantity": quantity,
            "titled": titled,
            "usd": usd,
            **self._filters,
        }
        environment.globals |= {"price": price_of, **self._names}
        return environment.get_template(self._template).module

    def say(self, macro: str, *facts: Any) -> str:
        """The text of a macro, on one line."""
        return " ".join(str(getattr(self._macros, macro)(*facts)).split())
