"""The background servers of a worker with a storage tier, each of which does one job after another.

One queries the stores for the cached length of a prompt, one reads, one writes, one moves pages between stores, in
batches of ``BATCH_PAGES`` pages. Several workers may share a store and the links to it. The next pass that tries to
prefill notes the servers' results, see ``hicache.storage``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.cache import store, store_eviction
from hisearch.kernels.core.linked_list import fifo, free_list
from hisearch.kernels.hicache import stores
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, moves
from hisearch.kernels.vllm import output_write_back

_enqueue = fifo()
acquire, _release = free_list(la.FREE_FETCH, la.FETCHES_USED)


@kernel
def _part_end(sim, k, now):
    """End of the batch that server ``k`` begins now."""
    w = k // hl.SERVERS
    kind = k % hl.SERVERS
    job = sim.servers[k].head
    batch = hl.BATCH_PAGES * sim.config.page_tokens
    if kind == hl.ASKER:
        skipped = sim.config.fetches_by_hits and sim.fetches[job].stopped
        return now + (0.0 if skipped else sim.tiers.query_s)
    if kind == hl.READER:
        if sim.config.fetches_by_hits and sim.fetches[job].stopped:
            return now
        return stores.begin_reading(
            sim, w, job, min(sim.fetches[job].stored_tokens - sim.fetches[job].read, batch), now
        )
    if kind == hl.WRITER:
        return stores.begin_writing(sim, w, min(sim.nodes[job].end - sim.hosted[job].written, batch), now)
    return stores.begin_moving(sim, w, job, min(sim.moves[job].end - sim.moves[job].begin, batch), now)


@kernel
def start(sim, k, now):
    """Let server ``k`` begin the next batch of the job at the head of its queue, or go idle."""
    if sim.servers[k].head < 0:
        heaps.server_clear(sim, k)
        return
    sim.servers[k].end_s = _part_end(sim, k, now)
    heaps.server_set(sim, k)


@kernel
def queue_fetch(sim, k, f, now):
    """Append fetch ``f`` to server ``k``'s queue."""
    server = sim.servers[k]
    idle = server.head < 0
    server.head, server.tail = _enqueue(sim.fetches, server.head, server.tail, f)
    if idle:
        start(sim, k, now)


@kernel
def _log(sim, f, now, event, tokens):
    if not sim.config.log:
        return
    k = sim.counters[la.LOG_FETCHES]
    if k >= sim.log_fetches.shape[0]:
        sim.counters[la.FAULT] = la.LOG_FULL
        return
    record = sim.log_fetches[k]
    record.at_s = now
    record.request = sim.fetches[f].request
    record.event = event
    record.tokens = tokens
    sim.counters[la.LOG_FETCHES] = k + 1


@kernel
def forget_fetch(sim, f):
    """Free the record of a fetch that neither its request nor a server uses."""
    fetch = sim.fetches[f]
    if not fetch.registered and not fetch.served:
        _release(sim.fetches, sim.counters, f)


@kernel
def _note_hit(sim, w, f, now):
    """End a query, of which the next pass takes note."""
    fetch = sim.fetches[f]
    fetch.stored_tokens = 0
    if not fetch.stopped:
        fetch.stored_tokens = stores.look(sim, w, fetch.trace_node, fetch.begin, fetch.begin + fetch.wanted, now)
    _log(sim, f, now, hl.READING, fetch.stored_tokens)
    host = sim.hosts[w]
    host.hits_head, host.hits_tail = _enqueue(sim.fetches, host.hits_head, host.hits_tail, f)


@kernel
def _note_done(sim, w, f):
    """End the reading of ``f``, of which the next pass takes note."""
    host = sim.hosts[w]
    host.done_head, host.done_tail = _enqueue(sim.fetches, host.done_head, host.done_tail, f)


@kernel
def _end_query(sim, w, f, now):
    """End a storage query.

    If too little is stored, revoke the fetch. Otherwise release the surplus host memory and begin to read.
    """
    fetch = sim.fetches[f]
    page = sim.config.page_tokens
    if sim.config.fetches_by_hits:
        _note_hit(sim, w, f, now)
        return
    stored_tokens = stores.look(sim, w, fetch.trace_node, fetch.begin, fetch.begin + fetch.wanted, now)
    host = sim.hosts[w]
    if stored_tokens < max(sim.tiers.fetch_threshold, page):
        fetch.refused = 1
        host.released_pages += fetch.wanted // page
        _log(sim, f, now, hl.REVOKED, stored_tokens)
        host.revoked, host.revoked_tail = _enqueue(sim.fetches, host.revoked, host.revoked_tail, f)
        return
    longest = fetch.begin + fetch.wanted
    stores.use(sim, w, fetch.request, fetch.trace_node, fetch.begin, fetch.begin + stored_tokens, longest, now)
    fetch.stored_tokens = stored_tokens
    host.released_pages += (fetch.wanted - stored_tokens) // page
    _log(sim, f, now, hl.READING, stored_tokens)
    queue_fetch(sim, hl.SERVERS * w + hl.READER, f, now)


@kernel
def _note_read(sim, w, f, now):
    """End a read batch. If the fetch was stopped before, the batch does not count and none follows.

    Returns whether another batch follows.
    """
    fetch = sim.fetches[f]
    page = sim.config.page_tokens
    batch = min(fetch.stored_tokens - fetch.read, hl.BATCH_PAGES * page)
    stores.end_reading(sim, w, f, batch, now)
    if not fetch.stopped:
        fetch.read += batch
        fetch.far_read += fetch.far
        if fetch.read < fetch.stored_tokens:
            return True
    _log(sim, f, now, hl.READ, fetch.read)
    if sim.config.fetches_by_hits:
        _note_done(sim, w, f)
        return False
    sim.hosts[w].released_pages += (fetch.stored_tokens - fetch.read) // page
    fetch.served = 0
    forget_fetch(sim, f)
    return False


@kernel
def _note_write(sim, w, d, now):
    """End a write batch, which becomes findable. Returns whether another batch follows."""
    hosted = sim.hosted[d]
    begin = hosted.written
    end = min(begin + hl.BATCH_PAGES * sim.config.page_tokens, sim.nodes[d].end)
    priority = sim.node_ranks[d].priority if sim.tiers.priorities else 0
    stores.end_writing(sim, w, sim.nodes[d].trace_node, begin, end, now, priority)
    hosted.written = end
    return end < sim.nodes[d].end


@kernel
def _note_move(sim, w, m, now):
    """End a batch moved from one store to another. Returns whether another batch follows."""
    move = sim.moves[m]
    tokens = min(move.end - move.begin, hl.BATCH_PAGES * sim.config.page_tokens)
    stores.end_moving(sim, w, m, tokens, now)
    move.begin += tokens
    return move.begin < move.end


@kernel
def _sweep(sim, t, now):
    """Drop the pages that had expired by the latest sweep time, once per sweep time."""
    tier = sim.store_tiers[t]
    if tier.reclaim != hl.PERIODIC:
        return
    period = np.int64(now / tier.reclaim_period_s)
    if period <= tier.swept:
        return
    tier.swept = period
    for v in range(tier.first, tier.first + tier.stores):
        store_eviction.sweep(sim, v, period * tier.reclaim_period_s)


@kernel
def end_part(sim, k, now):
    """End the current batch of server ``k`` now."""
    server = sim.servers[k]
    w = k // hl.SERVERS
    kind = k % hl.SERVERS
    job = server.head
    for t in range(sim.tiers.storage):
        _sweep(sim, t, now)
    if kind == hl.WRITER:
        if not _note_write(sim, w, job, now):
            server.head = sim.hosted[job].next_write
            sim.hosted[job].next_write = sim.hosts[w].written
            sim.hosts[w].written = job
    elif kind == hl.ASKER:
        server.head = sim.fetches[job].next
        _end_query(sim, w, job, now)
    elif kind == hl.READER:
        after = sim.fetches[job].next
        if not _note_read(sim, w, job, now):
            server.head = after
    elif not _note_move(sim, w, job, now):
        server.head = sim.moves[job].next
        moves.release(sim, job)
    start(sim, k, now)
    kv_connector = hl.SERVERS * w + hl.CONNECTOR_SERVER
    if sim.servers[kv_connector].head >= 0 and sim.servers[kv_connector].slot < 0:
        start(sim, kv_connector, now)


@kernel
def take_in(sim, t, r, now):
    """Take in the next output write-back batch of ``r`` into the shared store of tier ``t``."""
    for tier in range(sim.tiers.storage):
        _sweep(sim, tier, now)
    write_back = sim.fleet.output_write_back[r]
    priority = sim.trace.priority[r] if sim.tiers.priorities else 0
    end = output_write_back.part_end(sim, write_back)
    store.put(sim, sim.store_tiers[t].first, sim.trace.output_node[r], write_back.written, end, now, priority)


@kernel
def _drop_fetches(sim, f):
    """Drop the fetches of the queue from ``f`` on."""
    while f >= 0:
        after = sim.fetches[f].next
        sim.fetches[f].served = 0
        forget_fetch(sim, f)
        f = after


@kernel
def halt(sim, w):
    """Cancel the jobs of worker ``w``'s servers; the worker has died.

    Its requests still record their fetches.
    """
    for r in range(sim.requests.shape[0]):
        f = sim.requests[r].fetch
        if f >= 0 and sim.requests[r].worker == w:
            sim.requests[r].fetch = -1
            sim.fetches[f].registered = 0
            if not sim.fetches[f].served:
                forget_fetch(sim, f)
    first = hl.SERVERS * w
    _drop_fetches(sim, sim.servers[first + hl.ASKER].head)
    _drop_fetches(sim, sim.servers[first + hl.READER].head)
    _drop_fetches(sim, sim.hosts[w].revoked)
    sim.hosts[w].revoked = -1
    m = sim.servers[first + hl.CONNECTOR_SERVER].head
    while m >= 0:
        after = sim.moves[m].next
        moves.release(sim, m)
        m = after
    for k in range(first, first + hl.SERVERS):
        sim.servers[k].head = -1
        heaps.server_clear(sim, k)


@kernel
def advance(sim, w):
    """End all batches of worker ``w``'s servers up to its scheduler's time.

    The event loop has ended them, except those that take no time or fall into a scheduler's wait for a copy.
    """
    while True:
        first = -1
        for k in range(hl.SERVERS * w, hl.SERVERS * (w + 1)):
            done = sim.servers[k].head >= 0 and sim.servers[k].end_s <= sim.workers[w].now_s
            if done and (first < 0 or sim.servers[k].end_s < sim.servers[first].end_s):
                first = k
        if first < 0:
            return
        end_part(sim, first, sim.servers[first].end_s)


@kernel
def busy(sim, w):
    """Whether a server that the scheduler of worker ``w`` may wait for is busy: any but the KV connector's."""
    first = hl.SERVERS * w
    servers = sim.servers
    return (
        servers[first + hl.WRITER].head >= 0
        or servers[first + hl.ASKER].head >= 0
        or servers[first + hl.READER].head >= 0
    )
