"""Backends: whatever runs the simulations, a search comes to the same trials (law L6)."""

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hisearch.api.studies.backends import make_backend
from hisearch.search.driver import search
from hisearch.search.evaluate.backends import Backend, BackendError, Processes, Threads
from hisearch.search.evaluate.payload import Payload, evaluate_shipped, mismatches, program_facts, unpack_in_process
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.job import Evaluation, Job
from hisearch.specs.studies.study import BudgetSpec
from tests.search.fakes import FakeEvaluator, make_deployment, make_problem

#: Dask warns of ports, of sockets that it closes late, and of its own dependencies.
QUIET = pytest.mark.filterwarnings(
    "ignore::UserWarning",
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def evaluate_fake(job: Job) -> Evaluation:
    """``FakeEvaluator``, for other processes; a broken engine and an undefined figure are part of it."""
    evaluation = FakeEvaluator(fail="vllm" if job.deployment.pool.replicas == 3 else "")(job)
    return Evaluation(
        {**evaluation.metrics, "hit_rate": math.nan}, evaluation.slo, evaluation.feasible, warnings=("w",)
    )


def evaluate_pid(job: Job) -> Evaluation:
    """Says where it ran."""
    return Evaluation({"pid": float(os.getpid())})


def evaluate_deadly(job: Job) -> Evaluation:
    """Kills the process that runs the deployment of two replicas."""
    if job.deployment.pool.replicas == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return Evaluation({"replicas": float(job.deployment.pool.replicas)})


def evaluate_broken(job: Job) -> Evaluation:
    raise AttributeError("a bug")


def evaluate_slow(job: Job) -> Evaluation:
    time.sleep(0.2)
    return evaluate_pid(job)


def jobs(count: int) -> list[Job]:
    return [Job(2, make_deployment(replicas=1 + n)) for n in range(count)]


@contextmanager
def cluster(workers: int = 2, threads: int = 1) -> Iterator[Any]:
    """A Dask cluster of processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=threads, processes=True, dashboard_address="127.0.0.1:0"
    ) as dask_cluster:
        yield dask_cluster


def trials_on(backend: Backend) -> tuple[Any, ...]:
    problem = make_problem(simulations=120)
    return search(problem, TrialRunner(evaluate_fake, problem.budget, backend=backend)).trials


@pytest.fixture(scope="module")
def expected() -> tuple[Any, ...]:
    return trials_on(Threads(evaluate_fake, 1))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", [Threads, Processes])
def test_the_backend_does_not_change_a_search(kind: Any, workers: int, expected: tuple[Any, ...]) -> None:
    with kind(evaluate_fake, workers) as backend:
        assert trials_on(backend) == expected


def test_other_processes_get_the_payload_once() -> None:
    with Processes(evaluate_pid, 2) as backend:
        pids = [evaluation.metrics["pid"] for _, evaluation in backend.evaluations(jobs(8))]
        assert os.getpid() not in pids
        assert len(set(pids)) <= 2
        assert backend.facts() == {
            "name": "loky",
            "workers": 2,
            "shipped_bytes": len(Payload.of(evaluate_pid).content),
        }


def test_a_process_that_is_killed_is_an_error_not_a_hang() -> None:
    with (
        pytest.raises(BackendError, match="a worker process was killed"),
        Processes(evaluate_deadly, 2) as backend,
    ):
        list(backend.evaluations(jobs(4)))


@pytest.mark.slow
def test_a_defect_in_another_process_is_not_hidden() -> None:
    with pytest.raises(AttributeError, match="a bug"), Processes(evaluate_broken, 2) as backend:
        list(backend.evaluations(jobs(2)))


def test_a_worker_of_other_versions_is_refused() -> None:
    ours = program_facts()
    assert mismatches(ours, ours) == []
    assert mismatches(ours, {**ours, "numba": "0.1"}) == [f"numba {ours['numba']} here, 0.1 there"]
    payload = Payload("k", Payload.of(evaluate_pid).content, {**ours, "sources": "other"})
    unpack_in_process(payload)
    with pytest.raises(ValueError, match=f"sources other here, {ours['sources']} there"):
        evaluate_shipped("k", jobs(1)[0])


@pytest.mark.parametrize(
    ("name", "scheduler", "message"),
    [
        ("spark", None, "known: threads, loky, dask"),
        ("dask", None, "needs a scheduler"),
        ("loky", "tcp://h:1", "alone"),
    ],
)
def test_backends_that_do_not_go_are_refused(name: str, scheduler: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_backend(name, evaluate_pid, 1, scheduler)


class Killer:
    """A listener that kills a process after ``after`` simulations."""

    def __init__(self, victim: int, after: int) -> None:
        self._victim, self._left = victim, after

    def started(self, stage: str, total: int, limit_s: float = 0.0) -> None: ...

    def advanced(self, done: int, *notes: str) -> None:
        self._left -= done
        if self._left == 0:
            os.kill(self._victim, signal.SIGKILL)

    def finished(self) -> None: ...


@pytest.mark.slow
@QUIET
def test_a_cluster_finds_the_same_though_a_worker_is_killed(expected: tuple[Any, ...]) -> None:
    """Every worker gets the payload, including the one that replaces the killed worker."""
    problem = make_problem(simulations=120)
    with (
        cluster() as dask_cluster,
        make_backend("dask", evaluate_fake, scheduler=dask_cluster.scheduler_address) as backend,
    ):
        assert backend.workers == 2
        killer = Killer(dask_cluster.workers[0].pid, after=20)
        runner = TrialRunner(evaluate_fake, problem.budget, backend=backend, progress=killer)
        assert search(problem, runner).trials == expected
    with (
        cluster() as dask_cluster,
        make_backend("dask", evaluate_slow, scheduler=dask_cluster.scheduler_address) as backend,
    ):
        results = backend.evaluations(jobs(12))
        first, evaluation = next(results)
        os.kill(int(evaluation.metrics["pid"]), signal.SIGKILL)  # during a simulation that takes 0.2 s
        assert sorted([first, *(index for index, _ in results)]) == list(range(12))


@pytest.mark.slow
@QUIET
def test_a_job_that_kills_its_workers_ends_as_an_error_and_the_rest_goes_on() -> None:
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster() as dask_cluster,
        make_backend("dask", evaluate_deadly, scheduler=dask_cluster.scheduler_address) as backend,
    ):
        runner = TrialRunner(evaluate_deadly, BudgetSpec(), backend=backend)
        done = [trial for trial in runner.run(jobs(3)[::2]) if trial is not None]
        bad = runner.run(jobs(2)[1:])[0]
    assert [trial.metrics["replicas"] for trial in done] == [1.0, 3.0]
    assert bad is not None
    assert bad.error.startswith("MemoryError: every Dask worker that simulated it died")


@pytest.mark.slow
@QUIET
def test_a_cluster_without_a_scheduler_or_with_other_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hisearch.search.evaluate.dask_cluster.CONNECT_S", 1.0)
    monkeypatch.setattr("hisearch.search.evaluate.dask_cluster.FIRST_WORKER_S", 1.0)
    begun_s = time.monotonic()
    with pytest.raises(BackendError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9 within 1 s"):
        make_backend("dask", evaluate_pid, scheduler="tcp://127.0.0.1:9").__enter__()
    assert time.monotonic() - begun_s < 10.0
    with cluster() as dask_cluster:
        ours = program_facts()
        monkeypatch.setattr(
            "hisearch.search.evaluate.dask_cluster.mismatches",
            lambda _, theirs: mismatches({**ours, "numpy": "1"}, theirs),
        )
        with pytest.raises(BackendError, match=r"runs other versions: numpy 1 here, .* there"):
            make_backend("dask", evaluate_pid, scheduler=dask_cluster.scheduler_address).__enter__()
    with (
        cluster(workers=0) as dask_cluster,
        pytest.raises(BackendError, match="has no worker after 1 s; start some with"),
    ):
        make_backend("dask", evaluate_pid, scheduler=dask_cluster.scheduler_address).__enter__()


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(BackendError, match=r"pip install 'hisearch\[dask\]'"):
        make_backend("dask", evaluate_pid, scheduler="tcp://127.0.0.1:9").__enter__()
