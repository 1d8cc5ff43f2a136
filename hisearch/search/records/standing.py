"""How a search stands: what those who watch it are told after every simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.search.model.job import Evaluation
from hisearch.search.model.trial import is_maximised, metric_of

#: An objective that is so many times worse than the first feasible trial's adds nothing to the hypervolume.
WORST_FACTOR = 10.0


class Standing:
    """Counts feasible deployments, keeps the cheapest price and the hypervolume of the front so far.

    The hypervolume is taken over the logarithms of the objectives, from a corner where each is ``WORST_FACTOR`` times
    worse than the first feasible trial's, and is told as a multiple of that trial's own. So it needs no scale that is
    only known in the end, and it stands still once the front does. The first is the one with the lowest number, not the
    first to end: whatever the workers, and whether or not a run was killed and went on, the same trials come to the
    same figure. It can fall only while the simulations side by side with the first feasible ones still end.
    """

    def __init__(self, objectives: Sequence[str] = ()) -> None:
        """Of a study with these objectives; of none, no hypervolume is told.

        ``hypervolume`` is 0 as long as nothing is feasible.
        """
        self.feasible = 0
        self._objectives = tuple(objectives)
        self._cheapest_usd = math.inf
        self._first: tuple[int, F8] | None = None
        #: Decimal logarithms of what no other beats.
        self._front = np.empty((0, len(self._objectives)))
        self.hypervolume = 0.0

    def add(self, number: int, evaluation: Evaluation) -> None:
        """Take note of what was simulated on the whole trace at the study's load.

        Args:
            number: the trial's.
            evaluation: what came of it.
        """
        if not evaluation.feasible:
            return
        self.feasible += 1
        self._cheapest_usd = min(self._cheapest_usd, evaluation.metrics["usd_per_hour"])
        if self._objectives:
            self._add_point(number, self._decades(evaluation))

    def notes(self) -> tuple[str, ...]:
        """For a progress bar: how many are feasible, the best price, the hypervolume."""
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
