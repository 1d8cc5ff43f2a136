"""vLLM 0.33's offloading connector: a worker's transfers to host memory and back, and its state of each request.

Rules and sources: ``tests.reference.vllm_offload_chunks``. A transfer to the host is *prepared* by one pass, and begun
by the next. A load begins behind the step of its pass. Ended transfers are polled when a step is launched, and noted
when that step's results are taken in; a pass without a batch takes its turn between two steps.

A finished request frees its pages, which its transfers may still read (``queue.mark_read``). The step of a pass that
gives such a page away, or hits it, waits for the transfer.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_runs, queue
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import links, lists
from hisearch.kernels.vllm import chunk_store, chunk_uses, memory, transfers

#: Rows of ``Sim.notes`` for each worker; the last is that of passes without a batch.
ROWS = 3
EMPTY_ROW = 2

_enqueue = fifo()


@kernel
def receive(sim, r):
    """Initialise the new request ``r``."""
    offloaded = sim.offloaded[r]
    offloaded.next = -1
    offloaded.dealt_with = 0
    offloaded.transfers = 0
    offloaded.loading = tl.NOT_LOADING
    offloaded.place = -1
    offloaded.uses_head = -1
    offloaded.uses_tail = -1


# ---- look-ups and loads ----------------------------------------------------------------------------------------------


@kernel
def find(sim, w, r, trace_node, known, on_device):
    """Tokens that host memory has behind those ``on_device``; -1 if ``r`` has to wait."""
    size = sim.offloading.block_tokens
    offloaded = sim.offloaded[r]
    offloaded.dealt_with = 0
    if offloaded.transfers > 0:
        return -1
    count = known // size
    if count * size - on_device < size:
        return 0
    first = on_device // size
    hit_blocks = chunk_store.lookup(sim, transfers.store_of(sim, w), trace_node, first, count)
    if hit_blocks < 0:
        return -1
    tokens = (first + hit_blocks) * size - on_device
    if hit_blocks == 0 or tokens < size:
        return 0
    if sim.config.prefix_caching and transfers.loads_shared(sim, w, ROWS, trace_node, first, first + hit_blocks):
        return -1
    return tokens


@kernel
def load(sim, w, r, on_device, tokens):
    """Prepare to load the ``tokens`` of ``r`` behind those ``on_device``; its pages have been taken."""
    transfers.queue_load(sim, w, r, on_device, tokens)
    offloaded = sim.offloaded[r]
    if host_runs.enough(sim, offloaded.dealt_with + 1):
        chunk_store.begin_load(sim, transfers.store_of(sim, w), r, offloaded.load_block, offloaded.dealt_with)


# ---- stores ----------------------------------------------------------------------------------------------------------


@kernel
def store(sim, w, r, tokens):
    """Offer the blocks among ``r``'s first ``tokens`` tokens; returns the new transfer, or -1."""
    size = sim.offloading.block_tokens
    offloaded = sim.offloaded[r]
    first = offloaded.dealt_with
    count = min(tokens, sim.trace.input_tokens[r]) // size
    if count <= first:
        return -1
    t = transfers.acquire_transfer(sim)
    if t < 0:
        return -1
    stored_blocks = chunk_store.begin_store(sim, transfers.store_of(sim, w), r, first, count, t)
    if stored_blocks >= 0:
        offloaded.dealt_with = count
    if stored_blocks <= 0:
        transfers.release_transfer(sim, t)
        if stored_blocks < 0:
            sim.connectors[w].lagging = 1
        return -1
    transfer = sim.transfers[t]
    transfer.tokens = stored_blocks * size
    transfer.request = r
    transfer.begin = first
    transfer.end = count
    transfer.next = -1
    offloaded.transfers += 1
    return t


@kernel
def prepare(sim, w, t):
    """Let the next pass begin transfer ``t``; -1: none. All others have begun."""
    connector = sim.connectors[w]
    if t < 0:
        return
    connector.prepared, connector.prepared_tail = _enqueue(
        sim.transfers, connector.prepared, connector.prepared_tail, t
    )


@kernel
def _append(sim, w, t):
    """Append transfer ``t``, with those behind it, to those under way."""
    connector = sim.connectors[w]
    if connector.transfers_head >= 0:
        sim.transfers[connector.transfers_tail].next = t
    else:
        connector.transfers_head = t


@kernel
def begin_now(sim, w, t, at_s):
    """Begin transfer ``t``, which no list has, at ``at_s``; returns when it ends."""
    transfer = sim.transfers[t]
    transfer.begun_s = at_s
    transfer.end_s = links.send_to_host(sim, w, 0, at_s, transfer.tokens)
    sim.offloaded[transfer.request].store_end_s = transfer.end_s
    _append(sim, w, t)
    sim.connectors[w].transfers_tail = t
    return transfer.end_s


@kernel
def append_prepared(sim, w):
    """Append the prepared transfers to those under way, of which a poll does not tell."""
    connector = sim.connectors[w]
    if connector.prepared >= 0:
        _append(sim, w, connector.prepared)
        connector.transfers_tail = connector.prepared_tail


# ---- finished requests -----------------------------------------------------------------------------------------------


@kernel
def _at(sim, s, tokens):
    """The trace node in which the path to ``s`` has its token ``tokens``."""
    while sim.trace.start_tokens[s] >= tokens:
        s = sim.trace.parent[s]
    return s


@kernel
def _reads(sim, w, t, u):
    """Whether transfer ``t`` reads any of the pages that record ``u`` of ``queue.touch`` names."""
    size = sim.offloading.block_tokens
    transfer = sim.transfers[t]
    touched = sim.runs[u]
    if touched.owner >= 0 and touched.owner != transfer.request:
        return False
    path = lists.path_end(sim, transfer.request)
    for k in range(max(transfer.begin, touched.begin // size), min(transfer.end, (touched.end + size - 1) // size)):
        tokens = min(touched.end, (k + 1) * size)
        if touched.owner >= 0 or _at(sim, path, tokens) == _at(sim, touched.trace_node, tokens):
            key = block_table.key_at(sim, path, k)
            if chunk_store.is_copied_by(sim, transfers.store_of(sim, w), key, t):
                return True
    return False


@kernel
def _reads_touched(sim, w, t):
    """Whether transfer ``t`` reads pages that this pass gave away or hit."""
    u = sim.trees[sim.workers[w].cache_id].gone_head
    while u >= 0:
        if _reads(sim, w, t, u):
            return True
        u = sim.runs[u].next
    return False


@kernel
def _release_unhashed(sim, w, r):
    """Free the pages of the finished ``r``, which no look-up finds; those of its prompt's blocks are marked."""
    size = sim.offloading.block_tokens
    request = sim.requests[r]
    cache_id = sim.workers[w].cache_id
    blocks = sim.trace.input_tokens[r] // size
    pages = size // sim.config.page_tokens
    # Each takes a record, beyond what an event may take without being asked.
    if sim.counters[la.NODES_LEFT] < blocks + la.NODES_PER_REQUEST * (sim.config.max_running + 2):
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return
    for k in range(blocks):
        queue.push_read_first(sim, cache_id, pages, r, k * size)
    queue.push_empty_first(sim, cache_id, lists.pages(sim, request.computed) - blocks * pages)
    request.node = cache_id
    request.redirect = -1
    request.locked_tokens = 0


@kernel
def _is_read(sim, r):
    """Whether the pages of the finished ``r`` are read, or will be."""
    offloaded = sim.offloaded[r]
    size = sim.offloading.block_tokens
    return offloaded.transfers > 0 or offloaded.dealt_with < sim.trace.input_tokens[r] // size


@kernel
def release_finished(sim, w):
    """Free the pages of requests that finished since the last pass."""
    r = sim.connectors[w].finished_head
    while r >= 0:
        if sim.requests[r].status != la.DRAINED:
            if sim.config.prefix_caching:
                if _is_read(sim, r):
                    queue.mark_read(sim, sim.workers[w].cache_id, sim.requests[r].node, sim.requests[r].redirect)
                memory.release_finished(sim, w, r)
            elif _is_read(sim, r) and not memory.defers(sim, w, r):
                _release_unhashed(sim, w, r)
            else:
                memory.release_finished(sim, w, r)
        r = sim.offloaded[r].next


@kernel
def release_deferred(sim, w):
    """``memory.release_deferred``, with pages that no look-up finds kept apart while transfers read them."""
    worker = sim.workers[w]
    if sim.config.prefix_caching:
        memory.release_deferred(sim, w)
        return
    r = worker.deferred_head
    worker.deferred_head = -1
    while r >= 0:
        after = sim.requests[r].next_aside
        if _is_read(sim, r):
            _release_unhashed(sim, w, r)
        else:
            memory.release(sim, w, r, sim.requests[r].computed, memory.final_tokens(sim, r))
        r = after


@kernel
def offer_finished(sim, w, at_s):
    """Offer the rest of their prompts. Returns when the transfers have ended for which this pass has to wait, or 0."""
    connector = sim.connectors[w]
    until_s = 0.0
    r = connector.finished_head
    while r >= 0:
        t = store(sim, w, r, sim.trace.input_tokens[r])
        if t >= 0 and _reads_touched(sim, w, t):
            until_s = max(until_s, begin_now(sim, w, t, at_s))
        else:
            prepare(sim, w, t)
        r = sim.offloaded[r].next
    r = connector.finished_head
    connector.finished_head = -1
    while r >= 0:
        after = sim.offloaded[r].next
        chunk_uses.finish(sim, transfers.store_of(sim, w), r)
        r = after
    return until_s


@kernel
def flushed_s(sim, w):
    """When the transfers have ended that read pages which this pass gave away or hit, or that it preempted; or 0."""
    until_s = 0.0
    t = sim.connectors[w].transfers_head if sim.trees[sim.workers[w].cache_id].gone_head >= 0 else -1
    while t >= 0:
        transfer = sim.transfers[t]
        if sim.requests[transfer.request].outcome != la.IN_FLIGHT and _reads_touched(sim, w, t):
            until_s = max(until_s, transfer.end_s)
        t = transfer.next
    return max(until_s, transfers.preempted_end_s(sim, w))


# ---- polling and noting ----------------------------------------------------------------------------------------------


@kernel
def look(sim, w, now, row):
    """Poll what has ended by ``now``."""
    connector = sim.connectors[w]
    notes = sim.notes[row]
    while connector.transfers_head >= 0 and connector.transfers_head != connector.prepared:
        t = connector.transfers_head
        if sim.transfers[t].end_s > now:
            break
        connector.transfers_head = sim.transfers[t].next
        notes.stored_head, notes.stored_tail = _enqueue(sim.transfers, notes.stored_head, notes.stored_tail, t)
    transfers.end_loads(sim, w, now, row)


@kernel
def take_notes(sim, w, row):
    """Act on a poll: copied blocks can be hit, loads end. Returns whether there was anything to note."""
    notes = sim.notes[row]
    v = transfers.store_of(sim, w)
    acted = notes.stored_head >= 0 or notes.loaded_head >= 0
    t = notes.stored_head
    while t >= 0:
        transfer = sim.transfers[t]
        after = transfer.next
        chunk_store.end_store(sim, v, transfer.request, transfer.begin, transfer.end, t)
        sim.offloaded[transfer.request].transfers -= 1
        transfers.release_transfer(sim, t)
        t = after
    r = notes.loaded_head
    while r >= 0:
        offloaded = sim.offloaded[r]
        chunk_store.end_load(sim, v, r, offloaded.load_block, offloaded.dealt_with)
        offloaded.loading = tl.NOTED
        r = offloaded.next
    notes.stored_head = -1
    notes.loaded_head = -1
    return acted


@kernel
def quiet(sim, w):
    """Whether nothing is under way, prepared, polled or lagging."""
    connector = sim.connectors[w]
    busy = connector.lagging or connector.transfers_head >= 0 or connector.loads_head >= 0
    busy |= connector.finished_head >= 0
    for row in range(ROWS * w, ROWS * w + ROWS):
        busy |= transfers.has_notes(sim, row)
    return not busy


@kernel
def reset(sim, w):
    """No transfers, no requests."""
    transfers.reset(sim, w, ROWS)
    sim.connectors[w].empty_noted = 0
    sim.connectors[w].held_s = 0.0


@kernel
def halt(sim, w, now):
    """Cancel the transfers of worker ``w``, which has died with its host memory."""
    transfers.halt(sim, w, ROWS, now)
    reset(sim, w)
