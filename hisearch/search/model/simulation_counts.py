"""How many simulations a search made, and of what: one count for the console, reports, the dashboard and files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hisearch.search.model.trial import Trial
from hisearch.specs.wording import counted, listed


class SimulationCounts(NamedTuple):
    """Simulations of a search, each in one of the three kinds.

    whole_trace: of all requests at the study's load. slices: of the trace's beginning. other_loads: of all requests at
    other loads; those by which a capacity as an objective is bisected are among them.
    """

    whole_trace: int
    slices: int
    other_loads: int

    @property
    def total(self) -> int:
        """All simulations."""
        return sum(self)

    def describe(self) -> str:
        """``441 simulations: 412 of the whole trace, 25 of slices of it and 4 at other loads``; without empty kinds."""
        kinds = {"of the whole trace": self.whole_trace, "of slices of it": self.slices}
        kinds["at other loads"] = self.other_loads
        text = counted(self.total, "simulation")
        if self.whole_trace == self.total:
            return text
        return f"{text}: {listed([f'{count:,} {kind}' for kind, count in kinds.items() if count])}"


def count_simulations(trials: Iterable[Trial]) -> SimulationCounts:
    """Count the simulations of ``trials``."""
    whole = slices = other = 0
    for trial in trials:
        if trial.slice_fraction < 1.0:
            slices += trial.simulations
        elif trial.load != 1.0:
            other += trial.simulations
        else:
            whole += 1
            other += trial.simulations - 1
    return SimulationCounts(whole, slices, other)
