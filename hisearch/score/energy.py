"""Energy of a simulation."""

from __future__ import annotations

from hisearch.simulate.result import Result


def joules_total(result: Result) -> float:
    """Joules of all workers over the makespan: work above idle, plus idle power all the while.

    ``result.makespan_s`` is that of ``hisearch.score.metrics``, ``result.workers.energy_j`` each worker's joules above
    idle. A worker that comes and goes draws its idle power while it is there.
    """
    mean = zip(result.pools, result.mean_workers, strict=True)
    idle_j = sum(pool.idle_w * workers * result.makespan_s for pool, workers in mean)
    return float(result.workers.energy_j.sum()) + idle_j
