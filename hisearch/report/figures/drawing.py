"""A figure on the page, with the words and the numbers behind it."""

from __future__ import annotations

from typing import NamedTuple


class NumberTable(NamedTuple):
    """The numbers of a figure, for those who cannot see it or want them exactly."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Drawing(NamedTuple):
    """A figure on the page.

    key: of its Plotly data. alt: what it shows, for those who cannot see it. kind: its CSS class. table: its numbers,
    where the page has them nowhere else.
    """

    key: str
    heading: str
    caption: str
    alt: str
    kind: str
    table: NumberTable | None = None
