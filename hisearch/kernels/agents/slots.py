"""Objects in numbered slots, without an eviction policy: see ``layout.agents.BY_SLOT``.

Before a step the objects of its batch are made resident, one after another. A missing object takes the next empty slot,
or else the first slot whose object this batch does not need, even if a running call does. A prefill batch leaves out
the calls that decode, so it may take their slots. The next step with such a call loads its object again. Admission
keeps the objects of all running calls within the number of slots.

Rules: SGLang before it had a policy (sgl-project/sglang#8053, #11041).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.agents import disk, host_link
from hisearch.kernels.layout import agents as al


@kernel
def numbered(sim):
    """Whether objects lie in numbered slots."""
    return sim.agents.policy.order == al.BY_SLOT


@kernel
def have_free_slots(sim, w, a):
    """Whether there are slots for the objects of agent ``a`` and of all running calls together."""
    agents = sim.agents
    needed = agents.loaders[w].held
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        if sim.nodes[agents.objects[w, agents.uses[k]].node].lock == 0:
            needed += 1
    return needed <= agents.slots.shape[1]


@kernel
def hold(sim, w, o):
    """Lock object ``o`` for one more running call."""
    loader = sim.agents.loaders[w]
    obj = sim.agents.objects[w, o]
    node = sim.nodes[obj.node]
    node.lock += 1
    disk.use(sim, w, o)
    if node.lock == 1:
        loader.held += 1
        loader.lost += 1 if obj.where == al.ABSENT else 0


@kernel
def let_go(sim, w, o):
    """Remove a running call's lock on object ``o``."""
    loader = sim.agents.loaders[w]
    obj = sim.agents.objects[w, o]
    node = sim.nodes[obj.node]
    node.lock -= 1
    if node.lock == 0:
        loader.held -= 1
        loader.lost -= 1 if obj.where == al.ABSENT else 0


@kernel
def _need(sim, w, r):
    """Mark the objects of request ``r``, which is in the batch, as needed by it."""
    agents = sim.agents
    a = agents.agent[r]
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        agents.objects[w, agents.uses[k]].batch = agents.loaders[w].batch


@kernel
def _take_slot(sim, w, o):
    """Take a slot for object ``o``."""
    agents = sim.agents
    loader = agents.loaders[w]
    pool = sim.trees[loader.pool]
    slots = agents.slots[w]
    slot = loader.slots
    if slot < slots.shape[0]:
        loader.slots += 1
        pool.free_pages -= agents.things[o].pages
        loader.peak_pages = max(loader.peak_pages, pool.capacity_pages - pool.free_pages)
    else:
        slot = 0
        while agents.objects[w, slots[slot]].batch == loader.batch:
            slot += 1
        victim = agents.objects[w, slots[slot]]
        victim.where = al.ABSENT
        loader.evicted += 1
        loader.lost += 1 if sim.nodes[victim.node].lock > 0 else 0
    slots[slot] = o


@kernel
def _load(sim, w, r, now):
    """Load the missing objects of request ``r``, which is in the batch; the step waits for them."""
    agents = sim.agents
    loader = agents.loaders[w]
    link = sim.links[2 * w + 1]
    a = agents.agent[r]
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        o = agents.uses[k]
        obj = agents.objects[w, o]
        if obj.where != al.ABSENT:
            continue
        disk.bring(sim, w, o, now)
        _take_slot(sim, w, o)
        obj.where = al.RESIDENT
        loader.lost -= 1
        seconds = agents.things[o].load_s
        loader.at_launch_s += seconds
        loader.stall_s += seconds
        link.free_s = max(now, link.free_s) + seconds
        host_link.note_loaded(sim, w, o, seconds)


@kernel
def load_batch(sim, w, prompts, size, decodes, now):
    """Load missing objects of the batch being formed: the first ``size`` prompts and, if it ``decodes``, all calls."""
    loader = sim.agents.loaders[w]
    if loader.lost == 0:
        return
    loader.batch += 1
    for loading in range(2):
        for k in range(size):
            if loading:
                _load(sim, w, prompts[k], now)
            else:
                _need(sim, w, prompts[k])
        r = sim.workers[w].running_head if decodes else -1
        while r >= 0:
            if sim.agents.holds[r] and loading:
                _load(sim, w, r, now)
            elif sim.agents.holds[r]:
                _need(sim, w, r)
            r = sim.requests[r].next
