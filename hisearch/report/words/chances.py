"""Probabilities as text: a share of many draws with its value, one of few draws with its range alone."""

from __future__ import annotations

from hisearch.report.data.confidence import Chance
from hisearch.specs.wording import format_percent

#: Fewer draws than this say little: their range is shown in place of the share.
ENOUGH_DRAWS = 32


def format_chance(chance: Chance | None) -> str:
    """``62 %``; ``25–75 %`` of few draws; "" where it is unknown."""
    if chance is None:
        return ""
    if chance.ends is not None and chance.draws < ENOUGH_DRAWS:
        return format_range(chance.ends)
    return format_percent(chance.value)


def format_range(ends: tuple[float, float]) -> str:
    """``52–72 %``."""
    return f"{100 * ends[0]:.0f}–{format_percent(ends[1])}"
