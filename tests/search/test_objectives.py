"""Objectives other than latency and price, limits in addition to the SLO, and budgets in dollars."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from hisearch.api.studies.study import load_study
from hisearch.score.capacity import capacity
from hisearch.score.evaluate import Score
from hisearch.score.terms import LimitCheck
from hisearch.search.driver import SearchOutcome, search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.evaluate.simulation import CAPACITY_TOLERANCE, LEAST_LOAD, Simulation
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.problem import Problem
from hisearch.search.refine.posteriors import figures, value_of
from hisearch.search.select.headroom import headroom
from hisearch.specs.errors import SpecError
from hisearch.specs.studies.study import BudgetSpec, LimitSpec
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import generate_agents, resized
from tests.search.fakes import FakeEvaluator, make_deployment, make_problem

ROOT = Path(__file__).parents[2]


class LimitedEvaluator(FakeEvaluator):
    """The fake world under limits; ``loads``: simulations that a job is said to have taken."""

    def __init__(self, limits: dict[str, LimitSpec], simulations: int = 1) -> None:
        super().__init__()
        self._limits, self._simulations = limits, simulations

    def __call__(self, job: Job) -> Evaluation:
        evaluation = super().__call__(job)
        names = {"goodput": "goodput_rps"}
        kept = tuple(
            LimitCheck(name, evaluation.metrics[names.get(name, name)], limit.bound, at_least=limit.at_most is None)
            for name, limit in self._limits.items()
        )
        slo = (*evaluation.slo[:-1], *kept, evaluation.slo[-1])
        feasible = all(check.holds for check in slo)
        return dataclasses.replace(evaluation, slo=slo, feasible=feasible, simulations=self._simulations)


def searched(problem: Problem, evaluate: FakeEvaluator) -> SearchOutcome:
    runner = TrialRunner(evaluate, problem.budget, workers=1)
    return search(problem, runner)


@pytest.fixture(scope="module")
def free() -> SearchOutcome:
    """What a search without limits comes to."""
    return searched(make_problem(), FakeEvaluator())


def test_a_limit_on_dollars_that_leaves_headroom_changes_no_recommendation(free: SearchOutcome) -> None:
    problem = make_problem()
    assert free.recommendation is not None
    price = free.recommendation.trial.metrics["usd_per_hour"]
    limits = {"usd_per_hour": LimitSpec(at_most=price + 1e-9)}
    kept = searched(dataclasses.replace(problem, limits=limits), LimitedEvaluator(limits))
    assert kept.recommendation is not None
    assert kept.recommendation.trial.metrics["usd_per_hour"] == price
    assert all(trial.metrics["usd_per_hour"] <= price + 1e-9 for trial in kept.front)


@pytest.mark.slow
def test_a_limit_below_the_cheapest_leaves_nothing_and_says_which(free: SearchOutcome) -> None:
    problem = make_problem()
    assert free.recommendation is not None
    limits = {"usd_per_hour": LimitSpec(at_most=0.5 * free.recommendation.trial.metrics["usd_per_hour"])}
    none = searched(dataclasses.replace(problem, limits=limits), LimitedEvaluator(limits))
    assert none.recommendation is None
    assert none.nearest_miss is not None
    assert any(isinstance(check, LimitCheck) for check in none.nearest_miss.slo if not check.holds)


def test_sizing_is_not_misled_by_a_limit_that_more_workers_miss_by_more(free: SearchOutcome) -> None:
    """Whether the SLO holds decides how many workers are tried: no more where all is too dear."""
    problem = make_problem()
    limits = {"usd_per_hour": LimitSpec(at_most=1.0)}
    none = searched(dataclasses.replace(problem, limits=limits), LimitedEvaluator(limits))
    assert none.ending.used <= problem.budget.simulations
    replicas = {trial.deployment.pool.replicas for trial in none.trials}
    assert max(replicas) <= max(trial.deployment.pool.replicas for trial in free.trials)


def test_a_limit_on_accelerators_is_kept_before_anything_is_simulated() -> None:
    limits = {"accelerators": LimitSpec(at_most=6)}
    problem = dataclasses.replace(make_problem(), limits=limits)
    outcome = searched(problem, FakeEvaluator())
    assert outcome.trials
    assert max(trial.deployment.pool.accelerators for trial in outcome.trials) <= 6


def test_simulations_that_a_trial_took_count_against_the_budget() -> None:
    problem = make_problem(simulations=100)
    outcome = searched(problem, LimitedEvaluator({}, simulations=6))
    assert 90 <= outcome.ending.used <= 105
    assert outcome.ending.used <= 6 * len(outcome.trials) <= outcome.ending.used + 10 + 5


def test_one_trial_that_takes_several_simulations_may_pass_the_budget_by_itself_only() -> None:
    runner = TrialRunner(LimitedEvaluator({}, simulations=6), BudgetSpec(simulations=20), workers=1, simulations_each=6)
    runner.run([Job(2, make_deployment(replicas=n)) for n in range(1, 9)])
    assert runner.simulations - runner.trials[-1].simulations < 20
    assert runner.stopped == "simulations"


def test_simulations_survive_the_journal() -> None:
    evaluation = Evaluation(
        {"usd_per_hour": 1.0}, (LimitCheck("usd_per_hour", 1.0, 2.0),), feasible=True, simulations=7
    )
    assert Evaluation.from_json(json.loads(json.dumps(evaluation.to_json()))) == evaluation
    old = evaluation.to_json()
    del old["simulations"]
    assert Evaluation.from_json(old).simulations == 1


@pytest.mark.parametrize(("value", "at_least", "margin"), [(30, False, 0.25), (50, False, -0.25), (30, True, -0.25)])
def test_a_limit_knows_its_margin(value: float, *, at_least: bool, margin: float) -> None:
    check = LimitCheck("goodput" if at_least else "usd_per_hour", value, 40.0, at_least)
    assert check.margin == pytest.approx(margin)
    assert check.holds == (margin >= 0)
    assert check.violation == pytest.approx(-margin)


def test_an_undefined_figure_keeps_to_its_limit_and_says_so() -> None:
    check = LimitCheck("itl_p99", math.nan, 1.0)
    assert check.holds
    assert "undefined" in check.note


def test_posteriors_hold_a_lower_limit_as_a_bound_on_what_is_minimised() -> None:
    limits = {"goodput": LimitSpec(at_least=5.0), "usd_per_hour": LimitSpec(at_most=40.0)}
    evaluate = LimitedEvaluator(limits)
    jobs = [Job(2, make_deployment(replicas=n)) for n in (4, 6, 8)]
    trials = [evaluate(job).trial(n, job) for n, job in enumerate(jobs)]
    modelled = figures(trials, ("ttft_p99", "goodput", "usd_per_hour"))
    assert modelled["goodput"].bound == -5.0
    assert modelled["goodput"].maximised
    assert "usd_per_hour" not in modelled  # it is known exactly, so it has no posterior
    for trial in trials:
        minimised = modelled["goodput"].minimised(
            np.array([modelled["goodput"].loss(value_of(trial, modelled["goodput"]))])
        )
        assert minimised[0] == pytest.approx(-trial.metrics["goodput_rps"])


def study_file(folder: Path, **spec: object) -> Path:
    text = f"""\
apiVersion: hisearch/v1
kind: Study
metadata: {{name: small}}
spec:
  model: llama-3.1-8b
  workload: {{trace: chat-multiturn, limit: 300}}
  slo: interactive-chat
  space:
    execution:
      accelerators: [h100-sxm]
      engines: [vllm]
      tensor_parallel: [1]
      chunk_tokens: [2048]
      max_running_requests: [64]
    routing: {{policies: [round_robin]}}
    cache: {{tiers: []}}
  objectives: {json.dumps(spec.get("objectives", ["ttft_p99", "usd_per_hour"]))}
  limits: {json.dumps(spec.get("limits", {}))}
  budget: {json.dumps(spec.get("budget", {"simulations": 30}))}
  confidence: {{draws: 0, what_if: 0}}
"""
    path = folder / "small.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("limits", "key", "expected"),
    [
        ({"usd_per_hour": {"at_least": 4}}, "spec.limits.usd_per_hour", "needs at_most"),
        ({"goodput": {"at_most": 4}}, "spec.limits.goodput", "needs at_least"),
        ({"goodput": {}}, "spec.limits.goodput", "needs one of at_most and at_least"),
        ({"accelerators": {"at_most": 4, "at_least": 2}}, "spec.limits.accelerators", "needs one of"),
        ({"capacity": {"at_least": 1.3}}, "spec.limits.capacity", "workload: {load: 1.3}"),
        ({"usd_per_agent_hour": {"at_most": 1.0}}, "spec.limits.usd_per_agent_hour", "a larger society"),
        ({"mean_w": {"at_most": 0}}, "spec.limits.mean_w.at_most", "greater than 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_key(
    tmp_path: Path, limits: dict[str, object], key: str, expected: str
) -> None:
    with pytest.raises(SpecError) as refused:
        load_study(study_file(tmp_path, limits=limits))
    assert key in str(refused.value)
    assert expected in str(refused.value)


def test_dollars_without_a_price_of_the_machine_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="machine_usd_per_hour"):
        load_study(study_file(tmp_path, budget={"usd": 1.0}))


def test_dollars_buy_seconds_of_this_machine() -> None:
    budget = BudgetSpec(seconds=600, usd=0.05, machine_usd_per_hour=0.6)
    assert (budget.wall_s, budget.wall_key) == (pytest.approx(300.0), "usd")
    assert BudgetSpec(seconds=200, usd=0.05, machine_usd_per_hour=0.6).wall_key == "seconds"
    now = iter(range(0, 100_000, 301))
    runner = TrialRunner(FakeEvaluator(), budget, workers=1, clock=lambda: float(next(now)))
    runner.run([Job(2, make_deployment(replicas=n)) for n in range(1, 5)])
    assert runner.stopped == "usd"


def test_capacity_of_a_trial_is_what_a_search_for_it_finds(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, objectives=["capacity", "usd_per_hour"]))
    result = study.run(workers=1, run_dir=tmp_path / "run")
    assert result.recommendation is not None
    best = result.recommendation.trial
    plain = Simulation(dataclasses.replace(study.world(), capacity=False))

    def score_at(load: float) -> Score:
        evaluation = plain.evaluate_at(best.deployment, load)
        return Score(evaluation.metrics, evaluation.slo, evaluation.feasible)

    most = study.world().most_load
    slow = capacity(score_at, max_load=most, min_load=LEAST_LOAD, relative_tolerance=CAPACITY_TOLERANCE)
    # Of the short trace that the SLO holds on, carried on, it may be a little less.
    assert best.metrics["capacity_load"] == slow.load > 0.9
    assert best.metrics["capacity_missed_load"] == slow.infeasible_load
    assert best.simulations == slow.simulations > 1
    assert result.outcome.ending.used == sum(trial.simulations for trial in result.trials)
    measured = headroom(result.trials, best)
    assert measured is not None
    assert (measured.load, measured.infeasible_load) == (slow.load, slow.infeasible_load)
    # More workers carry more: the front is not a single point.
    by_price = sorted(result.front, key=lambda trial: trial.metrics["usd_per_hour"])
    loads = [trial.metrics["capacity_load"] for trial in by_price]
    assert loads == sorted(loads)


def test_capacity_is_refused_where_there_is_no_load_to_scale(tmp_path: Path) -> None:
    path = study_file(tmp_path, objectives=["capacity", "usd_per_hour"])
    path.write_text(path.read_text().replace("trace: chat-multiturn", "trace: sharegpt-closed-loop"))
    study = load_study(path)
    with pytest.raises(SpecError, match=r"objectives.*no load to scale"):
        study.run(workers=1, run_dir=tmp_path / "run")


POPULATION = """\
apiVersion: hisearch/v1
kind: Study
metadata: {name: society}
spec:
  model: qwen2.5-7b
  workload:
    trace:
      agents:
        kind: %s
        agents: 40
        calls: 240
        history_cap_tokens: 512
        summary_tokens: 64
        new_input: {distribution: constant, scale_tokens: 60}
        output: {distribution: constant, scale_tokens: 20}
        graph: {model: small_world}
  slo: {terms: [{metric: e2e_s, percentile: 99, at_most_s: 1.5}]}
  space:
    execution: {accelerators: [h100-sxm], engines: [sglang], chunk_tokens: [8192], max_accelerators: 1}
    routing: {policies: [round_robin], extra_replicas: [0]}
    cache:
      memory_fraction: [0.9, 0.9]
      tiers: []
      agents: {policies: [lru, distance], slots: [8], adapters: {rank: 16}}
    profile: roofline
  objectives: [agents_per_accelerator, usd_per_agent_hour]
  budget: {simulations: 60}
  confidence: {draws: 0, what_if: 0}
"""


def population_study(folder: Path, kind: str = "independent") -> Path:
    path = folder / "society.yaml"
    path.write_text(POPULATION % kind)
    return path


def test_agents_per_accelerator_are_those_of_the_largest_population_that_meets_the_slo(tmp_path: Path) -> None:
    study = load_study(population_study(tmp_path))
    result = study.run(workers=1, run_dir=tmp_path / "run")
    assert result.recommendation is not None
    best = result.recommendation.trial
    world = study.world()
    assert world.population is not None

    def score_at(agents: int) -> Score:
        """By hand: the same population with a given number of agents, on the same deployment."""
        spec = resized(world.population.spec, agents)
        trace = compile_trace(generate_agents(spec, seed=0), "population")
        evaluation = Simulation(dataclasses.replace(world, trace=trace, capacity=False, population=None)).evaluate(
            Job(2, best.deployment)
        )
        return Score(evaluation.metrics, evaluation.slo, evaluation.feasible)

    most = int(best.metrics["agents"])
    assert most >= 40
    assert score_at(most).feasible
    assert not score_at(round(40 * best.metrics["capacity_missed_load"])).feasible
    assert best.metrics["agents_per_accelerator"] == most / best.metrics["accelerators"]
    assert best.metrics["usd_per_agent_hour"] == pytest.approx(best.metrics["usd_per_hour"] / most)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Agents per accelerator" in page


def test_populations_whose_load_could_be_scaled_are_asked_for_other_sizes_alone(tmp_path: Path) -> None:
    path = population_study(tmp_path)
    free = "agents: 40\n        pacing: free\n        action: {p50_s: 5.0, p90_s: 10.0}"
    path.write_text(path.read_text().replace("agents: 40", free))
    study = load_study(path)
    assert study.problem(Simulation(study.world())).demand.scales_with_load
    result = study.run(workers=1, run_dir=tmp_path / "run")
    assert {trial.load for trial in result.trials} == {1.0}
    assert all(trial.metrics["agents_per_accelerator"] > 0 for trial in result.trials)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("workload:\n    trace:", "workload:\n    limit: 100\n    trace:"),
        ("graph: {model: small_world}", "graph: {model: edges, path: edges.txt}"),
    ],
)
def test_agents_are_refused_where_the_population_has_one_size(tmp_path: Path, before: str, after: str) -> None:
    path = population_study(tmp_path)
    path.write_text(path.read_text().replace(before, after))
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n")
    with pytest.raises(SpecError, match=r"objectives.*needs a workload of section agents"):
        load_study(path).world()


def test_agents_are_refused_for_other_workloads(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, objectives=["usd_per_agent_hour", "usd_per_hour"]))
    with pytest.raises(SpecError, match=r"usd_per_agent_hour needs a workload of section agents"):
        study.world()


def test_limits_reach_the_simulator_and_the_run_folder(tmp_path: Path) -> None:
    limits = {"itl_p99": {"at_most": 5.0}, "mean_w": {"at_most": 1e6}, "accelerators": {"at_most": 40}}
    result = load_study(study_file(tmp_path, limits=limits, objectives=["accelerators", "itl_p99"])).run(
        workers=1, run_dir=tmp_path / "run"
    )
    assert result.recommendation is not None
    best = result.recommendation.trial
    assert [check.label for check in best.slo if isinstance(check, LimitCheck)] == list(limits)
    assert best.metrics["accelerators"] == best.deployment.pool.replicas <= 40
    page = (tmp_path / "run" / "report.html").read_text()
    assert "itl_p99" in page


def test_a_study_finds_the_order_that_keeps_urgent_requests_fast(tmp_path: Path) -> None:
    """A class's bound that holds only if the queue goes by priority."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(0.05, 600))
    rows = (
        f"{at:.3f},{60 if urgent else 6000},{8 if urgent else 64},{0 if urgent else 1}"
        for at, urgent in zip(arrivals, rng.random(600) < 0.5, strict=True)
    )
    (tmp_path / "mixed.csv").write_text("arrival_s,input_tokens,output_tokens,priority\n" + "\n".join(rows) + "\n")
    path = study_file(tmp_path, budget={"simulations": 20})
    text = (
        path.read_text()
        .replace("chat-multiturn, limit: 300", "mixed.csv")
        .replace("[64]", "[64]\n      schedules: SCH")
    )
    feasible = {}
    for schedules in ("[fcfs]", "[fcfs, priority]", "[fcfs, edf]"):
        phrase = "'ttft p90 < 600ms for priority 0, ttft p90 < 100s'"
        path.write_text(
            text.replace("SCH", schedules)
            .replace("slo: interactive-chat", f"slo: {phrase}")
            .replace("accelerators: [h100-sxm]", "accelerators: [h100-sxm]\n      max_replicas: 2")
        )
        outcome = load_study(path).run(workers=1, run_dir=tmp_path / f"run{len(feasible)}").outcome
        feasible[schedules] = [trial for trial in outcome.trials if trial.feasible]
    assert not feasible["[fcfs]"]
    for order in ("priority", "edf"):
        assert {trial.deployment.pool.engine.schedule for trial in feasible[f"[fcfs, {order}]"]} == {order}
    engine = feasible["[fcfs, edf]"][0].deployment.pool.engine
    assert engine.ttft_targets_s == [0.6, 100.0]


def test_a_class_that_no_request_has_is_refused_with_its_term(tmp_path: Path) -> None:
    path = study_file(tmp_path)
    path.write_text(path.read_text().replace("slo: interactive-chat", "slo: 'ttft p90 < 1s for tenant 9'"))
    with pytest.raises(SpecError, match=r"small.yaml:\d+: spec.slo.*no request of the workload has tenant 9"):
        load_study(path).world()
