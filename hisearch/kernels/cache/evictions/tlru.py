"""What a next prompt's first token can do without, then the others, by last use (tail-optimized LRU).

Of a sequence of L tokens pages from L + turn_tokens - tail_tokens on may go first: its next prompt would still have no
more than tail_tokens to compute (Zhang et al. 2025, arXiv:2510.15152).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy, Parameter
from hisearch.kernels.cache import recency

EVICTION = EvictionPolicy(
    "What the next prompt's first token can do without, least recently used first.",
    parameters=(
        Parameter(
            "tail_tokens",
            8192,
            "tokens that a prompt may have to compute; what lies beyond may be evicted first.",
            at_least=1,
        ),
        Parameter("turn_tokens", 1024, "new tokens that a session's next turn is expected to bring.", at_least=1),
    ),
    reach=True,
    pages="tail-optimised lru: first a page without which the next prompt of every sequence that used it since it was "
    "stored still leaves no more than tail_tokens to compute, turn_tokens of them new; then least recently used",
)


@kernel
def _is_needed(sim, d):
    """Whether the last page of run ``d`` is one that no sequence can do without."""
    return sim.nodes[d].end - sim.config.page_tokens < sim.hosted[d].dispensable_from


@kernel
def before(sim, a, b):
    """What can be done without, then the others, by last access."""
    ka = _is_needed(sim, a)
    kb = _is_needed(sim, b)
    return kb if ka != kb else recency.older(sim, a, b)


@kernel
def pages_to_go(sim, v, d, wanted):
    """At first only those that can be done without."""
    node = sim.nodes[d]
    spare = (node.end - max(sim.hosted[d].dispensable_from, node.begin)) // sim.config.page_tokens
    return min(wanted, spare) if spare > 0 else wanted
