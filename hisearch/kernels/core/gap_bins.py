"""The bins in which inter-token latencies are counted (see ``gaps``).

A gap is counted in ticks of a nanosecond. Up to 256 ticks, each tick has its own bin. Beyond, every octave has 128
bins, so that the middle of a bin is within 0.4 % of all gaps in it.
"""

from __future__ import annotations

TICKS_PER_S = 1e9
#: Longer gaps count as this one (106 days).
LONGEST_S = 2.0**53 / TICKS_PER_S
PART_BITS = 7
PER_OCTAVE = 1 << PART_BITS
BINS = (54 - PART_BITS) * PER_OCTAVE


def bin_middle_s(index: int) -> float:
    """Seconds in the middle of a bin."""
    octave = max(index // PER_OCTAVE - 1, 0)
    low = index if index < 2 * PER_OCTAVE else (PER_OCTAVE + index % PER_OCTAVE) << octave
    return (low + 0.5 * (1 << octave)) / TICKS_PER_S
