"""Who was running on a worker from when to when, from the log of steps.

A request is *running* from the pass that admits it until it finishes or loses its KV (vLLM's preemption, SGLang's
retraction), and again from the pass that resumes it. It is *waiting* from its arrival to its finish whenever it is not
running. A loss in a pass that formed no batch is dated to the next pass of that worker that did.

Unlike the engines' own lists: a prompt between two of its chunks is running, and a request is no longer running once it
has finished, also where SGLang filters it out a pass later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.simulate.gaps import entry_steps, logged_losses, step_log
from hisearch.simulate.result import Result, StepLog
from hisearch.traces.compiled import F8, I4, I8


class Residences(NamedTuple):
    """Times of running, K of them, by request and then by time.

    request: (K,) index of the request. admitted_s: (K,) when the pass was that put it into a batch. left_s: (K,) when
    it finished or lost its KV, NaN where it was running when the simulation ended. lost: (K,) whether it lost its KV.
    first_entry: (K,) index in ``log.entries`` of its first share of a step.
    """

    request: I8
    admitted_s: F8
    left_s: F8
    lost: np.ndarray
    first_entry: I8


def residences(result: Result) -> Residences:
    """All times of running; about 200 ns and 100 bytes per logged entry.

    Raises:
        LogMissing: there is no log.
    """
    log = step_log(result)
    steps = max(len(log), 1)
    order = np.argsort(log.entries["request"], kind="stable")
    entry_keys = log.entries["request"][order].astype(np.int64) * steps + entry_steps(log)[order]
    lost, loss_step = _losses(log, result.requests.worker)
    loss_keys = np.sort(lost * steps + loss_step)
    starts = _starts(entry_keys, loss_keys, steps)
    request = entry_keys[starts] // steps
    after = np.searchsorted(loss_keys, entry_keys[starts], side="right")
    found = np.append(loss_keys, -1)[after]
    is_lost = (found >= 0) & (found // steps == request)
    scheduled_s = log.steps["scheduled_s"]
    left_s = result.requests.finish_s[request]
    left_s[is_lost] = scheduled_s[found[is_lost] % steps]
    return Residences(request, scheduled_s[entry_keys[starts] % steps], left_s, is_lost, order[starts])


def _starts(entry_keys: I8, loss_keys: I8, steps: int) -> I8:
    """Positions of the entries that begin a time of running: each request's first one, and the first after each loss.

    Keys are ``request * steps + step``, ascending.
    """
    request = entry_keys // steps
    first = np.flatnonzero(np.diff(request, prepend=-1) != 0)
    resumed = np.searchsorted(entry_keys, loss_keys)
    owner = np.append(request, -1)[resumed]
    return np.union1d(first, resumed[owner == loss_keys // steps])


def _losses(log: StepLog, worker: I4) -> tuple[I8, I8]:
    """Requests that lost their KV, and the step to which that is dated; ``worker`` (N,): the worker of each request."""
    positions, step = logged_losses(log)
    loose = np.ones(len(log.lost), bool)
    loose[positions] = False
    adrift = np.flatnonzero(loose)
    # Steps before this one in the log were launched before the loss.
    earliest = np.searchsorted(log.steps["first_lost"], adrift, side="right")
    by_worker = np.argsort(log.steps["worker"], kind="stable")
    keys = log.steps["worker"][by_worker].astype(np.int64) * (len(log) + 1) + by_worker
    theirs = worker[log.lost[adrift]].astype(np.int64)
    place = np.searchsorted(keys, theirs * (len(log) + 1) + earliest)
    found = np.append(keys, -1)[place]
    has_next = (found >= 0) & (found // (len(log) + 1) == theirs)
    requests = np.concatenate([log.lost[positions], log.lost[adrift[has_next]]]).astype(np.int64)
    return requests, np.concatenate([step, found[has_next] % (len(log) + 1)])
