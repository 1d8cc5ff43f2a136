"""Who calls when, before anybody has a prompt.

Notation
    N calls, in an order in which they can happen; A agents; frames are numbered from 0, some may be empty
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.traces.agents import AT_START


class Hint(NamedTuple):
    """A hint, see ``AgentArrays``."""

    trigger: int
    agent: int
    after_s: float = 0.0
    seconds: float = 0.0
    steps: float = 0.0


class Call(NamedTuple):
    """A call of an agent that follows its own clock, see ``Schedule``."""

    agent: int
    previous: int = -1
    think_s: float = 0.0
    arrival_s: float = np.nan
    gate: int = -1
    behind: int = -1


@dataclass(frozen=True)
class Schedule:
    """All calls; arrays of shape (N,).

    Attributes:
        agent: who calls.
        previous: the call that this one follows, or -1; of one behind a gate, one of those that the gate waits for.
        think_s: from that call's end, or the gate's opening, to this call.
        arrival_s: of calls that follow none; NaN elsewhere.
        gate, behind: see ``AgentArrays``.
        hints: whose triggers are calls, N + gates, or the start.
        by_frames: steps of hints are frames.
    """

    agent: I8
    previous: I4
    think_s: F8
    arrival_s: F8
    gate: I4
    behind: I4
    hints: list[Hint]
    by_frames: bool

    def __len__(self) -> int:
        return len(self.agent)


@dataclass
class Frames:
    """Calls frame by frame, while a world is simulated: ``call`` in rising order of frames, then ``schedule``.

    A hint given at the beginning of a frame is triggered by the opening of the gate that leads to it. ``schedule``
    counts the frames of hints as the gates do: those in which somebody calls.
    """

    frame_s: float
    agent: list[int] = field(default_factory=list)
    frame: list[int] = field(default_factory=list)
    # (frame at whose beginning, or -1 and the call after whose end it is given; agent; frames from then)
    _beginning: list[tuple[int, int, float]] = field(default_factory=list)
    _ends: list[tuple[int, int, float]] = field(default_factory=list)

    def call(self, agent: int, frame: int) -> int:
        """``agent`` calls in ``frame``; returns the call's index."""
        self.agent.append(agent)
        self.frame.append(frame)
        return len(self.agent) - 1

    def hint_after(self, call: int, agent: int, frames: float) -> None:
        """At the end of ``call``: ``agent`` calls so many frames later."""
        self._ends.append((call, agent, frames))

    def hint_at(self, frame: int, agent: int, frames: float) -> None:
        """At the beginning of ``frame``: ``agent`` calls so many frames later."""
        self._beginning.append((frame, agent, frames))

    def schedule(self, calls: int) -> Schedule:
        """Schedule of the first ``calls`` calls."""
        count = min(calls, len(self.agent))
        frame = np.array(self.frame[:count])
        shown, gate = np.unique(frame, return_inverse=True)
        last = np.searchsorted(frame, shown, side="right") - 1
        first = gate == 0
        gaps = np.diff(shown, prepend=0)
        return Schedule(
            agent=np.array(self.agent[:count]),
            previous=np.where(first, -1, last[np.maximum(gate - 1, 0)]).astype(np.int32),
            think_s=np.where(first, 0.0, gaps[gate] * self.frame_s),
            arrival_s=np.where(first, shown[0] * self.frame_s, np.nan),
            gate=gate.astype(np.int32),
            behind=(gate - 1).astype(np.int32),
            hints=self._hints(shown, frame, gate),
            by_frames=True,
        )

    def _hints(self, shown: I8, frame: I8, gate: I8) -> list[Hint]:
        """All hints of the calls in ``frame``, which are behind ``gate``; shown: the frames with calls, rising."""
        begin, at_begin, frames = _columns(self._beginning)
        # The gate that opens before the first frame with calls from there on.
        opened = np.searchsorted(shown, begin) - 1
        after_begin = _places(shown, begin + frames) - (opened + 1)
        call, at_end, frames = _columns([end for end in self._ends if end[0] < len(frame)])
        call = call.astype(np.int64)
        after_end = _places(shown, frame[call] + frames) - gate[call]
        trigger = np.concatenate((np.where(opened >= 0, len(frame) + opened, AT_START), call))
        agent = np.concatenate((at_begin, at_end)).astype(np.int64)
        steps = np.maximum(np.concatenate((after_begin, after_end)), 0.0)
        rows = zip(trigger.tolist(), agent.tolist(), steps.tolist(), strict=True)
        return [Hint(trigger, agent, 0.0, 0.0, steps) for trigger, agent, steps in rows]


def _columns(rows: Sequence[tuple[int, int, float]]) -> F8:
    """The columns of rows of three, also of none; shape (3, R)."""
    return np.array(rows, dtype=np.float64).reshape(-1, 3).T


def _places(shown: I8, frame: F8) -> F8:
    """Where each frame lies among those with calls, counted from 0; between two of these in proportion; shape (R,)."""
    beyond = np.maximum(frame - float(shown[-1]), 0.0)
    return np.asarray(np.interp(frame, shown, np.arange(len(shown))) + beyond)


@dataclass
class Chains:
    """Calls of agents that each follow their own clock: ``think_s`` after ``previous``, or at ``arrival_s``."""

    calls: list[Call] = field(default_factory=list)
    hints: list[Hint] = field(default_factory=list)

    def add(self, call: Call) -> int:
        """Append a call; returns its index."""
        self.calls.append(call)
        return len(self.calls) - 1

    def schedule(self) -> Schedule:
        """Schedule of all calls."""
        agent, previous, think_s, arrival_s, gate, behind = map(np.array, zip(*self.calls, strict=True))
        return Schedule(
            agent=agent,
            previous=previous.astype(np.int32),
            think_s=think_s,
            arrival_s=arrival_s,
            gate=gate.astype(np.int32),
            behind=behind.astype(np.int32),
            hints=self.hints,
            by_frames=False,
        )
