"""How aiconfigurator's collector dealt the tokens of a skewed measurement to experts.

Every expert gets a share drawn from a power law (density ``x ** -alpha``), and entries in proportion, rounded. Rank by
rank, missing entries go to the expert with the fewest, and surplus ones come from the expert with the most (github
ai-dynamo/aiconfigurator, ``collector/helper.py``). The rank with the most entries is measured. With no more entries
than experts most shares round to zero. The missing entries then make nearly as many experts busy as there are entries;
random tokens would repeat experts.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8, I8
from hisearch.latency.laws.moe import TILE_TOKENS, Experts, Routing, dealt

#: Power-law exponent of the skewed measurements.
ALPHA = 1.2
#: Draws averaged by a measurement; our seed.
DRAWS, SEED = 10, 0
#: Range of the shares with no more entries than experts; with more, the upper end as a share of the tokens.
FEW_SHARES, MOST_TOKENS = (0.01, 2.0), 0.8


def measured(experts: Experts, tokens: F8, even: npt.NDArray[np.bool_]) -> Routing:
    """Routing of each measurement: round-robin where ``even``, by the power law elsewhere. Arrays of one shape."""
    turns = dealt(experts, tokens)
    routing = np.array([turns.used, turns.load, *turns.groups])
    shape = np.broadcast_arrays(tokens, experts.experts, experts.per_token, experts.sets)
    for row in np.flatnonzero(~even):
        routing[:, row] = power_law(*(int(values[row]) for values in shape))
    used, load, *groups = routing
    return Routing(used, load, tuple(groups))


@functools.cache
def power_law(tokens: int, experts: int, per_token: int, sets: int) -> tuple[float, ...]:
    """Experts used, entries and groups of the busiest rank, means over seeded draws; each at least 1."""
    rng = np.random.default_rng(SEED)
    draws = []
    for _ in range(DRAWS):
        entries = _busiest(tokens, experts, per_token, sets, rng)
        groups = [np.ceil(entries / rows).sum() for rows in TILE_TOKENS]
        draws.append([np.count_nonzero(entries), entries.sum(), *groups])
    return tuple(np.maximum(np.mean(draws, axis=0), 1.0).tolist())


def _busiest(tokens: int, experts: int, per_token: int, sets: int, rng: np.random.Generator) -> I8:
    """Entries of each expert of the busiest rank, shape (experts / sets,)."""
    total_entries = tokens * per_token
    low, high = (1.0, MOST_TOKENS * tokens) if total_entries > experts else FEW_SHARES
    ends = np.power((low, high), 1.0 - ALPHA)
    shares = np.power(ends[0] + (ends[1] - ends[0]) * rng.random(experts), 1.0 / (1.0 - ALPHA))
    entries = np.minimum(np.rint(shares / shares.sum() * total_entries), tokens).astype(np.int64).reshape(sets, -1)
    missing = total_entries - int(entries.sum())
    while missing:
        before = missing
        for rank in entries:
            place = int(rank.argmin() if missing > 0 else rank.argmax())
            step = int(np.sign(missing))
            if 0 <= rank[place] + step <= tokens:
                rank[place] += step
                missing -= step
        if missing == before:
            break
    busiest: I8 = entries[int(entries.sum(axis=1).argmax())]
    return busiest
