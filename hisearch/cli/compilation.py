"""Says which kernels are being compiled, and for how long already: the first run of an engine takes minutes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from hisearch.cli.output import note
from hisearch.specs.wording import listed

#: Seconds between two lines, and between two looks at whether all is compiled.
INTERVAL_S = 15.0
LOOK_S = 0.5


class _Watch(threading.Thread):
    """Says every ``INTERVAL_S`` that it still goes on, until all is compiled or nobody waits for it any more."""

    def __init__(self, engines: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._engines = engines
        self._left = threading.Event()

    def run(self) -> None:
        from hisearch.simulate.engine import is_prepared

        started = said = time.monotonic()
        while not self._left.wait(min(LOOK_S, INTERVAL_S)):
            now = time.monotonic()
            if is_prepared(self._engines):
                note(f"these kernels are compiled, after {now - started:.0f} s")
                return
            if now - said >= INTERVAL_S:
                said = now
                note(f"compiling kernels: {now - started:.0f} s")

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


def _watch(engines: Sequence[int]) -> None:
    how_long = " (one to three minutes where two cores are free; kept, so that each engine is compiled once)"
    note(f"compiling kernels: {_missing(engines)}{'' if _watches else how_long}")
    watch = _Watch(engines)
    watch.start()
    _watches.append(watch)


def _missing(engines: Sequence[int]) -> str:
    """What of ``engines`` is to be compiled, in words."""
    from hisearch.kernels.engine.engine_calls import NAMES
    from hisearch.kernels.fleet.compilation import event_loop_is_compiled, missing_of

    return listed(
        ["the event loop"] * (not event_loop_is_compiled()) + [NAMES[engine] for engine in missing_of(engines)]
    )


def end_notes() -> None:
    """The verb has ended, whether or not everything was compiled."""
    _listening.close()
    while _watches:
        _watches.pop().leave()
