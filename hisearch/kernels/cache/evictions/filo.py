"""What was cached last goes first."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import EvictionPolicy

EVICTION = EvictionPolicy(
    "What was cached last goes first.",
    engine=True,
    newest_first=True,
    pages="stored last",
)


@kernel
def before(sim, a, b):
    """By creation; the latest first."""
    return sim.nodes[a].serial > sim.nodes[b].serial
