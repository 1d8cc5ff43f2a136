"""What vLLM's offloading connectors keep alike: a worker's transfers to host memory and back, and who waits for them.

A transfer to the host is *prepared* by one pass and begun by the next. Polls note what has ended in rows of
``Sim.notes`` (see ``layout.tiers.NOTES``), so many for each worker: ``rows``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table
from hisearch.kernels.core.linked_list import fifo, free_list
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import links, lists
from hisearch.kernels.vllm import memory

_enqueue = fifo()
_acquire, _release = free_list(la.FREE_TRANSFER, la.TRANSFERS_USED)


@kernel
def store_of(sim, w):
    """Index of worker ``w``'s host memory store."""
    return w // sim.offloading.workers_per_store


@kernel
def append_finished(sim, w, r):
    """Note that ``r`` has finished, for the next poll or pass."""
    connector = sim.connectors[w]
    connector.finished_head, connector.finished_tail = _enqueue(
        sim.offloaded, connector.finished_head, connector.finished_tail, r
    )


@kernel
def _loads_any(sim, r, trace_node, begin, end):
    """Whether ``r`` or requests after it load any of blocks ``begin`` to ``end`` of the path to ``trace_node``."""
    while r >= 0:
        offloaded = sim.offloaded[r]
        k = max(begin, offloaded.load_block)
        shared = k < min(end, offloaded.dealt_with)
        if shared and block_table.key_at(sim, trace_node, k) == block_table.key_at(sim, lists.path_end(sim, r), k):
            return True
        r = offloaded.next
    return False


@kernel
def loads_shared(sim, w, rows, trace_node, begin, end):
    """Whether a load that is not yet noted has any of blocks ``begin`` to ``end`` of the path to ``trace_node``."""
    if _loads_any(sim, sim.connectors[w].loads_head, trace_node, begin, end):
        return True
    for row in range(rows * w, rows * w + rows):
        if _loads_any(sim, sim.notes[row].loaded_head, trace_node, begin, end):
            return True
    return False


@kernel
def queue_load(sim, w, r, on_device, tokens):
    """Queue a load of the ``tokens`` of ``r`` behind those ``on_device``."""
    size = sim.offloading.block_tokens
    offloaded = sim.offloaded[r]
    offloaded.load_block = on_device // size
    offloaded.dealt_with = (on_device + tokens) // size
    offloaded.load_tokens = tokens
    offloaded.on_device = on_device
    offloaded.loading = tl.LOADING
    connector = sim.connectors[w]
    connector.loads_head, connector.loads_tail = _enqueue(sim.offloaded, connector.loads_head, connector.loads_tail, r)
    if connector.new_load < 0:
        connector.new_load = r
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    sim.workers[w].host_hit_tokens += min(on_device + tokens, known - 1) - on_device


@kernel
def begin_loads(sim, w, at_s):
    """Begin this pass's loads."""
    connector = sim.connectors[w]
    r = connector.new_load
    connector.new_load = -1
    while r >= 0:
        sim.offloaded[r].load_end_s = links.send_to_host(sim, w, 1, at_s, sim.offloaded[r].load_tokens)
        r = sim.offloaded[r].next


@kernel
def end_wait(sim, w, r):
    """Publish the loaded pages of ``r``; if all its tokens are cached, the last one is computed again."""
    request = sim.requests[r]
    sim.offloaded[r].loading = tl.LOADED
    if sim.config.prefix_caching and sim.config.shared_outputs:
        memory.reveal(sim, w, lists.path_end(sim, r))
    memory.publish(sim, w, r, request.computed)
    request.computed = min(request.computed, sim.trace.input_tokens[r] + request.generated - 1)


@kernel
def acquire_transfer(sim):
    """An unused record of a transfer; -1, which voids the run, if there is none."""
    t = _acquire(sim.transfers, sim.counters)
    if t < 0:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
    return t


@kernel
def release_transfer(sim, t):
    """Give the record of a transfer back."""
    _release(sim.transfers, sim.counters, t)


@kernel
def begin_prepared(sim, w, ready_s):
    """Begin at ``ready_s``, when their KV is computed, the transfers that the previous pass prepared."""
    connector = sim.connectors[w]
    t = connector.prepared
    connector.prepared = -1
    while t >= 0:
        transfer = sim.transfers[t]
        transfer.begun_s = ready_s
        transfer.end_s = links.send_to_host(sim, w, 0, ready_s, transfer.tokens)
        sim.offloaded[transfer.request].store_end_s = transfer.end_s
        t = transfer.next


@kernel
def preempted_end_s(sim, w):
    """When the transfers to the host of requests preempted in this pass have ended; 0 without any."""
    end_s = 0.0
    r = sim.workers[w].lost_head
    while r >= 0:
        if sim.offloaded[r].transfers > 0:
            end_s = max(end_s, sim.offloaded[r].store_end_s)
        r = sim.requests[r].prev_aside
    return end_s


@kernel
def end_loads(sim, w, now, row):
    """Poll the loads that have ended by ``now``."""
    connector = sim.connectors[w]
    notes = sim.notes[row]
    while connector.loads_head >= 0 and sim.offloaded[connector.loads_head].load_end_s <= now:
        r = connector.loads_head
        connector.loads_head = sim.offloaded[r].next
        notes.loaded_head, notes.loaded_tail = _enqueue(sim.offloaded, notes.loaded_head, notes.loaded_tail, r)


@kernel
def has_notes(sim, row):
    """Whether a poll found something to note."""
    return sim.notes[row].stored_head >= 0 or sim.notes[row].loaded_head >= 0


@kernel
def next_end_s(sim, w):
    """When the next transfer under way ends; ``la.FOREVER_S`` without one."""
    connector = sim.connectors[w]
    time = la.FOREVER_S
    if connector.transfers_head >= 0 and connector.transfers_head != connector.prepared:
        time = sim.transfers[connector.transfers_head].end_s
    if connector.loads_head >= 0:
        time = min(time, sim.offloaded[connector.loads_head].load_end_s)
    return time


@kernel
def halt(sim, w, rows, now):
    """Cancel the transfers of worker ``w``, which has died with its host memory."""
    connector = sim.connectors[w]
    begun = True
    t = connector.transfers_head
    while t >= 0:
        transfer = sim.transfers[t]
        after = transfer.next
        begun = begun and t != connector.prepared
        if not begun or transfer.end_s > now:
            sim.stores[store_of(sim, w)].stored -= transfer.tokens // sim.offloading.block_tokens
        release_transfer(sim, t)
        t = after
    reset(sim, w, rows)


@kernel
def reset(sim, w, rows):
    """No transfers, no requests."""
    connector = sim.connectors[w]
    connector.transfers_head = -1
    connector.prepared = -1
    connector.loads_head = -1
    connector.new_load = -1
    connector.finished_head = -1
    connector.skipped_head = -1
    connector.skipped_tail = -1
    for row in range(rows * w, rows * w + rows):
        sim.notes[row].stored_head = -1
        sim.notes[row].loaded_head = -1
