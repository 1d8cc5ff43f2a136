"""Distances of a trace held against the calls that come: those in another unit than they are taken for are named.

Notation
    N requests; a *pair* is a call and the next call of its agent, of which its hint says how far away it is
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.traces.agents import AgentArrays

#: How a message on wrong distances begins.
LOOK_WRONG = "distances look wrong"
#: Fewer pairs than this say nothing.
_FEWEST = 5
#: Distances whose median is so many times as far as the calls come, or as near, are in another unit. Chosen: estimates
#: are off by less, thousandths by more.
_IMPLAUSIBLE = 100.0
#: Seconds and frames are distinguished where a frame takes so many seconds, or a second so many frames, and the median
#: is off by that, within a factor.
_FAR, _ALIKE = 3.0, 1.5
#: Ratios at which milliseconds are supposed.
_THOUSAND = (300.0, 3000.0)


class _Pairs(NamedTuple):
    """What hints at the ends of calls say, and what comes; shapes (pairs,), all above 0."""

    said: F8
    real: F8


def distance_caveat(agents: AgentArrays, arrival_s: F8, previous: I4, think_s: F8) -> str | None:
    """What is implausible about the hints at the ends of calls; None where nothing is, or too little is known.

    What comes is known by frames, and by recorded times or think times: answers take time beside these.

    Args:
        agents: of the requests.
        arrival_s: when each request came, NaN where it is not known; shape (N,).
        previous: index of the request that it follows, or -1; shape (N,).
        think_s: from that one's end; shape (N,).
    """
    own, after = _own_hints(agents)
    if agents.by_frames[0]:
        steps, seconds = agents.hint_steps[own], agents.hint_s[own]
        if len(own) and not steps.any() and seconds.any():
            return (
                f"{LOOK_WRONG}: they are in seconds, and the world goes by frames, in which seconds say nothing; give "
                "frames (next_call_steps)"
            )
        real = (agents.behind[after] - agents.behind[agents.hint_trigger[own]]).astype(np.float64)
        return _caveat(_pairs(steps, real), "frames", _frame_s(agents, think_s))
    trigger = agents.hint_trigger[own]
    directly = (previous[after] == trigger) & (agents.behind[after] < 0)
    real = np.where(directly, think_s[after], arrival_s[after] - arrival_s[trigger])
    said = np.where(agents.hint_steps[own] > 0, 0.0, agents.hint_after_s[own] + agents.hint_s[own])
    return _caveat(_pairs(said, real), "s", 0.0)


def _own_hints(agents: AgentArrays) -> tuple[I8, I8]:
    """Hints at a call's end of its own agent's next call, where there is one, and that call; shapes (pairs,)."""
    count = len(agents.agent)
    order = np.argsort(agents.agent, kind="stable")
    same = agents.agent[order][1:] == agents.agent[order][:-1]
    following = np.full(count, -1)
    following[order[:-1][same]] = order[1:][same]
    trigger = agents.hint_trigger
    call = np.clip(trigger, 0, count - 1)
    at_end = (trigger >= 0) & (trigger < count) & (agents.hint_agent == agents.agent[call]) & (following[call] >= 0)
    own = np.flatnonzero(at_end)
    return own, following[trigger[own]]


def _pairs(said: F8, real: F8) -> _Pairs:
    known = (said > 0) & np.isfinite(real) & (real > 0)
    return _Pairs(said[known], real[known])


def _frame_s(agents: AgentArrays, think_s: F8) -> float:
    """Seconds from one frame of the world to the next, as if calls took no time; 0 where it is not known."""
    gaps = think_s[agents.behind >= 0]
    return float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0


def _caveat(pairs: _Pairs, unit: str, frame_s: float) -> str | None:
    count = len(pairs.said)
    if count < _FEWEST:
        return None
    ratio = float(np.exp(np.median(np.log(pairs.said / pairs.real))))
    supposed = ""
    if frame_s and max(frame_s, 1 / frame_s) >= _FAR and 1 / _ALIKE < ratio / frame_s < _ALIKE:
        supposed = f": as if seconds were taken for frames, of which one takes {frame_s:g} s"
    elif 1 / _IMPLAUSIBLE <= ratio <= _IMPLAUSIBLE:
        return None
    elif unit == "s" and _THOUSAND[0] < ratio < _THOUSAND[1]:
        supposed = ": as if milliseconds were taken for seconds"
    said, real, times = (_format(float(np.median(values))) for values in (*pairs, ratio))
    return (
        f"{LOOK_WRONG}: they were understood as {unit}, say {said} {unit} where the agent's next call comes after "
        f"{real} {unit} (medians of {count:,} calls), and are {times} times what comes{supposed}"
    )


def _format(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
