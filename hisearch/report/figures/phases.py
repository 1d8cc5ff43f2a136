"""The phases of each request, from the log of steps: queued, prefill, decode, preempted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8, I8
from hisearch.simulate.results.gaps import NOT_MADE, entry_steps, step_log, token_entries
from hisearch.simulate.results.residence import Residences
from hisearch.simulate.results.result import Result

#: Names of phases; ``Phases.phase`` indexes it.
PHASES = ("queued", "prefill", "decode", "preempted")
_QUEUED, _PREFILL, _DECODE, _PREEMPTED = range(len(PHASES))


@dataclass(frozen=True)
class Phases:
    """Phases that took time, K of them, by request and then by time; those of a request do not overlap.

    requests: (R,) requests that reached a worker, ascending; opens_s, closes_s: (R,) their arrival and finish, or the
    end of the log. request, phase, start_s, end_s: (K,).
    """

    requests: I8
    opens_s: F8
    closes_s: F8
    request: I8
    phase: I8
    start_s: F8
    end_s: F8

    def of_requests(self, chosen: npt.NDArray[np.bool_]) -> Phases:
        """Phases of the requests in the mask (N,)."""
        keep, of_chosen = chosen[self.requests], chosen[self.request]
        return Phases(
            self.requests[keep], self.opens_s[keep], self.closes_s[keep],
            self.request[of_chosen], self.phase[of_chosen], self.start_s[of_chosen], self.end_s[of_chosen],
        )  # fmt: skip


def request_phases(result: Result, times: Residences, end_s: float) -> Phases:
    """Phases of every request that reached a worker.

    Args:
        result: with a log.
        times: its residences.
        end_s: when the log ends, seconds: the end of unfinished phases.

    Raises:
        LogMissing: there is no log.
    """
    table = result.requests
    routed = np.flatnonzero(table.worker >= 0)
    finished_s = np.where(np.isfinite(table.finish_s), table.finish_s, end_s)
    left_s = np.where(np.isfinite(times.left_s), times.left_s, end_s)
    token_s = np.minimum(_next_token_s(result, times), left_s)
    admitted_again = np.append(times.admitted_s[1:], end_s)
    same_request = np.append(times.request[1:], -1) == times.request
    resumed_s = np.where(same_request, admitted_again, finished_s[times.request])
    lost = times.lost
    scheduled_s = np.where(np.isfinite(table.scheduled_s), table.scheduled_s, end_s)[routed]
    spans = [
        (_QUEUED, routed, table.arrival_s[routed], scheduled_s),
        (_PREFILL, times.request, times.admitted_s, token_s),
        (_DECODE, times.request, token_s, left_s),
        (_PREEMPTED, times.request[lost], left_s[lost], resumed_s[lost]),
    ]
    request = np.concatenate([owner for _, owner, _, _ in spans])
    phase = np.concatenate([np.full(len(owner), name) for name, owner, _, _ in spans])
    start = np.concatenate([begin for _, _, begin, _ in spans])
    end = np.concatenate([finish for _, _, _, finish in spans])
    lasting = end > start
    request, phase, start, end = request[lasting], phase[lasting], start[lasting], end[lasting]
    order = np.lexsort([start, request])
    return Phases(
        routed, table.arrival_s[routed], finished_s[routed], request[order], phase[order], start[order], end[order]
    )


def _next_token_s(result: Result, times: Residences) -> F8:
    """(K,) when each residence makes its first token, infinite without one."""
    log = step_log(result)
    first, entry = token_entries(result)
    is_made = entry != NOT_MADE
    owner = np.repeat(np.arange(len(first) - 1), np.diff(first))[is_made]
    makers = entry[is_made]
    # A request's tokens are made in the order of the log.
    keys = owner * len(log.entries) + makers
    first_maker = np.searchsorted(keys, times.request * len(log.entries) + times.first_entry)
    same = np.append(owner, -1)[first_maker] == times.request
    ends = np.append(log.steps["end_s"][entry_steps(log)[makers]], np.inf)
    return np.where(same, ends[first_maker], np.inf)
