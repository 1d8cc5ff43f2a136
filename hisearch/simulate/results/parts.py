"""A result's share of some of its pools: those that serve a model, or one alone, with the requests that are theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from hisearch.simulate.results.result import RequestTable, Result, WorkerTable
from hisearch.traces.models import RequestModels


def of_model(result: Result, number: int) -> Result:
    """What came of the requests for a model, as if its pools were all there is; over the same time.

    The log is left out. Requests keep their order, workers and pools too, numbered anew.

    Args:
        result: of a fleet.
        number: of the model among ``result.asked.names``.

    Raises:
        ValueError: the result does not say what was asked for.
    """
    asked = result.asked
    if asked is None:
        raise ValueError("the result does not say which models were asked for")
    pools = [p for p, pool in enumerate(result.pools) if pool.model == asked.names[number]]
    return _of_pools(result, pools, asked.model == number, RequestModels((asked.names[number],), asked.model[:0]))


def of_pool(result: Result, p: int) -> Result:
    """What came of the requests whose prompts pool ``p`` computed, likewise."""
    pool = result.pools[p]
    worker = result.requests.prefill_worker
    mine = (worker >= pool.first_worker) & (worker < pool.first_worker + pool.workers)
    return _of_pools(result, [p], mine, RequestModels((pool.model,), worker[:0]))


def _of_pools(result: Result, pools: Sequence[int], mine: npt.NDArray[np.bool_], asked: RequestModels) -> Result:
    """The requests ``mine`` and these pools' workers."""
    uses = [result.pools[p] for p in pools]
    in_order = sorted(uses, key=lambda pool: pool.first_worker)
    workers = np.concatenate([pool.first_worker + np.arange(pool.workers, dtype=np.int64) for pool in in_order])
    worker_now = np.full(len(result.workers.steps), -1, np.int32)
    worker_now[workers] = np.arange(len(workers))
    pool_now = {p: index for index, p in enumerate(pools)}
    gaps = tuple(result.pool_gap_counts[p] for p in pools)
    return replace(
        result,
        requests=_requests(result.requests, mine, worker_now),
        workers=WorkerTable(**{f.name: getattr(result.workers, f.name)[workers] for f in fields(WorkerTable)}),
        kv_capacity_tokens=uses[0].kv_capacity_tokens,
        idle_w=uses[0].idle_w,
        log=None,
        gap_counts=np.sum(gaps, axis=0),
        pool_gap_counts=gaps,
        stores=tuple(
            replace(use, pool=pool_now[use.pool], first_worker=int(worker_now[use.first_worker]))
            for use in result.stores
            if use.pool in pool_now
        ),
        links=tuple(replace(use, pool=pool_now[use.pool]) for use in result.links if use.pool in pool_now),
        hand_overs=tuple(
            replace(use, worker=int(worker_now[use.worker])) for use in result.hand_overs if worker_now[use.worker] >= 0
        ),
        pools=tuple(replace(pool, first_worker=int(worker_now[pool.first_worker])) for pool in uses),
        far_hit_tokens=sum(pool.far_hit_tokens for pool in uses),
        fetches_ahead=any(pool.fetches_ahead for pool in uses),
        asked=asked._replace(model=np.zeros(int(mine.sum()), np.int32)),
    )


def _requests(table: RequestTable, mine: npt.NDArray[np.bool_], worker_now: npt.NDArray[np.int32]) -> RequestTable:
    known_columns = {f.name: getattr(table, f.name) for f in fields(RequestTable)}
    columns = {name: values[mine] for name, values in known_columns.items() if values is not None}
    for name in ("worker", "prefill_worker"):
        known = columns[name] >= 0
        columns[name] = np.where(known, worker_now[np.maximum(columns[name], 0)], -1).astype(np.int32)
    return RequestTable(**columns)
