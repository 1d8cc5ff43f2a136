"""Dominance among trials."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.search.model.deployments import families
from hisearch.search.model.trial import Trial, is_maximised

#: Replaces an infinite objective (nothing finished) if an algorithm needs finite numbers.
INFINITE_OBJECTIVE = 1e12


def minimised(trials: Sequence[Trial], objectives: Sequence[str]) -> F8:
    """Objectives to minimise, shape (trials, objectives): maximised ones negated, infinite ones made large."""
    rows = [[_minimised_value(trial.objective(name), name) for name in objectives] for trial in trials]
    return np.array(rows, dtype=np.float64).reshape(len(trials), len(objectives))


def _minimised_value(value: float, name: str) -> float:
    signed = -value if is_maximised(name) else value
    return signed if math.isfinite(signed) else INFINITE_OBJECTIVE


def front(trials: Sequence[Trial], objectives: Sequence[str]) -> list[Trial]:
    """Non-dominated trials in the order of the first objective, then by number.

    Trials that are not comparable (a slice, another load, an error) are left out. Infeasible trials are only considered
    if there is no feasible trial. The first of trials with equal objectives is kept.
    """
    import moocore

    comparable = [trial for trial in trials if trial.comparable]
    pool = [trial for trial in comparable if trial.feasible] or comparable
    if not pool:
        return []
    points = minimised(pool, objectives)
    kept = np.flatnonzero(moocore.is_nondominated(points))
    order = sorted(kept, key=lambda index: (points[index, 0], pool[index].number))
    return [pool[index] for index in order]


def ranked(trials: Sequence[Trial], objectives: Sequence[str]) -> list[Trial]:
    """Sound trials, best first: feasible ones by Pareto rank, then price; infeasible ones by their worst miss.

    Ties keep the order of numbers, so that the ranking is deterministic.
    """
    import moocore

    sound = [trial for trial in trials if not trial.error]
    feasible = [trial for trial in sound if trial.feasible]
    missed = [trial for trial in sound if not trial.feasible]
    ordered: list[Trial] = []
    if feasible:
        ranks = moocore.pareto_rank(minimised(feasible, objectives))
        by_rank = sorted(
            zip(feasible, ranks, strict=True),
            key=lambda pair: (int(pair[1]), pair[0].metrics["usd_per_hour"], pair[0].number),
        )
        ordered = [trial for trial, _ in by_rank]
    return ordered + sorted(missed, key=miss_order)


def distinct(trials: Sequence[Trial]) -> list[Trial]:
    """Trials without those that equal an earlier one in all figures, accelerator and engine.

    Any remaining difference, such as a limit that was never reached, did not matter.
    """
    kept: list[Trial] = []
    for trial in trials:
        alike = (earlier for earlier in kept if families(earlier.deployment) == families(trial.deployment))
        if not any(earlier.metrics == trial.metrics for earlier in alike):
            kept.append(trial)
    return kept


def miss_order(trial: Trial) -> tuple[float, float, float, int]:
    """Sort key of infeasible trials, nearest miss first: size of the worst miss, share of good requests, price."""
    metrics = trial.metrics
    return (trial.worst_violation, -metrics["attainment"], metrics["usd_per_hour"], trial.number)


def hypervolume_progress(trials: Sequence[Trial], objectives: Sequence[str]) -> dict[int, float]:
    """Hypervolume of the front so far after each trial that enlarged it, by trial number; of feasible trials only.

    Objectives are scaled to the range of the study's feasible trials, 0 the best and 1 the worst, and the reference
    point is 1.1 in each: the figures compare within a study.
    """
    import moocore

    feasible = [trial for trial in trials if trial.meets_slo]
    if not feasible:
        return {}
    points = minimised(feasible, objectives)
    low = points.min(axis=0)
    span = points.max(axis=0) - low
    scaled = (points - low) / np.where(span > 0, span, 1.0)
    progress: dict[int, float] = {}
    best = 0.0
    for count, trial in enumerate(feasible, start=1):
        volume = float(moocore.hypervolume(scaled[:count], ref=[1.1] * len(objectives)))
        if volume > best:
            best = progress[trial.number] = volume
    return progress
