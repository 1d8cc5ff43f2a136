"""Links between tiers. A link serves one transfer after another, in the order in which they are sent.

So simultaneous transfers share its bandwidth, and none is faster than it would be alone.
"""

from __future__ import annotations

from hisearch.base.jit import kernel


@kernel
def send(sim, k, now, tokens):
    """Queue a transfer of ``tokens`` tokens' KV on link ``k`` at ``now``; returns its end."""
    return carry(sim, k, now, sim.links[k].base_s + tokens * sim.links[k].s_per_token, tokens)


@kernel
def memory_of(sim, w, back):
    """The link into (``back``: out of) the host memory that the DP ranks of ``w``'s worker share; -1: they do not."""
    first = sim.tiers.first_memory
    return first + 2 * (w // sim.config.schedulers) + back if first >= 0 else -1


@kernel
def send_through(sim, k, beyond, now, tokens):
    """``send`` on link ``k``, whose transfers also pass through the shared link ``beyond``; -1: none."""
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
    """Queue a transfer that takes ``seconds`` and counts as ``tokens`` tokens; returns its end."""
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
    """Abort the last transfer of link ``k``, of ``carry``, at ``now``; it has moved nothing."""
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
