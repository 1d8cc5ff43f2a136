"""Prints which kernels are being compiled, which are done, and the time elapsed: a first run compiles for a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from hisearch.cli.output import note
from hisearch.specs.wording import listed

#: Seconds between two lines, and between two checks whether compilation has ended.
INTERVAL_S = 15.0
LOOK_S = 0.5


class _Watch(threading.Thread):
    """Prints a line for what is compiled, and every ``INTERVAL_S``, until all is or ``leave`` is called."""

    def __init__(self, engines: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._engines = engines
        self._left = threading.Event()

    def run(self) -> None:
        from hisearch.simulate.engine import is_prepared

        started = last_note = time.monotonic()
        missing = _missing(self._engines)
        while not self._left.wait(min(LOOK_S, INTERVAL_S)):
            now = time.monotonic()
            if is_prepared(self._engines):
                note(f"these kernels are compiled, after {now - started:.0f} s")
                return
            left = _missing(self._engines)
            if left and left != missing:
                done = listed([name for name in missing if name not in left])
                note(f"compiled after {now - started:.0f} s: {done}; still to come: {listed(left)}")
                missing, last_note = left, now
            if now - last_note >= INTERVAL_S:
                last_note = now
                note(f"compiling kernels: {now - started:.0f} s")

    def leave(self) -> None:
        """Stop printing."""
        self._left.set()
        self.join()


_watches: list[_Watch] = []
_listening = ExitStack()


def note_compilation(quiet: bool = False) -> None:
    """Print a note whenever kernels are compiled from now on, until ``end_notes``; nothing if quiet.

    A verb calls this after it has checked its inputs. A thread prints the lines, because compilation
    blocks the caller.
    """
    from hisearch.simulate.engine import on_compilation

    if not quiet:
        _listening.enter_context(on_compilation(_watch))


def _watch(engines: Sequence[int]) -> None:
    how_long = " (about a minute where two cores are free; kept, so that each engine is compiled once)"
    note(f"compiling kernels: {listed(_missing(engines))}{'' if _watches else how_long}")
    watch = _Watch(engines)
    watch.start()
    _watches.append(watch)


def _missing(engines: Sequence[int]) -> list[str]:
    """The names of what is not compiled yet."""
    from hisearch.kernels.engine.engine_calls import NAMES
    from hisearch.kernels.fleet.compilation import event_loop_is_compiled, missing_of

    return ["the event loop"] * (not event_loop_is_compiled()) + [NAMES[engine] for engine in missing_of(engines)]


def end_notes() -> None:
    """Stop printing notes: the verb has ended, with or without everything compiled."""
    _listening.close()
    while _watches:
        _watches.pop().leave()
