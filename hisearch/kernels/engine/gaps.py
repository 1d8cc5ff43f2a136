"""Inter-token latencies, counted in bins as they occur: a count for each gap between two tokens of a request."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.bits import bit_length
from hisearch.kernels.core.gap_bins import LONGEST_S, PART_BITS, PER_OCTAVE, TICKS_PER_S
from hisearch.kernels.engine.cost import decode_step_seconds
from hisearch.kernels.traffic import lists


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
    """Count a gap of ``seconds`` between two tokens for ``count`` requests."""
    if count > 0:
        sim.gaps[bin_of(seconds)] += count


@kernel
def add_signed(sim, seconds, count):
    """Like ``add``; a negative count takes gaps back."""
    sim.gaps[bin_of(seconds)] += count


@kernel
def add_fast_forward(sim, steps, decoding, context, excess, more_s, host_s):
    """Count the gaps of ``steps`` decode steps of ``decoding`` requests (see ``cost.fast_forward``).

    If two steps fall into the same bin, so do all steps between them: steps only get longer as contexts grow.
    """
    if steps == 0:
        return
    last = bin_of(decode_step_seconds(sim.seconds, decoding, context + (steps - 1) * decoding, excess, more_s, host_s))
    begin = 0
    while True:
        bin_index = bin_of(
            decode_step_seconds(sim.seconds, decoding, context + begin * decoding, excess, more_s, host_s)
        )
        end = steps
        if bin_index != last:
            # Bisect for the first step that falls into another bin.
            low = begin
            end = steps - 1
            while end - low > 1:
                middle = (low + end) // 2
                step_s = decode_step_seconds(sim.seconds, decoding, context + middle * decoding, excess, more_s, host_s)
                if bin_of(step_s) == bin_index:
                    low = middle
                else:
                    end = middle
        sim.gaps[bin_index] += decoding * (end - begin)
        if end == steps:
            return
        begin = end


@kernel
def count_fast_forward(sim, w):
    """Count the gaps of the fast-forward that ends now, before it is accounted for.

    All its requests took part in the step before it.
    """
    worker = sim.workers[w]
    n = worker.decoding
    context = worker.context_tokens
    excess = lists.excess_tokens(sim, w)
    if sim.config.overlap:
        steps = worker.fast_forward_steps - 1
        add_fast_forward(sim, steps, n, context, excess, worker.more_s, worker.grammar_s)
        add(sim, decode_step_seconds(sim.seconds, n, context + steps * n, excess, worker.more_s, worker.grammar_s), n)
    else:
        add_fast_forward(sim, worker.fast_forward_steps, n, context, excess, worker.more_s, worker.grammar_s)
