"""Reads the JSON files of a run folder into dataclasses."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

#: How sure the recommendation is, see ``data.confidence``.
CONFIDENCE = "confidence.json"

_T = TypeVar("_T")


def read_stored(path: Path, kind: type[_T], *, strict: bool = False) -> _T:
    """A JSON file as a ``kind``; unknown keys are ignored.

    Args:
        path: the file.
        kind: the dataclass of its content.
        strict: 1 is then no truth value, and true no number.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, or not of this form; names file and key.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(path.read_bytes(), strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        got = "" if first["type"] in ("json_invalid", "missing") else f", got {first['input']!r}"
        raise ValueError(f"{path}: {key}{': ' if key else ''}{first['msg']}{got}") from error
