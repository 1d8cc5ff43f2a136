"""Why draws miss, on a deployment that misses by known rules."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.conclusion_words import format_misses
from hisearch.search.confidence.misses import MOST_DRAWS, Misses, find_misses
from hisearch.search.confidence.uncertainty import Draw, Uncertainty
from hisearch.search.model.job import Evaluation
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.traces.changes.bootstrap import session_table
from tests.search.fakes import make_trial
from tests.search.test_confidence import TRACE

SLOW, BUSY, LITTLE = 2.0, 1.0, 0.1


def uncertainty(slowness: list[float]) -> Uncertainty:
    normal = np.zeros((len(slowness), 5))
    normal[:, 0] = slowness
    return Uncertainty(TRACE, 0, normal, sessions=session_table(TRACE))


def missing_by(slow: float, busy: float, together: float) -> object:
    """Evaluates a draw: it misses if slow enough, if its traffic is that of some numbers, or with a bit of both."""

    def evaluate(deployment: DeploymentSpec, draw: Draw) -> Evaluation:
        traffic = BUSY * (draw.number % 2) if draw.trace is not TRACE else 0.0
        misses = draw.normal[0] >= slow or traffic >= busy or draw.normal[0] + traffic >= together
        return Evaluation({"usd_per_hour": 1.0}, (), not misses)

    return evaluate


def misses_of(slowness: list[float], **rule: float) -> Misses | None:
    drawn, trial = uncertainty(slowness), make_trial(0, 1.0, 5.0, 4.0)
    assessor = Assessor(drawn, missing_by(**{"slow": 9.0, "busy": 9.0, "together": 9.0, **rule}))  # type: ignore[arg-type]
    assessor.assess([trial], [len(slowness)], 0.9)
    return find_misses(assessor, trial, len(slowness))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"slow": SLOW}, Misses(2, 2, 2, 0, 0, 0)),  # draws 2 and 3
        ({"busy": BUSY}, Misses(2, 2, 0, 2, 0, 0)),  # draws 1 and 3
        ({"slow": SLOW, "busy": BUSY}, Misses(3, 3, 1, 1, 1, 0)),
        ({"together": SLOW + BUSY}, Misses(1, 1, 0, 0, 0, 1)),  # draw 3
        ({"slow": 5.0}, None),
    ],
)
def test_what_alone_makes_a_draw_miss_is_told(rule: dict[str, float], expected: Misses | None) -> None:
    assert misses_of([LITTLE, LITTLE, SLOW, SLOW], **rule) == expected


def test_the_first_that_miss_are_looked_into() -> None:
    misses = misses_of([SLOW] * 20, slow=SLOW)
    assert misses == Misses(20, MOST_DRAWS, MOST_DRAWS, 0, 0, 0)
    assert format_misses(misses) == "Of the 20 draws that miss it, the first 8 do so: 8 with slower steps alone."
    assert format_misses(Misses(3, 3, 1, 1, 1, 0)) == (
        "Of the 3 draws that miss it: 1 with slower steps alone, 1 with their traffic alone and 1 with either."
    )
    assert format_misses(None) == ""
