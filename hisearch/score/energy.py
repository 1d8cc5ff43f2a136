"""Energy of a simulation."""

from __future__ import annotations

from hisearch.simulate.result import Result


def joules_total(result: Result) -> float:
    """Joules of all workers over the makespan: work above idle, plus idle power all the while.

    ``result.makespan_s`` is that of ``hisearch.score.metrics``, ``result.idle_w`` is one worker's idle power,
    ``result.workers.energy_j`` each worker's joules above idle.
    """
    workers = len(result.workers.energy_j)
    return float(result.workers.energy_j.sum()) + result.idle_w * workers * result.makespan_s
