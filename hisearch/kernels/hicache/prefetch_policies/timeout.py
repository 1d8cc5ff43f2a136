"""Waiting until a deadline, later where more is fetched."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import Parameter, PrefetchPolicy

PREFETCH = PrefetchPolicy(
    "It waits for all of it, or until a deadline.",
    flag="timeout",
    parameters=(
        Parameter(
            "prefetch_timeout_base_s",
            1.0,
            "HiCache prefetch_timeout_base in --hicache-storage-backend-extra-config: the deadline …",
            at_least=0,
        ),
        Parameter(
            "prefetch_timeout_s_per_ki_token",
            0.25,
            "… and HiCache prefetch_timeout_per_ki_token: what every 1,024 tokens to fetch add to it.",
            at_least=0,
        ),
    ),
)


@kernel
def longest_wait_s(sim, tokens):
    """Linear in the tokens."""
    return sim.tiers.prefetch_timeout_base_s + tokens / 1024 * sim.tiers.prefetch_timeout_s_per_ki_token
