"""SLO terms as text, the same for the terminal's tables and the report's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hisearch.score.quantities import UNDEFINED, percent, quantity, significant, titled, usd
from hisearch.score.terms import Check, LimitCheck, RejectionCheck, name_of
from hisearch.search.model.deployments import hardware
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import is_near


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
    shown = quantity(check.label)
    if isinstance(check, RejectionCheck):
        value = f"{check.requests:,} of {check.arrived:,} ({shown.show(check.value)})" if check.requests else "none"
        bound = shown.show_bound(check.bound) if check.bound > 0 else "none"
    elif isinstance(check, LimitCheck):
        value = shown.show(check.value)
        bound = f"{'at least ' if check.at_least else ''}{shown.show_bound(check.bound)}"
    else:
        value = UNDEFINED if check.value_s is None else shown.show(check.value_s)
        bound = shown.show_bound(check.bound_s)
    margin = UNDEFINED if check.margin is None else _margin(check.margin)
    return TermLine(name_of(check), titled(check), shown.meaning, value, bound, margin, check.holds, check.note)


def _margin(margin: float) -> str:
    if margin >= 0:
        return f"{percent(margin)} to spare"
    return f"exceeds by {percent(-margin)}" if math.isfinite(margin) else "never reached"


def seconds(value_s: float) -> str:
    """A time in ms below one second, else in s, with three digits."""
    if not math.isfinite(value_s):
        return significant(value_s)
    return f"{significant(value_s * 1e3)} ms" if abs(value_s) < 1.0 else f"{significant(value_s)} s"


def violation_of(trial: Trial) -> str:
    """What a trial misses most: ``misses TPOT p99 by 40 %``."""
    missed = [(check, line) for check, line in zip(trial.slo, term_lines(trial.slo), strict=True) if not line.met]
    if not missed:
        return ""
    check, line = max(missed, key=lambda pair: pair[0].violation)
    if line.margin == UNDEFINED or not math.isfinite(check.violation):
        return f"misses {titled(check)}"
    return f"misses {titled(check)} by {percent(check.violation)}"


def far_off(miss: Trial) -> str:
    """That even the nearest miss is none to buy: ``Nothing comes near: the closest, … misses …``; "" of a near one."""
    if is_near(miss):
        return ""
    price = usd(miss.metrics["usd_per_hour"])
    return f"Nothing comes near: the closest, {hardware(miss.deployment)} at {price} per hour, {violation_of(miss)}"
