"""Objects in numbered slots, without a policy of what goes: see ``layout.agents.BY_SLOT``.

Before a step its batch's objects are made resident, one after another: one that is missing takes the next empty slot,
or else the first whose object this batch can do without, be it that of a call that runs on. A prefill batch is apart
from the calls that decode, so that it may take their slots; the next step in which such a call takes part loads its
object again. Admission sees to it that the calls that run have slots enough together.

Rules: SGLang before it had a policy (sgl-project/sglang#8053, #11041).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.agents import disk, loads
from hisearch.kernels.layout import agents as al


@kernel
def numbered(sim):
    """Whether objects lie in numbered slots."""
    return sim.agents.policy.order == al.BY_SLOT


@kernel
def have_room(sim, w, a):
    """Whether the objects of agent ``a`` and of the calls that run have slots enough together."""
    agents = sim.agents
    needed = agents.loaders[w].held
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        if sim.nodes[agents.objects[w, agents.uses[k]].node].lock == 0:
            needed += 1
    return needed <= agents.slots.shape[1]


@kernel
def hold(sim, w, o):
    """One more call that runs needs object ``o``."""
    loader = sim.agents.loaders[w]
    here = sim.agents.objects[w, o]
    node = sim.nodes[here.node]
    node.lock += 1
    disk.use(sim, w, o)
    if node.lock == 1:
        loader.held += 1
        loader.lost += 1 if here.where == al.ABSENT else 0


@kernel
def let_go(sim, w, o):
    """One less does."""
    loader = sim.agents.loaders[w]
    here = sim.agents.objects[w, o]
    node = sim.nodes[here.node]
    node.lock -= 1
    if node.lock == 0:
        loader.held -= 1
        loader.lost -= 1 if here.where == al.ABSENT else 0


@kernel
def _need(sim, w, r):
    """Request ``r`` is in the batch."""
    agents = sim.agents
    a = agents.agent[r]
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        agents.objects[w, agents.uses[k]].batch = agents.loaders[w].batch


@kernel
def _take_slot(sim, w, o):
    """A slot for object ``o``."""
    agents = sim.agents
    loader = agents.loaders[w]
    pool = sim.trees[loader.pool]
    slots = agents.slots[w]
    at = loader.slots
    if at < slots.shape[0]:
        loader.slots += 1
        pool.free_pages -= agents.things[o].pages
        loader.peak_pages = max(loader.peak_pages, pool.capacity_pages - pool.free_pages)
    else:
        at = 0
        while agents.objects[w, slots[at]].batch == loader.batch:
            at += 1
        gone = agents.objects[w, slots[at]]
        gone.where = al.ABSENT
        loader.evicted += 1
        loader.lost += 1 if sim.nodes[gone.node].lock > 0 else 0
    slots[at] = o


@kernel
def _load(sim, w, r, now):
    """Request ``r`` is in the batch: what it is missing is loaded, and the step waits."""
    agents = sim.agents
    loader = agents.loaders[w]
    link = sim.links[2 * w + 1]
    a = agents.agent[r]
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        o = agents.uses[k]
        here = agents.objects[w, o]
        if here.where != al.ABSENT:
            continue
        disk.bring(sim, w, o, now)
        _take_slot(sim, w, o)
        here.where = al.RESIDENT
        loader.lost -= 1
        seconds = agents.things[o].load_s
        loader.at_launch_s += seconds
        loader.stall_s += seconds
        link.free_s = max(now, link.free_s) + seconds
        loads.note_loaded(sim, w, o, seconds)


@kernel
def load_batch(sim, w, prompts, size, decodes, now):
    """The step being formed runs the first ``size`` of ``prompts``, and the running calls where it ``decodes``."""
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
