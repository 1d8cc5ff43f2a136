"""A study in which replicas may be down: simulated without them, paid for with them; and what a spare one costs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.report.data.spare import cheapest_spare
from hisearch.report.pages.page import cautions
from hisearch.report.pages.trades import trades
from hisearch.score.terms import REPLICAS, LimitCheck
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.deployments import resized
from hisearch.search.model.job import Job
from hisearch.search.model.trial import price_of
from tests.cli.conftest import Hisearch

ONE_DOWN = "spec.availability.replicas_down=1"


def with_replicas(result: StudyResult, count: int) -> Job:
    assert result.recommendation is not None
    spec = resized(result.recommendation.trial.deployment, [count])
    return Job(2, spec, {})


def test_what_is_left_is_simulated_and_all_is_paid_for(result: StudyResult, study_file: Path) -> None:
    study = load_study(study_file, [ONE_DOWN])
    down = Simulation(study.world())
    whole, left = result.simulation.evaluate(with_replicas(result, 2)), down.evaluate(with_replicas(result, 3))
    for name in ("ttft_p99_s", "tpot_p99_s", "goodput_rps"):
        assert left.metrics[name] == whole.metrics[name]
    assert left.metrics["usd_per_hour"] == pytest.approx(1.5 * whole.metrics["usd_per_hour"])
    assert left.slo[-1] == LimitCheck(REPLICAS, 3.0, 2.0, at_least=True)
    assert left.feasible == whole.feasible
    assert not down.evaluate(with_replicas(result, 1)).feasible
    assert down.fleet(with_replicas(result, 3).deployment, whole=True).pools[0].replicas == 3
    assert result.simulation.world.digest("") != down.world.digest("")


def test_a_search_finds_what_holds_with_a_replica_away(
    result: StudyResult, study_file: Path, tmp_path: Path, hisearch: Hisearch
) -> None:
    outcome = load_study(study_file, [ONE_DOWN]).run(workers=1, run_dir=tmp_path / "down")
    assert outcome.recommendation is not None
    best = outcome.recommendation.trial
    assert best.deployment.pool.replicas >= 2
    left = resized(best.deployment, [best.deployment.pool.replicas - 1])
    assert result.simulation.evaluate(Job(2, left, {})).feasible
    report = outcome.report_input()
    assert "with 1 replica of each pool away" in next(c.text for c in cautions(report) if c.title == "Availability")
    assert report.spare is None
    readme = " ".join((tmp_path / "down" / "recommended" / "README.md").read_text().split())
    assert f"--set spec.pools.0.replicas={best.deployment.pool.replicas - 1}" in readme


def test_one_more_replica_is_priced_and_a_single_one_is_named(result: StudyResult) -> None:
    report = result.report_input()
    assert report.spare is not None
    assert report.recommendation is not None
    best = report.recommendation.trial
    one_more = resized(best.deployment, [pool.replicas + 1 for pool in best.deployment.pools])
    assert price_of(best) < report.spare.usd_per_hour <= result.simulation.usd_per_hour(one_more) + 1e-6
    last = trades(report)[-1]
    assert (last.role, last.trial) == ("survives an update", None)
    assert last.change.startswith("+$")
    single = dataclasses.replace(best, deployment=resized(best.deployment, [1]))
    alone = dataclasses.replace(report, recommendation=dataclasses.replace(report.recommendation, trial=single))
    text = next(c.text for c in cautions(alone) if c.title == "Single replica")
    assert "nothing answers while it is updated, drained or restarted" in text
    assert "spec.availability.replicas_down: 1" in text


def test_the_cheapest_spare_is_of_the_smallest_replica(result: StudyResult) -> None:
    usd = result.simulation.usd_per_hour
    met = [trial for trial in result.trials if trial.meets_slo]
    spare = cheapest_spare(met, usd)
    assert spare is not None
    assert spare.usd_per_hour == min(
        round(usd(resized(t.deployment, [p.replicas + 1 for p in t.deployment.pools])), 6) for t in met
    )
    assert cheapest_spare([], usd) is None


@pytest.mark.parametrize(("tensor", "replicas", "idle"), [(4, 3, 4), (8, 2, 0), (2, 1, 6)])
def test_idle_accelerators_of_its_hosts_are_said_and_priced(
    result: StudyResult, tensor: int, replicas: int, idle: int
) -> None:
    report = result.report_input()
    assert report.recommendation is not None
    best = report.recommendation.trial
    pool = best.deployment.pool.model_copy(update={"tensor_parallel": tensor, "replicas": replicas})
    spec = best.deployment.model_copy(update={"pools": [pool]})
    book = result.simulation.book
    usd = {"usd_per_hour": book.cost(spec)}
    trial = dataclasses.replace(best, deployment=spec, metrics=best.metrics | usd)
    whole = book.whole_hosts(spec)
    assert (whole.used, whole.slots - whole.used) == (tensor * replicas, idle)
    each_usd = book.cost(spec) / whole.used
    assert whole.idle_usd_per_hour == pytest.approx(idle * each_usd)
    shown = dataclasses.replace(
        report, recommendation=dataclasses.replace(report.recommendation, trial=trial), whole_hosts=whole
    )
    texts = [c.text for c in cautions(shown) if c.title == "Idle accelerators"]
    assert len(texts) == (1 if idle else 0)
    if idle:
        assert f"{idle} of the {whole.slots} accelerators" in texts[0]
        assert f"${whole.slots * each_usd:,.2f} an hour" in texts[0]
