"""Routers: which worker a request goes to.

They know what a router can: in-flight load, and their own belief about the workers' caches.
"""

from __future__ import annotations

import numpy as np

from hisearch.kernels import layout as la
from hisearch.kernels import rng
from hisearch.kernels.jit import kernel


@kernel
def _round_robin(sim):
    w = sim.counters[la.ROBIN]
    sim.counters[la.ROBIN] = (w + sim.config.lanes) % sim.config.workers
    return w


@kernel
def _power_of_two(sim):
    """Two distinct random workers; fewer in-flight tokens, then fewer requests, then the lower index."""
    lanes = sim.config.lanes
    first = rng.below(sim.rng, sim.config.workers // lanes)
    second = rng.below(sim.rng, sim.config.workers // lanes - 1)
    if second >= first:
        second += 1
    a = lanes * min(first, second)
    b = lanes * max(first, second)
    wa = sim.workers[a]
    wb = sim.workers[b]
    if wb.inflight_tokens < wa.inflight_tokens:
        return b
    if wb.inflight_tokens == wa.inflight_tokens and wb.inflight_requests < wa.inflight_requests:
        return b
    return a


@kernel
def _lowest_bit(word):
    bit = 0
    while not (word >> np.uint64(bit)) & np.uint64(1):
        bit += 1
    return bit


@kernel
def _best_match(sim, r):
    """The lowest worker whose believed cache holds the longest prefix of ``r``'s prompt.

    Returns (tokens, worker or -1).
    """
    s = sim.trace.prompt_node[r]
    while s > 0:
        for word in range(sim.belief.shape[1]):
            if sim.belief[s, word]:
                return sim.trace.end_tokens[s], 64 * word + _lowest_bit(sim.belief[s, word])
        s = sim.trace.parent[s]
    return 0, -1


@kernel
def _believe(sim, w, r):
    """Worker ``w`` will hold ``r``'s whole prompt."""
    word = w // 64
    bit = np.uint64(1) << np.uint64(w % 64)
    s = sim.trace.prompt_node[r]
    while s > 0 and not sim.belief[s, word] & bit:
        sim.belief[s, word] |= bit
        sim.workers[w].belief_tokens += sim.trace.end_tokens[s] - sim.trace.start_tokens[s]
        s = sim.trace.parent[s]


@kernel
def _cache_aware(sim, r):
    """Balance first; else the best believed prefix if it is long enough, else the smallest believed cache."""
    config = sim.config
    least = 0
    smallest = 0
    most_requests = sim.workers[0].inflight_requests
    for w in range(config.lanes, config.workers, config.lanes):
        worker = sim.workers[w]
        if worker.inflight_requests < sim.workers[least].inflight_requests:
            least = w
        if worker.inflight_requests > most_requests:
            most_requests = worker.inflight_requests
        if worker.belief_tokens < sim.workers[smallest].belief_tokens:
            smallest = w
    fewest_requests = sim.workers[least].inflight_requests
    spread = most_requests - fewest_requests
    if spread > config.balance_abs and most_requests > config.balance_rel * fewest_requests:
        chosen = least
    else:
        tokens, best = _best_match(sim, r)
        long_enough = tokens / sim.trace.input_tokens[r] > config.cache_threshold
        chosen = best if best >= 0 and long_enough else smallest
    _believe(sim, chosen, r)
    return chosen


@kernel
def route(sim, r):
    """Choose a worker for request ``r``; returns its first lane, which keeps what the router knows of it."""
    config = sim.config
    if config.workers == config.lanes:
        return 0
    if config.router == la.RANDOM:
        return config.lanes * rng.below(sim.rng, config.workers // config.lanes)
    if config.router == la.ROUND_ROBIN:
        return _round_robin(sim)
    if config.router == la.POWER_OF_TWO:
        return _power_of_two(sim)
    return _cache_aware(sim, r)
