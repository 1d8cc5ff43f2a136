"""What brings objects to a worker: its line of agents by due, the load under way, room for it, preemption.

One object at a time travels over the worker's link from host memory. Loads for calls that have arrived come first, in
order of arrival, then those for agents that are due soon. Room is made by evicting what is due later than the agent
loaded for, and nothing else; what was loaded ahead and has not been used takes at most a budget. A load for a call
interrupts one ahead of its call: the pages are given back, what was moved was moved for nothing, and the agent stands
in line again. It does so only while nothing else has been sent behind it on the link.
"""

from __future__ import annotations

from hisearch.kernels import agents_layout as al
from hisearch.kernels import agents_line, device, eviction, lists, objects, radix, server_heap
from hisearch.kernels import hicache_layout as hl
from hisearch.kernels import layout as la
from hisearch.kernels.jit import kernel

#: Where distances are tested, nothing is loaded ahead while they tell fewer pairs right. Assumed.
RIGHT_SHARE = 0.55


@kernel
def server(sim, w, kind):
    """Number of worker ``w``'s server for agents."""
    return (hl.SERVERS * sim.config.workers) + al.AGENT_SERVERS * w + kind


@kernel
def missing_object(sim, w, a, where):
    """The first object of agent ``a`` that is ``where`` at worker ``w``, or -1."""
    agents = sim.agents
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        if agents.objects[w, agents.uses[k]].where == where:
            return agents.uses[k]
    return -1


@kernel
def wants(sim, w, a):
    """Whether agent ``a`` has something to load at worker ``w``: for its call, or ahead of it."""
    policy = sim.agents.policy
    agent = sim.agents.agents[a]
    if policy.loading == al.AT_LAUNCH or missing_object(sim, w, a, al.ABSENT) < 0:
        return False
    if agent.calls > 0:
        return True
    if policy.loading != al.AHEAD or agent.worker != w or agent.due >= al.NOBODY:
        return False
    society = sim.agents.society
    return policy.tested == 0 or (society.trusted != 0 and society.right >= RIGHT_SHARE)


@kernel
def line_up(sim, a):
    """Agent ``a`` stands in its worker's line if it has something to load, and in no other."""
    w = sim.agents.agents[a].worker
    if w < 0:
        return
    if wants(sim, w, a):
        agents_line.stand(sim, w, a)
    else:
        agents_line.step_out(sim, w, a)


@kernel
def _counts(sim):
    """Whether dues are counts, of calls or frames, which go on with these alone; else they are times."""
    policy = sim.agents.policy
    return policy.source == al.ORACLE or (policy.by_frames != 0 and policy.source == al.HINTS)


@kernel
def _wait_s(sim, a, now):
    """Seconds until agent ``a`` is near enough to load for; 0 where it is, to the microsecond."""
    policy = sim.agents.policy
    society = sim.agents.society
    told = sim.agents.agents[a].told
    near_s = society.step_s if policy.order == al.BY_STEPS else policy.ahead_s
    if policy.source == al.ORACLE:
        left_s = (told - society.arrivals) * (now / max(society.arrivals, 1))
    elif policy.by_frames and policy.source == al.HINTS:
        if told - society.steps <= policy.ahead_steps:
            return 0.0
        left_s = (told - society.steps) * society.step_s
    else:
        left_s = told - now
    return left_s - near_s if left_s - near_s > 1e-6 else 0.0


@kernel
def _committed_pages(sim, w, now):
    """Pages that the steps under way will take; a run of decode steps ends with the next pass."""
    worker = sim.workers[w]
    if not sim.agents.policy.shared or worker.phase != la.COASTING:
        return 0
    device.cut_coast(sim, w, now)
    return lists.pages_over(sim, w, 1, worker.coast_steps - 1)


@kernel
def _make_room(sim, w, o, a, now):
    """Room for object ``o`` of agent ``a``: from what is due later; for a call also from its own agent's pages."""
    loader = sim.agents.loaders[w]
    v = loader.pool
    pool = sim.trees[v]
    pages = sim.agents.things[o].pages
    agent = sim.agents.agents[a]
    spare = pool.free_pages + pool.evictable_pages
    if spare < pages:
        return False
    committed = _committed_pages(sim, w, now)
    while pool.free_pages - committed < pages:
        if pool.heap_size == 0:
            return False
        d = sim.evict_heap[v, 0]
        key = sim.agents.keys[d]
        is_object = sim.nodes[d].static < 0
        if not (key > agent.due or (agent.calls > 0 and key == agent.due and not is_object)):
            return False
        if is_object:
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
    pool = sim.trees[loader.pool]
    pool.free_pages -= pages
    loader.peak_pages = max(loader.peak_pages, pool.capacity_pages - pool.free_pages)
    here.fresh = 1 if agents.agents[a].calls == 0 else 0
    if here.fresh:
        loader.fresh_pages += pages
    loader.object = o
    loader.agent = a
    link = sim.links[2 * w + 1]
    loader.begun_s = max(now, link.free_s)
    link.free_s = loader.begun_s + agents.things[o].load_s
    k = server(sim, w, al.LOADER)
    sim.servers[k].end_s = link.free_s
    server_heap.enter(sim, k)


@kernel
def look_again(sim, w, at_s):
    """Worker ``w``'s clock tells at ``at_s``, if not before."""
    k = server(sim, w, al.CLOCK)
    if sim.servers[k].slot < 0 or at_s < sim.servers[k].end_s:
        sim.servers[k].end_s = at_s
        server_heap.enter(sim, k)


@kernel
def rest(sim, w):
    """Worker ``w``'s clock has nothing more to tell."""
    server_heap.leave(sim, server(sim, w, al.CLOCK))


@kernel
def dispatch(sim, w, now):
    """Begin the next load, if any may begin."""
    loader = sim.agents.loaders[w]
    policy = sim.agents.policy
    while loader.object < 0 and loader.ahead > 0:
        a = sim.agents.line[w, 0]
        if not wants(sim, w, a):
            agents_line.step_out(sim, w, a)
            continue
        o = missing_object(sim, w, a, al.ABSENT)
        if sim.agents.agents[a].calls == 0:
            wait_s = _wait_s(sim, a, now)
            if wait_s > 0.0:
                if not _counts(sim):
                    look_again(sim, w, now + wait_s)
                return
            if loader.fresh_pages + sim.agents.things[o].pages > policy.budget_pages:
                return
        if not _make_room(sim, w, o, a, now):
            return
        _start(sim, w, o, a, now)


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
    here = sim.agents.objects[w, o]
    link = sim.links[2 * w + 1]
    k = server(sim, w, al.LOADER)
    if not here.fresh or link.free_s != sim.servers[k].end_s or link.free_s <= now:
        return
    server_heap.leave(sim, k)
    pages = sim.agents.things[o].pages
    here.where = al.ABSENT
    here.fresh = 0
    sim.nodes[here.node].lock -= 1
    sim.trees[loader.pool].free_pages += pages
    loader.fresh_pages -= pages
    loader.object = -1
    loader.preempted += 1
    moved_s = max(now - loader.begun_s, 0.0)
    loader.wasted_s += moved_s
    link.busy_s += moved_s
    link.free_s = min(max(now, loader.begun_s), link.free_s)
    line_up(sim, loader.agent)


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
    """The load under way has ended: its object is resident."""
    agents = sim.agents
    loader = agents.loaders[w]
    o = loader.object
    here = agents.objects[w, o]
    server_heap.leave(sim, server(sim, w, al.LOADER))
    note_loaded(sim, w, o, agents.things[o].load_s)
    if here.fresh:
        loader.loads_ahead += 1
    here.where = al.RESIDENT
    loader.object = -1
    unlock(sim, w, here.node)
    line_up(sim, loader.agent)


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
    if here.where != al.RESIDENT:
        return
    if here.fresh:
        here.fresh = 0
        loader.fresh_pages -= objects.pages_of(sim, d)
        loader.used_ahead += 1
    if node.lock == 1:
        eviction.withdraw(sim, loader.pool, d)
        sim.trees[loader.pool].evictable_pages -= objects.pages_of(sim, d)
