"""The order in which leaves were last used, which ends most ties."""

from __future__ import annotations

from hisearch.base.jit import kernel


@kernel
def older(sim, a, b):
    """Whether leaf ``a`` was used, or of leaves used together made, before leaf ``b``."""
    na = sim.nodes[a]
    nb = sim.nodes[b]
    return na.tick < nb.tick or (na.tick == nb.tick and na.serial < nb.serial)
