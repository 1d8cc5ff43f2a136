"""What a simulated run did, second by second: tokens, watts of accelerators and server, hit rates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.api.deployments.deployment import SimulatedDeployment
from hisearch.base.dtypes import F8
from hisearch.hardware.power import Standby
from hisearch.score.energy import pools_of
from hisearch.score.watts import watts_series
from hisearch.simulate.results.gaps import token_times


class Watts(NamedTuple):
    """Mean watts of each second from the first arrival on, shape (seconds,): accelerators, and all else of workers."""

    accelerators_w: F8
    host_w: F8


def tokens_per_second(run: SimulatedDeployment, at_s: F8) -> F8:
    """Tokens made in the second before each of ``at_s``, which are seconds of the trace's clock."""
    times = np.sort(token_times(run.result)[1])
    return np.asarray(np.searchsorted(times, at_s, "right") - np.searchsorted(times, at_s - 1.0, "right"), np.float64)


def watts_by_second(run: SimulatedDeployment, seconds: int) -> Watts:
    """Watts of all workers; behind the last request they are idle, then in standby."""
    result = run.result
    frame = watts_series(result, run.plan.costs.joules, 1.0).groupby("time_s")[["accelerators_w", "host_w"]].sum()
    accelerators, host = (frame[name].to_numpy()[:seconds] for name in ("accelerators_w", "host_w"))
    missing = max(seconds - len(accelerators), 0)
    tail, host_w = np.zeros(missing), 0.0
    assert result.log is not None
    first_s = float(np.nanmin(result.requests.arrival_s))
    middles = first_s + len(accelerators) + np.arange(missing) + 0.5
    for pool in pools_of(result):
        host_w += pool.power.host_w * pool.workers
        for worker in range(pool.first_worker, pool.first_worker + pool.workers):
            ends = result.log.steps["end_s"][result.log.steps["worker"] == worker]
            idle_s = middles - (float(ends.max()) if len(ends) else first_s)
            tail += pool.idle_w
            for standby in (pool.power.own, pool.power.ffn or Standby()):
                tail -= np.where(idle_s > standby.after_s, standby.saving_w, 0.0)
    return Watts(np.concatenate([accelerators, tail]), np.concatenate([host, np.full(missing, host_w)]))


def hit_percent(run: SimulatedDeployment, at_s: F8, *, external: bool) -> F8:
    """Running share, percent, of prompt tokens that were found, of all requests scheduled by each of ``at_s``."""
    table = run.result.requests
    order = np.argsort(table.scheduled_s, kind="stable")
    hits = table.host_hit_tokens if external else table.hit_tokens
    hit_sums, asked_sums = (np.concatenate([[0.0], np.cumsum(column[order])]) for column in (hits, table.input_tokens))
    count = np.searchsorted(table.scheduled_s[order], at_s, "right")
    return np.asarray(100.0 * hit_sums[count] / np.maximum(asked_sums[count], 1.0))
