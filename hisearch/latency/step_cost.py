"""Reference implementation of step costs: the notation of ``costs.py`` in plain Python, and laws written as tables.

The kernels evaluate the same expressions in the same order, so both give the same bits:

    total = host_s + host_per_sequence_s * sequences        token_s[most of a rank] where ranks share prompts
    total += token_s[T];  total += sequence_s[S]
    total += prompt_s[P]            if there are chunks
    total += work * rate            for each chunk in order
    total += skew_s[n] * ((m * n - c) / n);  total += decode_s(n, c)         if n > 0 and there are no chunks
    total += mixed_decode_s         if n > 0 and there are chunks
    total += draft_s                if tokens are drafted
    max(total, floor)

A rate is flat beyond its table; token_s, sequence_s, prompt_s and decode_s continue with their last slope.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import DraftCosts, SharedPrompts, StepCosts
from hisearch.latency.knots import INTERLEAVE, LONG_PARTS, SWAP, ZIGZAG, late_octaves, octaves, token_knots


def step_seconds(
    costs: StepCosts,
    chunks: Sequence[tuple[int, int]],
    decodes: Sequence[int],
    sampling: int | None = None,
    drafted: int = 0,
) -> float:
    """Cost of one step: seconds, or joules where ``costs`` holds joules.

    Args:
        costs: tables (see ``StepCosts``).
        chunks: (new, cached) tokens of every prompt chunk, in the batch's order.
        decodes: context that each decoding sequence reads: tokens before the new one, plus one.
        sampling: sequences that sample a token: decodes, and chunks that complete their prompt; None: all.
        drafted: tokens that the decodes compute beside their newest ones; they read them too.
    """
    n = len(decodes)
    sequences = len(chunks) + n
    tokens = sum(new for new, _ in chunks) + n + drafted
    total = costs.host_s + costs.host_per_sequence_s * sequences
    rates, launched = costs.chunk_rate, tokens
    if chunks and costs.shared is not None:
        most = shared_tokens(costs.shared, [new for new, _ in chunks], n)
        if most:
            total += dense_lookup(costs.shared.token_s, most)
            launched = most * costs.shared.ranks
        else:
            assert costs.shared.whole_rate is not None
            total, rates = total + dense_lookup(costs.token_s, tokens), costs.shared.whole_rate
    else:
        total += dense_lookup(costs.token_s, tokens)
    total += dense_lookup(costs.sequence_s, (sequences if sampling is None else sampling) + drafted)
    prompt_tokens = tokens - n - drafted
    if chunks and costs.prompt_s is not None:
        total += dense_lookup(costs.prompt_s, prompt_tokens)
    without_attention = total
    pairs = 0.0
    for new, cached in chunks:
        work = new * (cached + (new + 1) / 2.0)
        pairs += work
        total += work * bilinear(rates, prompt_tokens, cached, extrapolate=False)
    if n > 0:
        context = sum(decodes)
        if chunks and costs.mixed_decode_s is not None:
            before = max(pairs / prompt_tokens - (prompt_tokens + 1) / 2.0, 0.0)
            total += mixed_decode_seconds(costs, prompt_tokens, before, decodes)
        else:
            if costs.skew_s is not None and not chunks:
                total += costs.skew_s[min(n, len(costs.skew_s) - 1)] * ((max(decodes) * n - context) / n)
            total += bilinear(costs.decode_s, n, context, extrapolate=True)
    if costs.draft is not None:
        context = sum(decodes) + sum(new + cached for new, cached in chunks)
        total += _drafting_seconds(costs, costs.draft, sequences, tokens, context, total - without_attention)
    if costs.floor is not None:
        total = max(total, costs.floor.seconds(sequences, launched, prompts=bool(chunks)))
    return float(total)


def shared_tokens(shared: SharedPrompts, chunks: Sequence[int], decodes: int) -> int:
    """Tokens of a step on the rank with most, of those that share its prompts; 0: all ranks have all tokens.

    Args:
        shared: how they share them.
        chunks: new tokens of every prompt chunk.
        decodes: sequences that decode.
    """
    ranks, blocks = shared.ranks, 2 * shared.ranks
    if shared.layout == INTERLEAVE:
        most = -(-sum(chunks) // ranks)
        return -(-most // ranks) * ranks if sum(chunks) >= ranks else 0
    if shared.layout == ZIGZAG and min(chunks) < blocks:
        return 0
    of_ranks = []
    for rank in range(ranks):
        tokens = len(range(rank, decodes, ranks))
        for new in chunks:
            cuts = [block * -(-new // blocks) for block in range(blocks)]
            if shared.layout == ZIGZAG:
                cuts = [block * (new // blocks) + min(block, new % blocks) for block in range(blocks)]
            sizes = np.diff(np.minimum([*cuts, new], new))
            tokens += int(sizes[rank] + sizes[blocks - 1 - rank])
        of_ranks.append(tokens)
    return max(of_ranks) if shared.layout == SWAP else -(-max(of_ranks) // blocks) * blocks


def _drafting_seconds(
    costs: StepCosts, draft: DraftCosts, sequences: int, tokens: int, context: int, attention_s: float
) -> float:
    head = dense_lookup(draft.sequence_s, sequences)
    total = draft.share * attention_s + dense_lookup(draft.token_s, tokens) + head
    if draft.tokens > 1:
        decode_s = bilinear(costs.decode_s, sequences, context, extrapolate=True)
        again = draft.share * decode_s + dense_lookup(draft.token_s, sequences) + head
        total += (draft.tokens - 1) * again
    return total


def decode_step_seconds(costs: StepCosts, sequences: int, context_tokens: int) -> float:
    """Cost of a pure decode step of ``sequences`` equal sequences that read ``context_tokens`` tokens in total."""
    total = costs.host_s + costs.host_per_sequence_s * sequences
    total += dense_lookup(costs.token_s, sequences)
    total += dense_lookup(costs.sequence_s, sequences)
    if sequences > 0:
        total += bilinear(costs.decode_s, sequences, context_tokens, extrapolate=True)
    if costs.floor is not None:
        total = max(total, costs.floor.seconds(sequences, sequences, prompts=False))
    return float(total)


def dense_lookup(table: F8, index: int) -> float:
    """``table[index]``, continued beyond its end with the last slope."""
    last = len(table) - 1
    if index <= last:
        return float(table[index])
    return float(table[last] + (index - last) * (table[last] - table[last - 1]))


def knot_cell(value: int, length: int) -> int:
    """Largest i with ``tokens_knot(i) <= value``, at most ``length - 2`` (the last cell)."""
    return bisect_right(token_knots(length), value, 1, length - 1) - 1


def bilinear(table: F8, x: int, y: int, *, extrapolate: bool) -> float:
    """Interpolate on token knots, rows by ``x`` and columns by ``y``; flat beyond the end unless ``extrapolate``."""
    i = knot_cell(x, table.shape[0])
    j = knot_cell(y, table.shape[1])
    rows, columns = token_knots(table.shape[0]), token_knots(table.shape[1])
    fx = (x - rows[i]) / (rows[i + 1] - rows[i])
    fy = (y - columns[j]) / (columns[j + 1] - columns[j])
    if not extrapolate:
        fx, fy = min(fx, 1.0), min(fy, 1.0)
    a = table[i, j] + (table[i, j + 1] - table[i, j]) * fy
    b = table[i + 1, j] + (table[i + 1, j + 1] - table[i + 1, j]) * fy
    return float(a + (b - a) * fx)


def mixed_decode_seconds(costs: StepCosts, prompt_tokens: int, before: float, decodes: Sequence[int]) -> float:
    """Seconds that decodes add to a mixed step (see ``StepCosts``); ``before``: K."""
    assert costs.mixed_decode_s is not None
    sequences, longest = len(decodes), max(decodes)
    mean = sum(decodes) / sequences - 1.0
    total = _mixed(costs.mixed_decode_s, prompt_tokens, before, sequences, mean)
    if costs.late is None or longest == min(decodes):
        return float(total)
    # n^2 times the variance, and n times the longest's distance from the mean: whole numbers, without rounding.
    spread = float(sequences * sum(length * length for length in decodes) - sum(decodes) ** 2)
    distance = float(longest * sequences - sum(decodes))
    total_spread = spread + distance * distance
    reach = mean * costs.late.ratio * total_spread / (total_spread + (costs.late.ratio - 1.0) * spread)
    even, late, last = (
        _mixed(costs.mixed_decode_s, prompt_tokens, before, 1, length)
        for length in (mean, min(longest - 1.0, reach), longest - 1.0)
    )
    total += late_share(costs.late.shares, sequences, spread / total_spread, sum(decodes)) * (late - even)
    return float(total + (last - late) if longest - 1.0 > reach else total)


def late_share(table: F8, sequences: int, long: float, context: int) -> float:
    """``late`` of a batch with the share ``long`` of long contexts."""
    at = (float(sequences), LONG_PARTS * long, float(context))
    places = [knot_place(late_octaves(axis, table.shape[axis]), value) for axis, value in enumerate(at)]
    return _inside(table, [(index, min(share, 1.0)) for index, share in places])


def _mixed(table: F8, prompt_tokens: int, before: float, sequences: int, mean: float) -> float:
    at = (float(prompt_tokens), before, float(sequences), mean)
    places = [knot_place(octaves(axis, table.shape[axis]), value) for axis, value in enumerate(at)]
    return _inside(table, places)


def _inside(table: F8, places: Sequence[tuple[int, float]]) -> float:
    """``table`` at ``places``: the cell along each axis, and the position in it."""
    ends = ((index, min(index + 1, count - 1)) for (index, _), count in zip(places, table.shape, strict=True))
    corners: F8 = table[np.ix_(*ends)]
    # The last axis first, as the kernels do.
    for axis in range(len(places) - 1, -1, -1):
        low, high = corners.take(0, axis), corners.take(1, axis)
        corners = np.asarray(low + (high - low) * places[axis][1])
    return float(corners)


def knot_place(knots: Sequence[int], value: float) -> tuple[int, float]:
    """Cell of ``value`` among ``knots``, and the position in it: above 1 beyond the last knot."""
    if value <= knots[0] or len(knots) == 1:
        return 0, 0.0
    index = 0
    while index < len(knots) - 2 and value >= knots[index + 1]:
        index += 1
    return index, (value - knots[index]) / (knots[index + 1] - knots[index])


def law_costs(step_s: float, per_token_s: float, attention_s: float) -> StepCosts:
    """The law ``step_s + per_token_s * sum(new) + attention_s * sum(new * (computed + (new + 1) / 2))`` as tables.

    A decode has new = 1, so its attention is ``attention_s * context``. Exact for every batch, by extrapolation: three
    rows of ``decode_s``, so that its last cell does not depend on the number of sequences.
    """
    return StepCosts(
        host_s=step_s,
        host_per_sequence_s=0.0,
        token_s=np.array([0.0, per_token_s]),
        sequence_s=np.zeros(2),
        chunk_rate=np.full((2, 2), attention_s),
        decode_s=np.array([[0.0, 0.0], [0.0, attention_s], [0.0, attention_s]]),
    )
