"""A measurement beside what the corrected model predicts of it, and how far the two are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from hisearch.verify.measured import Measurement
from hisearch.verify.prediction import Correction, Predictor, parts

#: Figures whose differences count; ITL's percentiles do not, as tools see bundles of tokens.
FITTED = tuple(
    f"{stem}_{which}_s" for stem in ("ttft", "tpot", "e2e") for which in ("mean", "p50", "p90", "p95", "p99")
)
#: Latencies below this are as good as equal to it, seconds.
_SHORTEST_S = 1e-4
#: Share of what luck makes of the difference of step times that is not held against a correction.
_LUCK_SHARE = 1 / 3


def differences(measured: Mapping[str, float], predicted: Mapping[str, float]) -> dict[str, float]:
    """Figure -> log(measured / predicted), of those that are fitted and known on both sides."""
    shared = (name for name in FITTED if name in measured and name in predicted)
    return {name: math.log(max(measured[name], _SHORTEST_S) / max(predicted[name], _SHORTEST_S)) for name in shared}


def root_mean_square(values: Iterable[float]) -> float:
    """Of at least one value."""
    found = list(values)
    return math.sqrt(math.fsum(value * value for value in found) / len(found))


class Case(NamedTuple):
    """A measurement and what predicts it. rows: the requests that count, by their places in it; None: its figures."""

    measurement: Measurement
    predict: Predictor
    rows: np.ndarray | None = None

    def measured(self) -> dict[str, float]:
        """Figures of the requests that count."""
        requests = self.measurement.requests
        if self.rows is None or requests is None:
            return self.measurement.figures
        return requests.keep(np.isin(requests.rows, self.rows)).figures()

    def predicted(self, correction: Correction, choice: int = 0) -> dict[str, float]:
        """Likewise, by the corrected model; ``choice``: of the prompts that lose their hits."""
        found = self.predict(correction, choice)
        if self.rows is None:
            return found.figures
        return found.requests.keep(np.isin(found.requests.rows, self.rows)).figures()

    def differences(self, correction: Correction, choice: int = 0) -> dict[str, float]:
        """Of the figures that count."""
        return differences(self.measured(), self.predicted(correction, choice))

    def error(self, correction: Correction, choice: int = 0) -> float:
        """Root mean square of the differences."""
        return root_mean_square(self.differences(correction, choice).values())

    def steps_error(
        self,
        correction: Correction,
        simulated: Correction | None = None,
        choice: int = 0,
        but_for_luck: bool = True,
    ) -> float | None:
        """How far step times among neighbours are from those of the simulation; None where they are not known.

        Both are counted in the same way, and are off by the same where the model is right: see
        ``prediction.distance``. Nothing is squared: some requests have other neighbours than the simulation of
        ``simulated`` (of ``correction`` where absent) says, and are far off. ``but_for_luck``: what comes of not
        knowing which worker each request came
        to does not count, nor a third of what comes of not knowing which prompts lost their hits: all of that would let
        luck explain everything.
        """
        found = self.predict.steps(correction, simulated, choice)
        own = self.predict.own_steps(simulated or correction, choice)
        if found is None or own is None:
            return None
        measured, predicted = (
            values if self.rows is None else values[np.isin(rows, self.rows)] for rows, values in (found, own)
        )
        if not len(measured) or not len(predicted):
            return None
        found_parts = parts(measured, predicted)
        if not but_for_luck:
            return sum(found_parts)
        placing = zip(found_parts, self.predict.placing().steps, strict=True)
        left = sum(max(part - luck, 0.0) for part, luck in placing)
        return max(left - _LUCK_SHARE * self.predict.luck(simulated or correction), 0.0)
