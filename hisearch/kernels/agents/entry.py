"""The entry through which engines call agents with objects.

To add a policy: a value of ``POLICY.order`` or ``POLICY.loading`` in ``layout.agents``, and a branch in
``agents.events.settle`` or ``agents.pending_loads.wants``. A new kind of object needs no change here: it is bytes and
seconds.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.agents import disk, events, host_link, loads, pending_loads, slots
from hisearch.kernels.agents import kv as agents_kv
from hisearch.kernels.cache import eviction, load_queue, objects, radix, tree
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps


@kernel
def _record(sim, w, o):
    """A node record for object ``o`` at worker ``w``."""
    d = tree.acquire_node(sim)
    node = sim.nodes[d]
    node.trace_node = -1
    node.begin = 0
    node.end = 0
    node.parent = o
    node.next = w
    node.tick = 0
    node.serial = o
    return d


@kernel
def _begin(sim, w):
    """Reset worker ``w``: no object is resident."""
    agents = sim.agents
    loader = agents.loaders[w]
    loader.object = -1
    loader.kv_node = -1
    loader.kv_anchor = -1
    loader.fetch = -1
    loader.reading = -1
    if not agents.policy.shared:
        v = loader.pool
        pool = sim.trees[v]
        pool.free_pages = pool.capacity_pages
        eviction.begin(sim, v, sim.config.eviction)
    for k in range(al.AGENT_SERVERS):
        sim.servers[objects.server(sim, w, k)].slot = -1
    for o in range(agents.things.shape[0]):
        agents.objects[w, o].node = _record(sim, w, o)
        if disk.on(sim):
            agents.objects[w, o].copy_node = _record(sim, w, o)
    if disk.on(sim):
        disk.fill(sim, w)
    if w == sim.config.workers - 1:
        events.begin(sim)


@kernel
def _pages(sim, w, a, where):
    """Pages of agent ``a``'s objects that are ``where`` at worker ``w``."""
    agents = sim.agents
    pages = 0
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        o = agents.uses[k]
        if agents.objects[w, o].where == where:
            pages += agents.things[o].pages
    return pages


@kernel
def _unlocked_pages(sim, w, a):
    """Pages of agent ``a``'s objects that are resident and unlocked at worker ``w``."""
    agents = sim.agents
    pages = 0
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        o = agents.uses[k]
        obj = agents.objects[w, o]
        if obj.where == al.RESIDENT and sim.nodes[obj.node].lock == 0:
            pages += agents.things[o].pages
    return pages


@kernel
def _ready(sim, w, r):
    """READY: whether request ``r``'s objects are resident; where steps load them, whether they fit into their pool."""
    agents = sim.agents
    a = agents.agent[r]
    if agents_kv.comes(sim, w, a):
        return 0
    if agents.policy.loading != al.AT_LAUNCH:
        if _pages(sim, w, a, al.ABSENT) > 0:
            # An object may have been evicted since it was loaded. Its load waits for the end of the pass: only then is
            # it known which pages the batch takes.
            load_queue.stand(sim, w, a)
            if disk.on(sim):
                load_queue.stand(sim, load_queue.read_row(sim, w), a)
            return 0
        return 1 if _pages(sim, w, a, al.LOADING) == 0 else 0
    if slots.numbered(sim):
        return 1 if slots.have_free_slots(sim, w, a) else al.FULL
    if agents.policy.shared:
        return 1
    pool = sim.trees[agents.loaders[w].pool]
    available = pool.free_pages + pool.evictable_pages - _unlocked_pages(sim, w, a)
    return 1 if _pages(sim, w, a, al.ABSENT) <= available else 0


@kernel
def _missing(sim, w, r):
    if not sim.agents.policy.shared:
        return 0
    return _pages(sim, w, sim.agents.agent[r], al.ABSENT) * sim.config.page_tokens


@kernel
def _hold(sim, w, r):
    agents = sim.agents
    agents.holds[r] = 1
    a = agents.agent[r]
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        if slots.numbered(sim):
            slots.hold(sim, w, agents.uses[k])
        else:
            loads.lock(sim, w, agents.objects[w, agents.uses[k]].node)


@kernel
def _let_go(sim, w, r):
    agents = sim.agents
    if not agents.holds[r]:
        return
    agents.holds[r] = 0
    a = agents.agent[r]
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        if slots.numbered(sim):
            slots.let_go(sim, w, agents.uses[k])
        else:
            loads.unlock(sim, w, agents.objects[w, agents.uses[k]].node)


@kernel
def _evict_for(sim, w, pages):
    """Evict until ``pages`` are free, as the engine does."""
    v = sim.agents.loaders[w].pool
    if v == w:
        radix.ensure_free_pages(sim, w, pages)
        return
    while sim.trees[v].free_pages < pages and eviction.some(sim, v):
        objects.evict_from(sim, v, eviction.first(sim, v))


@kernel
def _load(sim, w, r, now):
    """Load the missing objects of request ``r``, which holds them, in the step being formed, before it computes."""
    agents = sim.agents
    loader = agents.loaders[w]
    a = agents.agent[r]
    link = sim.links[2 * w + 1]
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        o = agents.uses[k]
        if agents.objects[w, o].where != al.ABSENT:
            continue
        thing = agents.things[o]
        pool = sim.trees[loader.pool]
        disk.bring(sim, w, o, now)
        _evict_for(sim, w, thing.pages)
        if pool.free_pages < thing.pages:
            sim.counters[la.FAULT] = la.OUT_OF_MEMORY
        pool.free_pages -= thing.pages
        loader.peak_pages = max(loader.peak_pages, pool.capacity_pages - pool.free_pages)
        agents.objects[w, o].where = al.RESIDENT
        loader.at_launch_s += thing.load_s
        loader.stall_s += thing.load_s
        link.free_s = max(now, link.free_s) + thing.load_s
        host_link.note_loaded(sim, w, o, thing.load_s)


@kernel
def _step(sim, w, kind, now):
    """Give the objects of the batch of a newly formed step their slots."""
    worker = sim.workers[w]
    entries = sim.prompts[(2 * w + (worker.launched_step & 1)) ^ 1]
    size = worker.batch_size if kind != la.DECODE_STEP else 0
    slots.load_batch(sim, w, entries, size, kind != la.PREFILL_STEP, now)


@kernel
def _wake(sim, w, now):
    """Objects have arrived: let an idle worker with waiting requests form a batch."""
    heaps.wake(sim, w, now)


@kernel
def _done(sim, k, now):
    """End the job of server ``k``: an object is loaded or read, or its clock has expired."""
    first = hl.SERVERS * sim.config.workers
    w = (k - first) // al.AGENT_SERVERS
    kind = (k - first) % al.AGENT_SERVERS
    if kind == al.LOADER:
        loads.end_load(sim, w)
        _wake(sim, w, now)
    elif kind == al.DISK:
        loads.end_read(sim, w, now)
        _wake(sim, w, now)
    else:
        loads.rest(sim, w)
        if w == 0:
            events.give_late_hints(sim, now)
    loads.dispatch_all(sim, now, -1)


@kernel
def _arrives(sim, w, r, now):
    loads.call_fetches(sim, w, sim.agents.agent[r], r)
    events.call_arrives(sim, w, r, now)
    a = sim.agents.agent[r]
    if sim.agents.uses_begin[a] < sim.agents.uses_begin[a + 1]:
        sim.agents.loaders[w].object_calls += 1
        if (
            pending_loads.missing_object(sim, w, a, al.ABSENT) < 0
            and pending_loads.missing_object(sim, w, a, al.LOADING) < 0
        ):
            sim.agents.loaders[w].resident_calls += 1
    if sim.agents.line_slot[w, a] >= 0:
        loads.preempt(sim, w, now)
    if disk.on(sim) and sim.agents.line_slot[load_queue.read_row(sim, w), a] >= 0:
        loads.preempt_read(sim, w, now)
    loads.dispatch_all(sim, now, -1)


@kernel
def _too_large(sim, r):
    agents = sim.agents
    a = agents.agent[r]
    pages = 0
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        pages += agents.things[agents.uses[k]].pages
    if not agents.policy.shared:
        return pages > sim.trees[agents.loaders[0].pool].capacity_pages
    tokens = sim.trace.input_tokens[r] + sim.trace.max_output_tokens[r]
    page = sim.config.page_tokens
    return tokens + (pages + 2) * page > sim.config.capacity_pages * page


def engine_entry(sim, op, w, r, now):
    """Carry out an operation of ``layout.agents``; for DONE, ``w`` is the server."""
    if op == al.READY:
        return _ready(sim, w, r)
    if op == al.MISSING:
        return _missing(sim, w, r)
    if op == al.TOO_LARGE:
        return 1 if _too_large(sim, r) else 0
    if op == al.HOLD:
        _hold(sim, w, r)
    elif op == al.LET_GO:
        _let_go(sim, w, r)
    elif op == al.LOAD:
        if not slots.numbered(sim):
            _load(sim, w, r, now)
    elif op == al.STEP:
        _step(sim, w, r, now)
    elif op == al.ARRIVES:
        _arrives(sim, w, r, now)
    elif op == al.ENDS:
        events.call_ends(sim, r, now)
        # The worker itself forms a batch next, and dispatches its loads before that.
        loads.dispatch_all(sim, now, w)
    elif op == al.DONE:
        _done(sim, w, now)
    elif op == al.PASS:
        loads.dispatch(sim, w, now)
    elif op == al.URGENT:
        loads.preempt(sim, w, now)
    elif op == al.YIELD:
        return 1 if loads.abort_for_step(sim, w, now) else 0
    else:
        _begin(sim, w)
    return 0
