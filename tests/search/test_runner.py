import threading
from pathlib import Path

import pytest

from hisearch.search.evaluate.runner import BATCH, TrialRunner
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.records.journal import Journal
from hisearch.specs.studies.study import BudgetSpec
from tests.search.fakes import FakeEvaluator, make_deployment


def jobs(count: int) -> list[Job]:
    return [Job(2, make_deployment(replicas=1 + n)) for n in range(count)]


@pytest.mark.parametrize("workers", [1, 3])
def test_trials_are_numbered_in_the_order_asked(workers: int) -> None:
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(), workers=workers)
    trials = runner.run(jobs(40))
    assert [t.number for t in trials if t is not None] == list(range(40))
    assert [t.deployment.pool.replicas for t in runner.trials] == list(range(1, 41))


def test_equal_jobs_are_simulated_once_and_cost_once() -> None:
    evaluate = FakeEvaluator()
    runner = TrialRunner(evaluate, BudgetSpec(simulations=5), workers=2)
    first = runner.run(jobs(3))
    again = runner.run([*jobs(3), *jobs(5)])
    assert again[:3] == first
    assert runner.simulations == 5
    assert set(evaluate.calls.values()) == {1}


def test_trials_are_reported_after_every_batch() -> None:
    counts: list[int] = []
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(), workers=2, keep=lambda trials: counts.append(len(trials)))
    runner.run(jobs(2 * BATCH + 3))
    assert counts == [BATCH, 2 * BATCH, 2 * BATCH + 3]


def test_the_budget_cuts_and_says_so() -> None:
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=4), workers=1)
    assert runner.run(jobs(6), until=2).count(None) == 4
    assert runner.stopped == ""
    assert runner.run(jobs(6)).count(None) == 2
    assert runner.stopped == "simulations"


def test_what_the_budget_left_out_is_named_until_it_is_simulated() -> None:
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(simulations=5), workers=1)
    runner.run(jobs(3), 2, "sizes")
    runner.run(jobs(4), 2)
    assert runner.untried() == {"sizes"}
    runner.run(jobs(4), 4, "routers")
    assert runner.untried() == set()
    runner.run(jobs(9), what="loads")
    assert runner.untried() == {"loads"}


def test_time_is_looked_at_between_batches_of_fixed_size() -> None:
    now = iter(range(0, 1000, 10))
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(seconds=15.0), workers=1, clock=lambda: float(next(now)))
    trials = runner.run(jobs(3 * BATCH))
    assert runner.stopped == "seconds"
    assert sum(t is not None for t in trials) == BATCH
    assert runner.run(jobs(3 * BATCH)).count(None) == 2 * BATCH


def test_one_bad_deployment_is_recorded_and_the_rest_goes_on() -> None:
    runner = TrialRunner(FakeEvaluator(fail="vllm"), BudgetSpec(), workers=2)
    bad, good = runner.run([Job(2, make_deployment(engine="vllm")), Job(2, make_deployment())])
    assert bad is not None
    assert good is not None
    assert bad.error == "ValueError: this engine breaks"
    assert not bad.feasible
    assert not good.error


def test_a_defect_of_the_program_is_not_hidden() -> None:
    def broken(job: Job) -> Evaluation:
        raise AttributeError("a bug")

    with pytest.raises(AttributeError, match="a bug"):
        TrialRunner(broken, BudgetSpec(), workers=1).run(jobs(1))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_keeps_what_had_finished(tmp_path: Path, workers: int) -> None:
    fake = FakeEvaluator()
    lock, count = threading.Lock(), 0

    def evaluate(job: Job) -> Evaluation:
        nonlocal count
        with lock:
            count += 1
            if count == 6:
                raise KeyboardInterrupt
        return fake(job)

    with Journal(tmp_path / "journal.jsonl", "i") as journal:
        runner = TrialRunner(evaluate, BudgetSpec(), inputs="i", workers=workers, journal=journal)
        done = [t for t in runner.run(jobs(12)) if t is not None]
        assert runner.stopped == "interrupted"
        assert runner.run(jobs(20)).count(None) == 20 - len(done)
    assert len(done) <= 11
    with Journal(tmp_path / "journal.jsonl", "i", resume=True) as journal:
        assert len(journal) >= len(done)
        resumed = TrialRunner(fake, BudgetSpec(), inputs="i", workers=1, journal=journal)
        assert len(resumed.run(jobs(12))) == 12
        assert resumed.replayed == len(journal)


def test_a_batch_may_be_empty() -> None:
    def never(job: Job) -> Evaluation:
        raise AssertionError

    assert TrialRunner(never, BudgetSpec()).run([]) == []


def test_progress_hears_of_every_simulation() -> None:
    class Listener:
        def __init__(self) -> None:
            self.done, self.notes = 0, ("",)

        def started(self, stage: str, total: int, limit_s: float = 0.0) -> None: ...

        def advanced(self, done: int, *notes: str) -> None:
            self.done += done
            self.notes = notes

        def finished(self) -> None: ...

    listener = Listener()
    runner = TrialRunner(FakeEvaluator(), BudgetSpec(), workers=1, progress=listener)
    runner.run(jobs(10))
    assert listener.done == 10
    feasible = [trial for trial in runner.trials if trial.feasible]
    assert feasible
    assert listener.notes[0] == f"{len(feasible)} feasible"
    assert listener.notes[1] == f"from ${min(t.metrics['usd_per_hour'] for t in feasible):.2f}/h"


def test_workers_must_be_positive() -> None:
    with pytest.raises(ValueError, match="workers"):
        TrialRunner(FakeEvaluator(), BudgetSpec(), workers=0)
