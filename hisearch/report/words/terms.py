"""SLO terms as text, the same for the terminal's tables and the report's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hisearch.score.quantities import UNDEFINED, percent, quantity, titled
from hisearch.score.terms import Check, LimitCheck, RejectionCheck, TermCheck, name_of


class TermLine(NamedTuple):
    """One check of the SLO or of the study's limits.

    label: as in documents. term, meaning: as text. note: on the value, or "".
    """

    label: str
    term: str
    meaning: str
    value: str
    bound: str
    margin: str
    met: bool
    note: str

    @property
    def verdict(self) -> str:
        """``met`` or ``missed``."""
        return "met" if self.met else "missed"


def term_lines(checks: Iterable[Check]) -> tuple[TermLine, ...]:
    """A line per check, in order."""
    return tuple(_term_line(check) for check in checks)


def _term_line(check: Check) -> TermLine:
    if isinstance(check, RejectionCheck):
        return _rejection(check)
    return _limit(check) if isinstance(check, LimitCheck) else _latency(check)


def _limit(check: LimitCheck) -> TermLine:
    shown = quantity(check.label)
    bound = shown.show_bound(check.bound)
    return _line(check, shown.show(check.value), f"at least {bound}" if check.at_least else bound)


def _latency(check: TermCheck) -> TermLine:
    shown = quantity(check.label)
    value = UNDEFINED if check.value_s is None else shown.show(check.value_s)
    return _line(check, value, shown.show_bound(check.bound_s))


def _rejection(check: RejectionCheck) -> TermLine:
    shown = quantity(check.label)
    value = f"{check.requests:,} of {check.arrived:,} ({shown.show(check.value)})" if check.requests else "none"
    return _line(check, value, shown.show_bound(check.bound) if check.bound > 0 else "none")


def _line(check: Check, value: str, bound: str) -> TermLine:
    shown = quantity(check.label)
    margin = UNDEFINED if check.margin is None else _margin(check.margin)
    return TermLine(name_of(check), titled(check), shown.meaning, value, bound, margin, check.holds, check.note)


def _margin(margin: float) -> str:
    if margin >= 0:
        return f"{percent(margin)} to spare"
    return f"exceeds by {percent(-margin)}" if math.isfinite(margin) else "never reached"
