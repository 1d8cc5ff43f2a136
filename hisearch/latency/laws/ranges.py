"""Whether dimensions lie within the measured ranges of a law (law L8)."""

from __future__ import annotations

from hisearch.specs.machines.laws import LawTerms

#: Factor beyond a measured range without a warning.
TOLERANCE = 1.001


def beyond(family: str, terms: LawTerms, **dimensions: float) -> list[str]:
    """A warning for each dimension outside its measured range; dimensions without a range are skipped."""
    warnings = []
    for name, value in dimensions.items():
        low, high = terms.ranges.get(name, (value, value))
        if not low / TOLERANCE <= value <= high * TOLERANCE:
            what = name.replace("_", " ")
            warnings.append(f"{family}: {what} {value:g} is outside the measured {low:g} to {high:g}")
    return warnings
