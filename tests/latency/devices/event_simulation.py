"""Jobs on stations, event by event: the slow and obvious reference of ``hisearch.latency.devices.flow``."""

from __future__ import annotations

import heapq


def makespan_s(steps: list[tuple[str, float]], jobs: list[float]) -> float:
    """First come, first served at every station.

    Args:
        steps: stations and seconds that every job takes in order.
        jobs: of each, the factor on its seconds.
    """
    free = dict.fromkeys((station for station, _ in steps), 0.0)
    end = 0.0
    # (when it is looked at, since when it waits, job, step)
    ready = [(0.0, 0.0, job, 0) for job in range(len(jobs))]
    while ready:
        at, since, job, step = heapq.heappop(ready)
        if step == len(steps):
            end = max(end, at)
            continue
        station, seconds = steps[step]
        if free[station] > at:
            heapq.heappush(ready, (free[station], since, job, step))
            continue
        free[station] = at + seconds * jobs[job]
        heapq.heappush(ready, (free[station], free[station], job, step + 1))
    return end
