"""Phases of layers side by side: sub-batches, or micro-batches, that go from station to station.

Notation
    k   jobs (sub-batches) that are alike        L   rounds (layers)
    t_i seconds of stage i of a round; S = sum of t_i; U = the most that one station has to do for a job in a round

Every job passes all stages of a round in order, L rounds one after the other; a station takes one job at a time. Then

    seconds = max(L S + (k - 1) U, L k U + (S - U))

The first holds where jobs do not fill any station: each goes through without waiting once they are apart; the second
where the busiest station never rests but for the first job's way to it and the last one's way on. Exact where no
station appears twice in a round. Two visits that follow each other over the end of a round count as one, a job keeping
the station for both; the first round then starts in the middle of it, which is worth k U of all L rounds at most. Of
other repeated visits it is what the best order takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8


class Stage(NamedTuple):
    """A part of a round: who does it, how long it takes (an array), and what it is; "" for a transfer."""

    station: str
    seconds: F8
    operator: str = ""


def serial_s(stages: Sequence[Stage], rounds: float) -> F8:
    """One job through all rounds."""
    return np.asarray(rounds * sum((stage.seconds for stage in stages), start=np.zeros(())))


def overlapped_s(stages: Sequence[Stage], rounds: float, jobs: F8 | float) -> F8:
    """``jobs`` alike jobs through all rounds; ``stages`` are of one of them."""
    total = sum((stage.seconds for stage in stages), start=np.zeros(()))
    busiest = np.zeros(())
    for station in dict.fromkeys(stage.station for stage in stages):
        own = sum((stage.seconds for stage in stages if stage.station == station), start=np.zeros(()))
        busiest = np.maximum(busiest, own)
    return np.asarray(
        np.maximum(rounds * total + (jobs - 1) * busiest, rounds * jobs * busiest + np.maximum(total - busiest, 0.0))
    )
