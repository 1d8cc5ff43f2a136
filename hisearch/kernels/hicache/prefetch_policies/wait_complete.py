"""Waiting for all of it."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import PrefetchPolicy
from hisearch.kernels.layout import sim as la

PREFETCH = PrefetchPolicy("It waits for all of it.", flag="wait_complete")


@kernel
def longest_wait_s(sim, tokens):
    """For ever."""
    return la.FOREVER_S
