"""Routed experts of one layer on one rank: permutation, two grouped products, activation, weighted sum.

    seconds    = launch + permute + route + p_norm(memory, arithmetic)
    memory     = (used * expert bytes + load * activations) / (bandwidth * share)
    arithmetic = min over rows of waves * (work of a tile + wave), both products
    tiles      = groups(rows) * ceil(outputs / 128)
    permute    = load * hidden * 6 / (bandwidth * share)               entries of this rank
    route      = tokens * k * hidden * 2 / (bandwidth * share)         entries of all ranks, which some kernels sweep;
                 of this rank alone where tokens were sent to the ranks of their experts

A rank's work is its ``Routing``: experts ``used``, entries on them (``load``), and the ``groups`` of at most ``rows``
entries of one expert. In a step, each token draws k of E experts independently, by popularity (``drawn``). A table has
the routing it was measured with (``dealt``, ``hisearch.calibrate.routing``), so no coefficient has to absorb it.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.laws.sheet import Sheet, corrected, p_norm, waves
from hisearch.specs.machines.laws import MoeTerms


def _power_law(alpha: float, ratio: float, quantiles: int) -> F8:
    """Values at the midpoints of equal-probability intervals between 1 and ``ratio``, over their mean."""
    middle = (np.arange(quantiles) + 0.5) / quantiles
    values = np.power(1.0 + middle * (ratio ** (1.0 - alpha) - 1.0), 1.0 / (1.0 - alpha))
    return np.asarray(values / values.mean())


#: Tokens of an expert in one tile, and outputs.
TILE_TOKENS = (128.0, 64.0, 16.0)
TILE_OUTPUTS = 128.0

#: Bytes of a permuted element: read, written, and read for the sum, of 16 bits.
PERMUTE_BYTES = 6.0

#: Bytes of an element in the sweep over all ranks' entries.
ROUTE_BYTES = 2.0

#: Popularity of experts, mean 1, at the quantiles of a power law (density ``x ** -1.2``) whose largest is 20 times its
#: smallest. It stands for real routers, as aiconfigurator's skewed measurements do (their range grows with the batch).
#: Of all ranges this one matches their number of active experts best: 7 % off on average, 18 % at most, on 128 to 512
#: experts and 4 to 1,024 tokens.
POPULARITY = _power_law(1.2, 20.0, 8)


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


class Routing(NamedTuple):
    """Work of the rank that a layer waits for; arrays of one shape.

    used: its experts with a token, at least 1.
    load: its (token, expert) entries, at least ``used``.
    groups: for each entry of ``TILE_TOKENS``, the groups of at most that many entries of one expert.
    """

    used: F8
    load: F8
    groups: tuple[F8, ...]


def dealt(experts: Experts, tokens: F8) -> Routing:
    """Routing of tokens dealt to all experts in turn, as in balanced measurements."""
    load = np.maximum(tokens * experts.per_token / experts.sets, 1.0)
    used = np.minimum(load, np.asarray(experts.experts) / experts.sets)
    return Routing(used, load, tuple(used * np.ceil(load / used / rows) for rows in TILE_TOKENS))


def drawn(experts: Experts, tokens: F8) -> Routing:
    """Mean routing of the busiest of ``sets`` (one number) ranks, where each token draws its experts by popularity.

    An expert of popularity w (mean 1) is unused with probability (1 - k w / E) ** tokens. Popularity takes the values
    of ``POPULARITY``. The busiest rank is the expected maximum of independent normal variables (Blom, 1958); their
    variance is of draws and of popularity. The last of an expert's several groups is half full on average.
    """
    count, per_token, sets = float(experts.experts), float(experts.per_token), float(experts.sets)
    held, rank_share = count / sets, 1.0 / sets
    above = NormalDist().inv_cdf((sets - 0.375) / (sets + 0.25)) if sets > 1.0 else 0.0
    even = per_token / count
    # No expert gets more than all tokens.
    stretch = min(1.0, (1.0 - even) / (even * (POPULARITY.max() - 1.0)))
    popularity = POPULARITY.reshape(-1, *(1 for _ in np.shape(tokens)))
    share = even * (1.0 + (popularity - 1.0) * stretch)
    at_work = 1.0 - np.power(1.0 - share, tokens)
    mean = at_work.mean(axis=0)
    used = held * mean + above * np.sqrt(held * mean * (1.0 - mean) * (1.0 - rank_share))
    entries = tokens * per_token * rank_share
    drawing = entries * (1.0 - rank_share) * (count - per_token) / max(count - 1.0, 1.0)
    uneven = entries**2 * (share / even).var() / held * (1.0 - rank_share)
    load = np.clip(entries + above * np.sqrt(drawing + uneven), 1.0, np.maximum(tokens * min(per_token, held), 1.0))
    used = np.clip(used, 1.0, np.minimum(held, load))
    entries_of = share / even * load / held
    busy = at_work / np.maximum(mean, 1e-300) * used / held
    groups = [held * np.maximum(busy, entries_of / rows + busy / 2.0).mean(axis=0) for rows in TILE_TOKENS]
    return Routing(
        used, load, tuple(np.maximum(tiles, load / rows) for tiles, rows in zip(groups, TILE_TOKENS, strict=True))
    )


def moe_s(
    terms: MoeTerms,
    sheet: Sheet,
    experts: Experts,
    tokens: F8,
    routing: Routing,
    *,
    weight_bytes: float,
    operand_bytes: float,
    sent: bool = False,
) -> F8:
    """Seconds for each entry of ``tokens`` (at least 1), the layer's tokens before ``routing`` deals them to ranks.

    ``sent``: whether a rank has its own entries alone.
    """
    used, load = routing.used, routing.load
    inner = experts.products * experts.width
    moved = used * (1.0 + experts.products) * experts.hidden * experts.width * weight_bytes
    moved = moved + load * ((experts.hidden + experts.width) * operand_bytes + (inner + experts.hidden) * 2.0)
    memory = moved / (sheet.bytes_per_s * terms.bandwidth)
    permute = load * experts.hidden * PERMUTE_BYTES / (sheet.bytes_per_s * terms.permute_bandwidth)
    arithmetic = _arithmetic_s(terms, sheet, routing, inner, experts)
    entries = load if sent else tokens * experts.per_token
    route = entries * experts.hidden * ROUTE_BYTES / (sheet.bytes_per_s * terms.route_bandwidth)
    seconds = terms.launch_s + permute + route + p_norm(terms.sharpness, memory, arithmetic)
    return corrected(np.asarray(seconds), tokens, terms.tokens, terms.correction)


def _arithmetic_s(terms: MoeTerms, sheet: Sheet, routing: Routing, inner: F8 | float, experts: Experts) -> F8:
    best: F8 | None = None
    for step, (rows, groups) in enumerate(zip(TILE_TOKENS, routing.groups, strict=True)):
        tile_s = 2.0 * rows * TILE_OUTPUTS * sheet.multiprocessors / (sheet.flops * terms.flops)
        tile_s *= 1.0 + step * terms.small_tile_loss
        seconds: F8 = np.zeros_like(routing.load)
        for outputs, inputs in ((inner, experts.hidden), (experts.hidden, experts.width)):
            tiles = groups * np.ceil(np.asarray(outputs) / TILE_OUTPUTS)
            seconds = seconds + waves(tiles, sheet.multiprocessors, terms.quantisation) * (
                inputs * tile_s + terms.wave_s
            )
        best = seconds if best is None else np.minimum(best, seconds)
    assert best is not None
    return best
