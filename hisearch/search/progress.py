"""How a search reports its progress: a small protocol, silent unless somebody listens."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID


class Progress(Protocol):
    """Receiver of a search's progress. Calls come from one thread, stages one after another."""

    def started(self, stage: str, total: int) -> None:
        """A stage begins; it will make at most ``total`` advances."""

    def advanced(self, done: int, *notes: str) -> None:
        """``done`` more steps are finished; ``notes`` say what came of the stage so far, empty ones left out."""

    def finished(self) -> None:
        """The current stage ends, possibly before its total."""


class SilentProgress:
    """Says nothing."""

    def started(self, stage: str, total: int) -> None:
        """Ignore."""

    def advanced(self, done: int, *notes: str) -> None:
        """Ignore."""

    def finished(self) -> None:
        """Ignore."""


class PlainProgress:
    """One line per stage and every few seconds in between: for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, interval_s: float = 5.0) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._interval_s = interval_s
        self._stage, self._total, self._done = "", 0, 0
        self._last = ""
        self._said_at = 0.0

    def started(self, stage: str, total: int) -> None:
        """Say which stage begins."""
        self._stage, self._total, self._done, self._last = stage, total, 0, ""
        self._said_at = time.monotonic()
        self._say(f"{stage}: up to {total:,}")

    def advanced(self, done: int, *notes: str) -> None:
        """Say how far the stage is, at most once per interval."""
        self._done += done
        self._last = "; ".join(note for note in notes if note)
        if time.monotonic() - self._said_at >= self._interval_s:
            self._said_at = time.monotonic()
            self._say(
                "; ".join(part for part in (f"{self._stage}: {self._done:,} of {self._total:,}", self._last) if part)
            )

    def finished(self) -> None:
        """Say what the stage came to."""
        self._say("; ".join(part for part in (f"{self._stage}: {self._done:,} done", self._last) if part))

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class BarProgress:
    """One bar per stage on a terminal (standard error); a context manager, so that the terminal is always restored."""

    def __init__(self) -> None:
        self._bars: RichBars | None = None
        self._task: TaskID | None = None

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

    def started(self, stage: str, total: int) -> None:
        """Add the stage's bar."""
        if self._bars is None:
            raise RuntimeError("BarProgress is a context manager: use it in a with statement")
        self._task = self._bars.add_task(stage, total=total, note="")

    def advanced(self, done: int, *notes: str) -> None:
        """Move the current bar."""
        if self._bars is not None and self._task is not None:
            note = "  ".join(note for note in notes if note)
            self._bars.update(self._task, advance=done, note=note)

    def finished(self) -> None:
        """Fill the current bar: the stage is over, whether or not it needed all its steps."""
        if self._bars is not None and self._task is not None:
            done = int(self._bars.tasks[self._task].completed)
            self._bars.update(self._task, total=max(done, 1), completed=max(done, 1))
            self._task = None
