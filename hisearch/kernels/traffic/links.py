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
def send_to_host(sim, w, back, now, tokens):
    """``send`` on worker ``w``'s link to host memory (``back``: from it), and over all that it shares on the way.

    Every link carries it in turn with what others send, so that none exceeds its bandwidth; the last to end counts.
    """
    k = 2 * w + back
    end = send(sim, k, now, tokens)
    for level in range(sim.shared.shape[1]):
        behind = send(sim, sim.shared[w, level] + back, now, tokens)
        if behind > end:
            horizon_s = sim.fleet.config.horizon_s
            if behind > horizon_s and end <= horizon_s:
                sim.links[k].beyond_tokens += tokens
            end = behind
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
