"""Paths that bytes take between tiers. A link serves one transfer after another, in the order in which they are sent.

So what several ask of it at once takes as long as its bandwidth says, and none is faster than alone.
"""

from __future__ import annotations

from hisearch.base.jit import kernel


@kernel
def send(sim, k, now, tokens):
    """Queue a transfer of ``tokens`` tokens' KV on link ``k`` at ``now``; returns when it ends."""
    return carry(sim, k, now, sim.links[k].base_s + tokens * sim.links[k].s_per_token, tokens)


@kernel
def memory_of(sim, w, back):
    """The link into the host memory that attention groups of ``w``'s worker share, or out of it; -1: they do not."""
    first = sim.tiers.first_memory
    return first + 2 * (w // sim.config.schedulers) + back if first >= 0 else -1


@kernel
def send_through(sim, k, beyond, now, tokens):
    """Likewise, where what link ``k`` carries passes through link ``beyond`` as well, which others share, or -1."""
    end = send(sim, k, now, tokens)
    if beyond < 0:
        return end
    behind = send(sim, beyond, now, tokens)
    if behind > end:
        horizon_s = sim.fleet.config.horizon_s
        if behind > horizon_s and end <= horizon_s:
            sim.links[k].beyond_tokens += tokens
        return behind
    return end


@kernel
def carry(sim, k, now, seconds, tokens):
    """Likewise of what takes so many ``seconds``, and counts as so many ``tokens``."""
    link = sim.links[k]
    end = max(now, link.free_s) + seconds
    link.free_s = end
    link.busy_s += seconds
    link.tokens += tokens
    if end > sim.fleet.config.horizon_s:
        link.beyond_s += end - max(end - seconds, sim.fleet.config.horizon_s)
        link.beyond_tokens += tokens
    link.transfers += 1
    return end


@kernel
def call_back(sim, k, now, seconds, tokens):
    """The last transfer of link ``k``, of ``carry``, ends at ``now`` instead, and has brought nothing."""
    link = sim.links[k]
    horizon_s = sim.fleet.config.horizon_s
    end = link.free_s
    link.busy_s -= end - now
    link.tokens -= tokens
    link.transfers -= 1
    if end > horizon_s:
        link.beyond_s -= end - max(end - seconds, horizon_s)
        link.beyond_tokens -= tokens
    link.free_s = now
