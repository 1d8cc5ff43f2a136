"""Step cost from compiled tables; the notation is that of ``hisearch.latency.costs``.

The order of additions is fixed: the plain-Python reference (``hisearch.latency.step_cost``) gives the same bits.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.bits import bit_length
from hisearch.kernels.engine.lookups import cell, chunk_seconds, decode_seconds, dense, floor_seconds, knot
from hisearch.kernels.engine.shared_prompts import shared_batch_cost
from hisearch.kernels.layout import sim as la
from hisearch.latency.knots import LATE_BITS, LATE_FIRST, LONG_PARTS, MIXED_BITS, MIXED_FIRST

_FIRST_PROMPT, _FIRST_BEFORE, _FIRST_SEQUENCE, _FIRST_MEAN = MIXED_FIRST
_PROMPT_BITS, _BEFORE_BITS, _SEQUENCE_BITS, _MEAN_BITS = MIXED_BITS
_FIRST_LATE, _FIRST_LONG, _FIRST_CONTEXT = LATE_FIRST
_LATE_BITS, _LONG_BITS, _CONTEXT_BITS = LATE_BITS


@kernel
def token_wise(costs, sequences, tokens, sampling):
    """Everything but attention: host, token-wise operators, LM head and sampling."""
    total = costs.host.step_s + costs.host.per_sequence_s * sequences
    total += dense(costs.token_s, tokens)
    total += dense(costs.sequence_s, sampling)
    return total


@kernel
def skew_seconds(table, sequences, excess):
    """Extra attention due to unequal contexts; ``excess``: ``sequences`` times the longest context, less their sum."""
    return table[min(sequences, table.shape[0] - 1)] * (excess / sequences)


@kernel
def even_seconds(costs, sequences, excess, more_s=0.0):
    """The part of a decode step's time that is constant while the same ``sequences`` requests decode.

    ``more_s``: what else each of its steps takes, as adapters do (see ``engine.lora``).
    """
    total = token_wise(costs, sequences, sequences, sequences) + more_s
    if costs.host.skewed and sequences > 0:
        total += skew_seconds(costs.skew_s, sequences, excess)
    return total


@kernel
def decode_step_seconds(costs, sequences, context, excess, more_s=0.0, host_s=0.0):
    """Time of a step with ``sequences`` decodes that read ``context`` tokens in total (see ``even_seconds``).

    ``host_s``: what the host does besides in each step, as for grammars (see ``engine.grammar``).
    """
    device = even_seconds(costs, sequences, excess, more_s) + decode_seconds(costs.decode_s, sequences, context)
    return max(device, floor_seconds(costs.host, sequences, sequences, 0) + host_s)


@kernel
def octave(x, first, bits, knots):
    """Cell of ``x`` among the first ``knots`` knots of octaves from ``first`` on, and its relative position in it.

    ``first`` is a power of two and an octave has ``2**bits`` knots, no more than ``first`` (see
    ``latency.knots.octaves``). So nothing is rounded before the relative position.
    """
    if x <= first or knots == 1:
        return 0, 0.0
    steps = 1 << bits
    units = int(x / first * steps)
    octaves = bit_length(units) - 1 - bits
    index = min((octaves << bits) + (units >> octaves) - steps, knots - 2)
    width = (first << (index >> bits)) >> bits
    return index, (x - width * (steps + (index & (steps - 1)))) / width


@kernel
def _place_before(before, knots):
    """Cell of ``before`` among its ``knots`` knots, the first of which is 0, and its relative position in it."""
    if before < _FIRST_BEFORE:
        return 0, before / _FIRST_BEFORE
    index, share = octave(before, _FIRST_BEFORE, _BEFORE_BITS, knots - 1)
    return index + 1, share


@kernel
def _between(low, high, share):
    return low + (high - low) * share


@kernel
def _along(table, at, ahead, share):
    """Interpolate between ``table[at]`` and the knot ``ahead`` entries later."""
    return _between(table[at], table[at + ahead], share)


@kernel
def late_share(costs, sequences, long, context):
    """``late`` of a batch with a share ``long`` of long sequences."""
    shape = costs.host
    n, fn = octave(float(sequences), _FIRST_LATE, _LATE_BITS, shape.late_sequences)
    i, fi = octave(LONG_PARTS * long, _FIRST_LONG, _LONG_BITS, shape.late_longs)
    j, fj = octave(float(context), _FIRST_CONTEXT, _CONTEXT_BITS, shape.late_contexts)
    dj = 1 if shape.late_contexts > 1 else 0
    di = shape.late_contexts if shape.late_longs > 1 else 0
    dn = shape.late_longs * shape.late_contexts
    at = n * dn + i * shape.late_contexts + j
    if shape.late_sequences == 1:
        dn = 0
    fi, fj = min(fi, 1.0), min(fj, 1.0)
    fewer = _between(_along(costs.late, at, dj, fj), _along(costs.late, at + di, dj, fj), fi)
    at += dn
    more = _between(_along(costs.late, at, dj, fj), _along(costs.late, at + di, dj, fj), fi)
    return _between(fewer, more, min(fn, 1.0))


@kernel
def mixed_decode_seconds(costs, prompt_tokens, pairs, sequences, context, longest, squares):
    """Time that decodes add to a mixed step; ``pairs``: of queries and keys in the prompt chunks."""
    table = costs.mixed_decode_s
    shape = costs.host
    before = max(pairs / prompt_tokens - (prompt_tokens + 1) / 2.0, 0.0)
    mean = context / sequences - 1.0
    p, fp = octave(float(prompt_tokens), _FIRST_PROMPT, _PROMPT_BITS, shape.mixed_prompts)
    k, fk = _place_before(before, shape.mixed_befores)
    n, fn = octave(float(sequences), _FIRST_SEQUENCE, _SEQUENCE_BITS, shape.mixed_sequences)
    m, fm = octave(mean, _FIRST_MEAN, _MEAN_BITS, shape.mixed_means)
    # Distance to the next knot of each axis; 0 for an axis with one knot.
    dm = 1 if shape.mixed_means > 1 else 0
    dn = shape.mixed_means if shape.mixed_sequences > 1 else 0
    dk = shape.mixed_sequences * shape.mixed_means
    dp = shape.mixed_befores * dk if shape.mixed_prompts > 1 else 0
    base = (p * shape.mixed_befores + k) * dk
    total = _mixed(table, base + n * shape.mixed_means + m, (dp, dk, dn, dm), (fp, fk, fn, fm))
    if shape.late_sequences > 0 and longest * sequences > context:
        excess = float(longest * sequences - context)
        spread = float(squares * sequences - context * context)
        total_spread = spread + excess * excess
        # The two divisions are independent of each other.
        long = spread / total_spread
        reach = mean * shape.late_ratio * total_spread / (total_spread + (shape.late_ratio - 1.0) * spread)
        last = longest - 1.0
        q, fq = octave(min(last, reach), _FIRST_MEAN, _MEAN_BITS, shape.mixed_means)
        late = _mixed_single(table, base + q, (dp, dk, dm), (fp, fk, fq))
        share = late_share(costs, sequences, long, context)
        total += share * (late - _mixed_single(table, base + m, (dp, dk, dm), (fp, fk, fm)))
        if last > reach:
            q, fq = octave(last, _FIRST_MEAN, _MEAN_BITS, shape.mixed_means)
            total += _mixed_single(table, base + q, (dp, dk, dm), (fp, fk, fq)) - late
    return total


@kernel
def _mixed(table, at, ahead, share):
    """Interpolate between the sixteen knots around a place, the last axis first, then the one before it, and so on."""
    dp, dk, dn, dm = ahead
    fp, fk, fn, fm = share
    near = _mixed_prompt(table, at, dk, dn, dm, fk, fn, fm)
    far = _mixed_prompt(table, at + dp, dk, dn, dm, fk, fn, fm)
    return _between(near, far, fp)


@kernel
def _mixed_prompt(table, at, dk, dn, dm, fk, fn, fm):
    near = _between(_along(table, at, dm, fm), _along(table, at + dn, dm, fm), fn)
    at += dk
    far = _between(_along(table, at, dm, fm), _along(table, at + dn, dm, fm), fn)
    return _between(near, far, fk)


@kernel
def _mixed_single(table, at, ahead, share):
    """``_mixed`` for one sequence, which is a knot of that axis."""
    dp, dk, dm = ahead
    fp, fk, fm = share
    near = _between(_along(table, at, dm, fm), _along(table, at + dk, dm, fm), fk)
    at += dp
    far = _between(_along(table, at, dm, fm), _along(table, at + dk, dm, fm), fk)
    return _between(near, far, fp)


@kernel
def batch_cost(costs, requests, batch, size, decoding, context, longest, squares, more_s=0.0, host_s=0.0):
    """Time of a step on the device and on the host; the step takes the longer of the two.

    It has ``size`` prompt chunks (``requests[r].chunk`` after ``.computed``) and ``decoding`` decodes. A chunk that is
    a decode computes drafted tokens behind its newest, and samples at each.

    ``context``: tokens that the decodes read in total. ``longest``: the most that one of them reads. ``squares``: sum
    of the squares of what each reads. The latter two are used where costs are skewed. ``requests[r].chunk_kind`` says
    whether a chunk samples, or is a decode. ``more_s``: see ``even_seconds``; ``host_s``: ``decode_step_seconds``.
    """
    tokens = decoding
    sampling = decoding
    decoded = decoding
    chunks = size
    read = context
    for k in range(size):
        request = requests[batch[k]]
        tokens += request.chunk
        if request.chunk_kind != la.PROMPT_GOES_ON:
            sampling += 1
        read += request.computed + request.chunk
        if request.chunk_kind == la.LISTED_DECODE:
            decoding += 1
            decoded += request.chunk
            sampling += request.chunk - 1
            length = request.computed + request.chunk
            context += length
            longest = max(longest, length)
            squares += length * length
            chunks -= 1
    if chunks > 0 and costs.host.shared_ranks > 1:
        return shared_batch_cost(costs, requests, batch, size, decoding, context, sampling)
    host = floor_seconds(costs.host, chunks + decoding, tokens, chunks) + host_s
    total = token_wise(costs, chunks + decoding, tokens, sampling) + more_s
    if chunks > 0:
        total += dense(costs.prompt_s, tokens - decoded)
    without_attention = total
    pairs = 0.0
    for k in range(size):
        request = requests[batch[k]]
        if request.chunk_kind != la.LISTED_DECODE:
            pairs += request.chunk * (request.computed + (request.chunk + 1) / 2.0)
            total += chunk_seconds(costs, request.chunk, request.computed, tokens - decoded)
    if decoding > 0:
        if chunks == 0 and costs.host.skewed:
            total += skew_seconds(costs.skew_s, decoding, longest * decoding - context)
        if chunks == 0 or costs.host.mixed_prompts == 0:
            total += decode_seconds(costs.decode_s, decoding, context)
        else:
            total += mixed_decode_seconds(costs, tokens - decoded, pairs, decoding, context, longest, squares)
    if costs.host.draft_tokens > 0:
        total += drafting_seconds(costs, chunks + decoding, tokens, read, total - without_attention)
    return total, host


@kernel
def drafting_seconds(costs, sequences, tokens, context, attention_s):
    """Time of the drafter after a step of ``tokens`` tokens of ``sequences`` sequences (see ``costs.DraftCosts``).

    ``context``: tokens that they read in total. ``attention_s``: of the step.
    """
    share = costs.host.draft_share
    head = dense(costs.draft_sequence_s, sequences)
    total = share * attention_s + dense(costs.draft_token_s, tokens) + head
    if costs.host.draft_tokens > 1:
        again = (
            share * decode_seconds(costs.decode_s, sequences, context) + dense(costs.draft_token_s, sequences) + head
        )
        total += (costs.host.draft_tokens - 1) * again
    return total


@kernel
def fast_forward(costs, start_s, until_s, limit, decoding, context, excess, more_s=0.0, host_s=0.0):
    """Run at most ``limit`` pure decode steps from ``start_s``, up to the first that ends at or after ``until_s``.

    Costs are added step by step, so that the result equals stepping to the last bit. ``excess``: see ``skew_seconds``,
    ``more_s`` and ``host_s``: ``decode_step_seconds``. Returns (steps, end_s).
    """
    table = costs.decode_s
    base = even_seconds(costs, decoding, excess, more_s)
    floor = floor_seconds(costs.host, decoding, decoding, 0) + host_s
    i = cell(decoding, table.shape[0] - 1)
    fx = (decoding - knot(i)) / (knot(i + 1) - knot(i))
    now = start_s
    steps = 0
    while steps < limit:
        j = cell(context, table.shape[1] - 1)
        low = knot(j)
        high = knot(j + 1)
        share = 1.0 / (high - low)  # exact: cells are powers of two wide
        a0 = table[i, j]
        a1 = table[i, j + 1] - a0
        b0 = table[i + 1, j]
        b1 = table[i + 1, j + 1] - b0
        last_cell = j == table.shape[1] - 2
        while steps < limit and (context < high or last_cell):
            fy = (context - low) * share
            a = a0 + a1 * fy
            b = b0 + b1 * fy
            now += max(base + (a + (b - a) * fx), floor)
            context += decoding
            steps += 1
            if now >= until_s:
                return steps, now
    return steps, now


@kernel
def fast_forward_bound(costs, start_s, steps, decoding, context, excess, more_s=0.0, host_s=0.0):
    """A tight lower bound of the end of ``steps`` steps as ``fast_forward`` runs them, without running each.

    Costs are linear within a cell. So its steps take their number times the mean of the first and the last, and no less
    than the host needs. The rounding error of that many additions is subtracted.
    """
    table = costs.decode_s
    base = even_seconds(costs, decoding, excess, more_s)
    floor = floor_seconds(costs.host, decoding, decoding, 0) + host_s
    total = 0.0
    left = steps
    while left > 0:
        j = cell(context, table.shape[1] - 1)
        cell_steps = left
        if j < table.shape[1] - 2:
            cell_steps = min(left, (knot(j + 1) - context + decoding - 1) // decoding)
        first = decode_seconds(table, decoding, context)
        context += cell_steps * decoding
        last = decode_seconds(table, decoding, context - decoding)
        total += cell_steps * max(base + 0.5 * (first + last), floor)
        left -= cell_steps
    end = start_s + total
    return end - (1e-12 * total + 1e-15 * steps * end)


@kernel
def add_energy(sim, w, batch, size, decoding, context, longest, squares):
    """Add the joules of a step (as ``batch_cost`` has it) to worker ``w``'s, and parts of them to their own sums."""
    worker = sim.workers[w]
    worker.energy_j += batch_cost(sim.joules, sim.requests, batch, size, decoding, context, longest, squares)[0]
    if sim.config.attached:
        joules = batch_cost(sim.attached_joules, sim.requests, batch, size, decoding, context, longest, squares)[0]
        worker.attached_j += joules
    if sim.config.linked:
        joules = batch_cost(sim.link_joules, sim.requests, batch, size, decoding, context, longest, squares)[0]
        worker.link_j += joules


@kernel
def decode_joules(costs, steps, decoding, context):
    """Joules of ``steps`` decode steps, by the trapezoid rule; ``context``: of the first."""
    first = decode_seconds(costs.decode_s, decoding, context)
    last = decode_seconds(costs.decode_s, decoding, context + (steps - 1) * decoding)
    return steps * (token_wise(costs, decoding, decoding, decoding) + 0.5 * (first + last))
