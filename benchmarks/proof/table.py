"""A study's whole space, simulated once and kept in a folder: the ground truth for searches.

The folder holds the journal of all simulations of the study, slices and other loads included. A stopped enumeration
therefore resumes where it was, and searches of the same study simulate nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from benchmarks.proof.enumeration import deployments
from hisearch.api.provenance import hisearch_version
from hisearch.api.studies.study import Study
from hisearch.base.dtypes import F8
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.job import Evaluation, Job, evaluate_safely
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial
from hisearch.search.records.journal import Journal
from hisearch.search.select.pareto import minimised
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Simulations between two progress messages of the enumeration.
_REPORT_EVERY = 2000

#: The hypervolume's reference point, where 0 is the best and 1 the worst value on the exhaustive front.
REFERENCE = 1.1


class Table:
    """Simulations of a study by their jobs, made at first use. A context manager."""

    def __init__(self, study: Study, folder: Path) -> None:
        """Open the folder's journal, or create it.

        Raises:
            JournalError: the folder holds another study's journal.
        """
        from hisearch.simulate.engine import prepare

        prepare(study.variants)
        self.simulation = Simulation(study.world())
        self.problem: Problem = study.problem(self.simulation)
        self.inputs = study.world().digest(hisearch_version())
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(folder / "journal.jsonl", self.inputs, resume=True)
        self._known: dict[str, Evaluation] = {}

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)

    def evaluate(self, job: Job) -> Evaluation:
        """The outcome of a job; may be called from several threads at once."""
        key = job.digest(self.inputs)
        evaluation = self._known.get(key) or self._journal.get(key)
        if evaluation is None:
            evaluation = evaluate_safely(self.simulation.evaluate, job)
            self._journal.record(key, evaluation)
            self._known[key] = evaluation
        return evaluation

    def enumerate(self, workers: int, say: Callable[[str], None] = lambda _: None) -> list[Trial]:
        """Every deployment of the space, simulated on the whole trace, numbered in the space's order."""
        from joblib import Parallel, delayed

        jobs = [Job(0, deployment) for deployment in deployments(self.problem)]
        say(f"{len(jobs):,} deployments")
        evaluations: list[Evaluation] = []
        for start in range(0, len(jobs), _REPORT_EVERY):
            batch = jobs[start : start + _REPORT_EVERY]
            pool = Parallel(n_jobs=workers, backend="threading")
            evaluations += pool(delayed(self.evaluate)(job) for job in batch)
            say(f"{len(evaluations):,} of {len(jobs):,} simulated")
        return [outcome.trial(number, job) for number, (job, outcome) in enumerate(zip(jobs, evaluations, strict=True))]


def key_of(deployment: DeploymentSpec) -> str:
    """Unique key of a deployment."""
    return deployment.model_dump_json()


@dataclass(frozen=True)
class Scale:
    """How hypervolumes of one study are measured.

    objectives: names. low, span: of the exhaustive front, shape (objectives,), to be minimised. volume: hypervolume of
    that front. front_points: points on it.
    """

    objectives: tuple[str, ...]
    low: F8
    span: F8
    volume: float
    front_points: int

    @classmethod
    def of(cls, trials: Sequence[Trial], objectives: tuple[str, ...]) -> Scale:
        """From all trials of an enumeration.

        Raises:
            ValueError: none of them is feasible.
        """
        import moocore

        feasible = [trial for trial in trials if trial.comparable and trial.feasible]
        if not feasible:
            raise ValueError("no deployment of the enumerated space meets the SLO: there is no front to find")
        points = minimised(feasible, objectives)
        front = points[moocore.is_nondominated(points)]
        low, high = front.min(axis=0), front.max(axis=0)
        scale = cls(objectives, low, np.where(high > low, high - low, 1.0), 1.0, len(front))
        return cls(objectives, low, scale.span, scale.hypervolume(front), len(front))

    def hypervolume(self, points: F8) -> float:
        """Share of the exhaustive front's hypervolume that points, shape (n, objectives), to be minimised, dominate."""
        import moocore

        scaled = (points - self.low) / self.span
        return float(moocore.hypervolume(scaled, ref=[REFERENCE] * len(self.objectives))) / self.volume

    def curve(self, trials: Sequence[Trial], length: int) -> F8:
        """Hypervolume share after each of ``length`` simulations, shape (length,), of trials in order.

        Only feasible deployments on the whole trace count; every trial is one simulation, slices included.
        """
        values, best = np.zeros(length), 0.0
        points: list[F8] = []
        for place, trial in enumerate(trials[:length]):
            if trial.comparable and trial.feasible:
                points.append(minimised([trial], self.objectives)[0])
                best = max(best, self.hypervolume(np.array(points)))
            values[place] = best
        values[len(trials) :] = best
        return values


def simulations_to(curve: F8, share: float) -> int | None:
    """Simulations after which a curve reaches ``share``; None if it never does."""
    reached = np.flatnonzero(curve >= share)
    return int(reached[0]) + 1 if len(reached) else None
