"""The subset of a result for some of its pools: those that serve a model, or a single one, with their requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import RequestTable, WorkerTable
from hisearch.traces.models import RequestModels


def of_model(result: Result, number: int) -> Result:
    """The result for the requests of a model, as if its pools were the whole fleet, over the same time.

    The log is left out. Requests, workers and pools keep their order; workers and pools are renumbered.

    Args:
        result: of a fleet.
        number: index of the model in ``result.asked.names``.

    Raises:
        ValueError: the result does not name the requests' models.
    """
    models = result.asked
    if models is None:
        raise ValueError("the result does not say which models were asked for")
    pools = [p for p, pool in enumerate(result.pools) if pool.model == models.names[number]]
    return _of_pools(result, pools, models.model == number, RequestModels((models.names[number],), models.model[:0]))


def of_pool(result: Result, p: int) -> Result:
    """The result for the requests whose prompts pool ``p`` computed, likewise."""
    pool = result.pools[p]
    worker = result.requests.prefill_worker
    mine = (worker >= pool.first_worker) & (worker < pool.first_worker + pool.workers)
    return _of_pools(result, [p], mine, RequestModels((pool.model,), worker[:0]))


def _of_pools(result: Result, pools: Sequence[int], mine: npt.NDArray[np.bool_], models: RequestModels) -> Result:
    """The result of the requests ``mine`` and of these pools' workers."""
    uses = [result.pools[p] for p in pools]
    in_order = sorted(uses, key=lambda pool: pool.first_worker)
    workers = np.concatenate([pool.first_worker + np.arange(pool.workers, dtype=np.int64) for pool in in_order])
    new_worker = np.full(len(result.workers.steps), -1, np.int32)
    new_worker[workers] = np.arange(len(workers))
    new_pool = {p: index for index, p in enumerate(pools)}
    gaps = tuple(result.pool_gap_counts[p] for p in pools)
    return replace(
        result,
        requests=_requests(result.requests, mine, new_worker),
        workers=WorkerTable(**{name: values[workers] for name, values in result.workers.columns().items()}),
        kv_capacity_tokens=uses[0].kv_capacity_tokens,
        idle_w=uses[0].idle_w,
        log=None,
        gap_counts=np.sum(gaps, axis=0),
        pool_gap_counts=gaps,
        stores=tuple(
            replace(use, pool=new_pool[use.pool], first_worker=int(new_worker[use.first_worker]))
            for use in result.stores
            if use.pool in new_pool
        ),
        links=tuple(replace(use, pool=new_pool[use.pool]) for use in result.links if use.pool in new_pool),
        kv_transfers=tuple(
            replace(use, worker=int(new_worker[use.worker]))
            for use in result.kv_transfers
            if new_worker[use.worker] >= 0
        ),
        pools=tuple(replace(pool, first_worker=int(new_worker[pool.first_worker])) for pool in uses),
        far_hit_tokens=sum(pool.far_hit_tokens for pool in uses),
        fetches_ahead=any(pool.fetches_ahead for pool in uses),
        asked=models._replace(model=np.zeros(int(mine.sum()), np.int32)),
    )


def _requests(table: RequestTable, mine: npt.NDArray[np.bool_], new_worker: npt.NDArray[np.int32]) -> RequestTable:
    known_columns = {f.name: getattr(table, f.name) for f in fields(RequestTable)}
    columns = {name: values[mine] for name, values in known_columns.items() if values is not None}
    for name in ("worker", "prefill_worker"):
        known = columns[name] >= 0
        columns[name] = np.where(known, new_worker[np.maximum(columns[name], 0)], -1).astype(np.int32)
    return RequestTable(**columns)
