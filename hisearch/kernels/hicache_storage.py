"""HiCache's storage tier: what a worker's requests fetch from a store into host memory, and what it writes there.

Beside its scheduler a worker has three servers, each of which does one job after another: one asks the store how much
of a prompt it has, one reads, one writes, batches of ``BATCH_PAGES`` pages at a time. What they come to is noted by the
next pass that tries to prefill. Several workers may share a store and the links to it.

A fetch is begun when a request enters the queue, and taken, as far as it has come, when admission gets to the request.
Rules: SGLang 0.5.9's ``HiRadixCache`` and ``HiCacheController``, as far as recorded; restated in
``validate.restatement.sglang_storage``.
"""

from __future__ import annotations

import numpy as np

from hisearch.kernels import hicache, hicache_copies, hicache_memory, hicache_nodes, links, lists, store
from hisearch.kernels import hicache_layout as hl
from hisearch.kernels import layout as la
from hisearch.kernels.jit import kernel

#: Pages that are read or written together.
BATCH_PAGES = 128
#: How long after a fetch's deadline an idle scheduler looks at it again, seconds.
AFTER_DEADLINE_S = 1e-6


# ---- the servers' heap -----------------------------------------------------------------------------------------------


@kernel
def _ends_before(sim, a, b):
    """Order of ends: by time, then by worker and kind."""
    ta = sim.servers[a].end_s
    tb = sim.servers[b].end_s
    return ta < tb or (ta == tb and a < b)


@kernel
def _sift(sim, slot):
    heap = sim.server_heap
    size = sim.counters[la.SERVING]
    k = heap[slot]
    while slot > 0:
        up = (slot - 1) >> 1
        if not _ends_before(sim, k, heap[up]):
            break
        heap[slot] = heap[up]
        sim.servers[heap[slot]].slot = slot
        slot = up
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _ends_before(sim, heap[down + 1], heap[down]):
            down += 1
        if not _ends_before(sim, heap[down], k):
            break
        heap[slot] = heap[down]
        sim.servers[heap[slot]].slot = slot
        slot = down
    heap[slot] = k
    sim.servers[k].slot = slot


@kernel
def _start(sim, k, now):
    """Server ``k`` begins the next part of the job at the head of its line, or rests."""
    server = sim.servers[k]
    if server.head >= 0:
        server.end_s = _part_end(sim, k, now)
        if server.slot < 0:
            server.slot = sim.counters[la.SERVING]
            sim.server_heap[server.slot] = k
            sim.counters[la.SERVING] += 1
        _sift(sim, server.slot)
        return
    slot = server.slot
    if slot < 0:
        return
    server.slot = -1
    size = sim.counters[la.SERVING] - 1
    sim.counters[la.SERVING] = size
    if slot != size:
        sim.server_heap[slot] = sim.server_heap[size]
        sim.servers[sim.server_heap[slot]].slot = slot
        _sift(sim, slot)


@kernel
def _store_of(sim, w):
    return sim.config.workers + w // sim.tiers.workers_per_store


@kernel
def _travel(sim, w, now, tokens, back):
    """A batch between worker ``w``'s node and its store: over the store's own link, and the node's network."""
    first = 2 * sim.config.workers
    k = w // sim.tiers.workers_per_store
    end = links.send(sim, first + 2 * k + back, now, tokens)
    if sim.tiers.network:
        stores = (sim.config.workers - 1) // sim.tiers.workers_per_store + 1
        node = w // sim.tiers.workers_per_node
        end = max(end, links.send(sim, first + 2 * stores + 2 * node + back, now, tokens))
    return end


@kernel
def _part_end(sim, k, now):
    """When the part that server ``k`` begins now ends."""
    w = k // 3
    batch = BATCH_PAGES * sim.config.page_tokens
    if k % 3 == hl.ASKER:
        return now + sim.tiers.query_s
    if k % 3 == hl.READER:
        fetch = sim.fetches[sim.servers[k].head]
        return _travel(sim, w, now, min(fetch.found - fetch.read, batch), 1)
    hosted = sim.hosted[sim.servers[k].head]
    return _travel(sim, w, now, min(sim.nodes[sim.servers[k].head].end - hosted.written, batch), 0)


@kernel
def _queue_fetch(sim, k, f, now):
    server = sim.servers[k]
    sim.fetches[f].next = -1
    if server.head >= 0:
        sim.fetches[server.tail].next = f
        server.tail = f
        return
    server.head = f
    server.tail = f
    _start(sim, k, now)


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
def _forget_fetch(sim, f):
    """Give the record back once neither its request nor a server has it."""
    fetch = sim.fetches[f]
    if not fetch.registered and not fetch.served:
        fetch.next = sim.counters[la.FREE_FETCH]
        sim.counters[la.FREE_FETCH] = f


@kernel
def _answer(sim, w, f, now):
    """Storage says what it has.

    Too little: the fetch is revoked. Else memory beyond it is released and reading begins.
    """
    fetch = sim.fetches[f]
    page = sim.config.page_tokens
    v = _store_of(sim, w)
    found = store.leading(sim, v, fetch.static, fetch.begin, fetch.begin + fetch.wanted, now)
    host = sim.hosts[w]
    if found < max(sim.tiers.fetch_threshold, page):
        host.released_pages += fetch.wanted // page
        _log(sim, f, now, hl.REVOKED, found)
        fetch.next = -1
        if host.revoked >= 0:
            sim.fetches[host.revoked_tail].next = f
        else:
            host.revoked = f
        host.revoked_tail = f
        return
    store.touch(sim, v, fetch.static, fetch.begin, fetch.begin + found, now)
    if sim.trees[v].eviction == la.TLRU:
        store.reach(sim, v, fetch.static, fetch.begin + fetch.wanted)
    fetch.found = found
    host.released_pages += (fetch.wanted - found) // page
    _log(sim, f, now, hl.READING, found)
    _queue_fetch(sim, 3 * w + hl.READER, f, now)


@kernel
def _note_read(sim, w, f, now):
    """A batch has been read. If the fetch was stopped before, it does not count and none follows.

    Returns whether another part follows.
    """
    fetch = sim.fetches[f]
    page = sim.config.page_tokens
    batch = min(fetch.found - fetch.read, BATCH_PAGES * page)
    sim.trees[_store_of(sim, w)].read_tokens += batch
    if not fetch.stopped:
        fetch.read += batch
        if fetch.read < fetch.found:
            return True
    sim.hosts[w].released_pages += (fetch.found - fetch.read) // page
    _log(sim, f, now, hl.READ, fetch.read)
    fetch.served = 0
    _forget_fetch(sim, f)
    return False


@kernel
def _note_write(sim, w, d, now):
    """A batch can be found as soon as it is written. Returns whether another part follows."""
    hosted = sim.hosted[d]
    begin = hosted.written
    end = min(begin + BATCH_PAGES * sim.config.page_tokens, sim.nodes[d].end)
    store.put(sim, _store_of(sim, w), sim.nodes[d].static, begin, end, now)
    hosted.written = end
    return end < sim.nodes[d].end


@kernel
def _sweep(sim, now):
    """Drop what had expired by the newest of the set times, where nothing has since."""
    period = np.int64(now / sim.tiers.reclaim_period_s)
    if period <= sim.counters[la.SWEPT]:
        return
    sim.counters[la.SWEPT] = period
    stores = (sim.config.workers - 1) // sim.tiers.workers_per_store + 1
    for v in range(sim.config.workers, sim.config.workers + stores):
        store.sweep(sim, v, period * sim.tiers.reclaim_period_s)


@kernel
def end_part(sim, k, now):
    """The part that server ``k`` is at ends now."""
    server = sim.servers[k]
    w = k // 3
    job = server.head
    if sim.tiers.reclaim == hl.PERIODIC:
        _sweep(sim, now)
    if k % 3 == hl.WRITER:
        if not _note_write(sim, w, job, now):
            server.head = sim.hosted[job].next_write
            sim.hosted[job].next_write = sim.hosts[w].written
            sim.hosts[w].written = job
    elif k % 3 == hl.ASKER:
        server.head = sim.fetches[job].next
        _answer(sim, w, job, now)
    else:
        after = sim.fetches[job].next
        if not _note_read(sim, w, job, now):
            server.head = after
    _start(sim, k, now)


@kernel
def advance(sim, w):
    """Let worker ``w``'s servers do all that they have done by where its scheduler is.

    The event loop has seen to it already, but for what takes no time, and where the scheduler waited for a copy.
    """
    while True:
        first = -1
        for k in range(3 * w, 3 * w + 3):
            done = sim.servers[k].head >= 0 and sim.servers[k].end_s <= sim.workers[w].now_s
            if done and (first < 0 or sim.servers[k].end_s < sim.servers[first].end_s):
                first = k
        if first < 0:
            return
        end_part(sim, first, sim.servers[first].end_s)


# ---- the scheduler's side --------------------------------------------------------------------------------------------


@kernel
def _write(sim, w, d, now):
    """Queue the writing of node ``d`` as it is now."""
    advance(sim, w)
    hicache_nodes.lock_host(sim, w, d)
    hosted = sim.hosted[d]
    hosted.written = sim.nodes[d].begin
    hosted.next_write = -1
    k = 3 * w + hl.WRITER
    server = sim.servers[k]
    if server.head >= 0:
        sim.hosted[server.tail].next_write = d
        server.tail = d
        return
    server.head = d
    server.tail = d
    _start(sim, k, now)


@kernel
def _unregister(sim, w, f):
    fetch = sim.fetches[f]
    fetch.registered = 0
    sim.requests[fetch.request].fetch = -1
    sim.hosts[w].fetching_tokens -= fetch.wanted
    hicache_nodes.unlock_host(sim, w, fetch.above)
    _forget_fetch(sim, f)


@kernel
def take_note(sim, w):
    """Take note of all that has been done beside the scheduler by now; a pass that tries to prefill does."""
    host = sim.hosts[w]
    while True:
        d = hicache_copies.next_written(sim, w)
        if d < 0:
            break
        if sim.tiers.storage:
            _write(sim, w, d, sim.workers[w].now_s)
    hicache_copies.note_loaded(sim, w)
    if not sim.tiers.storage:
        return
    advance(sim, w)
    while host.revoked >= 0:
        f = host.revoked
        host.revoked = sim.fetches[f].next
        registered = sim.requests[sim.fetches[f].request].fetch
        sim.fetches[f].served = 0
        if registered >= 0:
            _unregister(sim, w, registered)
        if registered != f:
            _forget_fetch(sim, f)
    while host.written >= 0:
        d = host.written
        host.written = sim.hosted[d].next_write
        hicache_nodes.unlock_host(sim, w, d)
    sim.trees[hicache_nodes.host_pool(sim, w)].free_pages += host.released_pages
    host.released_pages = 0


@kernel
def enter(sim, w, r):
    """Request ``r`` has entered the queue: its next pass looks what it can fetch."""
    host = sim.hosts[w]
    sim.requests[r].next_aside = -1
    if host.entering_head >= 0:
        sim.requests[host.entering_tail].next_aside = r
    else:
        host.entering_head = r
    host.entering_tail = r


@kernel
def _acquire_fetch(sim):
    f = sim.counters[la.FREE_FETCH]
    if f >= 0:
        sim.counters[la.FREE_FETCH] = sim.fetches[f].next
        return f
    f = sim.counters[la.FETCHES_USED]
    if f >= sim.fetches.shape[0]:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return 0
    sim.counters[la.FETCHES_USED] = f + 1
    return f


@kernel
def _begin_fetch(sim, w, r):
    """Try to fetch what ``r`` is missing."""
    host = sim.hosts[w]
    page = sim.config.page_tokens
    static = lists.path_end(sim, r)
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    in_hbm, d, on_host, above = hicache_nodes.walk(sim, w, static, (known - 1) // page * page)
    begin = in_hbm + on_host
    wanted = (known - begin) // page * page
    backed_up = d < sim.trees.shape[0] or sim.hosted[d].where & hl.ON_HOST
    if not backed_up or wanted < sim.tiers.fetch_threshold or host.fetching_tokens >= sim.tiers.fetch_limit_tokens:
        return
    hicache_nodes.lock_host(sim, w, above)
    if not hicache_memory.take_host(sim, w, wanted // page):
        hicache_nodes.unlock_host(sim, w, above)
        return
    advance(sim, w)
    f = _acquire_fetch(sim)
    fetch = sim.fetches[f]
    fetch.begun_s = sim.workers[w].now_s
    fetch.begin = begin
    fetch.wanted = wanted
    fetch.found = 0
    fetch.read = 0
    fetch.request = r
    fetch.static = static
    fetch.above = above
    fetch.stopped = 0
    fetch.registered = 1
    fetch.served = 1
    sim.requests[r].fetch = f
    host.fetching_tokens += wanted
    _queue_fetch(sim, 3 * w + hl.ASKER, f, sim.workers[w].now_s)


@kernel
def begin_fetches(sim, w):
    """Look up those that have entered the queue."""
    host = sim.hosts[w]
    r = host.entering_head
    host.entering_head = -1
    while r >= 0:
        after = sim.requests[r].next_aside
        if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST:
            sim.counters[la.FAULT] = la.NODE_POOL_FULL
            return
        _begin_fetch(sim, w, r)
        r = after


@kernel
def _deadline_s(sim, f):
    """Seconds that ``timeout`` waits for a fetch at most."""
    return sim.tiers.timeout_base_s + sim.fetches[f].found / 1024 * sim.tiers.timeout_s_per_ki_token


@kernel
def take_fetch(sim, w, r):
    """Take what the fetch of ``r`` has brought; False if ``r`` has to wait for more."""
    f = sim.requests[r].fetch
    if f < 0:
        return True
    fetch = sim.fetches[f]
    policy = sim.tiers.fetch_policy
    complete = fetch.found > 0 and fetch.found == fetch.read
    late = policy == hl.TIMEOUT and sim.workers[w].now_s - fetch.begun_s > _deadline_s(sim, f)
    if policy != hl.BEST_EFFORT and not complete and not late:
        return False
    fetch.stopped = 1
    present = hicache.insert_host(sim, w, fetch.above, fetch.static, fetch.begin, fetch.begin + fetch.read)
    sim.trees[hicache_nodes.host_pool(sim, w)].free_pages += present // sim.config.page_tokens
    sim.requests[r].fetched_tokens = fetch.read - present
    _unregister(sim, w, f)
    return True


@kernel
def next_deadline_s(sim, w):
    """When an idle pass has to look at a fetch again; infinity where none is waited for."""
    time = la.FOREVER_S
    if sim.tiers.fetch_policy != hl.TIMEOUT:
        return time
    r = sim.workers[w].waiting_head
    while r >= 0:
        f = sim.requests[r].fetch
        if f >= 0:
            at = sim.fetches[f].begun_s + _deadline_s(sim, f) + AFTER_DEADLINE_S
            if at > sim.workers[w].now_s:
                time = min(time, at)
        r = sim.requests[r].next
    return time


@kernel
def busy(sim, w):
    """Whether a server of worker ``w`` is at work."""
    servers = sim.servers
    return servers[3 * w].head >= 0 or servers[3 * w + 1].head >= 0 or servers[3 * w + 2].head >= 0


@kernel
def reset(sim, w):
    """Servers at rest, an empty store."""
    if sim.tiers.storage and w % sim.tiers.workers_per_store == 0:
        store.reset(sim, _store_of(sim, w), sim.tiers.store_pages, sim.tiers.store_eviction)
    for k in range(3 * w, 3 * w + 3):
        sim.servers[k].head = -1
        sim.servers[k].tail = -1
        sim.servers[k].slot = -1
