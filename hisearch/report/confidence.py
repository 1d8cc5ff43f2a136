"""How sure a recommendation is: ``confidence.json`` of a run folder, where it has one.

The file's object has ``terms`` (label of an SLO term -> probability that it holds), ``intervals`` (metric -> [low,
high], the range that it lies in, in the metric's own unit) and ``headroom`` (anything said of it). Further keys are
allowed and left alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Name of the file in a run folder.
CONFIDENCE = "confidence.json"


@dataclass(frozen=True)
class Confidence:
    """terms: label -> probability, 0 to 1. intervals: metric -> (low, high). headroom: as written."""

    terms: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    headroom: Mapping[str, Any] = field(default_factory=dict)


def read_confidence(path: Path) -> Confidence | None:
    """What the file says; None where there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it says something else than this module's head; names file and key.
    """
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON ({error.msg})") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected an object, got {type(data).__name__}")
    return Confidence(
        {label: _probability(value, path, f"terms.{label}") for label, value in _object(data, "terms", path).items()},
        {name: _interval(value, path, f"intervals.{name}") for name, value in _object(data, "intervals", path).items()},
        _object(data, "headroom", path),
    )


def _object(data: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {key}: expected an object, got {type(value).__name__}")
    return value


def _probability(value: Any, path: Path, key: str) -> float:
    if not _is_number(value) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{path}: {key}: expected a probability, 0 to 1, got {value!r}")
    return float(value)


def _interval(value: Any, path: Path, key: str) -> tuple[float, float]:
    numbers = isinstance(value, list) and len(value) == 2 and all(_is_number(end) for end in value)
    if not numbers or not value[0] <= value[1]:
        raise ValueError(f"{path}: {key}: expected [low, high] with low at most high, got {value!r}")
    return float(value[0]), float(value[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
