"""A figure on the page, with its caption and numbers."""

from __future__ import annotations

from typing import NamedTuple


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
