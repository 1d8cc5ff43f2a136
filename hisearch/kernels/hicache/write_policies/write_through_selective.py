"""Copied at the second insertion: what nobody asks for again takes no host memory."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import WritePolicy

WRITE_POLICY = WritePolicy("Copied when KV is inserted the second time.", flag="write_through_selective")
#: Hits at which a node is copied (SGLang, ``HiRadixCache.write_through_threshold``).
_HITS = 2


@kernel
def copies(sim, d):
    """From the second hit on."""
    return sim.nodes[d].hits >= _HITS
