"""Why draws miss the SLO: each is simulated again with its step times alone, and with its traffic alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hisearch.search.confidence.assessment import Assessor
from hisearch.search.model.trial import Trial

#: Most draws that are looked into, the first that miss.
MOST_DRAWS = 8


@dataclass(frozen=True)
class Misses:
    """Draws that miss the SLO, by what makes them miss it.

    missed: all of them. looked_at: so many were looked into. steps, traffic: miss with their step times, or with their
    traffic, alone; either: with each of them; together: only with both.
    """

    missed: int
    looked_at: int
    steps: int
    traffic: int
    either: int
    together: int


def find_misses(assessor: Assessor, trial: Trial, draws: int) -> Misses | None:
    """Look into the first of a trial's draws that miss; None if all ``draws`` hold, or traffic is not drawn."""
    uncertainty, deployment = assessor.uncertainty, trial.deployment
    if uncertainty.sessions is None or len(uncertainty.sessions) < 2:
        return None
    missed = [k for k in range(draws) for known in assessor.known(deployment, [k]) if not known.feasible]
    if not missed:
        return None
    looked_at = missed[:MOST_DRAWS]
    steps = _missing(assessor.under(replace(uncertainty, sessions=None)), trial, looked_at)
    traffic = _missing(assessor.under(replace(uncertainty, normal=np.zeros_like(uncertainty.normal))), trial, looked_at)
    kinds = list(zip(steps, traffic, strict=True))
    return Misses(
        len(missed),
        len(looked_at),
        kinds.count((True, False)),
        kinds.count((False, True)),
        kinds.count((True, True)),
        kinds.count((False, False)),
    )


def _missing(assessor: Assessor, trial: Trial, draws: Sequence[int]) -> list[bool]:
    """Whether the trial misses the SLO under each of the draws."""
    assessor.evaluations([trial.deployment], [draws])
    return [not evaluation.feasible for evaluation in assessor.known(trial.deployment, draws)]
