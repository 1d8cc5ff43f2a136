"""The least recently used first."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy
from hisearch.kernels.cache import recency

EVICTION = EvictionPolicy(
    "Least recently used first.",
    engine=True,
    recency=True,
    pages="least recently used, as vLLM and SGLang do by default",
)


@kernel
def before(sim, a, b):
    """By last access, then age."""
    return recency.older(sim, a, b)
