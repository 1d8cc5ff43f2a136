"""A study that asks for the most load: its front and its recommendation go on to the most replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.cli.views.run import show

#: Long prompts of a large model: few requests a second, so that ten minutes of them are quickly simulated.
STUDY = """\
apiVersion: hisearch/v1
kind: Study
metadata: {name: most}
spec:
  model: qwen3-32b
  workload:
    trace:
      generator:
        requests: 200
        arrivals: {process: poisson, rate_rps: 2}
        first_input: {distribution: lognormal, mean_log: 7.5, sigma_log: 0.5, min_tokens: 1, max_tokens: 8000}
        output: {distribution: constant, scale_tokens: 40}
  slo: ttft p95 < 4s, tpot p95 < 150ms
  space:
    execution:
      {engines: [vllm], accelerators: [h200], max_replicas: 8, tensor_parallel: [1], chunk_tokens: [2048],
       max_running_requests: [64]}
    routing: {policies: [round_robin]}
    cache: {tiers: []}
  objectives: [capacity, usd_per_hour]
  recommend: {rule: most_headroom}
  budget: {simulations: 60}
  confidence: {draws: 0, what_if: 0}
"""


def run(folder: Path, *overrides: str) -> StudyResult:
    path = folder / "most.yaml"
    path.write_text(STUDY)
    return load_study(path, list(overrides)).run(workers=1, run_dir=folder / "run")


@pytest.mark.parametrize(
    ("most", "overrides"),
    [
        (8, ()),
        (8, ("spec.space.execution.max_replicas=12", "spec.limits={accelerators: {at_most: 8}}")),
        pytest.param(5, ("spec.limits={usd_per_hour: {at_most: 18}}",), marks=pytest.mark.slow),
        pytest.param(5, ("spec.recommend.usd_per_hour=18",), marks=pytest.mark.slow),
    ],
)
def test_the_most_replicas_are_recommended_and_the_front_leads_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int, overrides: tuple[str, ...]
) -> None:
    result = run(tmp_path, *overrides)
    assert result.recommendation is not None
    best = result.recommendation.trial
    assert best.deployment.pool.replicas == most
    assert best.metrics["capacity_load"] == max(trial.metrics["capacity_load"] for trial in result.front) > 8
    by_price = sorted(result.front, key=lambda trial: trial.metrics["usd_per_hour"])
    replicas = [trial.deployment.pool.replicas for trial in by_price]
    assert (replicas[0], replicas[-1]) == (1, most)
    assert len(set(replicas)) >= 4
    assert result.outcome.ending.used <= 60
    show(result)
    text = " ".join(capsys.readouterr().out.split())
    assert f"({best.metrics['capacity_load']:.3g} × this load)" in text
    assert "what its budget left untried is unlikely to carry more (under Provenance)" in text


def test_by_the_rule_alone_the_load_of_the_most_replicas_is_looked_for(tmp_path: Path) -> None:
    objectives = "spec.objectives=[ttft_p95, goodput, usd_per_hour]"
    result = run(tmp_path, objectives, "spec.confidence.what_if=32", "spec.budget.simulations=40")
    assert result.recommendation is not None
    assert result.recommendation.trial.deployment.pool.replicas == 8
    assert result.headroom is not None
    assert 8 < result.headroom.load < result.headroom.infeasible_load
    assert "the most of" in result.recommendation.reason
