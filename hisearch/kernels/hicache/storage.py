"""HiCache's storage tier: a worker's fetches from a store into host memory, and its writes to the store.

This is the scheduler's side; the servers in ``hicache.servers`` query, read and write. A fetch begins when a request
enters the queue. Admission takes it, as far as it has come, when it reaches the request.

Rules: SGLang 0.5.9's ``HiRadixCache`` and ``HiCacheController``, as far as recorded; restated in
``tests.reference.restatement.sglang_storage``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import store
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.hicache import copies as hicache_copies
from hisearch.kernels.hicache import fetches, hicache, prefetch, servers, stores
from hisearch.kernels.hicache import memory as hicache_memory
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import lists

#: How long after a fetch's deadline an idle scheduler looks at it again, seconds.
AFTER_DEADLINE_S = 1e-6

_enqueue = fifo("next_aside")
_enqueue_write = fifo("next_write")


@kernel
def _write(sim, w, d, now):
    """Queue the writing of node ``d`` as it is now."""
    servers.advance(sim, w)
    hicache_nodes.lock_host(sim, w, d)
    hosted = sim.hosted[d]
    hosted.written = sim.nodes[d].begin
    k = hl.SERVERS * w + hl.WRITER
    server = sim.servers[k]
    idle = server.head < 0
    server.head, server.tail = _enqueue_write(sim.hosted, server.head, server.tail, d)
    if idle:
        servers.start(sim, k, now)


@kernel
def _write_all(sim, w, d, now):
    """Queue the writing of node ``d``, which has been copied; by hits also of what was split off it meanwhile."""
    if not sim.config.fetches_by_hits:
        _write(sim, w, d, now)
        return
    part = d
    while sim.nodes[part].begin > sim.hosted[d].written:
        part = sim.nodes[part].parent
    while part != d:
        below = hicache.child_towards(sim, part, d)
        _write(sim, w, part, now)
        part = below
    _write(sim, w, d, now)


@kernel
def take_note(sim, w):
    """Note all background work done by now; called by every pass, before release 0.5.20 if it tries to prefill."""
    host = sim.hosts[w]
    hicache_copies.begin_writing(sim, w)
    while True:
        d = hicache_copies.next_written(sim, w)
        if d < 0:
            break
        if sim.tiers.storage:
            _write_all(sim, w, d, sim.workers[w].now_s)
    hicache_copies.note_loaded(sim, w)
    if not sim.tiers.storage:
        return
    servers.advance(sim, w)
    if sim.config.fetches_by_hits:
        prefetch.take_note(sim, w)
        return
    while host.revoked >= 0:
        f = host.revoked
        host.revoked = sim.fetches[f].next
        registered = sim.requests[sim.fetches[f].request].fetch
        sim.fetches[f].served = 0
        if registered >= 0:
            fetches.unregister(sim, w, registered)
        if registered != f:
            servers.forget_fetch(sim, f)
    while host.written >= 0:
        d = host.written
        host.written = sim.hosted[d].next_write
        hicache_nodes.unlock_host(sim, w, d)
    sim.trees[hicache_nodes.host_pool(sim, w)].free_pages += host.released_pages
    host.released_pages = 0


@kernel
def enter(sim, w, r):
    """Register ``r``, which has entered the queue, for a fetch by the next pass."""
    host = sim.hosts[w]
    if sim.config.fetches_by_hits:
        prefetch.enter(sim, w, r)
    store.come_up(sim, r)
    host.entering_head, host.entering_tail = _enqueue(sim.requests, host.entering_head, host.entering_tail, r)


@kernel
def _begin_fetch(sim, w, r):
    """Try to fetch the missing tokens of ``r``, unless it has taken over a fetch made ahead of its call."""
    if sim.requests[r].fetch >= 0 and sim.fetches[sim.requests[r].fetch].ahead:
        sim.fetches[sim.requests[r].fetch].ahead = 0
        return
    host = sim.hosts[w]
    page = sim.config.page_tokens
    trace_node = lists.path_end(sim, r)
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    in_hbm, d, on_host, above = hicache_nodes.walk(sim, w, trace_node, (known - 1) // page * page)
    begin = in_hbm + on_host
    sim.requests[r].missing_tokens = known - in_hbm
    tokens = (known - begin) // page * page
    backed_up = d < sim.trees.shape[0] or sim.hosted[d].where & hl.ON_HOST
    if not backed_up or tokens < sim.tiers.fetch_threshold or host.fetching_tokens >= sim.tiers.fetch_limit_tokens:
        return
    hicache_nodes.lock_host(sim, w, above)
    if not hicache_memory.take_host(sim, w, tokens // page):
        hicache_nodes.unlock_host(sim, w, above)
        return
    servers.advance(sim, w)
    fetches.open_fetch(sim, w, r, trace_node, begin, tokens, above, sim.workers[w].now_s)


@kernel
def begin_fetches(sim, w):
    """Try to fetch for the requests that have entered the queue."""
    host = sim.hosts[w]
    r = host.entering_head
    host.entering_head = -1
    while r >= 0:
        after = sim.requests[r].next_aside
        if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST:
            sim.counters[la.FAULT] = la.NODE_POOL_FULL
            return
        if sim.config.fetches_by_hits:
            prefetch.look_up(sim, w, r)
        else:
            _begin_fetch(sim, w, r)
        r = after


@kernel
def take_fetch(sim, w, r):
    """Take the fetched tokens of ``r``; False if ``r`` has to wait for more."""
    f = sim.requests[r].fetch
    if f < 0:
        return True
    if sim.config.fetches_by_hits:
        return prefetch.take(sim, w, r, f)
    fetch = sim.fetches[f]
    complete = fetch.stored_tokens > 0 and fetch.stored_tokens == fetch.read
    late = sim.workers[w].now_s - fetch.begun_s > prefetch.longest_wait_s(sim, fetch.stored_tokens)
    if prefetch.waits(sim) and not complete and not late:
        return False
    fetch.stopped = 1
    present = hicache.insert_host(sim, w, fetch.above, fetch.trace_node, fetch.begin, fetch.begin + fetch.read)
    sim.trees[hicache_nodes.host_pool(sim, w)].free_pages += present // sim.config.page_tokens
    sim.requests[r].fetched_tokens = fetch.read - present
    sim.requests[r].far_fetched_tokens = min(fetch.far_read, fetch.read - present)
    fetches.unregister(sim, w, f)
    return True


@kernel
def next_deadline_s(sim, w):
    """When an idle worker has to check a fetch again; infinity if it waits for none."""
    time = la.FOREVER_S
    if not prefetch.waits(sim):
        return time
    r = sim.workers[w].waiting_head
    while r >= 0:
        f = sim.requests[r].fetch
        if f >= 0:
            at = sim.fetches[f].begun_s + prefetch.longest_wait_s(sim, sim.fetches[f].stored_tokens)
            at += AFTER_DEADLINE_S
            if sim.config.fetches_by_hits:
                wait = sim.lookups[r]
                at = wait.wait_s + wait.timeout_s + AFTER_DEADLINE_S if wait.waits else la.FOREVER_S
            if at > sim.workers[w].now_s:
                time = min(time, at)
        r = sim.requests[r].next
    return time


@kernel
def reset(sim, w):
    """Set servers idle; empty the stores."""
    stores.reset(sim, w)
    for k in range(hl.SERVERS * w, hl.SERVERS * (w + 1)):
        sim.servers[k].head = -1
        sim.servers[k].tail = -1
        sim.servers[k].slot = -1
