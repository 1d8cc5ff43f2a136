"""Look-ups in compiled step costs; the notation is that of ``hisearch.latency.costs``."""

from __future__ import annotations

from hisearch.base.jit import inlined_kernel, kernel
from hisearch.kernels.core.bits import bit_length
from hisearch.latency.knots import KNOT_BITS

_OCTAVE = 1 << KNOT_BITS


@kernel
def knot(index):
    """The ``index``-th knot (see ``latency.knots.tokens_knot``)."""
    if index < 2 * _OCTAVE:
        return index
    octave = index // _OCTAVE
    return (_OCTAVE + index % _OCTAVE) << (octave - 1)


@kernel
def cell(x, cells):
    """Index of the knot interval that holds ``x`` >= 0, at most ``cells - 1``."""
    if x < 2 * _OCTAVE:
        index = x
    else:
        shift = bit_length(x) - 1 - KNOT_BITS
        index = shift * _OCTAVE + (x >> shift)
    return min(index, cells - 1)


@kernel
def dense(table, x):
    """Look up a table indexed by a count; beyond its end it is extrapolated with the last slope."""
    last = table.shape[0] - 1
    if x <= last:
        return table[x]
    return table[last] + (x - last) * (table[last] - table[last - 1])


@kernel
def chunk_seconds(costs, new, cached, prompt_tokens):
    """Prefill attention of ``new`` tokens after ``cached`` ones, all layers; ``prompt_tokens``: of all chunks."""
    return new * (cached + (new + 1) / 2.0) * chunk_rate(costs.chunk_rate, cached, prompt_tokens)


@inlined_kernel
def chunk_rate(table, cached, prompt_tokens):
    """Seconds for each query and key in ``table``, a chunk_rate or whole_rate."""
    i = cell(prompt_tokens, table.shape[0] - 1)
    j = cell(cached, table.shape[1] - 1)
    fx = min((prompt_tokens - knot(i)) / (knot(i + 1) - knot(i)), 1.0)
    fy = min((cached - knot(j)) / (knot(j + 1) - knot(j)), 1.0)
    a = table[i, j] + (table[i, j + 1] - table[i, j]) * fy
    b = table[i + 1, j] + (table[i + 1, j + 1] - table[i + 1, j]) * fy
    return a + (b - a) * fx


@kernel
def decode_seconds(table, sequences, context):
    """Decode attention of ``sequences`` requests that read ``context`` tokens in total, all layers."""
    i = cell(sequences, table.shape[0] - 1)
    j = cell(context, table.shape[1] - 1)
    fx = (sequences - knot(i)) / (knot(i + 1) - knot(i))
    fy = (context - knot(j)) / (knot(j + 1) - knot(j))
    a = table[i, j] + (table[i, j + 1] - table[i, j]) * fy
    b = table[i + 1, j] + (table[i + 1, j + 1] - table[i + 1, j]) * fy
    return a + (b - a) * fx


@kernel
def floor_seconds(host, sequences, tokens, chunks):
    """Host time of a step (see ``latency.costs.HostFloor``)."""
    total = host.floor_step_s + host.floor_sequence_s * sequences
    if tokens > host.floor_graph_tokens:
        return total + host.floor_eager_s
    if chunks > 0:
        return total + host.floor_pieces_s
    return total
