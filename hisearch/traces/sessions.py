"""When sessions start, for traces that do not say, and how many turns they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.specs.workloads.workload import ArrivalSpec, GeneratorSpec
from hisearch.traces.sampling import arrival_times_s
from hisearch.traces.trace import Trace, roots_of


def start_sessions(trace: Trace, arrivals: ArrivalSpec, rng: np.random.Generator) -> Trace:
    """Give every chain of requests a start: by an arrival process, or by ``users`` who begin one when another ends.

    Chains keep their order. With an arrival process recorded times count from their chain's start. In a closed loop
    chain k + users follows the last request of chain k without a pause, and recorded times of follow-ups are dropped.
    """
    root = roots_of(trace.previous)
    first = np.flatnonzero(trace.previous < 0)
    if arrivals.process != "closed_loop":
        starts = np.zeros(len(trace))
        starts[first] = arrival_times_s(arrivals, len(first), 0.0, rng)
        shifted = trace.arrival_s - trace.arrival_s[root] + starts[root]
        return replace(trace, arrival_s=shifted)
    user = np.searchsorted(first, root) % (arrivals.users or 1)
    previous, think, arrival = close_loop(trace.previous, trace.think_s, user)
    return replace(trace, previous=previous, think_s=think, arrival_s=arrival, open_loop=False)


def close_loop(previous: I4, think_s: F8, user: I8) -> tuple[I4, F8, F8]:
    """Each user's chains one after another, without a pause. All requests of a chain must come before the next chain's.

    Args:
        previous: of shape (N,), as in ``Trace``.
        think_s: of shape (N,), as in ``Trace``.
        user: of shape (N,), the same for all requests of a chain.

    Returns:
        previous, think_s and arrival_s (0 for each user's first request, else NaN), each of shape (N,).
    """
    count = len(previous)
    last = np.zeros(count, dtype=np.int64)
    np.maximum.at(last, roots_of(previous), np.arange(count))
    first = np.flatnonzero(previous < 0)
    first = first[np.argsort(user[first], kind="stable")]
    behind = np.zeros(len(first), dtype=bool)
    behind[1:] = user[first[1:]] == user[first[:-1]]
    chained = previous.copy()
    chained[first[behind]] = last[first[np.flatnonzero(behind) - 1]]
    arrival = np.full(count, np.nan)
    arrival[first[~behind]] = 0.0
    return chained, think_s.copy(), arrival


def ended(fits: np.ndarray, first: I8, session: I8) -> np.ndarray:
    """True for a session's first turn that does not fit and all turns after it; shape (N,)."""
    misses = np.cumsum(~fits)
    before_session = (misses - ~fits)[first]
    return np.asarray(misses - before_session[session] > 0)


def turn_counts(spec: GeneratorSpec, sessions: int, rng: np.random.Generator) -> I8:
    """Turns of each session; shape (S,)."""
    counts = np.ones(sessions, dtype=np.int64)
    listed = spec.sessions.continue_probability
    going = np.arange(sessions)
    for turn in range(1, spec.sessions.max_turns if listed else 1):
        chance = listed[min(turn - 1, len(listed) - 1)]
        going = going[rng.random(len(going)) < chance]
        if not len(going):
            break
        counts[going] += 1
    return counts
