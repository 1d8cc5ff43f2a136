"""Status of a search, reported to listeners after every simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.search.model.job import Evaluation
from hisearch.search.model.trial import is_maximised, metric_of

#: An objective this many times worse than the first feasible trial's adds nothing to the hypervolume.
WORST_FACTOR = 10.0


class SearchStatus:
    """Counts feasible deployments, and keeps the cheapest price and the hypervolume of the front so far.

    The hypervolume is taken over the logarithms of the objectives. Its corner is ``WORST_FACTOR`` times worse than the
    first feasible trial in each. It is reported as a multiple of that trial's own. It therefore needs no scale that is
    only known at the end, and stays constant once the front does. The first trial is the one with the lowest number,
    not the first to end. The same trials thus give the same figure for any workers, even if a run was killed and
    resumed. It can fall only while simulations that run in parallel with the first feasible ones still end.
    """

    def __init__(self, objectives: Sequence[str] = ()) -> None:
        """Start for a study with these objectives; without any, no hypervolume is reported.

        ``hypervolume`` is 0 until a trial is feasible.
        """
        self.feasible = 0
        self._objectives = tuple(objectives)
        self._cheapest_usd = math.inf
        self._first: tuple[int, F8] | None = None
        #: Decimal logarithms of the non-dominated points.
        self._front = np.empty((0, len(self._objectives)))
        self.hypervolume = 0.0

    def add(self, number: int, evaluation: Evaluation) -> None:
        """Add a simulation of the complete trace at the study's load."""
        if not evaluation.feasible:
            return
        self.feasible += 1
        self._cheapest_usd = min(self._cheapest_usd, evaluation.metrics["usd_per_hour"])
        if self._objectives:
            self._add_point(number, self._decades(evaluation))

    def notes(self) -> tuple[str, ...]:
        """Notes for a progress bar: number of feasible trials, best price, hypervolume."""
        if not self.feasible:
            return ("0 feasible",)
        grown = (f"hypervolume {self.hypervolume:.2f}",) if self._objectives else ()
        return (f"{self.feasible:,} feasible", f"from ${self._cheapest_usd:,.2f}/h", *grown)

    def _decades(self, evaluation: Evaluation) -> F8:
        """Decimal logarithms of the objectives, to be minimised; an undefined or infinite figure is the worst."""
        values = []
        for name in self._objectives:
            value = evaluation.metrics.get(metric_of(name), math.nan)
            size = math.log10(value) if 0 < value < math.inf else math.nan
            values.append(-size if is_maximised(name) else size)
        return np.array(values)

    def _add_point(self, number: int, decades: F8) -> None:
        import moocore

        if self._first is None or number < self._first[0]:
            self._first = number, np.nan_to_num(decades, nan=0.0)
        points = np.vstack([self._front, np.nan_to_num(decades, nan=math.inf)])
        self._front = points[moocore.is_nondominated(points)]
        shown = np.minimum((self._front - self._first[1]) / math.log10(WORST_FACTOR), 1.0)
        self.hypervolume = float(moocore.hypervolume(shown, ref=np.ones(len(self._objectives))))
