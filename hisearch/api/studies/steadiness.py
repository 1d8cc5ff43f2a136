"""Whether a study's own trace is long enough to show a steady state; and what one shows where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hisearch.score.metrics import metric_of
from hisearch.score.quantities import notes, quantity, titled
from hisearch.score.steady_state import format_growth, span_needed_s
from hisearch.search.evaluate.sustained import GROWTH
from hisearch.search.model.job import TRIAL_ERRORS
from hisearch.search.model.trial import Trial
from hisearch.traces.changes.continuation import period_s

if TYPE_CHECKING:
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.model.job import Evaluation

#: Share of the needed span from which a trace is long enough.
ENOUGH = 0.95


def carrying_on(simulation: Simulation, trial: Trial) -> Callable[[], Evaluation] | None:
    """Simulates a trial in a steady state; None where the trace is long enough to show one, or has no clock."""
    if _missing(simulation, trial) is None:
        return None
    return partial(simulation.evaluate_at, trial.deployment, 1.0)


def _missing(simulation: Simulation, trial: Trial) -> tuple[float, float] | None:
    """The trace's span and the span that it lacks to show a steady state, seconds; None where it needs no more."""
    world, stay_s = simulation.world, trial.metrics.get("e2e_p99_s", math.nan)
    if world.continuation is None or math.isnan(stay_s):
        return None
    span_s = period_s(world.trace) / world.load
    needed_s = span_needed_s(stay_s if math.isfinite(stay_s) else 0.0)
    return None if span_s >= ENOUGH * needed_s else (span_s, needed_s)


def too_short(simulation: Simulation, trial: Trial) -> str:
    """That the trace is too short to tell, the length that would do, and what the trial does in a steady state.

    "" where the trace is long enough, has no clock, or the trial failed.
    """
    spans = _missing(simulation, trial)
    if spans is None:
        return ""
    span_s, needed_s = spans
    requests = math.ceil(len(simulation.world.trace) * needed_s / span_s / 100) * 100
    short = (
        f"Arrivals span {span_s:,.0f} s at this load; a steady state takes {needed_s:,.0f} s to show, "
        f"{requests:,} requests."
    )
    try:
        carried_on = simulation.evaluate_at(trial.deployment, 1.0)
    except TRIAL_ERRORS as error:
        return f"{short} Carried on for so long it cannot be simulated: {error}."
    growth = carried_on.metrics[metric_of(GROWTH)]
    if growth > 0:
        return f"{short} Carried on, this load is an overload: {format_growth(growth)}."
    missed = [check for check in carried_on.slo if not check.holds]
    if not missed:
        return f"{short} Carried on for so long, the SLO holds." if trial.feasible else ""
    worst = max(missed, key=lambda check: check.violation)
    value = notes([worst]) or (f"{titled(worst)} is {_shown(worst.label, carried_on.metrics)}",)
    return f"{short} Carried on for so long, it misses the SLO: {value[0]}."


def _shown(label: str, metrics: dict[str, float]) -> str:
    return quantity(label).show(metrics[metric_of(label)])
