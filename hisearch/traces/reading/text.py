"""Text of trace files, read within bounds: whatever a file holds, its lines fit into memory."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hisearch.traces.reading.errors import TraceError

PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"
#: Archives that are not unpacked here, by how they begin.
_PACKED = ((b"PK\x03\x04", "zip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"))
#: Characters of a line; a session of agents with a thousand calls takes a hundredth of it.
MAX_LINE = 1 << 25
#: A gzip archive may unpack to so many bytes, and beyond that to so many times its own size.
FREE_BYTES, MAX_RATIO = 1 << 24, 500


class _Unpacked(io.RawIOBase):
    """The bytes of a gzip archive, refused where they are out of proportion to it."""

    def __init__(self, raw: Any, packed_bytes: int, path: Path) -> None:
        self._data = gzip.GzipFile(fileobj=raw)
        self._most = max(FREE_BYTES, MAX_RATIO * packed_bytes)
        self._path = path
        self._count = 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``; see ``io.RawIOBase``."""
        content = self._data.read1(len(buffer))
        self._count += len(content)
        if self._count > self._most:
            message = f"gzip archive that unpacks to more than {MAX_RATIO} times its size: unpack it first"
            raise TraceError.at(message, path=self._path)
        buffer[: len(content)] = content
        return len(content)


def first_bytes(path: Path) -> bytes:
    """The first few bytes of a file, by which its kind is told; none where it cannot be opened."""
    try:
        with path.open("rb") as raw:
            return raw.read(8)
    except OSError:
        return b""


def is_parquet(path: Path) -> bool:
    """True for a parquet file, by its content."""
    return first_bytes(path).startswith(PARQUET_MAGIC)


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOBase]:
    """Text of a file, unpacked where it is gzip (by content, whatever its name).

    Raises:
        TraceError: no such file, not readable, not UTF-8 or a broken archive.
    """
    try:
        with path.open("rb") as raw:
            start = raw.read(8)
            raw.seek(0)
            _refuse_binary(start, path)
            size = path.stat().st_size
            data = io.BufferedReader(_Unpacked(raw, size, path)) if start.startswith(GZIP_MAGIC) else raw
            with io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as text:
                yield text
    except FileNotFoundError as error:
        raise TraceError.at("no such file", path=path) from error
    except IsADirectoryError as error:
        raise TraceError.at("expected a file, found a folder", path=path) from error
    except UnicodeDecodeError as error:
        raise TraceError.at(f"expected UTF-8 text: {error.reason} at byte {error.start}", path=path) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError.at(f"broken gzip archive: {error}", path=path) from error
    except OSError as error:
        raise TraceError.at(error.strerror or str(error), path=path) from error


def _refuse_binary(start: bytes, path: Path) -> None:
    if start.startswith(PARQUET_MAGIC):
        raise TraceError.at("expected text, found a parquet file", path=path)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise TraceError.at("expected UTF-8 text, found UTF-16: save it as UTF-8", path=path)
    packed = next((name for magic, name in _PACKED if start.startswith(magic)), None)
    if packed is not None:
        sheet = ", or save a spreadsheet as CSV" if packed == "zip" else ""
        raise TraceError.at(f"expected text or gzip, found a {packed} archive: unpack it first{sheet}", path=path)


def lines(text: io.TextIOBase, path: Path) -> Iterator[str]:
    """Lines with their ends, each of at most ``MAX_LINE`` characters.

    Raises:
        TraceError: a line is longer.
    """
    number = 0
    while content := text.readline(MAX_LINE + 1):
        number += 1
        if len(content) > MAX_LINE:
            message = f"expected lines of at most {MAX_LINE:,} characters"
            raise TraceError.at(message, path=path, line=number)
        yield content
