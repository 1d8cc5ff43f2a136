"""Step times inferred from measured requests and their neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.specs.machines.profile import CorrectionSpec
from hisearch.traces.importers.measurement import PerRequest
from hisearch.verify.neighbours import FEWEST_GAPS, Neighbours, Placed
from tests.verify.documents import STUDY, measure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("neighbours")
    (folder / "study.yaml").write_text(STUDY)
    return load_study(folder / "study.yaml").run(workers=2, run_dir=folder / "run")


@pytest.mark.parametrize(
    "factors",
    [
        CorrectionSpec(),
        CorrectionSpec(decode=1.25),
        CorrectionSpec(decode=1.5),
        CorrectionSpec(prefill=1.3),
        CorrectionSpec(host=5.0),
        CorrectionSpec(prefill=1.4, decode=0.8),
    ],
)
def test_the_true_factors_count_as_many_steps_as_tokens(result: StudyResult, factors: CorrectionSpec) -> None:
    """Whatever the queues, and with no simulation but where requests were served."""
    assert result.recommendation is not None
    _, times, table = measure(result, factors=factors)
    requests = PerRequest(
        np.arange(len(times)), times, table.ttft_s, table.e2e_s, table.input_tokens, table.output_tokens
    )
    hits = table.hit_tokens + table.host_hit_tokens + table.storage_hit_tokens
    placed = Placed(table.worker, hits)
    counted = Neighbours(requests, result.simulation.fleet(result.recommendation.trial.deployment))
    rows, distance = counted.differences(placed, lambda _: factors)
    assert set(rows.tolist()) == set(np.flatnonzero(table.output_tokens - 1 >= FEWEST_GAPS).tolist())
    right = np.abs(distance).mean()
    assert right < 0.03
    if factors != CorrectionSpec():
        _, unchanged = counted.differences(placed, lambda _: CorrectionSpec())
        assert np.abs(unchanged).mean() > 2 * right


def test_times_are_needed(result: StudyResult) -> None:
    assert result.recommendation is not None
    plan = result.simulation.fleet(result.recommendation.trial.deployment)
    unit_times = np.ones(3)
    with pytest.raises(ValueError, match="when requests were sent is not known"):
        Neighbours(PerRequest(np.arange(3), None, unit_times, unit_times, np.arange(3), np.arange(3)), plan)
