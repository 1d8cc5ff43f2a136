"""Prefetch of an agent's KV from storage into host memory, ahead of its call.

A fetch covers the path of the agent's newest call, from the end of what host memory has. It works as the engine's own
prefetch for a queued request (``hicache.storage``): same servers, same links, same limit on all fetches together. At
most one fetch ahead is under way, and it begins only while storage is idle. It evicts KV that only the host has and
whose predicted call is later than the agent's. A path is fetched once. Where storage has too little of it, or it was
evicted again, the call fetches it.

The agent's call takes its fetch over, as if it had begun it. A call that will fetch for itself stops another agent's
fetch (``preempts``) if more than the batch under way is left to read. What has arrived is kept, and the fetch may be
continued later.

``agents.loads`` decides whether and when. ``agents.kv`` loads from host memory on.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction, tree
from hisearch.kernels.hicache import fetches, hicache
from hisearch.kernels.hicache import memory as hicache_memory
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists


@kernel
def on(sim):
    """Whether KV is fetched from storage ahead of calls."""
    return sim.tiers.storage > 0 and sim.agents.policy.kv_budget_pages > 0


@kernel
def missing(sim, w, a):
    """Tokens of agent ``a``'s newest path that neither HBM nor the host has, whole pages; 0 where they are too few."""
    agent = sim.agents.agents[a]
    if agent.end_s < 0.0 or agent.sought == agent.trace_node:
        return 0
    limit = tree.floor_page(sim, sim.trace.end_tokens[agent.trace_node])
    tokens, _, _ = hicache_nodes.find(sim, w, agent.trace_node, limit)
    return limit - tokens if limit - tokens >= sim.tiers.fetch_threshold else 0


@kernel
def _take_pages(sim, w, predicted, pages):
    """Take ``pages`` of host memory; evicts KV that only the host has, predicted for later. False: too few."""
    v = hicache_nodes.host_pool(sim, w)
    pool = sim.trees[v]
    while pool.free_pages < pages:
        d = eviction.first(sim, v)
        if d < 0 or sim.agents.keys[d] <= predicted:
            return False
        hicache_memory.evict_from_host(sim, w)
    return hicache_memory.take_host(sim, w, pages)


@kernel
def idle(sim, w):
    """Whether storage is neither queried nor read."""
    first = hl.SERVERS * w
    return sim.servers[first + hl.ASKER].head < 0 and sim.servers[first + hl.READER].head < 0


@kernel
def begin(sim, w, a, now):
    """Begin to fetch agent ``a``'s missing KV, if the fetch limit and free pages allow."""
    loader = sim.agents.loaders[w]
    agent = sim.agents.agents[a]
    host = sim.hosts[w]
    if host.fetching_tokens >= sim.tiers.fetch_limit_tokens or sim.requests[agent.newest].fetch >= 0:
        return
    if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return
    limit = tree.floor_page(sim, sim.trace.end_tokens[agent.trace_node])
    in_hbm, d, on_host, above = hicache_nodes.walk(sim, w, agent.trace_node, limit)
    if not hicache_nodes.is_root(sim, d) and not sim.hosted[d].where & hl.ON_HOST:
        # As for the engine's own fetches: the host keeps nothing below a node that it does not have.
        agent.sought = agent.trace_node
        return
    tokens = limit - in_hbm - on_host
    hicache_nodes.lock_host(sim, w, above)
    if not _take_pages(sim, w, agent.predicted_call, tokens // sim.config.page_tokens):
        hicache_nodes.unlock_host(sim, w, above)
        return
    at_s = max(now, sim.workers[w].now_s)
    loader.fetch = fetches.open_fetch(sim, w, agent.newest, agent.trace_node, in_hbm + on_host, tokens, above, at_s)
    loader.fetch_agent = a
    loader.fetch_request = agent.newest
    agent.sought = agent.trace_node


@kernel
def _take(sim, w):
    """Insert what the fetch under way has read into host memory, and end it. Returns its agent."""
    loader = sim.agents.loaders[w]
    f = loader.fetch
    fetch = sim.fetches[f]
    fetch.stopped = 1
    present = hicache.insert_host(sim, w, fetch.above, fetch.trace_node, fetch.begin, fetch.begin + fetch.read)
    page = sim.config.page_tokens
    sim.trees[hicache_nodes.host_pool(sim, w)].free_pages += present // page
    loader.fetched_pages += (fetch.read - present) // page
    fetches.unregister(sim, w, f)
    loader.fetch = -1
    return loader.fetch_agent


@kernel
def settle(sim, w):
    """Check the fetch under way; returns its agent if it is over, or -1."""
    loader = sim.agents.loaders[w]
    f = loader.fetch
    if f < 0:
        return -1
    fetch = sim.fetches[f]
    if sim.requests[loader.fetch_request].fetch != f or fetch.refused:
        loader.fetch = -1
        return loader.fetch_agent
    if fetch.stored_tokens > 0 and fetch.read == fetch.stored_tokens:
        if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST:
            sim.counters[la.FAULT] = la.NODE_POOL_FULL
            return -1
        loader.fetches += 1
        return _take(sim, w)
    return -1


@kernel
def hand_over(sim, w, r):
    """Make the fetch under way that of request ``r``, the call of its agent."""
    loader = sim.agents.loaders[w]
    f = loader.fetch
    sim.requests[loader.fetch_request].fetch = -1
    sim.requests[r].fetch = f
    sim.fetches[f].request = r
    sim.fetches[f].ahead = 1
    loader.fetch = -1
    loader.fetches_called += 1


@kernel
def stop(sim, w):
    """Stop the fetch under way and keep what it has read; returns its agent, or -1 where node records have run out."""
    if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return -1
    a = _take(sim, w)
    sim.agents.agents[a].sought = -1
    sim.agents.loaders[w].fetches_stopped += 1
    return a


@kernel
def should_stop(sim, w, r):
    """Whether the fetch under way has more than a batch left to read while call ``r`` will fetch for itself."""
    fetch = sim.fetches[sim.agents.loaders[w].fetch]
    batch = hl.BATCH_PAGES * sim.config.page_tokens
    if not sim.agents.policy.preempts or fetch.stored_tokens - fetch.read <= batch:
        return False
    limit = tree.floor_page(sim, sim.trace.input_tokens[r] - 1)
    tokens, _, _ = hicache_nodes.find(sim, w, lists.path_end(sim, r), limit)
    return limit - tokens >= sim.tiers.fetch_threshold
