"""Measured serving runs, where they are present: how many are simulated, and how far off they are."""

from __future__ import annotations

import pytest

from hisearch.validate.silicon.pricing import Pricer
from hisearch.validate.silicon.report import SiliconReport, validate_silicon
from tests.reference.recorded import shared_directory


@pytest.fixture(scope="module")
def report() -> SiliconReport:
    shared = shared_directory()
    if shared is None:
        pytest.skip("no measurements: set HISEARCH_SHARED to the folder that holds validation/")
    return validate_silicon(shared / "validation" / "silicon" / "measured.csv", where={"mode": "agg"}, pricer=Pricer())


@pytest.mark.slow
def test_every_row_is_simulated(report: SiliconReport) -> None:
    assert report.priced == report.rows


def test_errors_are_those_that_the_accuracy_page_states(report: SiliconReport) -> None:
    assert report.all.tpot_median_ape < 0.05
    assert report.all.tpot_mape < 0.102
    assert report.all.ttft_median_ape < 0.14
    assert report.all.ttft_mape < 0.21
    assert report.dense.tpot_median_ape < 0.052
