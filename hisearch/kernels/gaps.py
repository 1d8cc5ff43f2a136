"""Inter-token latencies, counted in bins as they occur: one count for each gap between two tokens of a request."""

from __future__ import annotations

from hisearch.kernels.bits import bit_length
from hisearch.kernels.cost import coast, decode_step_seconds
from hisearch.kernels.gap_bins import LONGEST_S, PART_BITS, PER_OCTAVE, TICKS_PER_S
from hisearch.kernels.jit import kernel


@kernel
def bin_of(seconds):
    """Index of the bin of a gap."""
    ticks = int(min(seconds, LONGEST_S) * TICKS_PER_S)
    if ticks < PER_OCTAVE:
        return max(ticks, 0)
    octave = bit_length(ticks) - 1 - PART_BITS
    return octave * PER_OCTAVE + (ticks >> octave)


@kernel
def add(sim, seconds, count):
    """``count`` requests wait ``seconds`` between two tokens."""
    if count > 0:
        sim.gaps[bin_of(seconds)] += count


@kernel
def add_signed(sim, seconds, count):
    """Like ``add``; a negative count takes back what was counted."""
    sim.gaps[bin_of(seconds)] += count


@kernel
def add_coast(sim, start_s, steps, decoding, context):
    """Count the gaps of ``steps`` decode steps of ``decoding`` requests that begin at ``start_s``.

    Where the first and the last step fall into one bin, so do all: steps only become longer as contexts grow.
    """
    if steps == 0:
        return
    first = bin_of(decode_step_seconds(sim.seconds, decoding, context))
    last = bin_of(decode_step_seconds(sim.seconds, decoding, context + (steps - 1) * decoding))
    if last == first:
        sim.gaps[first] += decoding * steps
        return
    now = start_s
    for _ in range(steps):
        _, end = coast(sim.seconds, now, 1e300, 1, decoding, context)
        sim.gaps[bin_of(end - now)] += decoding
        now = end
        context += decoding


@kernel
def count_coast(sim, w):
    """Count the gaps of the coast that ends now, before it is accounted for; all took part in the step before it."""
    worker = sim.workers[w]
    n = worker.decoding
    if sim.config.overlap:
        steps = worker.coast_steps - 1
        add_coast(sim, worker.newest_end_s, steps, n, worker.context_tokens)
        add(sim, decode_step_seconds(sim.seconds, n, worker.context_tokens + steps * n), n)
    else:
        add_coast(sim, worker.newest_start_s, worker.coast_steps, n, worker.context_tokens)
