"""Runs jobs in parallel, keeps every trial, and watches the budget."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hisearch.search.evaluate.backends import Backend, Threads
from hisearch.search.model.job import Evaluate, Evaluation, Job
from hisearch.search.model.trial import Trial
from hisearch.search.records.interrupts import Interrupts
from hisearch.search.records.journal import Journal
from hisearch.search.records.progress import Progress, SilentProgress
from hisearch.search.records.search_status import SearchStatus
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import BudgetSpec

#: Jobs between two checks of the clock. Fixed, so that it does not depend on the number of workers.
BATCH = 16


class TrialRunner:
    """Runs every simulation of a study.

    Trials are numbered in the order of requests, whatever the order in which they end. A study is therefore the same
    for any number of workers (law L6). A repeated job is answered from memory and costs nothing. A job in the journal
    is not simulated again, but counts against the budget, so that a resumed study takes the same decisions as an
    uninterrupted one. Only the limit on seconds depends on the machine.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        budget: BudgetSpec,
        *,
        inputs: str = "",
        workers: int | None = None,
        journal: Journal | None = None,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        simulations_each: int = 1,
        backend: Backend | None = None,
        interrupts: Interrupts | None = None,
        status: SearchStatus | None = None,
        keep: Callable[[Sequence[Trial]], None] | None = None,
        accepts: Callable[[DeploymentSpec], bool] | None = None,
    ) -> None:
        """Start without trials; the budget's seconds count from now on.

        Args:
            evaluate: simulates one job; called from ``workers`` threads.
            budget: limits on simulations and seconds.
            inputs: digest of everything besides the jobs that decides outcomes.
            workers: threads; all cores if absent.
            journal: where finished simulations are recorded and looked up.
            progress: listener.
            clock: seconds, for the budget.
            simulations_each: simulations per job, until the first job has ended.
            backend: where simulations run; ``workers`` threads of this process if absent.
            interrupts: signals that end the search; an interrupt of a backend always does.
            status: summary of the trials for listeners.
            keep: called with the trials so far after every batch.
            accepts: whether a deployment may be simulated; all may if absent.

        Raises:
            ValueError: ``workers`` is below 1.
        """
        self.trials: list[Trial] = []
        self.stopped = ""
        self.replayed = 0
        self._backend: Backend = backend if backend is not None else Threads(evaluate, workers)
        self.workers = self._backend.workers
        self._interrupts = interrupts if interrupts is not None else Interrupts()
        self._budget = budget
        self._inputs = inputs
        self._journal = journal
        self.progress: Progress = progress if progress is not None else SilentProgress()
        self._clock = clock
        self._started_at = clock()
        self._by_key: dict[str, Trial] = {}
        self._refused: dict[str, tuple[str, Job]] = {}
        self._simulations = 0
        self._simulations_each = simulations_each
        self._keep = keep
        self._accepts = accepts
        self._search_status = status if status is not None else SearchStatus()

    @property
    def simulations(self) -> int:
        """Simulations counted so far, including slices."""
        return self._simulations

    @property
    def considered(self) -> Sequence[Trial]:
        """The trials, as the search uses them to choose the next simulations.

        Until a trial keeps all limits on a deployment's size, trials that serve count as feasible: deployments that are
        too expensive lead to cheaper ones.
        """
        if self._search_status.feasible:
            return self.trials
        return [replace(t, feasible=True) if t.comparable and t.serves and not t.feasible else t for t in self.trials]

    @property
    def elapsed_s(self) -> float:
        """Seconds since the runner was made."""
        return self._clock() - self._started_at

    def run(self, jobs: Sequence[Job], until: int | None = None, what: str = "") -> list[Trial | None]:
        """Simulate jobs and return their trials in the jobs' order.

        A trial is None if the budget does not allow it or if the deployment is not accepted.

        Args:
            jobs: jobs to simulate; duplicates are simulated once.
            until: do not let ``simulations`` grow beyond this (the study's own limit holds anyway).
            what: the jobs in a few words, for ``untried``; "" if the search can do without them.
        """
        limit = self._budget.simulations if until is None else min(until, self._budget.simulations)
        keys = [job.digest(self._inputs) for job in jobs]
        fresh = {key: job for key, job in zip(keys, jobs, strict=True) if key not in self._by_key}
        if self._accepts is not None:
            fresh = {key: job for key, job in fresh.items() if self._accepts(job.deployment)}
        pending = list(fresh.items())
        while pending and (jobs_left := self._jobs_within(limit)) > 0:
            if self.stopped or self._out_of_time():
                break
            self._run_batch(pending[: min(BATCH, jobs_left)])
            pending = pending[min(BATCH, jobs_left) :]
        if pending and self.simulations >= self._budget.simulations and not self.stopped:
            self.stopped = "simulations"
        if what:
            self._refused.update((key, (what, job)) for key, job in fresh.items() if key not in self._by_key)
        return [self._by_key.get(key) for key in keys]

    def _jobs_within(self, limit: int) -> int:
        """Jobs that fit into ``limit`` simulations, at the average number of simulations per job so far."""
        sims_left = limit - self.simulations
        sims_per_job = math.ceil(self.simulations / len(self.trials)) if self.trials else self._simulations_each
        return max(sims_left // sims_per_job, min(sims_left, 1))

    def extend(self, simulations: int) -> None:
        """Allow this many simulations more than the trials so far, whatever the budget: for steps after a search.

        Seconds go on counting. A search ended by an interrupt or its seconds stays ended.
        """
        self._budget = self._budget.model_copy(update={"simulations": max(self.simulations + simulations, 1)})
        if self.stopped == "simulations":
            self.stopped = ""

    def refused(self) -> list[tuple[str, Job]]:
        """The jobs that the budget left out, each with its description as passed to ``run``."""
        return [refused for key, refused in self._refused.items() if key not in self._by_key]

    def untried(self) -> set[str]:
        """Descriptions of the jobs that the budget left out, as passed to ``run``."""
        return {what for what, _ in self.refused()}

    def _out_of_time(self) -> bool:
        if self._interrupts.received is not None:
            self.stopped = "interrupted"
        elif self.elapsed_s >= self._budget.wall_s:
            self.stopped = self._budget.wall_key
        return bool(self.stopped)

    def _run_batch(self, batch: Sequence[tuple[str, Job]]) -> None:
        """Evaluate a batch and number its trials in order; finished ones are kept if the user interrupts."""
        outcomes: dict[int, Evaluation] = {}
        try:
            for index, evaluation in self._evaluations(batch):
                outcomes[index] = evaluation
                self._announce(len(self.trials) + index, batch[index][1], evaluation)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        for index in sorted(outcomes):
            key, job = batch[index]
            trial = outcomes[index].trial(len(self.trials), job)
            self.trials.append(trial)
            self._simulations += trial.simulations
            self._by_key[key] = trial
        if self._keep is not None:
            self._keep(self.trials)

    def _evaluations(self, batch: Sequence[tuple[str, Job]]) -> Iterator[tuple[int, Evaluation]]:
        """Yield (index in the batch, evaluation) as they end; from the journal if it has them."""
        missing = []
        for index, (key, job) in enumerate(batch):
            recorded = self._journal.get(key) if self._journal is not None else None
            if recorded is None:
                missing.append((index, key, job))
            else:
                self.replayed += 1
                yield index, recorded
        with contextlib.closing(self._backend.evaluations([job for _, _, job in missing])) as ended:
            while True:
                with self._interrupts.waiting():
                    place, evaluation = next(ended, (-1, None))
                if evaluation is None:
                    return
                index, key, _ = missing[place]
                if self._journal is not None and evaluation.lasts:
                    self._journal.record(key, evaluation, len(self.trials) + index, missing[place][2])
                yield index, evaluation

    def _announce(self, number: int, job: Job, evaluation: Evaluation) -> None:
        """Report an ended simulation and the state of the search to the listener."""
        if job.slice_fraction == 1.0 and job.load == 1.0:
            self._search_status.add(number, evaluation)
        stored = f"{self.replayed:,} stored by an earlier run" if self.replayed else ""
        self.progress.advanced(1, *self._search_status.notes(), stored)
