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
from hisearch.search.records.standing import Standing
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import BudgetSpec

#: Jobs between two looks at the clock. Fixed, so that it does not depend on the number of workers.
BATCH = 16


class TrialRunner:
    """Every simulation of a study goes through here.

    Trials are numbered in the order in which jobs are asked for, whatever the order in which they end, so that a study
    is the same for any number of workers (law L6). A job that was asked before is answered from memory and costs
    nothing; one that is found in the journal is not simulated again, but counts against the budget, so that a resumed
    study takes the same decisions as an uninterrupted one. Only the limit on seconds depends on the machine.
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
        standing: Standing | None = None,
        keep: Callable[[Sequence[Trial]], None] | None = None,
        accepts: Callable[[DeploymentSpec], bool] | None = None,
    ) -> None:
        """Start with an empty ledger; the budget's seconds count from here.

        Args:
            evaluate: simulates one job; called from ``workers`` threads.
            budget: limits on simulations and seconds.
            inputs: digest of what decides outcomes beside the jobs.
            workers: threads; all cores where absent.
            journal: where finished simulations are recorded and looked up.
            progress: who listens.
            clock: seconds, for the budget.
            simulations_each: that a job takes, as long as none has ended.
            backend: where simulations run; ``workers`` threads of this process where absent.
            interrupts: signals that end the search; an interrupt of a backend does in any case.
            standing: what listeners are told of the trials.
            keep: is given the trials so far after every batch.
            accepts: tells deployments that may be simulated from others; all may where absent.

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
        self._refused: dict[str, str] = {}
        self._simulations = 0
        self._simulations_each = simulations_each
        self._keep = keep
        self._accepts = accepts
        self._standing = standing if standing is not None else Standing()

    @property
    def simulations(self) -> int:
        """Simulations that counted so far, slices included."""
        return self._simulations

    @property
    def considered(self) -> Sequence[Trial]:
        """The trials, as the search chooses from them what to simulate next.

        Until one keeps to all the limits on a deployment's size, those that serve count as feasible: what is too dear
        leads to what is not.
        """
        if self._standing.feasible:
            return self.trials
        return [replace(t, feasible=True) if t.comparable and t.serves and not t.feasible else t for t in self.trials]

    @property
    def elapsed_s(self) -> float:
        """Seconds since the ledger was made."""
        return self._clock() - self._started_at

    def run(self, jobs: Sequence[Job], until: int | None = None, what: str = "") -> list[Trial | None]:
        """Simulate jobs and return their trials in the jobs' order; None for those that may not be simulated.

        Those are what the budget does not allow, and what is not accepted.

        Args:
            jobs: what to simulate; duplicates are simulated once.
            until: do not let ``simulations`` grow beyond this (the study's own limit holds anyway).
            what: the jobs in a few words, for ``untried``; "" where the search can do without them.
        """
        limit = self._budget.simulations if until is None else min(until, self._budget.simulations)
        keys = [job.digest(self._inputs) for job in jobs]
        fresh = {key: job for key, job in zip(keys, jobs, strict=True) if key not in self._by_key}
        if self._accepts is not None:
            fresh = {key: job for key, job in fresh.items() if self._accepts(job.deployment)}
        pending = list(fresh.items())
        while pending and (room := self._jobs_within(limit)) > 0:
            if self.stopped or self._out_of_time():
                break
            self._run_batch(pending[: min(BATCH, room)])
            pending = pending[min(BATCH, room) :]
        if pending and self.simulations >= self._budget.simulations and not self.stopped:
            self.stopped = "simulations"
        if what:
            self._refused.update((key, what) for key in fresh if key not in self._by_key)
        return [self._by_key.get(key) for key in keys]

    def _jobs_within(self, limit: int) -> int:
        """Jobs that ``limit`` simulations allow from here on, each taking as many as those before it on average."""
        room = limit - self.simulations
        of_one = math.ceil(self.simulations / len(self.trials)) if self.trials else self._simulations_each
        return max(room // of_one, min(room, 1))

    def extend(self, simulations: int) -> None:
        """Allow so many simulations more than the trials so far, whatever the budget says: for what follows a search.

        Seconds go on to count. A search that an interrupt or its seconds ended stays ended.
        """
        self._budget = self._budget.model_copy(update={"simulations": max(self.simulations + simulations, 1)})
        if self.stopped == "simulations":
            self.stopped = ""

    def untried(self) -> set[str]:
        """What of the search's wishes the budget left out, in the words of ``run``."""
        return {what for key, what in self._refused.items() if key not in self._by_key}

    def _out_of_time(self) -> bool:
        if self._interrupts.received is not None:
            self.stopped = "interrupted"
        elif self.elapsed_s >= self._budget.wall_s:
            self.stopped = self._budget.wall_key
        return bool(self.stopped)

    def _run_batch(self, batch: Sequence[tuple[str, Job]]) -> None:
        """Evaluate a batch and number its trials in order; what had finished is kept when the user interrupts."""
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
        """Yield (index in the batch, evaluation) as they end, from the journal where it knows them."""
        missing = []
        for index, (key, job) in enumerate(batch):
            found = self._journal.get(key) if self._journal is not None else None
            if found is None:
                missing.append((index, key, job))
            else:
                self.replayed += 1
                yield index, found
        with contextlib.closing(self._backend.evaluations([job for _, _, job in missing])) as ended:
            while True:
                with self._interrupts.waiting():
                    place, evaluation = next(ended, (-1, None))
                if evaluation is None:
                    return
                index, key, _ = missing[place]
                # A want of a machine's memory depends on what else ran there: it is no fact about the deployment.
                if self._journal is not None and not evaluation.error.startswith(MemoryError.__name__):
                    self._journal.record(key, evaluation, len(self.trials) + index, missing[place][2])
                yield index, evaluation

    def _announce(self, number: int, job: Job, evaluation: Evaluation) -> None:
        """Tell the listener that a simulation has ended, and how the search stands."""
        if job.slice_fraction == 1.0 and job.load == 1.0:
            self._standing.add(number, evaluation)
        stored = f"{self.replayed:,} stored by an earlier run" if self.replayed else ""
        self.progress.advanced(1, *self._standing.notes(), stored)
