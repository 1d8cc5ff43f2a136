"""Undefined figures (TPOT of single-token outputs) on their way through a study, and rejections among its terms."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hisearch.score.terms import RejectionCheck, TermCheck
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.trial import Trial
from hisearch.search.records.journal import Journal
from hisearch.search.records.storage import StudyDatabase
from hisearch.search.select.pareto import front, miss_order
from hisearch.search.stages.execution import search_execution
from hisearch.search.tables import candidates_frame, trials_frame
from tests.search.fakes import make_deployment, make_problem, make_trial


def undefined(number: int) -> Trial:
    """A trial whose TPOT is undefined."""
    trial = make_trial(number, 1.0, 5.0, 4.0)
    checks = (*trial.slo, TermCheck("tpot_p99", None, 0.05), RejectionCheck(0.0, 10))
    return replace(trial, slo=checks, metrics=trial.metrics | {"tpot_p99_s": math.nan})


def test_undefined_figures_equal_themselves_after_the_journal(tmp_path: Path) -> None:
    trial = undefined(0)
    evaluation = Evaluation(trial.metrics, trial.slo, True)
    with Journal(tmp_path / "j", "x") as journal:
        journal.record("k", evaluation)
    with Journal(tmp_path / "j", "x", resume=True) as journal:
        back = journal.get("k")
    assert back == evaluation
    assert back is not None
    job = Job(1, make_deployment())
    assert back.trial(0, job) == evaluation.trial(0, job)


def test_undefined_objectives_do_not_decide_and_are_stored(tmp_path: Path) -> None:
    trials = [undefined(0), replace(undefined(1), metrics=undefined(1).metrics | {"usd_per_hour": 9.0})]
    assert [trial.number for trial in front(trials, ("tpot_p99", "usd_per_hour"))] == [0]
    problem = replace(make_problem(), objectives=("tpot_p99", "usd_per_hour"))
    StudyDatabase(tmp_path / "s.db", "s", problem).write(trials)
    row = trials_frame(trials).iloc[0]
    assert math.isnan(row["tpot_p99_s"])
    assert math.isnan(row["margin_tpot_p99"])
    assert math.isnan(row["margin_rejected_fraction"])


def test_the_larger_of_latency_miss_and_rejections_is_the_miss() -> None:
    trial = make_trial(0, 2.2, 5.0, 4.0, feasible=False)
    assert miss_order(trial)[0] == pytest.approx(0.1)
    rejecting = replace(trial, slo=(*trial.slo, RejectionCheck(0.0, 10, {"too_large": 5})))
    assert miss_order(rejecting)[0] == pytest.approx(0.5)
    assert rejecting.worst_margin == trial.worst_margin


def test_candidates_that_do_not_go_on_have_no_rank() -> None:
    report = search_execution(make_problem(), 2)
    frame = candidates_frame(report)
    assert sorted(frame["rank"].dropna()) == list(range(1, len(report.kept) + 1))
    assert frame["rank"].isna().sum() == len(report.sized) - len(report.kept) > 0
    lines = frame.to_csv(index=False).splitlines()
    assert any(line.startswith(",") for line in lines[1:])
    assert not any(line.startswith("-1") or line.split(",")[0].endswith(".0") for line in lines[1:])
