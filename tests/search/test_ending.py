"""What a search says of its own end: whether its budget cut it short, by what, and what was left untried."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest

from hisearch.search.driver import SearchOutcome, search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.problem import Problem
from hisearch.search.records.progress import PlainProgress
from hisearch.search.refine.cheaper import cheaper_candidates
from hisearch.search.refine.local_search import all_may
from hisearch.search.rounds import NEAREST
from hisearch.search.select.failure import explain
from hisearch.search.stages.ending import Ending, Untried, unseen, untried_settings
from hisearch.specs.studies.search_space import CacheSpace
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.studies.study import BudgetSpec, RuleName
from tests.search.fakes import FakeEvaluator, make_problem


class Listener:
    """Hears of (stage, total, done) and of every note."""

    def __init__(self) -> None:
        self.stages: list[list[int]] = []
        self.names: list[str] = []
        self.notes: list[list[str]] = []

    def started(self, stage: str, total: int, limit_s: float = 0.0) -> None:
        self.names.append(stage)
        self.stages.append([total, 0])
        self.notes.append([])

    def advanced(self, done: int, *notes: str) -> None:
        self.stages[-1][1] += done
        self.notes[-1].extend(notes)

    def finished(self) -> None: ...


def run(problem: Problem, listener: Listener | None = None) -> SearchOutcome:
    return search(problem, TrialRunner(FakeEvaluator(), problem.budget, workers=1, progress=listener))


def small(simulations: int) -> Problem:
    """A problem whose space is exhausted by some hundreds of simulations."""
    problem = make_problem(simulations=simulations, requests=500, accelerators=("fast",))
    cache = CacheSpace(tiers=[], memory_fraction=(0.9, 0.9))
    return Problem(**{**vars(problem), "space": problem.space.model_copy(update={"cache": cache})})


@pytest.mark.parametrize("simulations", [1, 2, 3, 5, 8, 12, 20])
def test_a_small_budget_cuts_the_search_short_and_says_so(simulations: int) -> None:
    outcome = run(make_problem(simulations=simulations))
    ending = outcome.ending
    assert ending.stopped == "simulations"
    assert "candidates of stage 1" in ending.untried[0]
    text = ending.caution(recommended=True, run="runs/a")
    assert len(outcome.trials) == simulations
    count = f"{simulations} simulation{'s' * (simulations > 1)} ended"
    assert text.startswith(f"The budget of {count} the search before it had tried {ending.likely[0]}")
    assert f"hisearch run --resume runs/a --set spec.budget.simulations={2 * simulations}" in text
    assert ending.brief(recommended=True, run="runs/a").startswith(f"{ending.likely[0]} ")


@pytest.mark.slow
def test_what_cannot_be_cheaper_does_not_count_as_cut_short() -> None:
    ending = run(make_problem(simulations=300)).ending
    assert ending.stopped == "simulations"
    assert ending.untried
    assert ending.likely == ()
    assert ending.caution(recommended=True) == ending.brief(recommended=True) == ""
    assert "none of it likely to change the recommendation" in ending.describe()


def test_an_unseen_candidate_counts_if_it_may_be_cheaper_and_is_simulated_if_simulations_are_left() -> None:
    problem = make_problem(simulations=20)
    outcome = run(problem)
    assert outcome.recommendation is not None
    best, kept = outcome.recommendation.trial, outcome.execution.kept
    unsimulated = unseen(kept, outcome.trials)
    specs = cheaper_candidates(problem, kept, outcome.trials, best, all_may)
    assert 0 < len(specs) < len(unsimulated)
    prices = [problem.planner.usd_per_hour(spec) for spec in specs]
    assert max(prices) < best.metrics["usd_per_hour"]
    assert cheaper_candidates(problem, kept, outcome.trials, best, lambda _, specs: specs[:0]) == []


def test_a_search_that_cannot_succeed_ends_after_the_nearest_candidates() -> None:
    problem = make_problem(simulations=400)
    tight = replace(problem, slo=SloSpec(terms=[SloTerm(metric="ttft_s", percentile=99, at_most_s=0.001)]))
    outcome = search(tight, TrialRunner(FakeEvaluator(base_ttft_s=50.0), tight.budget, workers=1))
    assert outcome.ending.proven
    assert len(outcome.trials) <= NEAREST + 1
    assert outcome.nearest_miss is not None
    assert (outcome.stopped, outcome.ending.untried) == ("", ())
    assert "miss TTFT even with a single request" in outcome.execution.hopeless
    assert "step times alone rule out every worker of the space" in outcome.ending.describe()
    assert outcome.ending.caution(recommended=False, hopeless=True) == ""


def test_a_simulation_that_refutes_the_proof_lets_the_search_go_on() -> None:
    problem = make_problem(simulations=100)
    tight = replace(problem, slo=SloSpec(terms=[SloTerm(metric="ttft_s", percentile=99, at_most_s=0.001)]))
    outcome = run(tight)  # the fake world's checks know nothing of this bound: simulations meet theirs
    assert outcome.execution.hopeless
    assert not outcome.ending.proven
    assert outcome.recommendation is not None


def test_an_infeasible_space_that_was_tried_in_full_ends_before_its_budget() -> None:
    problem = small(3000)
    outcome = search(problem, TrialRunner(FakeEvaluator(base_ttft_s=500.0), problem.budget, workers=1))
    assert outcome.recommendation is None
    assert not outcome.ending.proven
    assert len(outcome.trials) < 1000
    assert (outcome.stopped, outcome.ending.untried) == ("", ())


def test_a_budget_that_was_not_used_up_says_for_what_the_rest_was_held_back() -> None:
    ending = Ending("simulations", ("larger loads",), make_problem(simulations=30).budget, used=27)
    assert "the budget of 30 simulations, 3 of them held back for the last steps" in ending.describe()


@pytest.mark.parametrize("stopped", ["seconds", "usd"])
def test_an_answer_that_wall_time_ended_says_so_even_if_nothing_likely_is_left(stopped: str) -> None:
    budget = BudgetSpec(simulations=30, seconds=60, usd=2, machine_usd_per_hour=1)
    ending = Ending(stopped, (), budget, used=27)
    limit = "60 s" if stopped == "seconds" else "$2 of this machine's time"
    sentence = f"he budget of {limit} ended the search: a less busy or faster machine may answer otherwise"
    assert ending.caution(recommended=True) == f"T{sentence}."
    assert ending.brief(recommended=True) == f"t{sentence}"
    assert replace(ending, stopped="simulations").caution(recommended=True) == ""


def test_what_slices_and_the_sampler_left_out_is_said_of_a_search_that_came_to_its_end() -> None:
    problem = make_problem(simulations=800)
    runner = TrialRunner(FakeEvaluator(), problem.budget, workers=1)
    outcome = search(problem, runner, without=("front",))  # whose neighbours would be many hundreds more
    assert outcome.stopped == ""
    workers = {c.pool.model_dump_json() for c in outcome.execution.kept}
    full_workers = {
        t.deployment.pool.model_copy(update={"replicas": 1}).model_dump_json() for t in outcome.trials if t.comparable
    }
    dropped = len(workers - full_workers)
    assert dropped > 0
    text = outcome.ending.describe()
    assert f"left out {dropped} of {len(workers)} candidates of stage 1 after slices of the trace and up to " in text
    assert "settings of the cache tiers" in text
    assert "nothing more to try" not in text


@pytest.mark.parametrize(
    ("rule", "hope", "unlikely"),
    [
        ("cheapest", "a cheaper deployment may meet the SLO", "change the recommendation"),
        ("most_headroom", "another deployment may carry more", "carry more"),
        ("lowest_latency", "a cheaper deployment may meet the SLO", "be cheaper"),
    ],
)
def test_what_the_untried_may_bring_depends_on_the_rule(rule: RuleName, hope: str, unlikely: str) -> None:
    ending = Ending("simulations", (Untried.LOADS,), BudgetSpec(), 300, rule=rule)
    assert ending.describe().endswith(f"larger loads, none of it likely to {unlikely}")
    caution = replace(ending, likely=(Untried.LOADS,)).caution(recommended=True)
    assert f"larger loads: {hope}. To search on" in caution


def test_settings_of_the_cache_tiers_are_counted() -> None:
    assert untried_settings(3, 1) == "up to 2 of 3 settings of the cache tiers (stage 3)"
    assert untried_settings(1, 1) == ""


def test_where_no_deployment_can_meet_the_slo_no_larger_budget_is_asked_for() -> None:
    problem = make_problem(simulations=20)
    terms = [SloTerm(metric="tpot_s", percentile=99, at_most_s=0.001)]
    outcome = search(
        replace(problem, slo=SloSpec(terms=terms)),
        TrialRunner(FakeEvaluator(base_ttft_s=50.0), problem.budget, workers=1),
    )
    hopeless = outcome.execution.hopeless
    count = len(outcome.execution.sized)
    assert (
        f"a larger budget will not help: of {count} workers that can be built {count} miss TPOT even with" in hopeless
    )
    margin = outcome.execution.sized[0].margin
    nearest = min((1 + c.miss) * (1 + margin) - 1 for c in outcome.execution.sized)
    assert f"misses TPOT by {100 * nearest:.0f} % by step times alone" in hopeless
    text = outcome.ending.caution(recommended=False, hopeless=True)
    assert text == ""
    assert outcome.ending.proven
    assert explain(outcome.trials, hopeless).text.endswith(hopeless)
    assert run(problem).execution.hopeless == ""


def test_a_search_with_nothing_left_to_try_was_not_cut_short() -> None:
    outcome = run(small(3000))
    assert len(outcome.trials) < 3000
    assert (outcome.stopped, outcome.ending.untried) == ("", ())
    assert outcome.ending.caution(recommended=True) == ""
    assert "nothing more to try" in outcome.ending.describe()


@pytest.mark.slow
def test_every_budget_below_what_the_search_wants_is_said_to_cut_it() -> None:
    complete = run(small(3000))
    for simulations in range(1, len(complete.trials), max(len(complete.trials) // 8, 1)):
        cut = run(small(simulations))
        assert (cut.stopped != "") or cut.recommendation == complete.recommendation
        assert (cut.stopped == "simulations") == bool(cut.ending.untried)


@pytest.mark.parametrize("simulations", [15, 25, 60])
def test_one_replica_less_is_untried_exactly_where_no_trial_has_it(simulations: int) -> None:
    outcome = run(make_problem(simulations=simulations))
    assert outcome.recommendation is not None
    pool = outcome.recommendation.trial.deployment.pool
    fewer = pool.model_copy(update={"replicas": pool.replicas - 1})
    tried = pool.replicas == 1 or any(t.deployment.pool == fewer for t in outcome.trials if t.slice_fraction == 1.0)
    assert (Untried.REPLICAS in outcome.ending.untried) == (not tried)
    assert (Untried.LOADS in outcome.ending.untried) >= (outcome.headroom is None)


def test_seconds_are_named_where_they_end_the_search() -> None:
    ending = run(make_problem(seconds=1e-9)).ending
    assert ending.stopped == "seconds"
    assert len(ending.untried) == 1
    assert ending.untried[0].startswith("any of ")
    assert ending.caution(recommended=False).endswith("hisearch run --resume RUN --set spec.budget.seconds=2e-09")


def test_an_interrupt_asks_for_no_larger_budget() -> None:
    text = Ending("interrupted", ("some routers",), BudgetSpec(), 9, likely=("some routers",)).caution(recommended=True)
    assert text.startswith("An interrupt ended the search before it had tried some routers: the answer is provisional")
    nothing_left = Ending("interrupted", (), BudgetSpec(), 9)
    assert nothing_left.caution(recommended=True).startswith("An interrupt ended the search: the answer is provisional")
    assert nothing_left.brief(recommended=True).startswith("interrupted, provisional")
    assert "spec.budget" not in text


def test_untried_loads_alone_are_no_search_cut_short() -> None:
    ending = Ending("simulations", (Untried.LOADS,), BudgetSpec(), 300)
    assert ending.caution(recommended=True) == ""
    assert "before it had tried larger loads" in ending.describe()


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_problem, small])
@pytest.mark.parametrize("simulations", [1, 7, 30, 97, 250])
def test_no_stage_makes_more_steps_than_it_announced(make: Callable[..., Problem], simulations: int) -> None:
    listener = Listener()
    outcome = run(make(simulations=simulations), listener)
    assert all(done <= total for total, done in listener.stages)
    assert sum(done for _, done in listener.stages[1:]) == len(outcome.trials)


def test_stage_1_says_nothing_of_feasibility_which_it_does_not_know() -> None:
    listener = Listener()
    run(make_problem(simulations=40), listener)
    assert listener.names[0] == "1 execution"
    assert not any("feasible" in note for note in listener.notes[0])
    assert any("feasible" in note for note in listener.notes[1])


def test_plain_lines_leave_empty_notes_out() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, interval_s=0.0)
    progress.started("2 routing", 1)
    progress.advanced(1, "1 feasible", "", "1 stored by an earlier run")
    progress.finished()
    progress.advanced(1)  # of no stage
    assert stream.getvalue().splitlines() == [
        "2 routing: up to 1",
        "2 routing: 1 of 1; 1 feasible; 1 stored by an earlier run",
        "2 routing: 1 done; 1 feasible; 1 stored by an earlier run",
    ]
