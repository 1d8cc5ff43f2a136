"""Inter-token latencies, counted in bins as they occur: one count for each gap between two tokens of a request.

A bin is 1/128 of an octave wide at its upper end, so that a percentile read off its middle is within 0.4 % of the true
one. Gaps below the first bin or beyond the last count in these.
"""

from __future__ import annotations

import math

from hisearch.kernels.cost import coast
from hisearch.kernels.gap_bins import BINS, HIGHEST, LOWEST, PER_OCTAVE
from hisearch.kernels.jit import kernel

@kernel
def bin_of(seconds):
    """Index of the bin of a gap."""
    mantissa, exponent = math.frexp(seconds)
    if exponent < LOWEST or seconds <= 0.0:
        return 0
    if exponent >= HIGHEST:
        return BINS - 1
    return (exponent - LOWEST) * PER_OCTAVE + int((2.0 * mantissa - 1.0) * PER_OCTAVE)


@kernel
def add(sim, seconds, count):
    """``count`` requests wait ``seconds`` between two tokens."""
    if count > 0:
        sim.gaps[bin_of(seconds)] += count


@kernel
def add_coast(sim, start_s, steps, decoding, context):
    """Count the gaps of ``steps`` decode steps of ``decoding`` requests that begin at ``start_s``.

    Where the first and the last step fall into one bin, so do all: steps only become longer as contexts grow.
    """
    if steps == 0:
        return
    _, first_end = coast(sim.seconds, start_s, 1e300, 1, decoding, context)
    first = bin_of(first_end - start_s)
    if steps == 1:
        sim.gaps[first] += decoding
        return
    last_context = context + (steps - 1) * decoding
    _, last_end = coast(sim.seconds, 0.0, 1e300, 1, decoding, last_context)
    if bin_of(last_end) == first:
        sim.gaps[first] += decoding * steps
        return
    now = start_s
    for _ in range(steps):
        _, end = coast(sim.seconds, now, 1e300, 1, decoding, context)
        sim.gaps[bin_of(end - now)] += decoding
        now = end
        context += decoding
