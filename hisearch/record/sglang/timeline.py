"""The virtual clock of a recording, and what the scheduler did on it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

#: A pass that forms no batch is repeated at the same clock this often before the clock moves on.
_IDLE_PASSES = 3
#: Idle passes with requests waiting and nothing to come: the engine would spin for ever.
_STUCK_PASSES = 1000


class Finished(Exception):  # noqa: N818 - it ends a loop, and is no error
    """All requests are done: leaves the engine's endless loop."""


class StuckError(RuntimeError):
    """The engine neither runs a batch nor will anything ever change."""


def step_latency_s(batch: Sequence[tuple[Any, int, int]]) -> float:
    """Seconds of a forward pass over ``(id, computed, new)``; the terms are added in the law's order."""
    return (
        0.005
        + 2e-5 * sum(new for _, _, new in batch)
        + 1e-9 * sum(new * (done + (new + 1) / 2) for _, done, new in batch)
    )


class Ticks:
    """Stands in for the module ``time`` in the engine's modules.

    Each look at the monotonic clock is later than all before, as on a real machine, but by a tick and not by the time
    the host took. ``perf_counter``, which orders requests by their entry into the queue, is the virtual clock.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._ticks = itertools.count(1)
        self.real = False

    def monotonic(self) -> float:
        """A tick, or the clock while deadlines are looked at."""
        return self._timeline.clock if self.real else float(next(self._ticks))

    def perf_counter(self) -> float:
        """The clock."""
        return self._timeline.clock

    time = perf_counter

    def monotonic_ns(self) -> int:
        """A tick."""
        return next(self._ticks)

    def time_ns(self) -> int:
        """A tick."""
        return next(self._ticks)

    def sleep(self, seconds: float) -> None:
        """The recording never waits."""


class Timeline:
    """Clock, device, arrivals, and the record of steps.

    Attributes:
        clock: seconds.
        steps, first_token_s, finish_s, reused_tokens: as in a recording.
        retracted, preempted: ids since the last step.
        load_back: tokens and completion of the copy that the next step waits for, or None.
        law: seconds of a forward pass.
        wakes: functions that name the next time at which something outside the scheduler completes, or None.
    """

    def __init__(self, arrivals: Sequence[tuple[float, Any]], overlap: bool, spins: bool) -> None:
        self.clock = 0.0
        self.overlap = overlap
        self.spins = spins
        self.law: Callable[[Sequence[tuple[Any, int, int]]], float] = step_latency_s
        self.steps: list[dict[str, Any]] = []
        self.first_token_s: dict[str, float] = {}
        self.finish_s: dict[str, float] = {}
        self.reused_tokens: dict[str, int] = {}
        self.retracted: list[Any] = []
        self.preempted: list[Any] = []
        self.load_back: tuple[int, float] | None = None
        self.wakes: list[Any] = []
        self.storage_log: list[list[Any]] = []
        self.threads: Any = None
        self._arrivals = deque(arrivals)
        self._device_free = 0.0
        self._idle_passes = 0
        self._stuck_passes = 0
        self._idle = False

    def idle_pass(self) -> None:
        """A pass ended without a batch, and none is in flight."""
        self._idle = True

    def go_on(self) -> None:
        """The next pass is at once: the pass before it waited by itself."""
        self._idle = False

    def begin_pass(self, waiting: bool, live: bool) -> None:
        """The scheduler looks for requests: move the clock on if the pass before found nothing to do.

        Args:
            waiting: whether requests wait.
            live: whether any request is in the engine.

        Raises:
            Finished: nothing is left to come.
            StuckError: requests wait and nothing will ever change.
        """
        if not self._idle:
            self._idle_passes = self._stuck_passes = 0
            return
        self._idle = False
        self._idle_passes += 1
        if waiting and self.spins and self._idle_passes < _IDLE_PASSES:
            return
        times = [self._arrivals[0][0]] if self._arrivals else []
        if waiting or live:
            times.extend(time for wake in self.wakes if (time := wake()) is not None)
        later = [time for time in times if time > self.clock]
        if later:
            self.clock = min(later)
            self._idle_passes = self._stuck_passes = 0
        elif not waiting and not self._arrivals:
            raise Finished
        elif not times or self._stuck_passes > _STUCK_PASSES:
            self._stuck_passes += 1
            if self._stuck_passes > _STUCK_PASSES:
                raise StuckError(f"requests wait at {self.clock} s, and the scheduler admits none of them")
        else:
            self._stuck_passes += 1

    def due(self) -> list[Any]:
        """Requests that have arrived by now, in order."""
        arrived = []
        while self._arrivals and self._arrivals[0][0] <= self.clock:
            arrived.append(self._arrivals.popleft()[1])
        return arrived

    def launch(
        self,
        kind: str,
        batch: list[tuple[Any, int, int]],
        pool: tuple[int, ...],
        ratio: float,
        more_s: float = 0.0,
        host_s: float = 0.0,
    ) -> float:
        """Put a batch on the device, where it takes ``more_s`` longer than by the law; returns when it ends.

        It takes no less than the host needs for it, ``host_s``.
        """
        start = max(self.clock, self._device_free) if self.overlap else self.clock
        end = start + max(self.law(batch) + more_s, host_s)
        step: dict[str, Any] = {"start_s": round(start, 9), "kind": kind, "batch": [list(entry) for entry in batch]}
        if self.overlap:
            step["scheduled_s"] = round(self.clock, 9)
        if self.retracted:
            step["retracted"], self.retracted = self.retracted, []
        if self.preempted:
            step["preempted"], self.preempted = self.preempted, []
        if self.load_back is not None:
            step["load_back"] = [self.load_back[0], round(self.load_back[1], 9)]
            end, self.load_back = max(end, self.load_back[1]), None
        step["pool"], step["ratio"] = list(pool), round(ratio, 9)
        self.steps.append(step)
        self._device_free = end
        if kind != "decode":
            for name, computed, _ in batch:
                self.reused_tokens.setdefault(str(name), computed)
        return end

    def result(self, end: float) -> None:
        """The scheduler waits for a batch's results."""
        self.clock = max(self.clock, end)

    def token(self, name: Any, finished: bool) -> None:
        """A request has a token now, perhaps its last."""
        self.first_token_s.setdefault(str(name), round(self.clock, 9))
        if finished:
            self.finish_s.setdefault(str(name), round(self.clock, 9))
