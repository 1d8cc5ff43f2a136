"""Paths that bytes take between tiers. A link serves one transfer after another, in the order in which they are sent.

So what several ask of it at once takes as long as its bandwidth says, and none is faster than alone.
"""

from __future__ import annotations

from hisearch.kernels.jit import kernel


@kernel
def send(sim, k, now, tokens):
    """Queue a transfer of ``tokens`` tokens' KV on link ``k`` at ``now``; returns when it ends."""
    link = sim.links[k]
    seconds = link.base_s + tokens * link.s_per_token
    end = max(now, link.free_s) + seconds
    link.free_s = end
    link.busy_s += seconds
    link.tokens += tokens
    if end > sim.fleet.config.horizon_s:
        link.beyond_s += end - max(end - seconds, sim.fleet.config.horizon_s)
        link.beyond_tokens += tokens
    link.transfers += 1
    return end
