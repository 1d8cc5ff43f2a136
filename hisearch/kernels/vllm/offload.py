"""vLLM's offloading connector: a worker's transfers to host memory and back, and its state of each request.

Rules and sources: ``tests.reference.vllm_offload``. A transfer to the host is *prepared* by one pass and begun by
the next; a load begins with its pass. Ended transfers are polled when a step is launched and noted when that step's
results are taken in (see ``layout.tiers.NOTES``), or at once if no step runs.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import host_blocks, host_runs, host_use
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import memory, transfers

#: Rows of ``Sim.notes`` for each worker: of the steps with odd and with even numbers.
ROWS = 2

_enqueue = fifo()


@kernel
def receive(sim, r):
    """Initialise the new request ``r``."""
    sim.offloaded[r].next = -1


# ---- lists of requests -----------------------------------------------------------------------------------------------


@kernel
def _note_stored(sim, row, r):
    notes = sim.notes[row]
    notes.stored_head, notes.stored_tail = _enqueue(sim.offloaded, notes.stored_head, notes.stored_tail, r)


# ---- look-ups and loads ----------------------------------------------------------------------------------------------


@kernel
def find(sim, w, r, trace_node, known, on_device):
    """Tokens that host memory has behind those ``on_device``; -1 if ``r`` has to wait for another request's load."""
    size = sim.offloading.block_tokens
    v = transfers.store_of(sim, w)
    count = known // size
    host_use.touch(sim, v, trace_node, count, count, r)
    if count * size - on_device < size:
        return 0
    first = on_device // size
    hit_blocks = host_blocks.lookup(sim, v, trace_node, first, count)
    tokens = (first + hit_blocks) * size - on_device
    if hit_blocks == 0 or tokens < size:
        return 0
    if sim.config.prefix_caching and transfers.loads_shared(sim, w, ROWS, trace_node, first, first + hit_blocks):
        return -1
    return tokens


@kernel
def load(sim, w, r, trace_node, on_device, tokens):
    """Begin to load the ``tokens`` of ``r`` behind those ``on_device``; its pages have been taken."""
    transfers.queue_load(sim, w, r, on_device, tokens)
    if host_runs.enough(sim, 4):
        offloaded = sim.offloaded[r]
        host_blocks.use(sim, transfers.store_of(sim, w), trace_node, offloaded.load_block, offloaded.dealt_with, 1)


# ---- transfers -------------------------------------------------------------------------------------------------------


@kernel
def begin_transfers(sim, w, now):
    """Begin the transfers prepared by the previous pass and this pass's loads; returns when a step may launch.

    That is when the transfers of requests preempted in this pass have ended.
    """
    transfers.begin_prepared(sim, w, max(now, sim.workers[w].newest_end_s))
    launch_s = max(now, transfers.preempted_end_s(sim, w))
    transfers.begin_loads(sim, w, launch_s)
    return launch_s


@kernel
def _prepare(sim, w, r, tokens):
    """Queue a transfer of ``tokens`` of ``r`` to the host."""
    t = transfers.acquire_transfer(sim)
    if t < 0:
        return
    transfer = sim.transfers[t]
    transfer.tokens = tokens
    transfer.request = r
    connector = sim.connectors[w]
    connector.transfers_head, connector.transfers_tail = _enqueue(
        sim.transfers, connector.transfers_head, connector.transfers_tail, t
    )
    if connector.prepared < 0:
        connector.prepared = t
    sim.offloaded[r].transfers += 1
    sim.offloaded[r].ever_stored = 1


@kernel
def store(sim, w, r, tokens):
    """Pass the manager the new full blocks among ``r``'s first ``tokens`` tokens."""
    size = sim.offloading.block_tokens
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
    v = transfers.store_of(sim, w)
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
        host_blocks.end_store(sim, transfers.store_of(sim, w), lists.path_end(sim, r), offloaded.dealt_with, r)


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
        transfers.release_transfer(sim, t)
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
    transfers.end_loads(sim, w, now, row)
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
def _end_load(sim, w, r):
    offloaded = sim.offloaded[r]
    trace_node = lists.path_end(sim, r)
    if host_runs.enough(sim, 4):
        host_blocks.use(sim, transfers.store_of(sim, w), trace_node, offloaded.load_block, offloaded.dealt_with, -1)
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
def finish(sim, w, r):
    """End ``r``, which has made its last token. Returns whether it keeps its pages until its transfers have ended."""
    if not sim.offloaded[r].ever_stored:
        return False
    transfers.append_finished(sim, w, r)
    return True


@kernel
def quiet(sim, w):
    """Whether further passes would note no transfer, and no store lags for want of space."""
    connector = sim.connectors[w]
    if connector.lagging or connector.awaited > 0 or connector.loads_head >= 0:
        return False
    return not transfers.has_notes(sim, ROWS * w) and not transfers.has_notes(sim, ROWS * w + 1)
