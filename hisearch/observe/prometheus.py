"""Prometheus' text format: samples by name, and histograms.

Format: prometheus.io/docs/instrumenting/exposition_formats, text format 0.0.4. OpenMetrics' exemplars and ``# EOF`` are
passed over. A name may stand with or without ``_total`` (OpenMetrics).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Largest text that is read, bytes.
MAX_BYTES = 1 << 25

_LINE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[^\s#]+)")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')

Labels = Mapping[str, str]


class MetricsError(ValueError):
    """A text that is no metrics; the message names the line."""


@dataclass(frozen=True)
class Histogram:
    """Counts of values up to each bound.

    bounds: rising upper bounds, the last infinite. counts: cumulative, as many. total: sum of the values.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """Number of values."""
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float:
        """Mean of the values, exact; NaN of none."""
        return self.total / self.count if self.count else math.nan

    def plus(self, other: Histogram) -> Histogram:
        """Both together; of bounds that differ, those of the one with more values."""
        if self.bounds != other.bounds:
            kept = max(self, other, key=lambda each: each.count)
            scale = (self.count + other.count) / kept.count if kept.count else 1.0
            return Histogram(kept.bounds, tuple(scale * count for count in kept.counts), self.total + other.total)
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total)

    def since(self, earlier: Histogram | None) -> Histogram:
        """What came after ``earlier``; all of it where the counts fell, as the server has begun anew."""
        if earlier is None or earlier.bounds != self.bounds or self.count < earlier.count:
            return self
        counts = tuple(max(now - before, 0.0) for now, before in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds, counts, max(self.total - earlier.total, 0.0))

    def quantile(self, share: float) -> float:
        """A quantile, linear within its bucket; the last finite bound where it lies beyond. NaN of no values."""
        if not self.count:
            return math.nan
        below, low = 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= share * self.count and count > below:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * (share * self.count - below) / (count - below)
            below, low = count, bound if math.isfinite(bound) else low
        return low


@dataclass(frozen=True)
class Metrics:
    """Samples of a text: name -> (labels, value) of each."""

    samples: Mapping[str, list[tuple[Labels, float]]]

    def has(self, prefix: str) -> bool:
        """Whether a name begins so."""
        return any(name.startswith(prefix) for name in self.samples)

    def values(self, *names: str, **labels: str) -> list[float]:
        """Values of the first name that is there, under labels that have these values."""
        for name in names:
            rows = self.samples.get(name) or self.samples.get(f"{name}_total")
            if rows:
                return [
                    value
                    for row_labels, value in rows
                    if all(row_labels.get(label) == wanted for label, wanted in labels.items()) and math.isfinite(value)
                ]
        return []

    def total(self, *names: str, **labels: str) -> float | None:
        """Sum over all series of the first name that is there; None where none is."""
        values = self.values(*names, **labels)
        return sum(values) if values else None

    def info(self, name: str) -> Labels:
        """Labels of an information metric; empty where it is absent."""
        rows = self.samples.get(name) or ()
        return next((labels for labels, _ in rows), {})

    def histogram(self, *names: str) -> Histogram | None:
        """All series of the first histogram that is there, together; None where none is.

        Series of one process repeat no value, so that sums over labels are sums over engines.
        """
        for name in names:
            rows = self.samples.get(f"{name}_bucket")
            if not rows:
                continue
            by_bound: dict[float, float] = {}
            for labels, count in rows:
                bound = _number(labels.get("le", ""))
                if bound is not None and math.isfinite(count):
                    by_bound[bound] = by_bound.get(bound, 0.0) + count
            bounds = tuple(sorted(by_bound))
            if not bounds:
                continue
            return Histogram(bounds, tuple(by_bound[bound] for bound in bounds), self.total(f"{name}_sum") or 0.0)
        return None


def parse_metrics(text: str) -> Metrics:
    """The samples of a text.

    Raises:
        MetricsError: a line is no sample, or there is none at all.
    """
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        match = _LINE.match(content)
        value = _number(match["value"]) if match is not None else None
        if match is None or value is None:
            raise MetricsError(f"line {number}: expected 'name{{labels}} value', got {content[:60]!r}")
        labels = {name: re.sub(r"\\(.)", _unescaped, quoted) for name, quoted in _LABEL.findall(match["labels"] or "")}
        samples.setdefault(match["name"], []).append((labels, value))
    if not samples:
        raise MetricsError("no samples: expected lines 'name{labels} value'")
    return Metrics(samples)


def joined(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """All together; None of none."""
    total: Histogram | None = None
    for histogram in histograms:
        if histogram is not None:
            total = histogram if total is None else total.plus(histogram)
    return total


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
