"""Overlapped phases of layers: micro-batches that go from station to station.

Notation
    k   equal jobs (micro-batches)        L   rounds (layers)
    t_i seconds of stage i of a round; S = sum of t_i; U = most work of one station for a job in a round

Every job passes all stages of a round in order, L rounds one after the other; a station takes one job at a time. Then

    seconds = max(L S + (k - 1) U, L k U + (S - U))

The first holds where jobs fill no station: once staggered, they never wait. The second holds where the busiest station
idles only before the first job and after the last. The law is exact where no station appears twice in a round. Two
consecutive visits across the end of a round count as one: a job keeps the station for both. The first round then starts
in the middle of a visit, an error of at most k U of all L rounds. For other repeated visits it is the time of the best
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8


class Stage(NamedTuple):
    """A stage of a round: its station, seconds (an array) and operator; "" for a transfer.

    also: other stations that work meanwhile, with the seconds of each.
    """

    station: str
    seconds: F8
    operator: str = ""
    also: tuple[tuple[str, F8], ...] = ()


def station_seconds(stages: Sequence[Stage]) -> dict[str, F8]:
    """Seconds of work of each station in a round."""
    totals: dict[str, F8] = {}
    for stage in stages:
        for station, seconds in ((stage.station, stage.seconds), *stage.also):
            totals[station] = np.asarray(totals.get(station, np.zeros(())) + seconds)
    return totals


def serial_s(stages: Sequence[Stage], rounds: float) -> F8:
    """One job through all rounds."""
    return np.asarray(rounds * sum((stage.seconds for stage in stages), start=np.zeros(())))


def overlapped_s(stages: Sequence[Stage], rounds: float, jobs: F8 | float) -> F8:
    """``jobs`` equal jobs through all rounds; ``stages``: of one job."""
    total = sum((stage.seconds for stage in stages), start=np.zeros(()))
    busiest = np.zeros(())
    for station_s in station_seconds(stages).values():
        busiest = np.maximum(busiest, station_s)
    return np.asarray(
        np.maximum(rounds * total + (jobs - 1) * busiest, rounds * jobs * busiest + np.maximum(total - busiest, 0.0))
    )
