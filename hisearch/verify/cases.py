"""A measurement, the corrected model's prediction of it, and the distance between the two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from hisearch.traces.importers.measurement import Measurement
from hisearch.verify.prediction import Correction, Predictor, parts

#: Figures whose differences count. ITL percentiles do not: tools see bundles of tokens.
FITTED = tuple(
    f"{stem}_{which}_s" for stem in ("ttft", "tpot", "e2e") for which in ("mean", "p50", "p90", "p95", "p99")
)
#: Shorter latencies count as this, seconds.
_SHORTEST_S = 1e-4
#: Share of the difference of step times due to luck that does not count against a correction.
_LUCK_SHARE = 1 / 3


def differences(measured: Mapping[str, float], predicted: Mapping[str, float]) -> dict[str, float]:
    """Figure -> log(measured / predicted), of the ``FITTED`` figures that both sides have."""
    shared = (name for name in FITTED if name in measured and name in predicted)
    return {name: math.log(max(measured[name], _SHORTEST_S) / max(predicted[name], _SHORTEST_S)) for name in shared}


def root_mean_square(values: Iterable[float]) -> float:
    """The root mean square of at least one value."""
    numbers = list(values)
    return math.sqrt(math.fsum(value * value for value in numbers) / len(numbers))


class Case(NamedTuple):
    """A measurement and its predictor. rows: places of the requests that count; None: the tool's figures count."""

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
        """The same figures by the corrected model; ``choice``: of the prompts that lose their hits."""
        prediction = self.predict(correction, choice)
        if self.rows is None:
            return prediction.figures
        return prediction.requests.keep(np.isin(prediction.requests.rows, self.rows)).figures()

    def differences(self, correction: Correction, choice: int = 0) -> dict[str, float]:
        """Differences of the figures that count."""
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
        """Distance of step times among neighbours from those of the simulation; None where they are not known.

        Both are counted in the same way, and have the same error if the model is right: see ``prediction.distance``.
        Nothing is squared: requests with other neighbours than in the simulation of ``simulated`` (of ``correction``
        where absent) are outliers. ``but_for_luck``: do not count the error from not knowing each request's worker,
        nor a third of the error from not knowing which prompts lost their hits. Subtracting all of it would let luck
        explain everything.
        """
        counted = self.predict.steps(correction, simulated, choice)
        model = self.predict.own_steps(simulated or correction, choice)
        if counted is None or model is None:
            return None
        measured, predicted = (
            values if self.rows is None else values[np.isin(rows, self.rows)] for rows, values in (counted, model)
        )
        if not len(measured) or not len(predicted):
            return None
        differences_ = parts(measured, predicted)
        if not but_for_luck:
            return sum(differences_)
        placed = zip(differences_, self.predict.placing().steps, strict=True)
        excess = sum(max(difference - luck, 0.0) for difference, luck in placed)
        return max(excess - _LUCK_SHARE * self.predict.luck(simulated or correction), 0.0)
