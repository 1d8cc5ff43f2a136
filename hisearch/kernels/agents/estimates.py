"""Estimates of an agent's next call from past gaps: the times between the end of a call and the next call.

PAST, LAST, EWMA: of the agent's own gaps. SURVIVAL: what is left of the gaps of all agents that were longer than this
agent has been away (mean residual life), so that a call that does not come moves away. None knows more than the past.
"""

from __future__ import annotations

import math

from hisearch.base.jit import kernel
from hisearch.kernels.layout import agents as al

#: Weight of the newest gap in the moving average, which remembers some seven gaps. Assumed.
EWMA_WEIGHT = 0.25


@kernel
def _bin(seconds):
    """The bin that gaps of this length are counted in."""
    octaves = math.log2(max(seconds, al.GAP_LEAST_S) / al.GAP_LEAST_S)
    return min(int(octaves * al.GAPS_PER_OCTAVE), al.GAP_BINS - 1)


@kernel
def note_gap(sim, a, gap_s):
    """Note that ``gap_s`` have passed between two calls of agent ``a``."""
    agents = sim.agents
    agent = agents.agents[a]
    source = agents.policy.source
    agent.gaps += 1
    if agent.gaps == 1 or source == al.LAST:
        weight = 1.0
    elif source == al.EWMA:
        weight = EWMA_WEIGHT
    else:
        weight = 1.0 / agent.gaps
    agent.gap_s += weight * (gap_s - agent.gap_s)
    if source == al.SURVIVAL:
        b = _bin(gap_s)
        agents.gap_counts[b] += 1
        agents.gap_sums_s[b] += gap_s


@kernel
def from_past(sim, a, away_s):
    """Seconds to the next call of agent ``a``, idle for ``away_s``; -1 where nothing is known."""
    agents = sim.agents
    agent = agents.agents[a]
    if agents.policy.source != al.SURVIVAL:
        return max(agent.gap_s - away_s, 0.0) if agent.gaps > 0 else -1.0
    counted = 0
    sum_s = 0.0
    for b in range(_bin(away_s), al.GAP_BINS):
        if agents.gap_sums_s[b] > away_s * agents.gap_counts[b]:
            counted += agents.gap_counts[b]
            sum_s += agents.gap_sums_s[b]
    if counted > 0:
        return sum_s / counted - away_s
    # Nobody has been away for longer: as long again.
    return away_s if agent.gaps > 0 else -1.0
