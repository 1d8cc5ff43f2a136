"""How sure a recommendation is: the optional ``confidence.json`` of a run folder.

The file's object has ``terms`` (label of an SLO term -> probability that it holds), ``intervals`` (metric -> [low,
high], its range with probability ``level``, in the metric's own unit), ``headroom`` (any object),
``all_terms`` (probability that the whole SLO holds) and ``all_terms_range`` ([low, high]). ``hisearch
run`` (docs/confidence.md) also writes ``summary``, ``satisfied``, ``surer``, ``contenders``, ``rules``,
``sentences`` and ``simulations``. All keys are optional; unknown keys are ignored.
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
class Candidate:
    """A deployment under the first draws. chance: that it meets the SLO; cheapest: that no cheaper one does.

    chance_range: confidence interval of ``chance``; None where not stated.
    """

    trial: int
    draws: int
    chance: float
    cheapest: float
    chance_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Rule:
    """A rule's recommendation, its reason, and the comparison with the engine's defaults."""

    rule: str
    trial: int
    reason: str
    against_baseline: str


@dataclass(frozen=True)
class Confidence:
    """terms: label -> probability, 0 to 1. intervals: metric -> (low, high). headroom: as written.

    chance: probability that the recommendation meets the whole SLO, None where not stated; chance_range: its confidence
    interval. level: of the intervals, None where not stated. summary: as text. satisfied: whether the requested
    probability is reached, None without a request. rules_within: as text, the price limit of rules that need one.
    draws: behind ``chance``, 0 where not stated. sentences: what would change the answer, by kind. simulations: by
    purpose. chance_constrained: as text, the price of the chance-constrained recommendation.
    chance_constrained_row: whether a deployment with that probability is known.
    """

    terms: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    headroom: Mapping[str, Any] = field(default_factory=dict)
    level: float | None = None
    summary: str = ""
    satisfied: bool | None = None
    candidates: tuple[Candidate, ...] = ()
    rules: tuple[Rule, ...] = ()
    rules_within: str = ""
    sentences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    simulations: Mapping[str, int] = field(default_factory=dict)
    chance: float | None = None
    chance_range: tuple[float, float] | None = None
    draws: int = 0
    chance_constrained: str = ""
    chance_constrained_row: bool = False


def read_confidence(path: Path) -> Confidence | None:
    """The file's content; None without a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it does not follow the module's docstring; names file and key.
    """
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON ({error.msg})") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected an object, got {type(data).__name__}")
    level, chance = data.get("level"), data.get("all_terms")
    return Confidence(
        {label: _probability(value, path, f"terms.{label}") for label, value in _object(data, "terms", path).items()},
        {name: _interval(value, path, f"intervals.{name}") for name, value in _object(data, "intervals", path).items()},
        _object(data, "headroom", path),
        None if level is None else _probability(level, path, "level"),
        _typed(data.get("summary", ""), str, path, "summary"),
        None if data.get("satisfied") is None else _typed(data["satisfied"], bool, path, "satisfied"),
        tuple(_candidate(row, path, f"contenders[{at}]") for at, row in enumerate(_list(data, "contenders", path))),
        tuple(_rule(row, path, f"rules[{at}]") for at, row in enumerate(_list(data, "rules", path))),
        _typed(data.get("rules_within", ""), str, path, "rules_within"),
        {
            kind: tuple(_typed(text, str, path, f"sentences.{kind}") for text in _typed(texts, list, path, kind))
            for kind, texts in _object(data, "sentences", path).items()
        },
        {
            purpose: _typed(count, int, path, f"simulations.{purpose}")
            for purpose, count in _object(data, "simulations", path).items()
        },
        None if chance is None else _probability(chance, path, "all_terms"),
        _range(data.get("all_terms_range"), path, "all_terms_range"),
        _typed(data.get("draws", 0), int, path, "draws"),
        _typed(_object(data, "surer", path).get("sentence", ""), str, path, "surer.sentence"),
        _object(data, "surer", path).get("trial") is not None,
    )


def _candidate(row: Any, path: Path, key: str) -> Candidate:
    row = _typed(row, dict, path, key)
    return Candidate(
        _typed(row.get("trial"), int, path, f"{key}.trial"),
        _typed(row.get("draws"), int, path, f"{key}.draws"),
        _probability(row.get("all_terms"), path, f"{key}.all_terms"),
        _probability(row.get("cheapest"), path, f"{key}.cheapest"),
        _range(row.get("all_terms_range"), path, f"{key}.all_terms_range"),
    )


def _rule(row: Any, path: Path, key: str) -> Rule:
    row = _typed(row, dict, path, key)
    return Rule(
        _typed(row.get("rule"), str, path, f"{key}.rule"),
        _typed(row.get("trial"), int, path, f"{key}.trial"),
        _typed(row.get("reason"), str, path, f"{key}.reason"),
        _typed(row.get("against_baseline"), str, path, f"{key}.against_baseline"),
    )


def _list(data: dict[str, Any], key: str, path: Path) -> list[Any]:
    rows: list[Any] = _typed(data.get(key, []), list, path, key)
    return rows


def _typed(value: Any, kind: type | tuple[type, ...], path: Path, key: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(accepted.__name__ for accepted in kinds)
        raise ValueError(f"{path}: {key}: expected {expected}, got {value!r}")
    return value


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


def _range(value: Any, path: Path, key: str) -> tuple[float, float] | None:
    return None if value is None else _interval(value, path, key)


def _interval(value: Any, path: Path, key: str) -> tuple[float, float]:
    numbers = isinstance(value, list) and len(value) == 2 and all(_is_number(end) for end in value)
    if not numbers or not value[0] <= value[1]:
        raise ValueError(f"{path}: {key}: expected [low, high] with low at most high, got {value!r}")
    return float(value[0]), float(value[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
