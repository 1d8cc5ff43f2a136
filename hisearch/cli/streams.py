"""Standard output and error whose reader may leave: ``hisearch … | head`` is no error."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Leavable:
    """A text stream that silently discards its output once its reader has gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``; returns the number of characters written."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._go_nowhere()
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._go_nowhere()

    def _go_nowhere(self) -> None:
        """Send buffered and later output to the null device."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def leavable_streams() -> Iterator[None]:
    """Within, a reader of standard output or error may leave: the command goes on and keeps its exit code."""
    original = sys.stdout, sys.stderr
    for stream in original:
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Unicode gets question marks, not an error
            stream.reconfigure(errors="replace")
    sys.stdout, sys.stderr = (cast(TextIO, _Leavable(stream)) for stream in original)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = original
