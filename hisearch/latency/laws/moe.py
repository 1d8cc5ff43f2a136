"""Routed experts of one layer on one rank: permutation, two grouped products, activation, weighted sum.

    seconds    = launch + permute + route + p_norm(memory, arithmetic)
    active     = experts held * (1 - (1 - k / E) ** (spread * tokens))             even, independent draws
    load       = min(tokens * k / EP * EP ** imbalance, tokens * k)                of the busiest rank
    memory     = (active * expert bytes + load * activations) / (bandwidth * share)
    arithmetic = min over tiles of waves * (work of a tile + wave), both products
    tiles      = active * ceil(load / active / rows) * ceil(outputs / 128)
    permute    = load * hidden * 6 / (bandwidth * share)               entries of this rank
    route      = tokens * k * hidden * 2 / (bandwidth * share)         entries of all ranks, which some kernels sweep

``spread`` 1 is even routing; real routers repeat experts, so that a few tokens use fewer of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.latency.laws.sheet import F8, Sheet, corrected, p_norm, waves
from hisearch.specs.laws import MoeTerms

#: Tokens of an expert in one tile, and outputs.
TILE_TOKENS = (128.0, 64.0, 16.0)
TILE_OUTPUTS = 128.0

#: Bytes of a permuted element: read, written, and read for the sum, of 16 bits.
PERMUTE_BYTES = 6.0

#: Bytes of an element that is swept.
ROUTE_BYTES = 2.0


class Experts(NamedTuple):
    """Routed experts of a layer.

    hidden, width: of the model, and of an expert on one rank.
    experts, per_token: of the layer; experts a token is routed to.
    sets: ranks, or sets of ranks, that hold different experts (EP).
    products: matrices into the expert, 2 where it is gated.
    """

    hidden: F8 | float
    width: F8 | float
    experts: F8 | float
    per_token: F8 | float
    sets: F8 | float
    products: float = 2.0


def active(experts: Experts, draws: F8) -> F8:
    """Experts of one rank that ``draws`` tokens of even routing use, at least one."""
    share = np.minimum(experts.per_token / np.asarray(experts.experts, dtype=np.float64), 1.0 - 1e-12)
    return np.maximum(experts.experts / experts.sets * -np.expm1(draws * np.log1p(-share)), 1.0)


def moe_s(
    terms: MoeTerms,
    sheet: Sheet,
    experts: Experts,
    tokens: F8,
    *,
    weight_bytes: float,
    operand_bytes: float,
    even: bool = False,
) -> F8:
    """Seconds for each entry of ``tokens`` (at least 1) of the layer, before they are dealt to ranks.

    ``even`` deals them to all experts in turn, as balanced measurements do.
    """
    mean = tokens * experts.per_token / experts.sets
    if even:
        used = np.clip(mean, 1.0, experts.experts / experts.sets)
        load = np.maximum(mean, 1.0)
    else:
        used = active(experts, tokens * terms.spread)
        busiest = np.minimum(mean * np.power(experts.sets, terms.imbalance), tokens * experts.per_token)
        load = np.maximum(busiest, used)
    inner = experts.products * experts.width
    moved = used * (1.0 + experts.products) * experts.hidden * experts.width * weight_bytes
    moved = moved + load * ((experts.hidden + experts.width) * operand_bytes + (inner + experts.hidden) * 2.0)
    memory = moved / (sheet.bytes_per_s * terms.bandwidth)
    permute = load * experts.hidden * PERMUTE_BYTES / (sheet.bytes_per_s * terms.permute_bandwidth)
    arithmetic = _arithmetic_s(terms, sheet, used, load, inner, experts)
    route = tokens * experts.per_token * experts.hidden * ROUTE_BYTES / (sheet.bytes_per_s * terms.route_bandwidth)
    seconds = terms.launch_s + permute + route + p_norm(terms.sharpness, memory, arithmetic)
    return corrected(np.asarray(seconds), tokens, terms.tokens, terms.correction)


def _arithmetic_s(terms: MoeTerms, sheet: Sheet, used: F8, load: F8, inner: F8 | float, experts: Experts) -> F8:
    best: F8 | None = None
    for step, rows in enumerate(TILE_TOKENS):
        groups = used * np.ceil(load / used / rows)
        tile_s = 2.0 * rows * TILE_OUTPUTS * sheet.multiprocessors / (sheet.flops * terms.flops)
        tile_s *= 1.0 + step * terms.small_tile_loss
        seconds: F8 = np.zeros_like(load)
        for outputs, inputs in ((inner, experts.hidden), (experts.hidden, experts.width)):
            tiles = groups * np.ceil(np.asarray(outputs) / TILE_OUTPUTS)
            seconds = seconds + waves(tiles, sheet.multiprocessors, terms.quantisation) * (
                inputs * tile_s + terms.wave_s
            )
        best = seconds if best is None else np.minimum(best, seconds)
    assert best is not None
    return best
