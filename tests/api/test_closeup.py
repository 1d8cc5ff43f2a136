"""The closer look at a study's recommended deployment."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import hisearch
from hisearch.api.deployments.replay import Replay
from hisearch.api.studies.closeup import Subject
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.cli.views.run import to_dict
from hisearch.hardware.prices import CostBreakdown
from hisearch.report.data.closeup import SHARES
from hisearch.report.figures.closeup_drawings import first_break
from hisearch.report.pages.page import load_fact
from hisearch.score.quantities import significant
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.trial import Trial
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.specs.deployments.deployment import DeploymentSpec


def test_the_closer_look_agrees_with_its_trial(result: StudyResult) -> None:
    """The closer look simulates again: at load 1 it must give the figures of the trial."""
    assert result.closeup is not None
    assert result.recommendation is not None
    trial = result.recommendation.trial
    assert result.closeup.trial == trial.number
    nominal = next(point for point in result.closeup.loads if point.load == 1.0)
    assert (nominal.attainment, nominal.goodput_rps) == (trial.metrics["attainment"], trial.metrics["goodput_rps"])
    assert nominal.terms == trial.slo
    ttft = next(curve for curve in result.closeup.latencies if curve.metric == "ttft")
    assert ttft.values_s[SHARES.index(0.99)] == pytest.approx(trial.metrics["ttft_p99_s"], rel=1e-3)
    timeline = result.closeup.timeline
    assert timeline is not None
    assert len(timeline.workers) == trial.deployment.pool.replicas
    busy_s = sum(timeline.interval_s * sum(worker.busy) for worker in timeline.workers)
    whole_s = trial.metrics["utilisation"] * trial.metrics["makespan_s"] * len(timeline.workers)
    assert busy_s == pytest.approx(whole_s, rel=1e-2)


def test_one_headroom_is_told_everywhere(result: StudyResult) -> None:
    """The closer look judges loads as the search did: what it draws bears out the one figure that everything prints."""
    assert result.closeup is not None
    known = result.headroom
    assert known is not None
    assert known == result.outcome.headroom
    verdicts = {point.load: point.holds for point in result.closeup.loads}
    assert verdicts[known.load]
    assert not verdicts[known.infeasible_load]
    assert not [load for load in verdicts if known.load < load < known.infeasible_load]
    data = result.report_input()
    assert [term.holds for term in data.breaks] == [False] * len(data.breaks) != []
    load, missed = f"{known.load:.3g}", f"{known.infeasible_load:.3g}"
    (fact,) = load_fact(data)
    assert data.rates is not None
    assert fact.value == significant(known.load * data.rates.mean_rps)
    assert fact.meaning.startswith(f"{load} × this load")
    assert f"; at {missed} × " in fact.meaning
    assert first_break(data).startswith(f"Every term holds up to {load} times the study's load; at {missed} times, ")
    assert to_dict(result)["recommendation"]["capacity"] == known
    stored = json.loads((result.run_dir / "confidence.json").read_text())["headroom"]
    assert (stored["load"], stored["infeasible_load"]) == (known.load, known.infeasible_load)


def test_loads_of_the_closer_look_stand_in_where_the_search_tried_none(result: StudyResult) -> None:
    untried = replace(result, outcome=replace(result.outcome, headroom=None))
    assert result.closeup is not None
    assert untried.headroom == result.closeup.headroom
    assert untried.headroom is not None
    assert untried.headroom.load == result.outcome.headroom.load  # type: ignore[union-attr]
    assert replace(untried, closeup=None).headroom is None


def test_another_deployment_s_closer_look_is_refused(result: StudyResult, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(result.run_dir, folder)
    assert hisearch.load_run(folder).closeup == result.closeup
    assert result.closeup is not None
    other = replace(result.closeup, trial=result.closeup.trial + 1)
    (folder / "closeup.json").write_text(other.to_json(), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"closeup\.json: trial: expected {result.closeup.trial}, got {other.trial}"):
        hisearch.load_run(folder)


def test_sizes_of_a_tier_that_the_engine_refuses_are_not_looked_at(study_file: Path) -> None:
    """SGLang's host pool must exceed its device pool: half of this tier would not."""
    study = load_study(study_file)
    simulation = Simulation(study.world())
    deployment = DeploymentSpec.model_validate(
        {
            "model": "llama-3.1-8b",
            "pools": [
                {
                    "accelerator": "h100-sxm",
                    "engine": {"name": "sglang", "chunk_tokens": 2048, "max_running_requests": 128},
                    "tiers": [{"medium": "ddr5", "gib": 64}],
                }
            ],
        }
    )
    fleet = FleetPlan((PoolPlan(simulation.plan(deployment.pool)),), deployment.router)
    replay = Replay(deployment, fleet, [CostBreakdown(1.0, 0.0, 1)], study.resolved.slo.spec)
    subject = Subject(Trial(0, 3, deployment, {}), simulation, replay)
    assert subject.resized(0, 0.5) is None
    larger = subject.resized(0, 1.5)
    assert larger is not None
    assert larger.tiers[0].capacity_tokens == pytest.approx(1.5 * replay.plan.tiers[0].capacity_tokens, rel=2e-2)
