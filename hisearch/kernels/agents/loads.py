"""Loads of a worker: its queue of agents by predicted call, the load under way, eviction for it, preemption.

One object at a time, or one agent's KV (``agents.kv``), is transferred over the worker's link from host memory.

Order: loads for calls that have arrived come first, in order of arrival. Then come agents with a near predicted call,
an agent's objects before its KV. Where the next object does not fit, KV may go before it, and the other way round.

Memory: a load evicts only what has a later predicted call than its agent. Objects and KV loaded ahead and not used yet
take at most a budget: of one load where fewer than WORTHWHILE of the recent ones were used (``policy.tested``).

Preemption: a load for a call, or KV that a step loads back, interrupts a load ahead of its call. The pages are given
back, the transfer so far is wasted, and the agent is queued again. This happens only while the link has no later
transfer. A step that lacks KV pages ends any load under way that has taken pages of the KV pool.

KV that only storage has is fetched at the same time (``agents.fetch``), and objects are read from the disk
(``agents.disk``). Loads from host memory wait for neither. The engine loads back KV for calls that have arrived.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.agents import disk, host_link, pending_loads
from hisearch.kernels.agents import fetch as agents_fetch
from hisearch.kernels.agents import kv as agents_kv
from hisearch.kernels.cache import eviction, objects, predicted_calls, radix
from hisearch.kernels.layout import agents as al
from hisearch.kernels.traffic import heaps

#: A load ahead that is not used is a transfer more; one that is used hides one. Where more than half of them are not
#: used, they cost more transfers than they hide.
WORTHWHILE = 0.5


@kernel
def _counts(sim):
    """Whether predicted calls are counts, of calls or frames; else they are times."""
    policy = sim.agents.policy
    return policy.source == al.ORACLE or (policy.by_frames != 0 and policy.source == al.HINTS)


@kernel
def _wait_s(sim, a, now):
    """Seconds until agent ``a``'s predicted call is near enough to load for; 0 where it is, to the microsecond."""
    policy = sim.agents.policy
    population = sim.agents.population
    predicted = sim.agents.agents[a].raw_prediction
    near_s = population.step_s if policy.order == al.BY_STEPS else policy.ahead_s
    if policy.source == al.ORACLE:
        left_s = (predicted - population.arrivals) * (now / max(population.arrivals, 1))
    elif policy.by_frames and policy.source == al.HINTS:
        if predicted - population.steps <= policy.ahead_steps:
            return 0.0
        left_s = (predicted - population.steps) * population.step_s
    else:
        left_s = predicted - now
    return left_s - near_s if left_s - near_s > 1e-6 else 0.0


@kernel
def _evict_for(sim, w, o, a, now):
    """Evict for object ``o`` of agent ``a``; False where too little may be evicted."""
    loader = sim.agents.loaders[w]
    v = loader.pool
    pool = sim.trees[v]
    pages = sim.agents.things[o].pages
    available = pool.free_pages + pool.evictable_pages
    if available < pages:
        return False
    committed = agents_kv.committed_pages(sim, w, now) if v == w else 0
    while pool.free_pages - committed < pages:
        d = eviction.first(sim, v)
        if d < 0:
            return False
        if not predicted_calls.may_evict(sim, w, d, a):
            return False
        if sim.nodes[d].trace_node < 0:
            objects.evict_from(sim, v, d)
        else:
            radix.evict_leaf(sim, v, d)
    return True


@kernel
def _start(sim, w, o, a, now):
    """Begin to load object ``o`` for agent ``a``; there are enough free pages."""
    agents = sim.agents
    loader = agents.loaders[w]
    obj = agents.objects[w, o]
    pages = agents.things[o].pages
    obj.where = al.LOADING
    sim.nodes[obj.node].lock += 1
    disk.hold(sim, w, o)
    pool = sim.trees[loader.pool]
    pool.free_pages -= pages
    loader.peak_pages = max(loader.peak_pages, pool.capacity_pages - pool.free_pages)
    obj.fresh = 1 if agents.agents[a].calls == 0 else 0
    if obj.fresh:
        loader.fresh_pages += pages
    host_link.transfer(sim, w, o, a, agents.things[o].load_s, now)


@kernel
def look_again(sim, w, at_s):
    """Set worker ``w``'s clock to ``at_s``, unless it expires before."""
    k = objects.server(sim, w, al.CLOCK)
    if sim.servers[k].slot < 0 or at_s < sim.servers[k].end_s:
        sim.servers[k].end_s = at_s
        heaps.server_set(sim, k)


@kernel
def rest(sim, w):
    """Clear worker ``w``'s clock."""
    heaps.server_clear(sim, objects.server(sim, w, al.CLOCK))


@kernel
def _near(sim, w, a, now):
    """Whether agent ``a`` is near enough to load for; if not, sets the worker's clock to when it is."""
    wait_s = _wait_s(sim, a, now)
    if wait_s > 0.0 and not _counts(sim):
        look_again(sim, w, now + wait_s)
    return wait_s == 0.0


@kernel
def _begin_object(sim, w, a, now):
    """Begin to load an object for agent ``a``, if allowed now; returns whether it did."""
    o = pending_loads.to_load(sim, w, a)
    if sim.agents.agents[a].calls == 0:
        loader = sim.agents.loaders[w]
        fresh = loader.fresh_pages + sim.agents.things[o].pages
        if not _near(sim, w, a, now) or fresh > sim.agents.policy.budget_pages:
            return False
        if sim.agents.policy.tested and loader.ahead_worth < WORTHWHILE and loader.fresh_pages > 0:
            return False
    if not _evict_for(sim, w, o, a, now):
        return False
    _start(sim, w, o, a, now)
    return True


@kernel
def _begin_kv(sim, w, a, now):
    """Begin to load agent ``a``'s KV ahead of its call, if allowed now; returns whether it did."""
    if not _near(sim, w, a, now):
        return False
    loader = sim.agents.loaders[w]
    settled = loader.kv_loaded_pages - loader.kv_fresh_pages
    if sim.agents.policy.tested and loader.kv_used_pages < WORTHWHILE * settled and loader.kv_fresh_pages > 0:
        return False
    tokens = agents_kv.begin(sim, w, a, now)
    if tokens == 0:
        return False
    host_link.transfer(sim, w, objects.kv(sim), a, host_link.kv_s(sim, w, tokens), now)
    return True


@kernel
def _dispatch_fetch(sim, w, now):
    """Check the fetch ahead under way, and begin the next if none is under way and one is allowed."""
    a = agents_fetch.settle(sim, w)
    if a >= 0:
        pending_loads.line_up(sim, a)
    if sim.agents.loaders[w].fetch >= 0 or not agents_fetch.idle(sim, w):
        return
    a = pending_loads.first(sim, w, pending_loads.FETCH)
    if a >= 0 and _near(sim, w, a, now):
        agents_fetch.begin(sim, w, a, now)


@kernel
def _dispatch_read(sim, w, now):
    """Begin to read the next object from the disk, if none is being read and one is allowed."""
    if sim.agents.loaders[w].reading >= 0:
        return
    a = pending_loads.first(sim, w, pending_loads.READ)
    if a < 0 or (sim.agents.agents[a].calls == 0 and not _near(sim, w, a, now)):
        return
    o = pending_loads.to_read(sim, w, a)
    if disk.ensure_free_pages(sim, w, o, a):
        disk.begin(sim, w, o, a, now)


@kernel
def end_read(sim, w, now):
    """End the read under way; if it was for a call, the load of its object preempts loads ahead."""
    a = sim.agents.loaders[w].read_for
    disk.end(sim, w)
    pending_loads.line_up(sim, a)
    if sim.agents.agents[a].calls > 0:
        preempt(sim, w, now)


@kernel
def preempt_read(sim, w, now):
    """Preempt a read ahead for a call that waits for the disk, if the link has no later transfer."""
    loader = sim.agents.loaders[w]
    a = loader.read_for
    if loader.reading < 0 or not sim.agents.policy.preempts or sim.agents.agents[a].calls > 0:
        return
    if disk.interrupt(sim, w, now):
        pending_loads.line_up(sim, a)


@kernel
def call_fetches(sim, w, a, r):
    """Agent ``a`` calls with ``r``: take over, stop or leave the fetch ahead under way."""
    if not agents_fetch.on(sim):
        return
    b = agents_fetch.settle(sim, w)
    if b < 0 and sim.agents.loaders[w].fetch >= 0:
        if sim.agents.loaders[w].fetch_agent == a:
            agents_fetch.hand_over(sim, w, r)
        elif agents_fetch.should_stop(sim, w, r):
            b = agents_fetch.stop(sim, w)
    if b >= 0:
        pending_loads.line_up(sim, b)


@kernel
def dispatch(sim, w, now):
    """Begin the next load, the next read and the next fetch ahead, where none is under way and one is allowed."""
    if agents_fetch.on(sim):
        _dispatch_fetch(sim, w, now)
    if disk.on(sim):
        _dispatch_read(sim, w, now)
    if sim.agents.loaders[w].object >= 0:
        return
    a = pending_loads.first(sim, w, pending_loads.OBJECTS)
    b = pending_loads.first(sim, w, pending_loads.KV)
    kv_first = b >= 0 and (a < 0 or sim.agents.agents[b].predicted_call < sim.agents.agents[a].predicted_call)
    if kv_first and _begin_kv(sim, w, b, now):
        return
    if a >= 0 and _begin_object(sim, w, a, now):
        return
    if b >= 0 and not kv_first:
        _begin_kv(sim, w, b, now)


@kernel
def dispatch_all(sim, now, but):
    """Dispatch at all workers but ``but``: predicted calls may have changed at any of them."""
    for w in range(sim.config.workers):
        if w != but:
            dispatch(sim, w, now)


@kernel
def preempt(sim, w, now):
    """Preempt a load ahead for a call that waits for a load, if the link has no later transfer."""
    loader = sim.agents.loaders[w]
    if loader.object < 0 or not sim.agents.policy.preempts or sim.agents.agents[loader.agent].calls > 0:
        return
    o = loader.object
    link = sim.links[2 * w + 1]
    k = objects.server(sim, w, al.LOADER)
    if link.free_s != sim.servers[k].end_s or link.free_s <= now:
        return
    if o == objects.kv(sim) or sim.agents.objects[w, o].fresh:
        _interrupt(sim, w, now)


@kernel
def abort_for_step(sim, w, now):
    """Abort the load under way for a step that lacks KV pages; False where no load holds any."""
    loader = sim.agents.loaders[w]
    if loader.object < 0 or (loader.pool != w and loader.object != objects.kv(sim)):
        return False
    _interrupt(sim, w, now)
    return True


@kernel
def _interrupt(sim, w, now):
    """Abort the load under way; its transfer so far is wasted, or all of it where the link has a later transfer."""
    loader = sim.agents.loaders[w]
    o = loader.object
    if o == objects.kv(sim):
        agents_kv.interrupt(sim, w)
    else:
        _give_back(sim, w, o)
    k = objects.server(sim, w, al.LOADER)
    link = sim.links[2 * w + 1]
    end_s = sim.servers[k].end_s
    moved_s = end_s - loader.begun_s
    if link.free_s == end_s and end_s > now:
        moved_s = max(now - loader.begun_s, 0.0)
        link.free_s = min(max(now, loader.begun_s), link.free_s)
    heaps.server_clear(sim, k)
    loader.object = -1
    loader.preempted += 1
    loader.wasted_s += moved_s
    link.busy_s += moved_s
    pending_loads.line_up(sim, loader.agent)


@kernel
def _give_back(sim, w, o):
    """Free the pages of object ``o``, whose load is under way."""
    loader = sim.agents.loaders[w]
    obj = sim.agents.objects[w, o]
    pages = sim.agents.things[o].pages
    if obj.fresh:
        loader.fresh_pages -= pages
    obj.where = al.ABSENT
    obj.fresh = 0
    disk.let_go(sim, w, o)
    sim.nodes[obj.node].lock -= 1
    sim.trees[loader.pool].free_pages += pages


@kernel
def end_load(sim, w):
    """End the load under way: its object is resident, or its KV in HBM."""
    agents = sim.agents
    loader = agents.loaders[w]
    o = loader.object
    heaps.server_clear(sim, objects.server(sim, w, al.LOADER))
    if o == objects.kv(sim):
        _end_kv(sim, w)
        return
    obj = agents.objects[w, o]
    host_link.note_loaded(sim, w, o, agents.things[o].load_s)
    if obj.fresh:
        loader.loads_ahead += 1
    obj.where = al.RESIDENT
    disk.let_go(sim, w, o)
    loader.object = -1
    unlock(sim, w, obj.node)
    pending_loads.line_up(sim, loader.agent)


@kernel
def _end_kv(sim, w):
    loader = sim.agents.loaders[w]
    tokens = agents_kv.end(sim, w)
    seconds = host_link.kv_s(sim, w, tokens)
    link = sim.links[2 * w + 1]
    link.busy_s += seconds
    link.tokens += tokens
    link.transfers += 1
    loader.kv_loads += 1
    loader.kv_moved_pages += tokens // sim.config.page_tokens
    loader.kv_load_s += seconds
    loader.object = -1
    pending_loads.line_up(sim, loader.agent)


@kernel
def unlock(sim, w, d):
    """Remove a lock on the object's record ``d``; without locks the object may be evicted."""
    node = sim.nodes[d]
    node.lock -= 1
    if node.lock > 0 or sim.agents.objects[w, node.parent].where != al.RESIDENT:
        return
    v = sim.agents.loaders[w].pool
    pool = sim.trees[v]
    pool.evictable_pages += objects.pages_of(sim, d)
    pool.tick += 1
    node.tick = pool.tick
    eviction.enter(sim, v, d)


@kernel
def lock(sim, w, d):
    """Add a lock on the object's record ``d``."""
    node = sim.nodes[d]
    obj = sim.agents.objects[w, node.parent]
    loader = sim.agents.loaders[w]
    node.lock += 1
    disk.use(sim, w, node.parent)
    if obj.where != al.RESIDENT:
        return
    if obj.fresh:
        obj.fresh = 0
        loader.fresh_pages -= objects.pages_of(sim, d)
        loader.used_ahead += 1
        loader.ahead_worth += al.AHEAD_EVIDENCE * (1.0 - loader.ahead_worth)
    if node.lock == 1:
        eviction.withdraw(sim, loader.pool, d)
        sim.trees[loader.pool].evictable_pages -= objects.pages_of(sim, d)
