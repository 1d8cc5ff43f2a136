"""Contents of each store of the tiers over time, from the log of steps.

A store is sampled whenever a worker that it serves forms a batch. Columns
    tier             1 for the one below HBM, and so on, as ``StoreUse.tier``
    store            number of the store in its tier, from 0 on
    first_worker     the first worker that it serves; workers: how many, the following ones
    time_s           time of the sample, or of a regular row, which has the previous sample
    held_tokens      tokens in it: in host memory, allocated ones, including copies under way; in stores behind it,
                     findable ones
    capacity_tokens  its size
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from hisearch.base.dtypes import F8, I8
from hisearch.simulate.results.gaps import step_log
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.series import ticks_s
from hisearch.simulate.results.uses import StoreUse

#: Columns of the log, by tier from 1 on.
_LOGGED = ("host_tokens", "storage_tokens", "farther_tokens")


def tier_series(result: Result, interval_s: float | None = None) -> pd.DataFrame:
    """Rows by tier, store and time: a row for each sample, or for each multiple of ``interval_s`` from 0 on.

    Raises:
        LogMissing: there is no log.
        ValueError: the interval is not positive.
        TooManyRows: more than ``series.MAX_ROWS``.
    """
    stores = [store for store in result.stores if store.tier > 0]
    at_s = None if interval_s is None else ticks_s(result, interval_s, max(len(stores), 1))
    frames = [_empty_frame()] if not stores else []
    number = dict.fromkeys(range(1, 1 + len(_LOGGED)), 0)
    for store in stores:
        time_s, held = looks(result, store)
        if at_s is not None:
            newest = np.searchsorted(time_s, at_s, side="right")
            time_s, held = at_s, np.append(0, held)[newest]
        columns = {
            "tier": store.tier,
            "store": number[store.tier],
            "first_worker": store.first_worker,
            "workers": store.workers,
            "time_s": time_s,
            "held_tokens": held,
            "capacity_tokens": store.capacity_tokens,
        }
        frames.append(pd.DataFrame(columns))
        number[store.tier] += 1
    return pd.concat(frames, ignore_index=True)


def _empty_frame() -> pd.DataFrame:
    """No rows."""
    dtypes = {"tier": "i8", "store": "i8", "first_worker": "i8", "workers": "i8", "time_s": "f8"}
    dtypes |= {"held_tokens": "i8", "capacity_tokens": "i8"}
    return pd.DataFrame({name: np.empty(0, dtype) for name, dtype in dtypes.items()})


def looks(result: Result, store: StoreUse) -> tuple[F8, I8]:
    """Times at which a store was sampled, ascending, and the tokens that it held."""
    steps = step_log(result).steps
    served = (steps["worker"] >= store.first_worker) & (steps["worker"] < store.first_worker + store.workers)
    rows = np.flatnonzero(served)
    order = rows[np.argsort(steps["scheduled_s"][rows], kind="stable")]
    return steps["scheduled_s"][order], steps[_LOGGED[store.tier - 1]][order]
