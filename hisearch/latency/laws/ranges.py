"""Whether a question lies within what a law was measured on (law L8)."""

from __future__ import annotations

from hisearch.specs.machines.laws import LawTerms

#: How far beyond a measured dimension a law is still quiet.
TOLERANCE = 1.001


def beyond(family: str, terms: LawTerms, **dimensions: float) -> list[str]:
    """A sentence for each dimension that lies outside its measured range; dimensions without a range are skipped."""
    found = []
    for name, value in dimensions.items():
        low, high = terms.ranges.get(name, (value, value))
        if not low / TOLERANCE <= value <= high * TOLERANCE:
            what = name.replace("_", " ")
            found.append(f"{family}: {what} {value:g} is outside the measured {low:g} to {high:g}")
    return found
