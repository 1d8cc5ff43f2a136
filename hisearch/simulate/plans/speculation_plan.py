"""A worker's drafted tokens."""

from __future__ import annotations

from typing import NamedTuple


class SpeculationPlan(NamedTuple):
    """Speculative decoding as kernels have it.

    draft_tokens: drafted for each decoding request in a step, at least 1.
    lookahead_tokens: for which pages are taken behind those of a step: those that the drafter writes.
    drops_last_page: whether the last page of a hit is computed again, whose inputs the drafter needs.
    accepted: probability that the first 1, 2, … drafted tokens are all accepted, not rising; as many as are drafted.
    seed: of the draws.
    """

    draft_tokens: int
    lookahead_tokens: int
    drops_last_page: bool
    accepted: tuple[float, ...]
    seed: int = 0
