"""Drafted tokens of a case: how many of a step's are accepted, as a seeded law, and no drafter.

``speculation`` of a case: ``method`` (``eagle``, as MTP and EAGLE-3 are scheduled, or ``ngram``), ``draft_tokens``,
``accepted`` (probability that the first 1, 2, … drafts are all accepted) and ``seed``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

#: Step times with drafted tokens: what a step reads depends on how many drafts were accepted before, which a recording
#: of a scheduler with overlap does not show.
LAW = "0.005 + 2e-5*sum(new), over the requests of the step's batch"
_KEYS = ("method", "draft_tokens", "accepted", "seed")
METHODS = ("eagle", "ngram")
_STEP, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


class Drafts:
    """The drafts of one case."""

    def __init__(self, speculation: dict[str, Any], names: list[str]) -> None:
        """``names``: of the requests, in the recording's order, by whose places draws are made."""
        self.count = int(speculation["draft_tokens"])
        self._accepted, self._seed = speculation["accepted"], int(speculation["seed"])
        self._places = {name: place for place, name in enumerate(names)}

    def accepted(self, name: str, generated: int, offered: int) -> int:
        """How many of ``offered`` drafts are accepted behind the request's ``generated`` output tokens."""
        unit = unit_at(self._seed, self._places[name], generated)
        accepted = 0
        while accepted < offered and unit < self._accepted[accepted]:
            accepted += 1
        return accepted


def step_latency_s(batch: Sequence[tuple[Any, int, int]]) -> float:
    """Seconds of a step by ``LAW``."""
    return 0.005 + 2e-5 * sum(new for _, _, new in batch)


def unit_at(seed: int, first: int, second: int) -> float:
    """A number in [0, 1) for a pair of counts (SplitMix64's finisher over both)."""
    z = _mixed(seed + _STEP * (first + 1) & _MASK)
    z = _mixed(z + _STEP * (second + 1) & _MASK)
    return float((z >> 11) * 2.0**-53)


def _mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def problem(speculation: dict[str, Any]) -> str | None:
    """What is wrong with a case's ``speculation``, or None."""
    if set(speculation) != set(_KEYS):
        return f"speculation: has {sorted(speculation)}; expected {', '.join(_KEYS)}"
    if speculation["method"] not in METHODS:
        return f"speculation.method: {speculation['method']!r}; expected {' or '.join(METHODS)}"
    accepted = speculation["accepted"]
    if len(accepted) != speculation["draft_tokens"] or sorted(accepted, reverse=True) != accepted:
        return "speculation.accepted: expected a probability for each drafted token, none above the one before"
    return None


def random_speculation(rng: random.Random, methods: Sequence[str]) -> dict[str, Any]:
    """Draw a case's ``speculation``."""
    count = rng.choice((1, 1, 2, 3, 3, 5, 7))
    accepted, held = [], 1.0
    for _ in range(count):
        held *= rng.uniform(0.3, 0.95)
        accepted.append(round(held, 4))
    method = rng.choice(methods) if len(methods) > 1 else methods[0]
    return {"method": method, "draft_tokens": count, "accepted": accepted, "seed": rng.randrange(1000)}
