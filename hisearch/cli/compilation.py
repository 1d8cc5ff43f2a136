"""Says that kernels are being compiled, and for how long already: the first run of an engine takes minutes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from hisearch.cli.output import note

#: Seconds between two lines.
INTERVAL_S = 15.0


class _Watch(threading.Thread):
    """Says every ``INTERVAL_S`` that it still goes on, until all is compiled or nobody waits for it any more."""

    def __init__(self, doors: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._doors = doors
        self._left = threading.Event()

    def run(self) -> None:
        from hisearch.simulate.engine import is_prepared

        started = time.monotonic()
        while not self._left.wait(INTERVAL_S):
            elapsed = f"{time.monotonic() - started:.0f} s"
            if is_prepared(self._doors):
                note(f"kernels compiled, in {elapsed} at most")
                return
            note(f"compiling the kernels (once): {elapsed}")

    def leave(self) -> None:
        """Say no more."""
        self._left.set()
        self.join()


_watches: list[_Watch] = []
_listening = ExitStack()


def note_compilation() -> None:
    """From now on say so where kernels are about to be compiled, and go on to say so; ``end_notes`` ends it.

    Nothing is said before: a verb reads and checks its inputs first. Lines come from a thread, as whatever compiles
    holds up the caller.
    """
    from hisearch.simulate.engine import on_compilation

    _listening.enter_context(on_compilation(_watch))


def _watch(doors: Sequence[int]) -> None:
    if not _watches:
        note("compiling the kernels (once): one to three minutes where two cores are free")
    watch = _Watch(doors)
    watch.start()
    _watches.append(watch)


def end_notes() -> None:
    """The verb has ended, whether or not everything was compiled."""
    _listening.close()
    while _watches:
        _watches.pop().leave()
