"""How sure a recommendation is: the optional ``confidence.json`` of a run folder; docs/json.md has its keys.

All keys are optional, and unknown ones are ignored. Files of earlier versions call the candidates ``contenders`` and
the chance-constrained recommendation ``surer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, AliasChoices, Field

from hisearch.report.data.stored import read_stored
from hisearch.search.confidence.device_bandwidth import BandwidthWin


def _ascending(ends: tuple[float, float]) -> tuple[float, float]:
    if not ends[0] <= ends[1]:
        raise ValueError("expected [low, high] with low at most high")
    return ends


_Probability = Annotated[float, Field(ge=0.0, le=1.0)]
_Interval = Annotated[tuple[float, float], AfterValidator(_ascending)]
_Chance = Field(validation_alias="all_terms")
_ChanceRange = Field(validation_alias="all_terms_range")


@dataclass(frozen=True)
class Candidate:
    """A deployment under the first draws. chance: that it meets the SLO; cheapest: that no cheaper one does.

    chance_range: confidence interval of ``chance``; None where not stated.
    """

    trial: int
    draws: int
    chance: Annotated[_Probability, _Chance]
    cheapest: _Probability
    chance_range: Annotated[_Interval | None, _ChanceRange] = None

    @property
    def met(self) -> int:
        """Draws in which it meets the SLO."""
        return round(self.chance * self.draws)


@dataclass(frozen=True)
class Rule:
    """A rule's recommendation, its reason, and the comparison with the engine's defaults."""

    rule: str
    trial: int
    reason: str
    against_baseline: str


@dataclass(frozen=True)
class ChanceConstrained:
    """The chance-constrained recommendation. trial: None where none is known; sentence: its price, as text.

    chance, chance_range, draws: as of ``Confidence``.
    """

    trial: int | None = None
    sentence: str = ""
    chance: Annotated[_Probability | None, _Chance] = None
    chance_range: Annotated[_Interval | None, _ChanceRange] = None
    draws: int = 0


class Chance(NamedTuple):
    """The probability that a deployment meets the whole SLO. ends: its confidence interval, None where not stated."""

    value: float
    ends: tuple[float, float] | None
    draws: int


@dataclass(frozen=True)
class Priced:
    """A deployment beside the recommendation. sentence: what it costs less or more, as text.

    chance, chance_range, draws: as of ``Confidence``.
    """

    trial: int
    usd_per_hour: float
    chance: Annotated[_Probability, _Chance]
    chance_range: Annotated[_Interval | None, _ChanceRange] = None
    draws: int = 0
    sentence: str = ""


@dataclass(frozen=True)
class Misses:
    """Draws that miss the SLO, and why, as text."""

    missed: int = 0
    sentence: str = ""


@dataclass(frozen=True)
class Search:
    """The search for the required probability.

    ended: what ended it early, "" where nothing did. over_window: draws in which the model's window alone rejects too
    many requests, where these are too many.
    """

    looked_at: int = 0
    simulations: int = 0
    ended: str = ""
    over_window: int = 0


@dataclass(frozen=True)
class Confidence:
    """terms: label -> probability, 0 to 1. intervals: metric -> (low, high).

    chance: probability that the recommendation meets the whole SLO, None where not stated; chance_range: its confidence
    interval. level: of the intervals, None where not stated. summary: as text. satisfied: whether the requested
    probability is reached, None without a request. lasts: whether it meets the SLO where its load is carried on,
    None where nothing was. rules_within_usd_per_hour: the price up to which two of the rules look.
    draws: behind ``chance``, 0 where not stated. sentences: what would change the answer, by kind. simulations: by
    purpose. nominal: the rule's own choice, None where it is the recommendation. between: the likeliest that costs less
    than the recommendation, None where it is no likelier than ``nominal``. own_formats: the cheapest that keeps the
    checkpoint's formats and is as likely as required; None where not searched, or where there is none.
    chance_constrained: None where it was not searched. sensitivity: thresholds at which the answer changes, as written.
    bandwidths: at which attached devices that were not chosen would win. unchecked: that wall time ended these
    checks, as a sentence, or "". misses: draws behind ``chance`` that miss, None where none does or that is not known.
    drawn: interval of the factors on step times, by regime; empty without draws, and in folders of earlier versions.
    search: for the required probability, None where the first choice has it or none is required.
    """

    terms: Mapping[str, _Probability] = field(default_factory=dict)
    intervals: Mapping[str, _Interval] = field(default_factory=dict)
    level: _Probability | None = None
    summary: str = ""
    satisfied: bool | None = None
    candidates: Annotated[
        tuple[Candidate, ...], Field(validation_alias=AliasChoices("candidates", "contenders"))
    ] = ()  # fmt: skip
    rules: tuple[Rule, ...] = ()
    rules_within_usd_per_hour: float | None = None
    sentences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    simulations: Mapping[str, int] = field(default_factory=dict)
    chance: Annotated[_Probability | None, _Chance] = None
    chance_range: Annotated[_Interval | None, _ChanceRange] = None
    draws: int = 0
    nominal: Priced | None = None
    between: Priced | None = None
    own_formats: Priced | None = None
    chance_constrained: Annotated[
        ChanceConstrained | None, Field(validation_alias=AliasChoices("chance_constrained", "surer"))
    ] = None
    sensitivity: Mapping[str, Any] = field(default_factory=dict)
    bandwidths: tuple[BandwidthWin, ...] = ()
    unchecked: str = ""
    lasts: bool | None = None
    misses: Misses | None = None
    drawn: Mapping[str, _Interval] = field(default_factory=dict)
    search: Search | None = None

    def chance_of(self, trial: int, recommended: int | None) -> Chance | None:
        """The probability of a trial, from most draws; None where it was not looked into."""
        if trial == recommended and self.chance is not None:
            return Chance(self.chance, self.chance_range, self.draws)
        for other in (self.chance_constrained, self.nominal, self.between, self.own_formats):
            if other is not None and other.trial == trial and other.chance is not None:
                return Chance(other.chance, other.chance_range, other.draws)
        candidate = next((row for row in self.candidates if row.trial == trial), None)
        return None if candidate is None else Chance(candidate.chance, candidate.chance_range, candidate.draws)


def read_confidence(path: Path) -> Confidence | None:
    """The file's content; None without a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, or not of this form; names file and key.
    """
    return read_stored(path, Confidence, strict=True) if path.is_file() else None
