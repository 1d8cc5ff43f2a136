"""Fetches from storage from release 0.5.20 on: host memory is taken for what storage has.

A request that enters the queue is looked up. The query takes no host memory; the pass that notes its result does, by
evicting, for as much of the result as there is room for, and the reader begins. Passes note what has been read, and put
a fetch that is complete into the tree. A request whose turn comes takes what has been noted, or waits. A miss is looked
up again some passes later, and so is a request whose cached prefix has been evicted since. Rules: SGLang's
``UnifiedRadixCache`` and ``StoragePrefetchRetries``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import PREFETCHES
from hisearch.kernels.core.dispatch import dispatcher, functions
from hisearch.kernels.hicache import (
    fetches,
    hicache,
    prefetch_policies,  # noqa: F401  (kernels are compiled from all of them)
    servers,
    stores,
)
from hisearch.kernels.hicache import memory as hicache_memory
from hisearch.kernels.hicache import nodes as hicache_nodes
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.traffic import lists

#: Passes until a miss is looked up again, and how often a request is at most
#: (hicache_storage_prefetch_retry_poll_interval, hicache_storage_prefetch_retry_max_attempts).
RETRY_PASSES, MOST_RETRIES = 8, 8

#: Bits of the policies under which a request waits.
_WAITS = sum(1 << PREFETCHES.code(name) for name in functions(PREFETCHES, "longest_wait_s"))
_longest_wait_s = dispatcher(PREFETCHES, "longest_wait_s", "sim, tokens", otherwise="0.0")


@kernel
def waits(sim):
    """Whether requests wait for their fetches at all."""
    return _WAITS >> sim.tiers.prefetch & 1 != 0


@kernel
def longest_wait_s(sim, tokens):
    """How long a request waits for a fetch of ``tokens``, seconds (``prefetch_policies``)."""
    return _longest_wait_s(sim.tiers.prefetch, sim, tokens)


@kernel
def enter(sim, w, r):
    """``r`` enters the queue: it has not been looked up, and its wait for a fetch begins anew.

    The engine forgets a wait at the admission (``UnifiedRadixCache.finish_storage_prefetch_admission``).
    """
    cancel(sim, w, r)
    lookup = sim.lookups[r]
    lookup.matched = 0
    lookup.attempts = 0
    lookup.waits = 0
    lookup.late = 0


@kernel
def cancel(sim, w, r):
    """Do not look ``r`` up again."""
    if sim.lookups[r].retry:
        sim.lookups[r].retry = 0
        sim.hosts[w].retries -= 1


@kernel
def _retry_later(sim, w, r):
    """Look ``r`` up again some passes later."""
    lookup = sim.lookups[r]
    lookup.due = -1
    if not lookup.retry:
        lookup.retry = 1
        sim.hosts[w].retries += 1


@kernel
def _least_tokens(sim):
    """Fewest tokens that are fetched."""
    return max(sim.tiers.fetch_threshold, sim.config.page_tokens)


@kernel
def look_up(sim, w, r):
    """Match ``r`` in both tiers, and query storage for the rest unless that is little or much is being fetched."""
    host = sim.hosts[w]
    page = sim.config.page_tokens
    trace_node = lists.path_end(sim, r)
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    in_hbm, d, on_host, deepest = hicache_nodes.walk(sim, w, trace_node, (known - 1) // page * page)
    begin = in_hbm + on_host
    sim.lookups[r].matched = begin
    sim.requests[r].missing_tokens = known - in_hbm
    above = deepest if on_host > 0 else d
    if not hicache_nodes.is_root(sim, above) and not sim.hosted[above].where & hl.ON_HOST:
        return
    cancel(sim, w, r)
    tokens = (known - 1 - begin) // page * page
    if sim.lookups[r].late or sim.requests[r].fetch >= 0 or tokens < _least_tokens(sim):
        return
    if host.fetching_tokens >= sim.tiers.fetch_limit_tokens:
        _retry_later(sim, w, r)
        return
    hicache_nodes.lock_host(sim, w, above)
    servers.advance(sim, w)
    fetches.open_fetch(sim, w, r, trace_node, begin, tokens, above, sim.workers[w].now_s)


@kernel
def look_up_again(sim, w):
    """Look up the waiting requests whose time has come, in order of the queue; the head does not wait for it."""
    host = sim.hosts[w]
    host.passes += 1
    r = sim.workers[w].waiting_head
    if r < 0 or host.retries == 0:
        return
    cancel(sim, w, r)
    while r >= 0 and host.retries > 0:
        lookup = sim.lookups[r]
        if lookup.retry:
            if lookup.attempts >= MOST_RETRIES:
                cancel(sim, w, r)
            elif lookup.due < 0:
                lookup.due = host.passes + RETRY_PASSES
            elif lookup.due <= host.passes:
                cancel(sim, w, r)
                lookup.attempts += 1
                look_up(sim, w, r)
        r = sim.requests[r].next


@kernel
def lost_prefix(sim, w, r, matched):
    """Whether ``r``, of which ``matched`` tokens are cached, had more when it was looked up, which is then repeated."""
    lookup = sim.lookups[r]
    if lookup.matched == 0 or matched >= lookup.matched:
        return False
    if lookup.attempts >= MOST_RETRIES:
        lookup.matched = matched
        return False
    lookup.attempts += 1
    look_up(sim, w, r)
    return True


@kernel
def _give_up(sim, w, f):
    """Detach fetch ``f``, no server's any more, from its request, which is looked up again later."""
    _retry_later(sim, w, sim.fetches[f].request)
    fetches.unregister(sim, w, f)


@kernel
def _take_hit(sim, w, f):
    """Take host memory for what storage has of fetch ``f``, and queue it to be read.

    Since the query other workers may have had pages evicted from a store that is shared, or short: a read would end at
    the first of them.
    """
    fetch = sim.fetches[f]
    page = sim.config.page_tokens
    now = sim.workers[w].now_s
    end = fetch.begin + fetch.stored_tokens
    fetch.stored_tokens = stores.look(sim, w, fetch.trace_node, fetch.begin, end, now)
    pages = fetch.stored_tokens // page
    pool = sim.trees[hicache_nodes.host_pool(sim, w)]
    if fetch.stored_tokens >= _least_tokens(sim):
        if pool.free_pages < pages:
            hicache_memory.evict_host(sim, w, pages)
        pages = min(pages, pool.free_pages)
    fetch.served = 0
    if pages * page < _least_tokens(sim):
        _give_up(sim, w, f)
        return
    fetch.served = 1
    pool.free_pages -= pages
    pool.peak_pages = max(pool.peak_pages, pool.capacity_pages - pool.free_pages)
    fetch.stored_tokens = pages * page
    fetch.taken = 1
    end = fetch.begin + fetch.stored_tokens
    longest = fetch.begin + fetch.wanted
    stores.use(sim, w, fetch.request, fetch.trace_node, fetch.begin, end, longest, now)
    servers.queue_fetch(sim, hl.SERVERS * w + hl.READER, f, now)


@kernel
def _keep(sim, w, f):
    """Put what has been noted of fetch ``f`` into the tree, and detach it from its request."""
    fetch = sim.fetches[f]
    r = fetch.request
    end = fetch.begin + fetch.noted
    present = hicache.insert_host(sim, w, fetch.above, fetch.trace_node, fetch.begin, end)
    sim.trees[hicache_nodes.host_pool(sim, w)].free_pages += present // sim.config.page_tokens
    sim.requests[r].fetched_tokens = fetch.noted - present
    sim.requests[r].far_fetched_tokens = min(fetch.far_read, fetch.noted - present)
    fetches.unregister(sim, w, f)


@kernel
def take_note(sim, w):
    """Begin a pass: note queries, reads and writes that have ended, and free the memory that they did not need."""
    host = sim.hosts[w]
    released = host.released_pages
    f = host.hits_head
    host.hits_head = -1
    while f >= 0:
        after = sim.fetches[f].next
        if sim.fetches[f].registered:
            _take_hit(sim, w, f)
        else:
            sim.fetches[f].served = 0
            servers.forget_fetch(sim, f)
        f = after
    reading = sim.servers[hl.SERVERS * w + hl.READER].head
    if reading >= 0 and sim.fetches[reading].registered:
        sim.fetches[reading].noted = sim.fetches[reading].read
    f = host.done_head
    host.done_head = -1
    while f >= 0:
        after = sim.fetches[f].next
        fetch = sim.fetches[f]
        if fetch.registered:
            fetch.noted = fetch.read
            _keep(sim, w, f)
        host.released_pages += (fetch.stored_tokens - fetch.noted) // sim.config.page_tokens
        fetch.served = 0
        servers.forget_fetch(sim, f)
        f = after
    while host.written >= 0:
        d = host.written
        host.written = sim.hosted[d].next_write
        hicache_nodes.unlock_host(sim, w, d)
    sim.trees[hicache_nodes.host_pool(sim, w)].free_pages += released
    host.released_pages -= released
    look_up_again(sim, w)


@kernel
def _is_late(sim, w, r, f):
    """Whether ``r`` has waited long enough for fetch ``f``, from its first turn on."""
    fetch = sim.fetches[f]
    lookup = sim.lookups[r]
    now = sim.workers[w].now_s
    complete = fetch.taken != 0 and fetch.noted >= fetch.stored_tokens
    if not complete and (lookup.late or (lookup.waits and now - lookup.wait_s > lookup.timeout_s)):
        return True
    if not lookup.waits:
        lookup.waits = 1
        lookup.wait_s = now
        lookup.timeout_s = longest_wait_s(sim, fetch.wanted)
    return False


@kernel
def take(sim, w, r, f):
    """Take what has been noted of fetch ``f`` of ``r``; False if ``r`` has to wait for more."""
    fetch = sim.fetches[f]
    if waits(sim) and not _is_late(sim, w, r, f):
        return False
    if waits(sim):
        sim.lookups[r].late = 1
        cancel(sim, w, r)
    fetch.stopped = 1
    if fetch.taken:
        _keep(sim, w, f)
    elif waits(sim):
        fetches.unregister(sim, w, f)
    else:
        _give_up(sim, w, f)
    return True
