"""Streams and events of a device on the virtual clock, and the law of copies between device and host."""

# ruff: noqa: D102, N802 - methods named after those of the library or the engine that they stand in for

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hisearch.record.sglang.timeline import Timeline


class Stream:
    """Work on a stream runs one after another.

    Attributes:
        free_at: when all work given to it so far is done.
    """

    def __init__(self) -> None:
        self.free_at = 0.0

    def wait_event(self, event: Event) -> None:
        self.free_at = max(self.free_at, event.time)

    def wait_stream(self, stream: Stream) -> None:
        self.free_at = max(self.free_at, stream.free_at)

    def synchronize(self) -> None:
        pass


class Event:
    """Done when the stream that recorded it has come to it; one that nobody recorded is done."""

    def __init__(self, device: Device) -> None:
        self.time = 0.0
        self._device = device

    def record(self, stream: Stream | None = None) -> None:
        self.time = (stream or self._device.current).free_at
        self._device.completions.append(self.time)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self._device.current).wait_event(self)

    def query(self) -> bool:
        return self.time <= self._device.timeline.clock

    def synchronize(self) -> None:
        self._device.timeline.result(self.time)

    def elapsed_time(self, other: Event) -> float:
        return (other.time - self.time) * 1e3


class Device:
    """Stands in for ``torch.cuda`` in the engine's cache controller.

    Attributes:
        timeline: the clock.
        current: the stream that work goes to.
        completions: times at which copies end, and some that are past.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.current = Stream()
        self.completions: list[float] = []
        timeline.wakes.append(self._next_completion)

    def Stream(self, *args: Any, **kwargs: Any) -> Stream:
        return Stream()

    def Event(self, *args: Any, **kwargs: Any) -> Event:
        return Event(self)

    def current_stream(self, *args: Any) -> Any:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[Any]:
        before, self.current = self.current, stream
        yield stream
        self.current = before

    def copy(self, tokens: int, base_s: float, per_token_s: float) -> None:
        """A copy on the current stream, beginning now or behind what the stream has to do."""
        self.current.free_at = max(self.current.free_at, self.timeline.clock) + (base_s + per_token_s * tokens)

    def _next_completion(self) -> float | None:
        self.completions = [time for time in self.completions if time > self.timeline.clock]
        return min(self.completions, default=None)
