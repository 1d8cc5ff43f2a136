"""A worker's drafted tokens."""

from __future__ import annotations

from typing import NamedTuple


class SpeculationPlan(NamedTuple):
    """Speculative decoding as kernels have it.

    draft_tokens: drafted for each decoding request in a step, at least 1.
    lookahead_tokens: for which pages are taken behind those of a step: those that the drafter writes.
    reads_next_token: whether the drafter's KV of a place depends on the token behind it (EAGLE, MTP), which limits
        what hits may be.
    accepted: probability that the first 1, 2, … drafted tokens are all accepted, not rising; as many as are drafted.
    seed: of the draws.
    """

    draft_tokens: int
    lookahead_tokens: int
    reads_next_token: bool
    accepted: tuple[float, ...]
    seed: int = 0
