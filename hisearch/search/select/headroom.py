"""The largest load that a deployment carries, as far as other loads were simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hisearch.score.capacity import Capacity, capacity
from hisearch.score.evaluate import Score
from hisearch.search.model.trial import Trial, metric_of
from hisearch.specs.studies.study import CAPACITY

#: Loads that are tried: growth factor, relative tolerance of the two ends.
GROWTH = 1.5
LOAD_TOLERANCE = 0.05


def largest_load(score_at: Callable[[float], Score], most: float, start: float = 1.0) -> Capacity:
    """The largest load up to ``most`` at which ``score_at`` is feasible, from a few simulations, ``start`` first."""
    first = min(max(start, 1.0), most)
    return capacity(score_at, start=first, growth=GROWTH, max_load=most, relative_tolerance=LOAD_TOLERANCE)


def headroom(trials: Sequence[Trial], best: Trial) -> Capacity | None:
    """Largest load that a deployment carried and smallest that it missed; None if no other load was tried."""
    if metric_of(CAPACITY) in best.metrics:
        figures = best.metrics
        missed = figures["capacity_missed_load"]
        growth = figures.get("queue_growth_rps", 0.0)
        return Capacity(figures["capacity_load"], figures["capacity_goodput_rps"], missed, best.simulations, growth)
    same = [t for t in trials if t.deployment == best.deployment and t.slice_fraction == 1.0 and not t.error]
    others = [trial for trial in same if trial.load != 1.0]
    if not others:
        return None
    carried = max((trial for trial in same if trial.feasible), key=lambda trial: trial.load)
    smallest = min((trial for trial in same if not trial.feasible), key=lambda trial: trial.load, default=None)
    load, growth = math.inf, 0.0
    if smallest is not None:
        load, growth = smallest.load, smallest.metrics.get("queue_growth_rps", 0.0)
    return Capacity(carried.load, carried.metrics["goodput_rps"], load, len(others), growth)


def known_loads(trials: Sequence[Trial]) -> dict[int, Capacity]:
    """``headroom`` of every trial that meets the SLO and was tried at other loads, by number."""
    tried = [trial.deployment for trial in trials if trial.load != 1.0]
    meeting = [trial for trial in trials if trial.meets_slo]
    if not any(metric_of(CAPACITY) in trial.metrics for trial in meeting):
        meeting = [trial for trial in meeting if trial.deployment in tried]
    known = {trial.number: headroom(trials, trial) for trial in meeting}
    return {number: largest for number, largest in known.items() if largest is not None}
