"""Importance of settings: the share of each objective's variation between trials explained by each setting alone.

Notation
    n   trials on the whole trace at the study's load
    k   distinct values of a setting; of numbers with more than ``MOST_GROUPS`` values, as many groups of equal counts
    r   ranks of the trials by an objective, shape (n,): ranks, because one overloaded trial's latency would outweigh
        all others, and infinite ones count as the worst
    w2  omega squared, (SSB - (k - 1) MSW) / (SST + MSW): the share of the variance of r between the groups, less the
        share that k groups explain by chance; 0 where it is negative

It describes the simulated trials. A search tries good regions more often than others. Settings that it changed
together share their effect, so each share includes correlated settings and shares need not add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.report.data.inputs import ReportInput
from hisearch.report.figures.points import same_partition
from hisearch.report.words.settings import UNUSED, settings
from hisearch.search.model.trial import is_maximised, metric_of

#: Fewer trials are not evaluated.
LEAST_TRIALS = 20

#: Groups of a setting with many numbers.
MOST_GROUPS = 8

#: Settings that are shown, the most important ones.
MOST_SETTINGS = 12


class Importance(NamedTuple):
    """settings: names, most important first. objectives: names. share: per setting and objective, 0 to 1."""

    settings: tuple[str, ...]
    objectives: tuple[str, ...]
    share: tuple[tuple[float, ...], ...]
    trials: int


def importance(data: ReportInput) -> Importance | None:
    """Importance of every setting that differs between trials; None with too few trials.

    Of settings that determine each other, such as engine and page size, only the first is kept.
    """
    names = [metric_of(name) for name in data.objectives]
    trials = [
        trial
        for trial in data.trials
        if trial.comparable and not any(math.isnan(trial.metrics.get(name, math.nan)) for name in names)
    ]
    if len(trials) < LEAST_TRIALS:
        return None
    ranks = [
        _ranks([trial.objective(name) * (-1 if is_maximised(name) else 1) for trial in trials])
        for name in data.objectives
    ]
    chosen = [settings(trial.deployment) for trial in trials]
    shares: dict[str, tuple[float, ...]] = {}
    columns: list[list[str | int | float]] = []
    for name in chosen[0]:
        column = [setting[name] for setting in chosen]
        groups = _groups(column)
        if groups.max() > 0 and not any(same_partition(column, earlier) for earlier in columns):
            columns.append(column)
            shares[name] = tuple(omega_squared(rank, groups) for rank in ranks)
    best = sorted(shares, key=lambda name: -max(shares[name]))[:MOST_SETTINGS]
    if not best:
        return None
    return Importance(tuple(best), data.objectives, tuple(shares[name] for name in best), len(trials))


def omega_squared(values: F8, groups: I8) -> float:
    """Share of the variance of ``values`` (n,) between ``groups`` (n,), codes from 0 on; 0 where nothing varies."""
    n, k = len(values), int(groups.max()) + 1
    total = float(((values - values.mean()) ** 2).sum())
    if total == 0.0 or n <= k:
        return 0.0
    counts = np.bincount(groups, minlength=k)
    means = np.bincount(groups, weights=values, minlength=k) / counts
    between = float((counts * (means - values.mean()) ** 2).sum())
    within = (total - between) / (n - k)
    return max(0.0, (between - (k - 1) * within) / (total + within))


def _ranks(values: Sequence[float]) -> F8:
    from scipy.stats import rankdata

    return np.asarray(rankdata(np.asarray(values, float)), float)


def _groups(column: Sequence[str | int | float]) -> I8:
    """A code per value; many different numbers become ``MOST_GROUPS`` groups of about equal counts."""
    numbers = [value for value in column if not isinstance(value, str)]
    distinct = sorted(set(numbers))
    if len(distinct) > MOST_GROUPS:
        edges = np.unique(np.quantile(numbers, np.linspace(0, 1, MOST_GROUPS + 1)[1:-1]))
        keys: list[str] = [v if isinstance(v, str) else f"{np.searchsorted(edges, v)}" for v in column]
    else:
        keys = [str(value) for value in column]
    codes = {key: code for code, key in enumerate(sorted(set(keys) - {str(v) for v in UNUSED}))}
    unused = len(codes)
    return np.unique(np.array([codes.get(key, unused) for key in keys]), return_inverse=True)[1].astype(np.int64)
