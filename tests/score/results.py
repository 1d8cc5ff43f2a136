"""Hand-made simulation results."""

from __future__ import annotations

import numpy as np

from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome, RequestTable, WorkerTable
from hisearch.simulate.results.uses import PoolUse


def random_result(
    seed: int, count: int = 200, in_flight: int = 0, rejected: int = 0, unreached: int = 0, workers: int = 2
) -> Result:
    """Finished requests with random times; the last ones of the trace ended otherwise."""
    rng = np.random.default_rng(seed)
    outcome = np.full(count, Outcome.FINISHED, dtype=np.int32)
    marks = [Outcome.IN_FLIGHT] * in_flight + [Outcome.TOO_LARGE] * rejected + [Outcome.UNREACHED] * unreached
    if marks:
        outcome[-len(marks) :] = marks
    arrival = np.sort(rng.uniform(0, 100, count))
    first = arrival + rng.exponential(1.0, count)
    output = rng.integers(1, 50, count)
    finish = first + rng.exponential(0.03, count) * (output - 1)
    open_ended = outcome != Outcome.FINISHED
    for times in (first, finish):
        times[open_ended] = np.nan
    scheduled = np.where(open_ended, np.nan, arrival)
    requests = RequestTable(
        arrival_s=np.where(outcome == Outcome.UNREACHED, np.nan, arrival),
        scheduled_s=scheduled,
        first_token_s=first,
        finish_s=finish,
        worker=np.zeros(count, np.int32),
        prefill_worker=np.zeros(count, np.int32),
        hit_tokens=np.where(open_ended, 0, rng.integers(0, 10, count)),
        host_hit_tokens=np.where(open_ended, 0, rng.integers(0, 5, count)),
        storage_hit_tokens=np.where(open_ended, 0, rng.integers(0, 4, count)),
        preemptions=rng.integers(0, 2, count).astype(np.int32),
        outcome=outcome,
        input_tokens=rng.integers(20, 500, count),
        output_tokens=output,
    )
    zeros = np.zeros(workers, dtype=np.int64)
    table = WorkerTable(
        steps=zeros,
        requests=zeros,
        preemptions=zeros,
        busy_s=np.full(workers, 40.0),
        energy_j=np.full(workers, 500.0),
        prefill_tokens=zeros,
        decode_tokens=zeros,
        peak_kv_tokens=zeros,
        evicted_tokens=zeros,
        host_hit_tokens=zeros,
        begun_s=np.zeros(workers),
        gone_s=np.full(workers, np.nan),
    )
    pools = (PoolUse("main", "unified", 0, workers, 1000, 70.0),)
    return Result(requests, table, makespan_s=120.0, kv_capacity_tokens=1000, idle_w=70.0, pools=pools)
