"""SplitMix64: a tiny seeded stream for decisions inside kernels (Steele, Lea, Flood 2014)."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


@kernel
def _mixed(z):
    z = (z ^ (z >> np.uint64(30))) * _MIX_A
    z = (z ^ (z >> np.uint64(27))) * _MIX_B
    return z ^ (z >> np.uint64(31))


@kernel
def next_u64(rng):
    """Advance ``rng`` (shape (1,), uint64, modified in place) and return its next 64 bits."""
    state = rng[0] + _STEP
    rng[0] = state
    return _mixed(state)


@kernel
def below(rng, bound):
    """An integer in [0, bound), by remainder; ``bound`` is far below 2**64, so the bias is negligible."""
    return np.int64(next_u64(rng) % np.uint64(bound))


@kernel
def unit(rng):
    """A number in [0, 1), evenly spread over multiples of 2**-53."""
    return np.float64(next_u64(rng) >> np.uint64(11)) * 2.0**-53


@kernel
def unit_at(seed, first, second):
    """A number in [0, 1) for a pair of counts: the same whatever else was drawn before."""
    z = _mixed(np.uint64(seed) + _STEP * np.uint64(first + 1))
    z = _mixed(z + _STEP * np.uint64(second + 1))
    return np.float64(z >> np.uint64(11)) * 2.0**-53
