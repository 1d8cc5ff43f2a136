"""A figure on the page, with its texts and numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from hisearch.report.words.templating import texts


class NumberTable(NamedTuple):
    """The exact numbers of a figure, also for readers who cannot see it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Drawing(NamedTuple):
    """A figure on the page.

    key: of its Plotly data. alt: description for readers who cannot see it. kind: its CSS class. table: its numbers,
    unless the page has them elsewhere.
    """

    key: str
    heading: str
    caption: str
    alt: str
    kind: str
    table: NumberTable | None = None


def drawing(key: str, kind: str, *values: Any, table: NumberTable | None = None, macro: str = "") -> Drawing:
    """A figure with the texts of its macro in ``figures.txt.j2``, called with ``values``; the key's where not named."""
    heading, caption, alt = texts("figures", macro or key.replace("-", "_"), *values)
    return Drawing(key, heading, caption, alt, kind, table)
