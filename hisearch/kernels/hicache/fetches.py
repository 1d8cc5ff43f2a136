"""The records of HiCache's fetches: one is made when a request is looked up in storage."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.hicache import servers
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la


@kernel
def unregister(sim, w, f):
    """Detach fetch ``f`` from its request."""
    fetch = sim.fetches[f]
    fetch.registered = 0
    sim.requests[fetch.request].fetch = -1
    sim.hosts[w].fetching_tokens -= fetch.wanted
    hicache_nodes.unlock_host(sim, w, fetch.above)
    servers.forget_fetch(sim, f)


@kernel
def _acquire_fetch(sim):
    f = servers.acquire(sim.fetches, sim.counters)
    if f < 0:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return 0
    return f


@kernel
def open_fetch(sim, w, r, trace_node, begin, tokens, above, at_s):
    """Query storage from ``at_s`` on for ``tokens`` tokens of ``r``, after ``begin`` on the path to ``trace_node``.

    Their host memory has been taken, and the host copy of ``above`` is locked. Returns the fetch.
    """
    f = _acquire_fetch(sim)
    fetch = sim.fetches[f]
    fetch.begun_s = at_s
    fetch.begin = begin
    fetch.wanted = tokens
    fetch.stored_tokens = 0
    fetch.read = 0
    fetch.far_read = 0
    fetch.request = r
    fetch.trace_node = trace_node
    fetch.above = above
    fetch.stopped = 0
    fetch.refused = 0
    fetch.taken = 0
    fetch.noted = 0
    fetch.ahead = 0
    fetch.registered = 1
    fetch.served = 1
    sim.requests[r].fetch = f
    sim.hosts[w].fetching_tokens += tokens
    servers.queue_fetch(sim, hl.SERVERS * w + hl.ASKER, f, at_s)
    return f
