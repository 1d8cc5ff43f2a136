"""Dense matrix products ``y[m, n] = x[m, k] @ w[k, n]``.

    seconds = launch + fill * k / (k + depth) + p_norm(memory, arithmetic) + quantise
    memory     = (n * k * weight bytes + m * k * operand bytes + m * n * 2) / (bandwidth * share)
    arithmetic = min over tiles of waves * (2 * k * tile / (peak per multiprocessor * share of the tile) + wave)
    waves      = tiles of the output by multiprocessors, rounded up as far as ``quantisation`` says
    tile       = the only one, where a kernel has one alone
    quantise   = m * (k * 3 / (bandwidth * share) + token)   reads 16 bits, writes 8; operands narrower than 16 bits

and of a separate pass that quantises the activations (``quantise_s``): launch + quantise.

Every part rises with m and n; the minimum of rising functions rises. The correction by m may fall: callers make their
tables rise.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.laws.sheet import Sheet, corrected, p_norm, waves
from hisearch.specs.machines.laws import GemmTerms, QuantiseTerms

#: Rows and columns of the output tiles that a library chooses from, largest first.
TILES: tuple[tuple[int, int], ...] = ((256, 128), (128, 128), (64, 128), (64, 64))

#: Bytes of an output element, and of an operand element before and after it is quantised.
OUTPUT_BYTES = 2.0
QUANTISE_BYTES = 3.0


def gemm_s(
    terms: GemmTerms, sheet: Sheet, m: F8, n: F8 | float, k: F8 | float, *, weight_bytes: float, operand_bytes: float
) -> F8:
    """Seconds of one product for each broadcast entry of ``m``, ``n`` and ``k`` (at least 1).

    Args:
        terms: coefficients.
        sheet: accelerator; ``flops`` is the rate of the operands' format.
        m: tokens.
        n: outputs.
        k: inputs.
        weight_bytes: of one element of ``w``, scales included.
        operand_bytes: of one element of ``x`` as it is multiplied.
    """
    moved = n * k * weight_bytes + m * k * operand_bytes + m * n * OUTPUT_BYTES
    memory = moved / (sheet.bytes_per_s * terms.bandwidth)
    seconds = terms.launch_s + terms.fill_s * k / (k + terms.fill_depth)
    seconds = seconds + p_norm(terms.sharpness, memory, _arithmetic_s(terms, sheet, m, n, k))
    if terms.quantise_bandwidth is not None:
        byte_s = QUANTISE_BYTES / (sheet.bytes_per_s * terms.quantise_bandwidth)
        seconds = seconds + m * (k * byte_s + (terms.quantise_token_s or 0.0))
    return corrected(np.asarray(seconds), m, terms.tokens, terms.correction)


def quantise_s(terms: QuantiseTerms, sheet: Sheet, m: F8, k: F8 | float) -> F8:
    """Seconds of one pass over the activations of ``m`` tokens, ``k`` wide."""
    return np.asarray(terms.launch_s + m * k * QUANTISE_BYTES / (sheet.bytes_per_s * terms.bandwidth))


def _arithmetic_s(terms: GemmTerms, sheet: Sheet, m: F8, n: F8 | float, k: F8 | float) -> F8:
    choices = list(zip(TILES, (0.0, *np.cumsum(terms.tile_losses)), strict=True))
    best: F8 | None = None
    for (rows, columns), loss in choices if terms.tile is None else [(terms.tile, 0.0)]:
        rounds = waves(np.ceil(m / rows) * np.ceil(n / columns), sheet.multiprocessors, terms.quantisation)
        tile_s = 2.0 * rows * columns * sheet.multiprocessors * (1.0 + loss) / (sheet.flops * terms.flops)
        seconds = rounds * (k * tile_s + terms.wave_s)
        best = seconds if best is None else np.minimum(best, seconds)
    assert best is not None
    return best
