"""Progress reports of a search: a small protocol, silent without a listener."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID


class Progress(Protocol):
    """Receiver of a search's progress. Calls come from one thread, stages one after another."""

    def started(self, stage: str, total: int, limit_s: float = math.inf) -> None:
        """A stage begins; it will make at most ``total`` advances, within ``limit_s`` seconds."""

    def advanced(self, done: int, *notes: str) -> None:
        """``done`` more steps are finished; ``notes`` describe the stage's results so far, empty ones left out."""

    def finished(self) -> None:
        """The current stage ends, possibly before its total."""


class SilentProgress:
    """Says nothing."""

    def started(self, stage: str, total: int, limit_s: float = math.inf) -> None:
        """Ignore."""

    def advanced(self, done: int, *notes: str) -> None:
        """Ignore."""

    def finished(self) -> None:
        """Ignore."""


#: Seconds over which a stage's pace is measured, and the least of them that tell one.
PACE_WINDOW_S = 30.0
LEAST_WINDOW_S = 3.0


class Pace:
    """Recent pace of a stage, and the time it may still take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()
        self._done = 0
        self.begin()

    def begin(self, limit_s: float = math.inf) -> None:
        """A stage begins, which ends within ``limit_s`` seconds."""
        self._done = 0
        self._ends_at_s = self._clock() + limit_s
        self._marks.clear()
        self._marks.append((self._clock(), 0))

    def advance(self, done: int) -> None:
        """``done`` more steps are finished."""
        now_s = self._clock()
        self._done += done
        self._marks.append((now_s, self._done))
        while len(self._marks) > 2 and self._marks[1][0] < now_s - PACE_WINDOW_S:
            self._marks.popleft()

    def left(self, total: int) -> str:
        """``at most 14 s left``; "" while unknown. An upper bound, as a stage may not need all its steps."""
        (first_s, before), (last_s, done) = self._marks[0], self._marks[-1]
        if done <= before or last_s - first_s < LEAST_WINDOW_S or done >= total:
            return ""
        seconds_left = (total - done) * (last_s - first_s) / (done - before)
        seconds = math.ceil(max(min(seconds_left, self._ends_at_s - last_s), 0.0))
        minutes, rest = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        shown = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
        return f"at most {shown} left"


class PlainProgress:
    """Lines when a stage makes its first progress, every few seconds, and when it ends: for logs and pipes.

    Stages without any progress are not reported.
    """

    def __init__(self, stream: TextIO | None = None, interval_s: float = 5.0) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._interval_s = interval_s
        self._stage, self._total, self._done = "", 0, 0
        self._last = ""
        self._said_at = 0.0
        self._pace = Pace()

    def started(self, stage: str, total: int, limit_s: float = math.inf) -> None:
        """A stage may begin; it is reported with its first step."""
        self._stage, self._total, self._done, self._last = stage, total, 0, ""
        self._pace.begin(limit_s)

    def advanced(self, done: int, *notes: str) -> None:
        """Report the stage's progress, at most once per interval; steps after its end are not reported."""
        if not self._stage:
            return
        if self._done == 0 and done > 0:
            self._said_at = time.monotonic()
            self._say(f"{self._stage}: up to {self._total:,}")
        self._done += done
        self._pace.advance(done)
        self._last = "; ".join(note for note in notes if note)
        if time.monotonic() - self._said_at >= self._interval_s:
            self._said_at = time.monotonic()
            parts = (f"{self._stage}: {self._done:,} of {self._total:,}", self._last, self._pace.left(self._total))
            self._say("; ".join(text for text in parts if text))

    def finished(self) -> None:
        """Report the stage's result."""
        if self._done:
            self._say("; ".join(text for text in (f"{self._stage}: {self._done:,} done", self._last) if text))
        self._stage = ""

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class BarProgress:
    """One bar per stage on a terminal (standard error); a context manager, so that the terminal is always restored."""

    def __init__(self) -> None:
        self._bars: RichBars | None = None
        self._task: TaskID | None = None
        self._total, self._said = 0, ""
        self._pace = Pace()

    def __enter__(self) -> BarProgress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(stderr=True),
        )
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def started(self, stage: str, total: int, limit_s: float = math.inf) -> None:
        """Add the stage's bar."""
        if self._bars is None:
            raise RuntimeError("BarProgress is a context manager: use it in a with statement")
        self._task, self._total, self._said = self._bars.add_task(stage, total=total, note=""), total, ""
        self._pace.begin(limit_s)

    def advanced(self, done: int, *notes: str) -> None:
        """Move the current bar."""
        if self._bars is not None and self._task is not None:
            self._pace.advance(done)
            self._said = "  ".join(note for note in notes if note)
            left = self._pace.left(self._total)
            self._bars.update(self._task, advance=done, note=f"{self._said}  {left}" if left else self._said)

    def finished(self) -> None:
        """Fill the current bar: the stage is over, even if it did not need all its steps. Without any, remove it."""
        if self._bars is None or self._task is None:
            return
        done = next(int(task.completed) for task in self._bars.tasks if task.id == self._task)
        if done:
            self._bars.update(self._task, total=done, completed=done, note=self._said)
        else:
            self._bars.remove_task(self._task)
        self._task = None
