"""Says that kernels are being compiled, and for how long already: the first run of an engine takes minutes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hisearch.cli.output import note

if TYPE_CHECKING:
    from hisearch.simulate.engine import Variant

#: Seconds between two lines.
INTERVAL_S = 15.0


class _Watch(threading.Thread):
    """Says every ``INTERVAL_S`` that it still goes on, until all is compiled or nobody waits for it any more."""

    def __init__(self, variants: list[Variant]) -> None:
        super().__init__(daemon=True)
        self._variants = variants
        self._left = threading.Event()

    def run(self) -> None:
        from hisearch.simulate.engine import is_prepared

        started = time.monotonic()
        while not self._left.wait(INTERVAL_S):
            elapsed = f"{time.monotonic() - started:.0f} s"
            if is_prepared(self._variants):
                note(f"kernels compiled, in {elapsed} at most")
                return
            note(f"compiling the kernels (once): {elapsed}")

    def leave(self) -> None:
        """Say no more."""
        self._left.set()
        self.join()


_watches: list[_Watch] = []


def note_compilation(variants: Iterable[Variant] = ()) -> None:
    """Say so where the event loop, or what simulates these engines, is about to be compiled, and go on to say so.

    Lines come from a thread, as whatever compiles holds up the caller; ``end_notes`` ends it.
    """
    from hisearch.simulate.engine import is_prepared

    asked = list(variants)
    if is_prepared(asked):
        return
    note("compiling the kernels (once): one to three minutes where two cores are free")
    watch = _Watch(asked)
    watch.start()
    _watches.append(watch)


def end_notes() -> None:
    """The verb has ended, whether or not everything was compiled."""
    while _watches:
        _watches.pop().leave()
