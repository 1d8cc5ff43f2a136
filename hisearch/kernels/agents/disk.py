"""Objects that host memory has no room for: which of them it has copies of, and what brings the others from a disk.

Where objects may take so much of host memory and no more, a disk has all of them, the tier behind it: nothing is lost
with a copy, and nothing is written. A copy stays while HBM has its object too. Copies lie in a pool of their own, and
go as objects go from HBM: by due, or by the last use where steps load for themselves. One that is being loaded stays.

One object at a time is read for a worker, over the store's link, among whatever else is read from it. Whose turn it is,
and whether: ``agents.loads``. A step that loads for itself (``AT_LAUNCH``) waits for the step before it, then for the
disk, then for its link.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import agents_due, agents_line, eviction, objects
from hisearch.kernels.hicache import stores
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import links, server_heap


@kernel
def on(sim):
    """Whether host memory may lack objects."""
    return sim.agents.policy.host_pages > 0


@kernel
def _link(sim, w):
    """Number of the link over which worker ``w``'s objects are read."""
    return sim.store_tiers[stores.NEAR].first_link + 2 * stores.number_of(sim, w, stores.NEAR) + 1


@kernel
def _take(sim, w, o):
    """Pages for the copy of object ``o``, which has room."""
    loader = sim.agents.loaders[w]
    pool = sim.trees[loader.copies]
    pool.free_pages -= sim.agents.things[o].pages
    loader.peak_copies = max(loader.peak_copies, pool.capacity_pages - pool.free_pages)


@kernel
def _offer(sim, w, o):
    """The copy of object ``o``, used just now, may be dropped."""
    here = sim.agents.objects[w, o]
    here.on_host = al.COPIED
    v = sim.agents.loaders[w].copies
    sim.trees[v].tick += 1
    sim.nodes[here.copy_node].tick = sim.trees[v].tick
    eviction.enter(sim, v, here.copy_node)


@kernel
def fill(sim, w):
    """At the beginning worker ``w``'s host memory has the first objects, as many as it has room for."""
    agents = sim.agents
    v = agents.loaders[w].copies
    pool = sim.trees[v]
    pool.free_pages = pool.capacity_pages
    eviction.begin(sim, v, la.LRU if agents.policy.loading == al.AT_LAUNCH else la.DISTANCE)
    for o in range(agents.things.shape[0]):
        if agents.things[o].pages <= pool.free_pages:
            _take(sim, w, o)
            _offer(sim, w, o)
        else:
            agents.objects[w, o].on_host = al.DROPPED


@kernel
def _drop(sim, w, d):
    """The copy whose record is ``d`` goes. Its only agent stands in line for it, if it has a use for that."""
    agents = sim.agents
    loader = agents.loaders[w]
    o = sim.nodes[d].parent
    eviction.withdraw(sim, loader.copies, d)
    sim.trees[loader.copies].free_pages += agents.things[o].pages
    agents.objects[w, o].on_host = al.DROPPED
    loader.dropped += 1
    owner = agents.things[o].owner
    if owner < 0 or agents.policy.loading == al.AT_LAUNCH or agents.agents[owner].worker != w:
        return
    if agents.objects[w, o].where == al.ABSENT:
        agents_line.stand(sim, agents_line.read_row(sim, w), owner)


@kernel
def make_room(sim, w, o, a):
    """Room for a copy of object ``o`` of agent ``a``, from what is due later; False where that is too little."""
    v = sim.agents.loaders[w].copies
    pool = sim.trees[v]
    while pool.free_pages < sim.agents.things[o].pages:
        d = eviction.first(sim, v)
        if d < 0 or not agents_due.makes_way(sim, w, d, a):
            return False
        _drop(sim, w, d)
    return True


@kernel
def _tokens(sim, o):
    """What links count object ``o`` as."""
    return sim.agents.things[o].pages * sim.config.page_tokens


@kernel
def begin(sim, w, o, a, now):
    """Begin to read object ``o`` for agent ``a``; its copy has room."""
    loader = sim.agents.loaders[w]
    _take(sim, w, o)
    sim.agents.objects[w, o].on_host = al.COMING
    loader.reading = o
    loader.read_for = a
    loader.read_ahead = 1 if sim.agents.agents[a].calls == 0 else 0
    number = _link(sim, w)
    loader.read_begun_s = max(now, sim.links[number].free_s)
    k = objects.server(sim, w, al.DISK)
    sim.servers[k].end_s = links.carry(sim, number, now, sim.agents.things[o].read_s, _tokens(sim, o))
    server_heap.enter(sim, k)


@kernel
def _note_read(sim, w, o):
    """Object ``o`` has been read."""
    loader = sim.agents.loaders[w]
    loader.reads += 1
    loader.read_s += sim.agents.things[o].read_s
    _offer(sim, w, o)


@kernel
def end(sim, w):
    """The object that was being read is in host memory."""
    loader = sim.agents.loaders[w]
    server_heap.leave(sim, objects.server(sim, w, al.DISK))
    loader.reads_ahead += loader.read_ahead
    _note_read(sim, w, loader.reading)
    loader.reading = -1


@kernel
def interrupt(sim, w, now):
    """What the read under way has moved was moved for nothing; False where something was sent behind it."""
    loader = sim.agents.loaders[w]
    o = loader.reading
    k = objects.server(sim, w, al.DISK)
    link = sim.links[_link(sim, w)]
    end_s = sim.servers[k].end_s
    if link.free_s != end_s or end_s <= now:
        return False
    until_s = max(now, loader.read_begun_s)
    links.call_back(sim, _link(sim, w), until_s, sim.agents.things[o].read_s, _tokens(sim, o))
    server_heap.leave(sim, k)
    sim.agents.objects[w, o].on_host = al.DROPPED
    sim.trees[loader.copies].free_pages += sim.agents.things[o].pages
    loader.reading = -1
    loader.reads_preempted += 1
    loader.read_wasted_s += until_s - loader.read_begun_s
    return True


@kernel
def hold(sim, w, o):
    """Object ``o`` is being loaded: its copy stays."""
    if on(sim):
        eviction.withdraw(sim, sim.agents.loaders[w].copies, sim.agents.objects[w, o].copy_node)


@kernel
def let_go(sim, w, o):
    """It no longer is."""
    if on(sim):
        _offer(sim, w, o)


@kernel
def use(sim, w, o):
    """A call uses object ``o``: its copy, if there is one that nothing holds, is the last to go by use."""
    if not on(sim):
        return
    d = sim.agents.objects[w, o].copy_node
    if sim.nodes[d].heap_slot >= 0:
        v = sim.agents.loaders[w].copies
        sim.trees[v].tick += 1
        sim.nodes[d].tick = sim.trees[v].tick
        eviction.moved(sim, v, d)


@kernel
def bring(sim, w, o, now):
    """The step being formed is about to load object ``o``: where host memory has no copy, it waits for the disk."""
    if not on(sim):
        return
    if sim.agents.objects[w, o].on_host == al.COPIED:
        use(sim, w, o)
        return
    loader = sim.agents.loaders[w]
    pool = sim.trees[loader.copies]
    while pool.free_pages < sim.agents.things[o].pages and eviction.some(sim, loader.copies):
        _drop(sim, w, eviction.first(sim, loader.copies))
    if pool.free_pages < sim.agents.things[o].pages:
        sim.counters[la.FAULT] = la.OUT_OF_MEMORY
    _take(sim, w, o)
    begins_s = max(now, sim.workers[w].newest_end_s) + loader.at_launch_s
    end_s = links.carry(sim, _link(sim, w), begins_s, sim.agents.things[o].read_s, _tokens(sim, o))
    waits_s = end_s - begins_s
    loader.at_launch_s += waits_s
    loader.stall_s += waits_s
    # The load that follows, and what is sent behind it, come so much later.
    host_link = sim.links[2 * w + 1]
    host_link.free_s = max(now, host_link.free_s) + waits_s
    _note_read(sim, w, o)
