"""What decode workers have made, on its way to the storage that prefill workers read (SGLang).

When a request has finished, the whole pages behind those of its prompt are copied to a host pool of the decode worker's
own, one request after another over the worker's link to host memory. HBM of the prompt's whole pages is free at once,
that of the rest when they have been copied. Then they are written to storage, a batch of pages at a time, each of which
can be found as soon as it is there; the host pool has its room back when a request's last page has been written. Where
it has too little, the request is not copied.

Rules: SGLang 0.5.9's ``DecodeKVCacheOffloadManager`` (pull requests 10192 and 11966): prompts are left to the prefill
workers, which write them as they do without; and the newest token has no KV yet.

Two servers stand beside each scheduler, one that copies and one that writes. A request is in one of their lines at a
time: its record is ``Fleet.answers[r]``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import queue, tree
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.traffic import links, lists, pools, server_heap
from hisearch.kernels.vllm import memory

#: Servers of a decode worker: ``SERVERS w`` + one of these.
COPIER, WRITER = 0, 1


@kernel
def host_pool(sim, w):
    """Tree whose record is that of worker ``w``'s host pool."""
    return sim.config.workers + w


@kernel
def _start(sim, k, now):
    """Server ``k`` begins the next part of the job at the head of its line at ``now``, or rests."""
    server = sim.servers[k]
    if server.head < 0:
        server_heap.leave(sim, k)
        return
    write_back = sim.fleet.output_write_back[server.head]
    if k % hl.SERVERS == COPIER:
        server.end_s = write_back.copied_s
    else:
        server.end_s = _sent_s(sim, k // hl.SERVERS, part_end(sim, write_back) - write_back.written, now)
    server_heap.enter(sim, k)


@kernel
def part_end(sim, write_back):
    """Token at which the part of ``write_back`` ends that is written next."""
    return min(write_back.end, write_back.written + hl.BATCH_PAGES * sim.config.page_tokens)


@kernel
def _sent_s(sim, w, tokens, now):
    """Send ``tokens`` from worker ``w``'s host pool at ``now``; returns when storage has them."""
    front = pools.at(sim.fleet, sim.config.store_pool)
    tier = front.store_tiers[sim.config.store_tier]
    end = links.send(front, tier.first_link, now, tokens)
    if tier.first_network >= 0:
        node = sim.hosts[w].place // sim.tiers.workers_per_node
        end = max(end, links.send(sim, 2 * (sim.config.workers + node), now, tokens))
    return end


@kernel
def _line_up(sim, k, r, now):
    """Put request ``r`` at the end of server ``k``'s line."""
    server = sim.servers[k]
    sim.fleet.output_write_back[r].next = -1
    if server.head >= 0:
        sim.fleet.output_write_back[server.tail].next = r
        server.tail = r
        return
    server.head = r
    server.tail = r
    _start(sim, k, now)


@kernel
def set_out(sim, w, r, now):
    """Copy what worker ``w`` has made of ``r``, which has finished at ``now``, and free HBM of the rest.

    False, and nothing is done, where there is no whole page, or the host pool has no room for them (these count as
    evicted from it).
    """
    page = sim.config.page_tokens
    computed = sim.requests[r].computed
    begin = tree.floor_page(sim, sim.trace.input_tokens[r])
    end = tree.floor_page(sim, computed)
    pages = (end - begin) // page
    pool = sim.trees[host_pool(sim, w)]
    if pages == 0:
        return False
    if pages > pool.free_pages:
        pool.evicted_tokens += end - begin
        return False
    pool.free_pages -= pages
    pool.peak_pages = max(pool.peak_pages, pool.capacity_pages - pool.free_pages)
    pool.stored_tokens += end - begin
    memory.release(sim, w, r, begin, begin)
    write_back = sim.fleet.output_write_back[r]
    write_back.begin = begin
    write_back.written = begin
    write_back.end = end
    write_back.held_pages = lists.pages(sim, computed) - begin // page
    write_back.copied_s = links.send(sim, 2 * w, now, end - begin)
    _line_up(sim, hl.SERVERS * w + COPIER, r, now)
    return True


@kernel
def serve(sim, k, now):
    """The part that server ``k`` is at ends at ``now``. Returns whether HBM has got room."""
    w = k // hl.SERVERS
    server = sim.servers[k]
    r = server.head
    write_back = sim.fleet.output_write_back[r]
    if k % hl.SERVERS == COPIER:
        queue.push_empty(sim, sim.workers[w].cache_id, write_back.held_pages)
        server.head = write_back.next
        _start(sim, k, now)
        _line_up(sim, hl.SERVERS * w + WRITER, r, now)
        return True
    front = pools.at(sim.fleet, sim.config.store_pool)
    engine_calls.call_engine(front.config.engine_entry, front, Op.WRITE_BACK_OUTPUT, sim.config.store_tier, r, now)
    pool = sim.trees[host_pool(sim, w)]
    end = part_end(sim, write_back)
    pool.read_tokens += end - write_back.written
    write_back.written = end
    if end == write_back.end:
        pool.free_pages += (write_back.end - write_back.begin) // sim.config.page_tokens
        server.head = write_back.next
    _start(sim, k, now)
    return False


@kernel
def halt(sim, w):
    """Worker ``w`` has died: what it was copying or writing comes nowhere, and its host pool is gone."""
    for k in range(hl.SERVERS * w, hl.SERVERS * w + WRITER + 1):
        sim.servers[k].head = -1
        server_heap.leave(sim, k)
    pool = sim.trees[host_pool(sim, w)]
    pool.free_pages = pool.capacity_pages


@kernel
def reset(sim, w):
    """An empty host pool, servers at rest."""
    pool = sim.trees[host_pool(sim, w)]
    pool.capacity_pages = sim.config.host_pages
    pool.free_pages = sim.config.host_pages
    for k in range(hl.SERVERS * w, hl.SERVERS * (w + 1)):
        sim.servers[k].head = -1
        sim.servers[k].tail = -1
        sim.servers[k].slot = -1
