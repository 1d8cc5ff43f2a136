"""Times at which each request was running on a worker, from the log of steps.

A request is *running* from the pass that admits it until it finishes or loses its KV (vLLM's preemption, SGLang's
retraction), and again from the pass that resumes it. It is *waiting* from its arrival to its finish whenever it is not
running. A loss in a pass without a batch is dated to the worker's next pass with one.

Unlike in the engines' lists, a prompt between two of its chunks is running. A finished request is no longer running,
even if SGLang filters it out a pass later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.simulate.results.gaps import logged_losses, step_log, steps_of
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import StepLog

#: Entries processed together, to keep temporary arrays small.
_BLOCK = 1 << 20


class Residences(NamedTuple):
    """Times of running, K of them, by request and then by time.

    request: (K,) index of the request. admitted_s: (K,) time of the pass that put it into a batch. left_s: (K,) when
    it finished or lost its KV, NaN if it was running when the simulation ended. lost: (K,) whether it lost its KV.
    first_entry: (K,) index in ``log.entries`` of its first share of a step.
    """

    request: I8
    admitted_s: F8
    left_s: F8
    lost: np.ndarray
    first_entry: I8


def residences(result: Result) -> Residences:
    """All times of running; about 10 ns per logged entry, and some 200 per entry of a request that lost its KV.

    Raises:
        LogMissing: there is no log.
    """
    log = step_log(result)
    steps = max(len(log), 1)
    lost, loss_step = _losses(log, result.requests.worker)
    starts = _starts(log, lost, loss_step, len(result.requests.outcome))
    request = log.entries["request"][starts].astype(np.int64)
    step = steps_of(log, starts)
    loss_keys = np.sort(lost * steps + loss_step)
    after = np.searchsorted(loss_keys, request * steps + step, side="right")
    next_loss = np.append(loss_keys, -1)[after]
    is_lost = (next_loss >= 0) & (next_loss // steps == request)
    scheduled_s = log.steps["scheduled_s"]
    left_s = result.requests.finish_s[request]
    left_s[is_lost] = scheduled_s[next_loss[is_lost] % steps]
    return Residences(request, scheduled_s[step], left_s, is_lost, starts)


def _starts(log: StepLog, lost: I8, loss_step: I8, count: int) -> I8:
    """Entries that begin a time of running, by request and then by time.

    They are each request's first one, and the first at or after each loss; ``count``: N requests.
    """
    owner = log.entries["request"]
    first = np.full(count, len(owner), np.int64)
    for begin in range(0, len(owner), _BLOCK):
        owner_block = owner[begin : begin + _BLOCK]
        np.minimum.at(first, owner_block, np.arange(begin, begin + len(owner_block)))
    starts = np.union1d(first[first < len(owner)], _resumptions(log, lost, loss_step, count))
    return np.asarray(starts[np.argsort(owner[starts], kind="stable")])


def _resumptions(log: StepLog, lost: I8, loss_step: I8, count: int) -> I8:
    """The first entry of the same request at or after each loss, if any."""
    if not len(lost):
        return np.zeros(0, np.int64)
    owner, steps = log.entries["request"], max(len(log), 1)
    has_loss = np.zeros(count, bool)
    has_loss[lost] = True
    entries = np.flatnonzero(has_loss[owner])
    entries = entries[np.argsort(owner[entries], kind="stable")]
    keys = owner[entries].astype(np.int64) * steps + steps_of(log, entries)
    place = np.searchsorted(keys, lost * steps + loss_step)
    resumed = np.append(keys, -1)[place] // steps == lost
    return np.asarray(entries[place[resumed]])


def _losses(log: StepLog, worker: I4) -> tuple[I8, I8]:
    """(requests that lost their KV, step to which the loss is dated); ``worker`` (N,): of each request."""
    positions, step = logged_losses(log)
    outside_step = np.ones(len(log.lost), bool)
    outside_step[positions] = False
    adrift = np.flatnonzero(outside_step)
    # Steps before this one in the log were launched before the loss.
    earliest = np.searchsorted(log.steps["first_lost"], adrift, side="right")
    by_worker = np.argsort(log.steps["worker"], kind="stable")
    keys = log.steps["worker"][by_worker].astype(np.int64) * (len(log) + 1) + by_worker
    loss_worker = worker[log.lost[adrift]].astype(np.int64)
    place = np.searchsorted(keys, loss_worker * (len(log) + 1) + earliest)
    next_step = np.append(keys, -1)[place]
    has_next = (next_step >= 0) & (next_step // (len(log) + 1) == loss_worker)
    requests = np.concatenate([log.lost[positions], log.lost[adrift[has_next]]]).astype(np.int64)
    return requests, np.concatenate([step, next_step[has_next] % (len(log) + 1)])
