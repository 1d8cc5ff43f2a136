"""vLLM's offloading connector: a worker's transfers to host memory and back, and its state of each request.

Rules and sources: ``tests.reference.vllm_offload``. A transfer to the host is *prepared* by one pass and begun by
the next; a load begins with its pass. Ended transfers are polled when a step is launched and noted when that step's
results are taken in (see ``layout.tiers.NOTES``), or at once if no step runs.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_blocks, host_use
from hisearch.kernels.cache import host_runs as runs
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import links, lists
from hisearch.kernels.vllm import memory


@kernel
def store_of(sim, w):
    """Index of worker ``w``'s host memory store."""
    return w // sim.offloading.workers_per_store


@kernel
def receive(sim, r):
    """Initialise the new request ``r``."""
    sim.offloaded[r].next = -1


# ---- lists of requests -----------------------------------------------------------------------------------------------


@kernel
def finish_last(sim, w, r):
    """Note that ``r`` has finished, for the next poll or pass."""
    connector = sim.connectors[w]
    sim.offloaded[r].next = -1
    if connector.finished_head >= 0:
        sim.offloaded[connector.finished_tail].next = r
    else:
        connector.finished_head = r
    connector.finished_tail = r


@kernel
def _note_stored(sim, row, r):
    notes = sim.notes[row]
    sim.offloaded[r].next = -1
    if notes.stored_head >= 0:
        sim.offloaded[notes.stored_tail].next = r
    else:
        notes.stored_head = r
    notes.stored_tail = r


@kernel
def note_loaded(sim, row, r):
    """Note that the load of ``r`` has ended."""
    notes = sim.notes[row]
    sim.offloaded[r].next = -1
    if notes.loaded_head >= 0:
        sim.offloaded[notes.loaded_tail].next = r
    else:
        notes.loaded_head = r
    notes.loaded_tail = r


# ---- look-ups and loads ----------------------------------------------------------------------------------------------


@kernel
def loads_any(sim, r, trace_node, begin, end):
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
def find(sim, w, r, trace_node, known, on_device):
    """Tokens that host memory has behind those ``on_device``; -1 if ``r`` has to wait for another request's load."""
    size = sim.offloading.block_tokens
    v = store_of(sim, w)
    count = known // size
    host_use.touch(sim, v, trace_node, count, count, r)
    if count * size - on_device < size:
        return 0
    first = on_device // size
    hit_blocks = host_blocks.lookup(sim, v, trace_node, first, count)
    tokens = (first + hit_blocks) * size - on_device
    if hit_blocks == 0 or tokens < size:
        return 0
    if sim.config.prefix_caching:
        end = first + hit_blocks
        if loads_any(sim, sim.connectors[w].loads_head, trace_node, first, end):
            return -1
        for row in range(2 * w, 2 * w + 2):
            if loads_any(sim, sim.notes[row].loaded_head, trace_node, first, end):
                return -1
    return tokens


@kernel
def load(sim, w, r, trace_node, on_device, tokens):
    """Begin to load the ``tokens`` of ``r`` behind those ``on_device``; its pages have been taken."""
    queue_load(sim, w, r, on_device, tokens)
    if runs.enough(sim, 4):
        offloaded = sim.offloaded[r]
        host_blocks.use(sim, store_of(sim, w), trace_node, offloaded.load_block, offloaded.dealt_with, 1)


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
    offloaded.next = -1
    connector = sim.connectors[w]
    if connector.loads_head >= 0:
        sim.offloaded[connector.loads_tail].next = r
    else:
        connector.loads_head = r
    connector.loads_tail = r
    if connector.new_load < 0:
        connector.new_load = r
    known = sim.trace.input_tokens[r] + sim.requests[r].generated
    sim.workers[w].host_hit_tokens += min(on_device + tokens, known - 1) - on_device


@kernel
def end_wait(sim, w, r):
    """Publish the loaded pages of ``r``; if all its tokens are cached, the last one is computed again."""
    request = sim.requests[r]
    sim.offloaded[r].loading = tl.LOADED
    if sim.config.prefix_caching and sim.config.shared_outputs:
        memory.reveal(sim, w, lists.path_end(sim, r))
    memory.publish(sim, w, r, request.computed)
    request.computed = min(request.computed, sim.trace.input_tokens[r] + request.generated - 1)


# ---- transfers -------------------------------------------------------------------------------------------------------


@kernel
def begin_prepared(sim, w, ready_s):
    """Begin at ``ready_s``, when their KV is computed, the transfers that the previous pass prepared."""
    connector = sim.connectors[w]
    t = connector.prepared
    connector.prepared = -1
    while t >= 0:
        transfer = sim.transfers[t]
        transfer.end_s = links.send_to_host(sim, w, 0, ready_s, transfer.tokens)
        sim.offloaded[transfer.request].store_end_s = transfer.end_s
        t = transfer.next


@kernel
def begin_transfers(sim, w, now):
    """Begin the transfers prepared by the previous pass and this pass's loads; returns when a step may launch.

    That is when the transfers of requests preempted in this pass have ended.
    """
    connector = sim.connectors[w]
    worker = sim.workers[w]
    begin_prepared(sim, w, max(now, worker.newest_end_s))
    launch_s = now
    r = worker.lost_head
    while r >= 0:
        if sim.offloaded[r].transfers > 0:
            launch_s = max(launch_s, sim.offloaded[r].store_end_s)
        r = sim.requests[r].prev_aside
    r = connector.new_load
    connector.new_load = -1
    while r >= 0:
        offloaded = sim.offloaded[r]
        offloaded.load_end_s = links.send_to_host(sim, w, 1, launch_s, offloaded.load_tokens)
        r = offloaded.next
    return launch_s


@kernel
def acquire_transfer(sim):
    """An unused record of a transfer; -1, which voids the run, if there is none."""
    t = sim.counters[la.FREE_TRANSFER]
    if t >= 0:
        sim.counters[la.FREE_TRANSFER] = sim.transfers[t].next
        return t
    t = sim.counters[la.TRANSFERS_USED]
    if t >= sim.transfers.shape[0]:
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return -1
    sim.counters[la.TRANSFERS_USED] = t + 1
    return t


@kernel
def release_transfer(sim, t):
    """Give the record of a transfer back."""
    sim.transfers[t].next = sim.counters[la.FREE_TRANSFER]
    sim.counters[la.FREE_TRANSFER] = t


@kernel
def _prepare(sim, w, r, tokens):
    """Queue a transfer of ``tokens`` of ``r`` to the host."""
    t = acquire_transfer(sim)
    if t < 0:
        return
    transfer = sim.transfers[t]
    transfer.tokens = tokens
    transfer.request = r
    transfer.next = -1
    connector = sim.connectors[w]
    if connector.transfers_head >= 0:
        sim.transfers[connector.transfers_tail].next = t
    else:
        connector.transfers_head = t
    connector.transfers_tail = t
    if connector.prepared < 0:
        connector.prepared = t
    sim.offloaded[r].transfers += 1
    sim.offloaded[r].ever_stored = 1


@kernel
def store(sim, w, r, tokens):
    """Pass the manager the new full blocks among ``r``'s first ``tokens`` tokens."""
    size = sim.offloading.block_tokens
    if sim.config.offloads_prompts:
        tokens = min(tokens, sim.trace.input_tokens[r])
    beyond = tokens - sim.offloaded[r].dealt_with * size
    # Most calls end at this test, and most others have one block: no call, no division.
    if beyond >= size:
        _store_blocks(sim, w, r, 1 if beyond < 2 * size else beyond // size)


@kernel
def _store_blocks(sim, w, r, blocks):
    """Pass the manager ``blocks`` more blocks of ``r``."""
    size = sim.offloading.block_tokens
    offloaded = sim.offloaded[r]
    count = offloaded.dealt_with + blocks
    v = store_of(sim, w)
    trace_node = lists.path_end(sim, r)
    if host_blocks.extend(sim, v, trace_node, offloaded.dealt_with, count, r):
        stored_blocks = blocks
    else:
        stored_blocks = host_blocks.begin_store(sim, v, trace_node, offloaded.dealt_with, count, r)
        if stored_blocks > 0:
            host_use.touch(sim, v, trace_node, offloaded.dealt_with, count, r)
    if stored_blocks < 0:
        sim.connectors[w].lagging = 1
        return
    offloaded.dealt_with = count
    if stored_blocks > 0:
        offloaded.storing = 1
        _prepare(sim, w, r, stored_blocks * size)


@kernel
def _end_store(sim, w, r):
    """Make the blocks that ``r`` is storing findable."""
    offloaded = sim.offloaded[r]
    if offloaded.storing:
        offloaded.storing = 0
        host_blocks.end_store(sim, store_of(sim, w), lists.path_end(sim, r), offloaded.dealt_with, r)


@kernel
def flush(sim, w):
    """Make the blocks that requests preempted in this pass were storing findable."""
    r = sim.workers[w].lost_head
    while r >= 0:
        _end_store(sim, w, r)
        r = sim.requests[r].prev_aside


# ---- polling and noting ----------------------------------------------------------------------------------------------


@kernel
def end_transfers(sim, w, now, row):
    """Poll the transfers to the host that have ended by ``now``."""
    connector = sim.connectors[w]
    while connector.transfers_head >= 0 and connector.transfers_head != connector.prepared:
        t = connector.transfers_head
        transfer = sim.transfers[t]
        if transfer.end_s > now:
            break
        connector.transfers_head = transfer.next
        release_transfer(sim, t)
        offloaded = sim.offloaded[transfer.request]
        offloaded.transfers -= 1
        if offloaded.transfers == 0 and offloaded.awaited:
            offloaded.awaited = 0
            connector.awaited -= 1
            _note_stored(sim, row, transfer.request)


@kernel
def look(sim, w, now, row):
    """Poll what has ended by ``now``, including transfers of requests finished since the previous poll."""
    connector = sim.connectors[w]
    end_transfers(sim, w, now, row)
    while connector.loads_head >= 0 and sim.offloaded[connector.loads_head].load_end_s <= now:
        r = connector.loads_head
        connector.loads_head = sim.offloaded[r].next
        note_loaded(sim, row, r)
    r = connector.finished_head
    connector.finished_head = -1
    while r >= 0:
        offloaded = sim.offloaded[r]
        after = offloaded.next
        if offloaded.transfers > 0:
            offloaded.awaited = 1
            connector.awaited += 1
        else:
            _note_stored(sim, row, r)
        r = after


@kernel
def has_notes(sim, row):
    """Whether a poll found something to note."""
    return sim.notes[row].stored_head >= 0 or sim.notes[row].loaded_head >= 0


@kernel
def _end_load(sim, w, r):
    offloaded = sim.offloaded[r]
    trace_node = lists.path_end(sim, r)
    if runs.enough(sim, 4):
        host_blocks.use(sim, store_of(sim, w), trace_node, offloaded.load_block, offloaded.dealt_with, -1)
    offloaded.loading = tl.NOTED


@kernel
def take_notes(sim, w, row):
    """Act on a poll: stored blocks become findable, loads end, finished requests release their pages."""
    notes = sim.notes[row]
    r = notes.stored_head
    while r >= 0:
        _end_store(sim, w, r)
        r = sim.offloaded[r].next
    r = notes.loaded_head
    while r >= 0:
        _end_load(sim, w, r)
        r = sim.offloaded[r].next
    r = notes.stored_head
    while r >= 0:
        if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST:
            sim.counters[la.FAULT] = la.NODE_POOL_FULL
            return
        if sim.offloaded[r].holds:
            sim.offloaded[r].holds = 0
            memory.release(sim, w, r, sim.requests[r].computed, memory.final_tokens(sim, r))
        r = sim.offloaded[r].next
    notes.stored_head = -1
    notes.loaded_head = -1


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
def finish(sim, w, r):
    """End ``r``, which has made its last token. Returns whether it keeps its pages until its transfers have ended."""
    if not sim.offloaded[r].ever_stored:
        return False
    finish_last(sim, w, r)
    return True


@kernel
def quiet(sim, w):
    """Whether further passes would note no transfer, and no store lags for want of space."""
    connector = sim.connectors[w]
    if connector.lagging or connector.awaited > 0 or connector.loads_head >= 0:
        return False
    return not has_notes(sim, 2 * w) and not has_notes(sim, 2 * w + 1)


@kernel
def halt(sim, w, now):
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
    reset(sim, w)


@kernel
def reset(sim, w):
    """No transfers, no requests."""
    connector = sim.connectors[w]
    connector.transfers_head = -1
    connector.prepared = -1
    connector.loads_head = -1
    connector.new_load = -1
    connector.finished_head = -1
    connector.skipped_head = -1
    connector.skipped_tail = -1
    for row in range(2 * w, 2 * w + 2):
        sim.notes[row].stored_head = -1
        sim.notes[row].loaded_head = -1
