"""The disk tier of objects: which copies host memory holds, and how the others are read from the disk.

Where host memory for objects is limited, a disk behind it holds all of them. So dropping a copy loses nothing, and
nothing is written. A copy stays while HBM has its object too. Copies have a pool of their own. They are evicted as
objects are from HBM: by predicted call, or by last use where steps load for themselves. A copy being loaded stays.

A worker reads one object at a time, over the store's link, which other reads share. ``agents.loads`` decides which
object is read, and when. A step that loads for itself (``AT_LAUNCH``) waits for the step before it, then for the disk,
then for its link.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import eviction, load_queue, objects, predicted_calls
from hisearch.kernels.hicache import stores
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, links


@kernel
def on(sim):
    """Whether host memory may lack copies of objects."""
    return sim.agents.policy.host_pages > 0


@kernel
def _link(sim, w):
    """Number of the link over which worker ``w``'s objects are read."""
    return sim.store_tiers[stores.NEAR].first_link + 2 * stores.number_of(sim, w, stores.NEAR) + 1


@kernel
def _take(sim, w, o):
    """Take pages for the copy of object ``o``; there are enough."""
    loader = sim.agents.loaders[w]
    pool = sim.trees[loader.copies]
    pool.free_pages -= sim.agents.things[o].pages
    loader.peak_copies = max(loader.peak_copies, pool.capacity_pages - pool.free_pages)


@kernel
def _offer(sim, w, o):
    """Let the copy of object ``o``, used just now, be evicted."""
    obj = sim.agents.objects[w, o]
    obj.on_host = al.COPIED
    v = sim.agents.loaders[w].copies
    sim.trees[v].tick += 1
    sim.nodes[obj.copy_node].tick = sim.trees[v].tick
    eviction.enter(sim, v, obj.copy_node)


@kernel
def fill(sim, w):
    """Fill worker ``w``'s host memory at the start: the first objects, as many as fit."""
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
    """Drop the copy whose record is ``d``. Its only agent queues to have it read again, where that makes sense."""
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
        load_queue.stand(sim, load_queue.read_row(sim, w), owner)


@kernel
def ensure_free_pages(sim, w, o, a):
    """Free pages for a copy of object ``o`` of agent ``a``; evicts later predicted calls only. False: too few pages."""
    v = sim.agents.loaders[w].copies
    pool = sim.trees[v]
    while pool.free_pages < sim.agents.things[o].pages:
        d = eviction.first(sim, v)
        if d < 0 or not predicted_calls.may_evict(sim, w, d, a):
            return False
        _drop(sim, w, d)
    return True


@kernel
def _tokens(sim, o):
    """Tokens that links count for object ``o``."""
    return sim.agents.things[o].pages * sim.config.page_tokens


@kernel
def begin(sim, w, o, a, now):
    """Begin to read object ``o`` for agent ``a``; there are pages for its copy."""
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
    heaps.server_set(sim, k)


@kernel
def _note_read(sim, w, o):
    """Count a finished read of object ``o``; its copy may be evicted."""
    loader = sim.agents.loaders[w]
    loader.reads += 1
    loader.read_s += sim.agents.things[o].read_s
    _offer(sim, w, o)


@kernel
def end(sim, w):
    """End the read under way: its object is in host memory."""
    loader = sim.agents.loaders[w]
    heaps.server_clear(sim, objects.server(sim, w, al.DISK))
    loader.reads_ahead += loader.read_ahead
    _note_read(sim, w, loader.reading)
    loader.reading = -1


@kernel
def interrupt(sim, w, now):
    """Abort the read under way, whose bytes are wasted; False where the link has a later transfer."""
    loader = sim.agents.loaders[w]
    o = loader.reading
    k = objects.server(sim, w, al.DISK)
    link = sim.links[_link(sim, w)]
    end_s = sim.servers[k].end_s
    if link.free_s != end_s or end_s <= now:
        return False
    until_s = max(now, loader.read_begun_s)
    links.call_back(sim, _link(sim, w), until_s, sim.agents.things[o].read_s, _tokens(sim, o))
    heaps.server_clear(sim, k)
    sim.agents.objects[w, o].on_host = al.DROPPED
    sim.trees[loader.copies].free_pages += sim.agents.things[o].pages
    loader.reading = -1
    loader.reads_preempted += 1
    loader.read_wasted_s += until_s - loader.read_begun_s
    return True


@kernel
def hold(sim, w, o):
    """Protect the copy of object ``o`` from eviction while it is loaded."""
    if on(sim):
        eviction.withdraw(sim, sim.agents.loaders[w].copies, sim.agents.objects[w, o].copy_node)


@kernel
def let_go(sim, w, o):
    """Let the copy of object ``o`` be evicted again."""
    if on(sim):
        _offer(sim, w, o)


@kernel
def use(sim, w, o):
    """Note that a call uses object ``o``: an evictable copy becomes the most recently used."""
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
    """Read object ``o``, which the step being formed loads, from the disk where host memory has no copy."""
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
    begin_s = max(now, sim.workers[w].newest_end_s) + loader.at_launch_s
    end_s = links.carry(sim, _link(sim, w), begin_s, sim.agents.things[o].read_s, _tokens(sim, o))
    wait_s = end_s - begin_s
    loader.at_launch_s += wait_s
    loader.stall_s += wait_s
    # The wait delays the load that follows, and later transfers on its link.
    host_link = sim.links[2 * w + 1]
    host_link.free_s = max(now, host_link.free_s) + wait_s
    _note_read(sim, w, o)
