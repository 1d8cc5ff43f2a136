"""Threads of the engine on the virtual clock: one runs at a time, and time passes only where a thread waits."""

# ruff: noqa: D102 - methods named after those of the library or the engine that they stand in for

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Any


class _Closed(BaseException):
    """Ends a thread that waits when the recording is over."""


class VirtualThreads:
    """All threads of one recording.

    Attributes:
        now: virtual time inside the running thread, seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = 0.0
        self.running: _Thread | None = None
        self._clock = clock
        self._due: list[tuple[float, int, _Thread]] = []
        self._order = itertools.count()
        self._threads: list[_Thread] = []
        self._closed = False

    def thread(self, target: Callable[[], None], daemon: bool = True, **_: Any) -> _Thread:
        """Stands in for ``threading.Thread``."""
        created = _Thread(self, target)
        self._threads.append(created)
        return created

    def queue_class(self) -> type[VirtualQueue]:
        """Stands in for ``queue.Queue``."""
        threads = self

        class Queue(VirtualQueue):
            def __init__(self, maxsize: int = 0) -> None:
                super().__init__(threads)

            def __class_getitem__(cls, item: Any) -> Any:
                return cls

        return Queue

    def time(self) -> float:
        """Now, for whoever asks: a thread of these, or the scheduler."""
        return self.now if self.running is not None else self._clock()

    def wake(self, thread: _Thread, time: float) -> None:
        """Let a thread continue at a time."""
        heapq.heappush(self._due, (time, next(self._order), thread))

    def sleep(self, seconds: float) -> None:
        """Time passes for the running thread; the scheduler does not wait."""
        if self.running is not None:
            self.wake(self.running, self.now + seconds)
            self.pause()

    def pause(self) -> None:
        """The running thread waits to be woken."""
        thread = self.running
        assert thread is not None
        thread.back.release()
        thread.go.acquire()
        if self._closed:
            raise _Closed

    def next_time(self) -> float | None:
        """When the next thread continues."""
        self.advance()
        return self._due[0][0] if self._due else None

    def advance(self) -> None:
        """Run all threads up to the scheduler's clock; none when the recording is over."""
        while not self._closed and self._due and self._due[0][0] <= self._clock():
            time, _, thread = heapq.heappop(self._due)
            self.now = max(self.now, time)
            self._resume(thread)

    def close(self) -> None:
        """End all threads."""
        self._closed = True
        for thread in self._threads:
            if thread.started and not thread.over:
                self._resume(thread)

    def _resume(self, thread: _Thread) -> None:
        self.running = thread
        thread.go.release()
        thread.back.acquire()
        self.running = None
        if thread.error is not None:
            raise thread.error


class _Thread:
    def __init__(self, threads: VirtualThreads, target: Callable[[], None]) -> None:
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.started = self.over = False
        self.error: BaseException | None = None
        self._threads, self._target = threads, target
        self._real = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.started = True
        self._real.start()
        self._threads.wake(self, self._threads.time())

    def is_alive(self) -> bool:
        return self.started and not self.over

    def join(self, timeout: float | None = None) -> None:
        """Let threads that were told to stop come to where they see it."""
        self._threads.advance()

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self._threads._closed:
                self._target()
        except _Closed:
            pass
        except BaseException as error:  # raised anew in the thread that waits for this one
            self.error = error
        self.over = True
        self.back.release()


class VirtualQueue:
    """Stands in for ``queue.Queue``: a thread waits on it in virtual time, the scheduler never does."""

    def __init__(self, threads: VirtualThreads) -> None:
        self.queue: deque[Any] = deque()
        self._threads = threads
        self._waiting: deque[_Thread] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if self._threads.running is None:
            # Whoever takes from this queue must have done before what it had to do until now.
            self._threads.advance()
        self.queue.append(item)
        if self._waiting:
            self._threads.wake(self._waiting.popleft(), self._threads.time())

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self.queue:
            thread = self._threads.running
            if thread is None or not block:
                raise Empty
            self._waiting.append(thread)
            self._threads.pause()
        return self.queue.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self.queue)

    def empty(self) -> bool:
        return not self.queue

    def full(self) -> bool:
        return False
