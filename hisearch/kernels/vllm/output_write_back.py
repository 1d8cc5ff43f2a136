"""Output write-back: decode workers write the KV of their output to the storage that prefill workers read (SGLang).

After a request has finished, the full pages after those of its prompt are copied to the decode worker's private host
pool. Copies run one after another over the worker's link to host memory. HBM of the prompt's full pages is freed at
once, the rest when it has been copied. The pages are then written to storage in batches; each page is findable once it
is written. The host pool frees a request's pages when its last one has been written. A request that does not fit into
the host pool is not copied.

Rules: SGLang 0.5.9's ``DecodeKVCacheOffloadManager`` (pull requests 10192 and 11966). Prompts are left to the prefill
workers, which write them as usual. The newest token has no KV yet.

Each scheduler has two servers, a copier and a writer. A request is in one of their queues at a time; its record is
``Fleet.output_write_back[r]``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.engine.engine_calls import Op
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.traffic import heaps, links, lists, pools
from hisearch.kernels.vllm import memory

#: Servers of a decode worker: offsets from ``SERVERS w``.
COPIER, WRITER = 0, 1


@kernel
def host_pool(sim, w):
    """Index of the tree record of worker ``w``'s host pool."""
    return sim.config.workers + w


@kernel
def _start(sim, k, now):
    """Let server ``k`` begin the next batch of the job at the head of its queue at ``now``, or go idle."""
    server = sim.servers[k]
    if server.head < 0:
        heaps.server_clear(sim, k)
        return
    write_back = sim.fleet.output_write_back[server.head]
    if k % hl.SERVERS == COPIER:
        server.end_s = write_back.copied_s
    else:
        server.end_s = _sent_s(sim, k // hl.SERVERS, part_end(sim, write_back) - write_back.written, now)
    heaps.server_set(sim, k)


@kernel
def part_end(sim, write_back):
    """Token at which the next batch of ``write_back`` ends."""
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
def _queue_job(sim, k, r, now):
    """Append request ``r`` to server ``k``'s queue."""
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
    """Copy the output of ``r``, which has finished at ``now`` on worker ``w``, and free the HBM of the rest.

    Does nothing and returns False if there is no full page, or if the pages do not fit into the host pool. Pages that
    do not fit count as evicted from it.
    """
    page = sim.config.page_tokens
    computed = memory.final_tokens(sim, r)
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
    write_back.held_pages = lists.pages(sim, sim.requests[r].computed) - begin // page
    write_back.copied_s = links.send_to_host(sim, w, 0, now, end - begin)
    _queue_job(sim, hl.SERVERS * w + COPIER, r, now)
    return True


@kernel
def serve(sim, k, now):
    """End the current batch of server ``k`` at ``now``. Returns whether HBM pages were freed."""
    w = k // hl.SERVERS
    server = sim.servers[k]
    r = server.head
    write_back = sim.fleet.output_write_back[r]
    if k % hl.SERVERS == COPIER:
        memory.free_empty(sim, w, write_back.held_pages)
        server.head = write_back.next
        _start(sim, k, now)
        _queue_job(sim, hl.SERVERS * w + WRITER, r, now)
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
    """Cancel the copies and writes of worker ``w``, which has died, and empty its host pool."""
    for k in range(hl.SERVERS * w, hl.SERVERS * w + WRITER + 1):
        sim.servers[k].head = -1
        heaps.server_clear(sim, k)
    pool = sim.trees[host_pool(sim, w)]
    pool.free_pages = pool.capacity_pages


@kernel
def reset(sim, w):
    """Empty the host pool; set its servers idle."""
    pool = sim.trees[host_pool(sim, w)]
    pool.capacity_pages = sim.config.host_pages
    pool.free_pages = sim.config.host_pages
    for k in range(hl.SERVERS * w, hl.SERVERS * (w + 1)):
        sim.servers[k].head = -1
        sim.servers[k].tail = -1
        sim.servers[k].slot = -1
