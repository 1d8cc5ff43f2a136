"""Signals that end a search: at a safe place the first time, at once the second time."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any

#: A command ended by a signal exits with this plus the signal's number, as shells report it.
EXIT_CODE_BASE = 128

#: Signals within this many seconds of the first count as the same one: a terminal sends Ctrl-C to a whole group of
#: processes, and wrappers such as ``timeout`` or ``uv run`` pass it on once more.
SAME_SIGNAL_S = 0.5


class Interrupts:
    """Inside this context a signal raises ``KeyboardInterrupt``, except within ``deferred`` blocks.

    A deferred block runs to its end and checks ``received`` where it could stop. Within it, the exception only wakes a
    thread that is ``waiting`` for others.
    """

    def __init__(self, signals: Sequence[int] = (signal.SIGINT,), *, exit_at_once: bool = False) -> None:
        """Prepare; nothing is installed before the context is entered.

        Args:
            signals: those that end the search.
            exit_at_once: a second signal ends the process immediately, even within kernels and after this context.
                Otherwise it raises ``KeyboardInterrupt`` wherever the program is.
        """
        self.received: int | None = None
        self._signals = tuple(signals)
        self._exit_at_once = exit_at_once
        self._received_at_s = math.inf
        self._deferred = self._waiting = 0
        self._before: dict[int, Any] = {}
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._wakeup_before = -1

    @property
    def exit_code(self) -> int | None:
        """Exit code of a command ended by the signal; None without a signal."""
        return None if self.received is None else EXIT_CODE_BASE + self.received

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # handlers can only be installed there
            if self._exit_at_once:
                self._watch()
            self._before = {number: signal.signal(number, self._handle) for number in self._signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = self._exit_at_once and self.received is not None  # Python's handlers do not run during shutdown
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if ending else handler)
        self._before = {}
        if self._wakeup is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            for end in self._wakeup:
                end.close()
            self._wakeup = None

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """The first signal does not interrupt this block."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A signal interrupts this block even within ``deferred``; at once if it has come before."""
        self._waiting += 1
        try:
            if self.received is not None:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting -= 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self.received is None
        if first:
            self.received, self._received_at_s = number, time.monotonic()
        elif time.monotonic() - self._received_at_s < SAME_SIGNAL_S:
            return
        if not first or not self._deferred or self._waiting:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """Count signals in a thread: Python's handlers must wait for a kernel on the main thread."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._wakeup = reader, writer
        self._wakeup_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._exit_on_second, args=(reader,), name="signals", daemon=True).start()

    def _exit_on_second(self, reader: socket.socket) -> None:
        first_s = math.inf
        with contextlib.suppress(OSError):  # closed: the context has ended
            while numbers := reader.recv(16):
                now_s = time.monotonic()
                for number in set(numbers).intersection(self._signals):
                    first_s = min(first_s, now_s)
                    if now_s - first_s >= SAME_SIGNAL_S:
                        _exit_now(number)


def _exit_now(number: int) -> None:
    """End the process without clean-up, except for the terminal's cursor, which a progress bar hides."""
    show_cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""
    os.write(2, f"{show_cursor}hisearch: stopped at once\n".encode())
    os._exit(EXIT_CODE_BASE + number)
