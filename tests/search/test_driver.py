from pathlib import Path

import optuna
import pytest

from hisearch.search.driver import (
    ALTERNATIVES_SHARE,
    CAPACITY_SIMULATIONS,
    LEAST_FOR_ALTERNATIVES,
    SearchOutcome,
    search,
)
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.problem import Problem
from hisearch.search.records.journal import Journal
from hisearch.search.records.storage import StudyDatabase
from hisearch.search.rounds import LEAST_ROUND_SIMULATIONS
from hisearch.search.select.recommend import describe_miss
from hisearch.search.tables import candidates_frame, trials_frame
from hisearch.specs.studies.search_space import CacheSpace
from tests.search.fakes import FakeEvaluator, make_problem


def run(
    problem: Problem, workers: int = 1, journal: Journal | None = None, evaluate: FakeEvaluator | None = None
) -> SearchOutcome:
    fake = evaluate if evaluate is not None else FakeEvaluator()
    return search(problem, TrialRunner(fake, problem.budget, inputs="i", workers=workers, journal=journal))


@pytest.mark.slow
@pytest.mark.parametrize("simulations", [200, 40])
def test_l6_the_number_of_workers_changes_nothing(tmp_path: Path, simulations: int) -> None:
    problem = make_problem(simulations=simulations)
    files = []
    for workers in (1, 2, 4):
        outcome = run(problem, workers)
        path = tmp_path / f"{workers}.parquet"
        trials_frame(outcome.trials).to_parquet(path, index=False)
        files.append(path.read_bytes())
    assert files[0] == files[1] == files[2]


def test_another_seed_samples_stage_3_otherwise() -> None:
    problem = make_problem(simulations=120)
    other = Problem(**{**vars(problem), "seed": 1})
    trials = [
        search(each, TrialRunner(FakeEvaluator(), each.budget, workers=1), without=("front", "comparisons")).trials
        for each in (problem, other)
    ]
    assert trials[0] != trials[1]


def test_the_recommendation_is_the_cheapest_feasible_trial() -> None:
    outcome = run(make_problem(simulations=250))
    feasible = [t for t in outcome.trials if t.comparable and t.feasible]
    assert outcome.recommendation is not None
    assert outcome.nearest_miss is None
    best = outcome.recommendation.trial
    assert best.metrics["usd_per_hour"] == min(t.metrics["usd_per_hour"] for t in feasible)
    assert best in outcome.front
    replicas = best.deployment.pool.replicas
    fewer = best.deployment.pool.model_copy(update={"replicas": replicas - 1})
    smaller_trials = [t for t in outcome.trials if t.comparable and t.deployment.pool == fewer]
    assert replicas == 1 or any(not t.feasible for t in smaller_trials)
    assert {t.stage for t in outcome.trials} == {2, 3, 4}
    assert {t.deployment.pool.engine.name for t in feasible} == {"sglang", "vllm"}
    assert outcome.headroom is not None
    assert outcome.headroom.load >= 1.0
    assert "$" in outcome.recommendation.reason


@pytest.mark.parametrize("simulations", [1, 5, 12, 39, 100])
def test_the_budget_holds_whatever_its_size(simulations: int) -> None:
    evaluate = FakeEvaluator()
    outcome = run(make_problem(simulations=simulations), evaluate=evaluate)
    beyond = round(simulations * ALTERNATIVES_SHARE) if simulations >= LEAST_FOR_ALTERNATIVES else 0
    assert len(outcome.trials) <= simulations + beyond
    assert outcome.ending.used <= simulations
    assert evaluate.calls.total() == len(outcome.trials)
    assert any(t.comparable for t in outcome.trials)


def test_no_time_at_all_still_ends_cleanly() -> None:
    outcome = run(make_problem(seconds=1e-9))
    assert outcome.stopped == "seconds"
    assert outcome.trials == ()
    assert outcome.recommendation is None


def test_where_nothing_meets_the_slo_the_nearest_miss_is_explained_term_by_term() -> None:
    outcome = run(make_problem(simulations=120), evaluate=FakeEvaluator(base_ttft_s=50.0))
    assert outcome.recommendation is None
    assert outcome.headroom is None
    miss = outcome.nearest_miss
    assert miss is not None
    comparable = [t for t in outcome.trials if t.comparable]
    assert miss.worst_margin == max(t.worst_margin for t in comparable)
    lines = describe_miss(miss)
    assert len(lines) == 3
    assert "missed by" in lines[0]
    assert "left" in lines[1]


def test_l9_an_engine_that_always_fails_does_not_end_the_study() -> None:
    outcome = run(make_problem(simulations=150), evaluate=FakeEvaluator(fail="vllm"))
    assert outcome.recommendation is not None
    failed = [t for t in outcome.trials if t.error]
    assert failed
    assert all(t.deployment.pool.engine.name == "vllm" and t.metrics == {} for t in failed)


@pytest.mark.slow
@pytest.mark.parametrize("finished", [1, 17, 60, 110])
def test_l9_a_killed_study_resumes_to_the_same_result(tmp_path: Path, finished: int) -> None:
    problem = make_problem(simulations=120)
    undisturbed = run(problem)

    class Killed(FakeEvaluator):
        def __call__(self, job: Job) -> Evaluation:
            if self.calls.total() >= finished:
                raise KeyboardInterrupt
            return super().__call__(job)

    path = tmp_path / "journal.jsonl"
    with Journal(path, "i") as journal:
        partial = run(problem, journal=journal, evaluate=Killed())
    assert partial.stopped == "interrupted"
    assert len(partial.trials) == finished
    path.write_bytes(path.read_bytes()[:-9])  # the kill tore the last line

    evaluate = FakeEvaluator()
    with Journal(path, "i", resume=True) as journal:
        resumed = run(problem, workers=2, journal=journal, evaluate=evaluate)
    assert resumed.trials == undisturbed.trials
    assert resumed.front == undisturbed.front
    assert resumed.recommendation == undisturbed.recommendation
    assert evaluate.calls.total() == len(undisturbed.trials) - (finished - 1)


def test_the_database_opens_in_optuna_with_every_trial(tmp_path: Path) -> None:
    problem = make_problem(simulations=60)
    path = tmp_path / "study.db"
    database = StudyDatabase(path, "toy", problem)
    runner = TrialRunner(FakeEvaluator(fail="vllm"), problem.budget, workers=1)
    outcome = search(problem, runner, database.write)
    storage = f"sqlite:///{path}"
    names = optuna.get_all_study_names(storage)
    loaded = [optuna.load_study(study_name=name, storage=storage) for name in names]
    assert sum(len(study.trials) for study in loaded) == len(outcome.trials)
    main = optuna.load_study(study_name="toy", storage=storage)
    frozen = next(t for t in main.trials if t.state == optuna.trial.TrialState.COMPLETE)
    same = outcome.trials[frozen.user_attrs["number"]]
    assert frozen.values == [same.objective(name) for name in problem.objectives]
    assert frozen.params == {name: same.parameters[name] for name in frozen.params}
    assert frozen.user_attrs["stage"] == same.stage
    assert frozen.params["accelerator"] == same.deployment.pool.accelerator
    assert any(t.state == optuna.trial.TrialState.FAIL for study in loaded for t in study.trials)
    assert {t.user_attrs["number"] for t in main.best_trials} >= {t.number for t in outcome.front}


def test_stage_3_goes_on_with_what_nothing_else_needs() -> None:
    problem = make_problem(simulations=150, accelerators=("fast",))
    sizes = {"low": 1, "high": 4096}
    tiers = [{"media": ["ddr5"], "gib": sizes}, {"media": ["nvme-gen5"], "gib": sizes}]
    single_values = {
        "tensor_parallel": [1],
        "chunk_tokens": [2048],
        "max_running_requests": [64],
        "engines": ["sglang"],
    }
    space = problem.space.model_copy(
        update={
            "cache": CacheSpace.model_validate({"tiers": tiers}),
            "execution": problem.space.execution.model_copy(update=single_values),
        }
    )
    problem = Problem(**{**vars(problem), "space": space})
    runner = TrialRunner(FakeEvaluator(), problem.budget, workers=1)
    outcome = search(problem, runner, without=("front", "comparisons"))
    # But for what is held back for larger loads, and is too little for another round.
    held = CAPACITY_SIMULATIONS + LEAST_ROUND_SIMULATIONS
    assert problem.budget.simulations - held < runner.simulations <= problem.budget.simulations
    assert outcome.ending.stopped == "simulations"
    assert "stage 3" in outcome.ending.untried[0]


def test_a_stage_3_that_ends_by_itself_leaves_the_budget() -> None:
    problem = make_problem(simulations=1000, accelerators=("fast",))
    fixed = CacheSpace.model_validate({"tiers": [{"media": ["ddr5"], "gib": [0, 64]}], "memory_fraction": [0.9, 0.9]})
    problem = Problem(**{**vars(problem), "space": problem.space.model_copy(update={"cache": fixed})})
    outcome = search(problem, TrialRunner(FakeEvaluator(), problem.budget, workers=1), without=("front",))
    assert len(outcome.trials) < 500
    assert outcome.stopped == ""


def test_tables_hold_every_trial_and_candidate() -> None:
    outcome = run(make_problem(simulations=60), evaluate=FakeEvaluator(fail="vllm"))
    frame = trials_frame(outcome.trials)
    assert len(frame) == len(outcome.trials)
    assert frame["number"].tolist() == list(range(len(frame)))
    assert frame.loc[frame["error"] != "", "usd_per_hour"].isna().all()
    candidates = candidates_frame(outcome.execution)
    assert sorted(candidates["rank"].dropna()) == list(range(1, len(outcome.execution.kept) + 1))
    assert trials_frame([]).empty
