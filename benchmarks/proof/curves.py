"""Hypervolume curves against simulations: the search, the search without each of its stages, and flat samplers."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.proof.flat import FLAT, MOST_SIMULATIONS
from benchmarks.proof.table import Scale, Table, simulations_to
from hisearch.api.run_folder import write_text
from hisearch.api.studies.study import load_study
from hisearch.base.dtypes import F8
from hisearch.search.driver import STAGES, search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.trial import Trial

#: Hypervolume share that a method should reach.
SHARE = 0.995

OURS = "hisearch"


@dataclass(frozen=True)
class Curves:
    """A method's curves, one for each seed: shape (seeds, simulations)."""

    name: str
    values: F8

    def reached(self, share: float = SHARE) -> list[int | None]:
        """Simulations to ``share`` of the exhaustive front's hypervolume by seed; None where it is not reached."""
        return [simulations_to(curve, share) for curve in self.values]

    def median_to(self, share: float = SHARE) -> int | None:
        """Simulations after which the median of the seeds reaches ``share``; None where it does not."""
        return simulations_to(np.median(self.values, axis=0), share)

    def at(self, simulations: int) -> tuple[float, float, float]:
        """(median, smallest, largest) over the seeds after ``simulations`` simulations."""
        column = self.values[:, min(simulations, self.values.shape[1]) - 1]
        return float(np.median(column)), float(column.min()), float(column.max())


@dataclass(frozen=True)
class Proof:
    """The result for one study. budget: simulations of the search and of its ablations."""

    study: str
    deployments: int
    feasible: int
    scale: Scale
    budget: int
    ours: Curves
    flat: list[Curves]
    ablations: list[Curves]


def ours(table: Table, simulations: int, seed: int, without: tuple[str, ...] = ()) -> list[Trial]:
    """The search's trials; ``without`` some of its stages."""
    budget = table.problem.budget.model_copy(update={"simulations": simulations})
    problem = dataclasses.replace(table.problem, seed=seed, budget=budget)
    runner = TrialRunner(table.evaluate, budget, inputs=table.inputs, workers=1)
    return list(search(problem, runner, without=without).trials)


def prove(
    study: Path,
    folder: Path,
    *,
    seeds: int,
    flat_simulations: int,
    workers: int,
    say: Callable[[str], None] = lambda _: None,
) -> Proof:
    """Enumerate, search and sample; results that the folder already holds are reused.

    Raises:
        SpecError: the study is invalid.
        ValueError: no deployment of its space meets the SLO.
        JournalError: the folder holds another study's.
    """
    loaded = load_study(study)
    with Table(loaded, folder) as table:
        trials = table.enumerate(workers, say)
        scale = Scale.of(trials, table.problem.objectives)
        budget = table.problem.budget.simulations

        def curves(name: str, make: Callable[[int], list[Trial]], length: int) -> Curves:
            rows = []
            for seed in range(seeds):
                path = folder / f"curve-{table.inputs[:12]}-{name.replace(' ', '-')}-{length}-{seed}.json"
                if not path.exists():
                    started = time.monotonic()
                    curve = scale.curve(make(seed), length)
                    write_text(path, json.dumps(curve.tolist()))
                    say(f"{name}, seed {seed}: {curve[-1]:.4f} after {length:,}, {time.monotonic() - started:.0f} s")
                rows.append(json.loads(path.read_text()))
            return Curves(name, np.array(rows))

        return Proof(
            study=loaded.name,
            deployments=len(trials),
            feasible=sum(trial.feasible for trial in trials),
            scale=scale,
            budget=budget,
            ours=curves(OURS, lambda seed: ours(table, budget, seed), budget),
            flat=[
                curves(name, lambda seed, run=run, most=most: run(table, most, seed), most)  # type: ignore[misc]
                for name, run in FLAT.items()
                for most in (min(flat_simulations, MOST_SIMULATIONS.get(name, flat_simulations)),)
            ],
            ablations=[
                curves(f"without {stage}", lambda seed, stage=stage: ours(table, budget, seed, (stage,)), budget)  # type: ignore[misc]
                for stage in STAGES
            ],
        )
