"""Prints which kernels are being compiled and the time elapsed: the first run of an engine compiles for minutes."""

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
    """Prints a line every ``INTERVAL_S`` until all kernels are compiled or ``leave`` is called."""

    def __init__(self, engines: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._engines = engines
        self._left = threading.Event()

    def run(self) -> None:
        from hisearch.simulate.engine import is_prepared

        started = last_note = time.monotonic()
        while not self._left.wait(min(LOOK_S, INTERVAL_S)):
            now = time.monotonic()
            if is_prepared(self._engines):
                note(f"these kernels are compiled, after {now - started:.0f} s")
                return
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
    how_long = " (one to three minutes where two cores are free; kept, so that each engine is compiled once)"
    note(f"compiling kernels: {_missing(engines)}{'' if _watches else how_long}")
    watch = _Watch(engines)
    watch.start()
    _watches.append(watch)


def _missing(engines: Sequence[int]) -> str:
    """The names of the engines that are not compiled yet, joined for display."""
    from hisearch.kernels.engine.engine_calls import NAMES
    from hisearch.kernels.fleet.compilation import event_loop_is_compiled, missing_of

    return listed(
        ["the event loop"] * (not event_loop_is_compiled()) + [NAMES[engine] for engine in missing_of(engines)]
    )


def end_notes() -> None:
    """Stop printing notes: the verb has ended, with or without everything compiled."""
    _listening.close()
    while _watches:
        _watches.pop().leave()
