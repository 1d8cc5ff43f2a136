"""What brings objects to a worker: its line of agents by due, the load under way, room for it, preemption.

One object at a time, or one agent's KV (``agents.kv``), travels over the worker's link from host memory. Loads for
calls that have arrived come first, in order of arrival, then those for agents that are due soon, an agent's objects
before its KV; where there is no room for the next object KV may go before it, and the other way round. Room is made by
evicting what is due later than the agent loaded for, and nothing else; what was loaded ahead and has not been used
takes at most a budget. A load for a call, KV that a step loads back among them, interrupts one ahead of its call: the
pages are given back, what was moved was moved for nothing, and the agent stands in line again. It does so only while
nothing else has been sent behind it on the link. A step that lacks KV pages which a load under way has taken, an object
in the same pool or KV, ends that load likewise, whatever it is for. What storage alone has is fetched beside them
(``agents.fetch``), objects that host memory has no room for are read into it (``agents.disk``), and loads of what it
has go past them. KV for calls that have arrived is the engine's to load back.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.agents import disk, pending_loads
from hisearch.kernels.agents import fetch as agents_fetch
from hisearch.kernels.agents import kv as agents_kv
from hisearch.kernels.cache import agents_due, eviction, objects, radix
from hisearch.kernels.layout import agents as al
from hisearch.kernels.traffic import server_heap


@kernel
def _counts(sim):
    """Whether dues are counts, of calls or frames, which go on with these alone; else they are times."""
    policy = sim.agents.policy
    return policy.source == al.ORACLE or (policy.by_frames != 0 and policy.source == al.HINTS)


@kernel
def _wait_s(sim, a, now):
    """Seconds until agent ``a`` is near enough to load for; 0 where it is, to the microsecond."""
    policy = sim.agents.policy
    population = sim.agents.population
    told = sim.agents.agents[a].told
    near_s = population.step_s if policy.order == al.BY_STEPS else policy.ahead_s
    if policy.source == al.ORACLE:
        left_s = (told - population.arrivals) * (now / max(population.arrivals, 1))
    elif policy.by_frames and policy.source == al.HINTS:
        if told - population.steps <= policy.ahead_steps:
            return 0.0
        left_s = (told - population.steps) * population.step_s
    else:
        left_s = told - now
    return left_s - near_s if left_s - near_s > 1e-6 else 0.0


@kernel
def _make_room(sim, w, o, a, now):
    """Room for object ``o`` of agent ``a``."""
    loader = sim.agents.loaders[w]
    v = loader.pool
    pool = sim.trees[v]
    pages = sim.agents.things[o].pages
    spare = pool.free_pages + pool.evictable_pages
    if spare < pages:
        return False
    committed = agents_kv.committed_pages(sim, w, now) if v == w else 0
    while pool.free_pages - committed < pages:
        d = eviction.first(sim, v)
        if d < 0:
            return False
        if not agents_due.makes_way(sim, w, d, a):
            return False
        if sim.nodes[d].trace_node < 0:
            objects.evict_from(sim, v, d)
        else:
            radix.evict_leaf(sim, v, d)
    return True


@kernel
def _start(sim, w, o, a, now):
    """Begin to load object ``o`` for agent ``a``; its pages have room."""
    agents = sim.agents
    loader = agents.loaders[w]
    here = agents.objects[w, o]
    pages = agents.things[o].pages
    here.where = al.LOADING
    sim.nodes[here.node].lock += 1
    disk.hold(sim, w, o)
    pool = sim.trees[loader.pool]
    pool.free_pages -= pages
    loader.peak_pages = max(loader.peak_pages, pool.capacity_pages - pool.free_pages)
    here.fresh = 1 if agents.agents[a].calls == 0 else 0
    if here.fresh:
        loader.fresh_pages += pages
    _travel(sim, w, o, a, agents.things[o].load_s, now)


@kernel
def _travel(sim, w, o, a, seconds, now):
    """Object ``o``, or KV, sets out on the link for agent ``a``."""
    loader = sim.agents.loaders[w]
    loader.object = o
    loader.agent = a
    link = sim.links[2 * w + 1]
    loader.begun_s = max(now, link.free_s)
    link.free_s = loader.begun_s + seconds
    k = objects.server(sim, w, al.LOADER)
    sim.servers[k].end_s = link.free_s
    server_heap.enter(sim, k)


@kernel
def _kv_s(sim, w, tokens):
    """Seconds that so many tokens' KV takes over the link, alone."""
    link = sim.links[2 * w + 1]
    return link.base_s + tokens * link.s_per_token


@kernel
def look_again(sim, w, at_s):
    """Worker ``w``'s clock tells at ``at_s``, if not before."""
    k = objects.server(sim, w, al.CLOCK)
    if sim.servers[k].slot < 0 or at_s < sim.servers[k].end_s:
        sim.servers[k].end_s = at_s
        server_heap.enter(sim, k)


@kernel
def rest(sim, w):
    """Worker ``w``'s clock has nothing more to tell."""
    server_heap.leave(sim, objects.server(sim, w, al.CLOCK))


@kernel
def _near(sim, w, a, now):
    """Whether agent ``a`` is near enough to load for; if not, the worker's clock tells when."""
    wait_s = _wait_s(sim, a, now)
    if wait_s > 0.0 and not _counts(sim):
        look_again(sim, w, now + wait_s)
    return wait_s == 0.0


@kernel
def _begin_object(sim, w, a, now):
    """Begin to load an object for agent ``a``, if it may be loaded now."""
    o = pending_loads.to_load(sim, w, a)
    if sim.agents.agents[a].calls == 0:
        fresh = sim.agents.loaders[w].fresh_pages + sim.agents.things[o].pages
        if not _near(sim, w, a, now) or fresh > sim.agents.policy.budget_pages:
            return False
    if not _make_room(sim, w, o, a, now):
        return False
    _start(sim, w, o, a, now)
    return True


@kernel
def _begin_kv(sim, w, a, now):
    """Begin to load agent ``a``'s KV ahead of its call, if it may be loaded now."""
    if not _near(sim, w, a, now):
        return False
    tokens = agents_kv.begin(sim, w, a, now)
    if tokens == 0:
        return False
    _travel(sim, w, objects.kv(sim), a, _kv_s(sim, w, tokens), now)
    return True


@kernel
def _dispatch_fetch(sim, w, now):
    """Take note of the fetch ahead under way, and begin the next, if none is and any may begin."""
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
    """Begin to read the next object, if none is read and any may be now."""
    if sim.agents.loaders[w].reading >= 0:
        return
    a = pending_loads.first(sim, w, pending_loads.READ)
    if a < 0 or (sim.agents.agents[a].calls == 0 and not _near(sim, w, a, now)):
        return
    o = pending_loads.to_read(sim, w, a)
    if disk.make_room(sim, w, o, a):
        disk.begin(sim, w, o, a, now)


@kernel
def end_read(sim, w, now):
    """The object that was being read is in host memory: for a call, loads ahead of others give way to its own."""
    a = sim.agents.loaders[w].read_for
    disk.end(sim, w)
    pending_loads.line_up(sim, a)
    if sim.agents.agents[a].calls > 0:
        preempt(sim, w, now)


@kernel
def preempt_read(sim, w, now):
    """A call waits for the disk: a read ahead of another's call gives way, if nothing was sent behind it."""
    loader = sim.agents.loaders[w]
    a = loader.read_for
    if loader.reading < 0 or not sim.agents.policy.preempts or sim.agents.agents[a].calls > 0:
        return
    if disk.interrupt(sim, w, now):
        pending_loads.line_up(sim, a)


@kernel
def call_fetches(sim, w, a, r):
    """Agent ``a`` calls with ``r``: what it makes of the fetch ahead under way."""
    if not agents_fetch.on(sim):
        return
    b = agents_fetch.settle(sim, w)
    if b < 0 and sim.agents.loaders[w].fetch >= 0:
        if sim.agents.loaders[w].fetch_agent == a:
            agents_fetch.hand_over(sim, w, r)
        elif agents_fetch.in_the_way(sim, w, r):
            b = agents_fetch.stop(sim, w)
    if b >= 0:
        pending_loads.line_up(sim, b)


@kernel
def dispatch(sim, w, now):
    """Begin the next load, the next read, and the next fetch ahead, if none is under way and any may begin."""
    if agents_fetch.on(sim):
        _dispatch_fetch(sim, w, now)
    if disk.on(sim):
        _dispatch_read(sim, w, now)
    if sim.agents.loaders[w].object >= 0:
        return
    a = pending_loads.first(sim, w, pending_loads.OBJECTS)
    b = pending_loads.first(sim, w, pending_loads.KV)
    kv_first = b >= 0 and (a < 0 or sim.agents.agents[b].due < sim.agents.agents[a].due)
    if kv_first and _begin_kv(sim, w, b, now):
        return
    if a >= 0 and _begin_object(sim, w, a, now):
        return
    if b >= 0 and not kv_first:
        _begin_kv(sim, w, b, now)


@kernel
def dispatch_all(sim, now, but):
    """Likewise at all workers but one: an agent's due may have changed at any of them."""
    for w in range(sim.config.workers):
        if w != but:
            dispatch(sim, w, now)


@kernel
def preempt(sim, w, now):
    """A call waits for a load: one ahead of its call gives way, if nothing was sent behind it."""
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
def give_way(sim, w, now):
    """A step lacks KV pages: a load under way gives back those that it has taken; False where there is none."""
    loader = sim.agents.loaders[w]
    if loader.object < 0 or (loader.pool != w and loader.object != objects.kv(sim)):
        return False
    _interrupt(sim, w, now)
    return True


@kernel
def _interrupt(sim, w, now):
    """The load under way has moved what it has for nothing; all of it, where something was sent behind it."""
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
    server_heap.leave(sim, k)
    loader.object = -1
    loader.preempted += 1
    loader.wasted_s += moved_s
    link.busy_s += moved_s
    pending_loads.line_up(sim, loader.agent)


@kernel
def _give_back(sim, w, o):
    """The pages of object ``o``, whose load is under way, are free."""
    loader = sim.agents.loaders[w]
    here = sim.agents.objects[w, o]
    pages = sim.agents.things[o].pages
    if here.fresh:
        loader.fresh_pages -= pages
    here.where = al.ABSENT
    here.fresh = 0
    disk.let_go(sim, w, o)
    sim.nodes[here.node].lock -= 1
    sim.trees[loader.pool].free_pages += pages


@kernel
def note_loaded(sim, w, o, seconds):
    """Account for a load of object ``o`` that took ``seconds``."""
    loader = sim.agents.loaders[w]
    pages = sim.agents.things[o].pages
    link = sim.links[2 * w + 1]
    link.busy_s += seconds
    link.tokens += pages * sim.config.page_tokens
    link.transfers += 1
    loader.loads += 1
    loader.loaded_pages += pages
    loader.load_s += seconds


@kernel
def end_load(sim, w):
    """The load under way has ended: its object is resident, its KV in HBM."""
    agents = sim.agents
    loader = agents.loaders[w]
    o = loader.object
    server_heap.leave(sim, objects.server(sim, w, al.LOADER))
    if o == objects.kv(sim):
        _end_kv(sim, w)
        return
    here = agents.objects[w, o]
    note_loaded(sim, w, o, agents.things[o].load_s)
    if here.fresh:
        loader.loads_ahead += 1
    here.where = al.RESIDENT
    disk.let_go(sim, w, o)
    loader.object = -1
    unlock(sim, w, here.node)
    pending_loads.line_up(sim, loader.agent)


@kernel
def _end_kv(sim, w):
    loader = sim.agents.loaders[w]
    tokens = agents_kv.end(sim, w)
    seconds = _kv_s(sim, w, tokens)
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
    """One who held the object's record ``d`` less; the object may be evicted once nobody holds it."""
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
    """One more holds the object's record ``d``."""
    node = sim.nodes[d]
    here = sim.agents.objects[w, node.parent]
    loader = sim.agents.loaders[w]
    node.lock += 1
    disk.use(sim, w, node.parent)
    if here.where != al.RESIDENT:
        return
    if here.fresh:
        here.fresh = 0
        loader.fresh_pages -= objects.pages_of(sim, d)
        loader.used_ahead += 1
    if node.lock == 1:
        eviction.withdraw(sim, loader.pool, d)
        sim.trees[loader.pool].evictable_pages -= objects.pages_of(sim, d)
