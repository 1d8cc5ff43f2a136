"""Each worker's line of agents with something to load: a heap by due, then by index."""

from __future__ import annotations

from hisearch.kernels.jit import kernel


@kernel
def _sooner(sim, a, b):
    da = sim.agents.agents[a].due
    db = sim.agents.agents[b].due
    return da < db or (da == db and a < b)


@kernel
def _sift(sim, w, slot):
    line = sim.agents.line[w]
    slots = sim.agents.line_slot[w]
    size = sim.agents.loaders[w].ahead
    a = line[slot]
    while slot > 0:
        up = (slot - 1) >> 1
        if not _sooner(sim, a, line[up]):
            break
        line[slot] = line[up]
        slots[line[slot]] = slot
        slot = up
    while True:
        down = 2 * slot + 1
        if down >= size:
            break
        if down + 1 < size and _sooner(sim, line[down + 1], line[down]):
            down += 1
        if not _sooner(sim, line[down], a):
            break
        line[slot] = line[down]
        slots[line[slot]] = slot
        slot = down
    line[slot] = a
    slots[a] = slot


@kernel
def stand(sim, w, a):
    """Agent ``a`` stands in worker ``w``'s line, at its place."""
    slots = sim.agents.line_slot[w]
    if slots[a] < 0:
        loader = sim.agents.loaders[w]
        slots[a] = loader.ahead
        sim.agents.line[w, loader.ahead] = a
        loader.ahead += 1
    _sift(sim, w, slots[a])


@kernel
def step_out(sim, w, a):
    """Agent ``a`` leaves worker ``w``'s line."""
    slots = sim.agents.line_slot[w]
    slot = slots[a]
    if slot < 0:
        return
    loader = sim.agents.loaders[w]
    loader.ahead -= 1
    slots[a] = -1
    if slot != loader.ahead:
        sim.agents.line[w, slot] = sim.agents.line[w, loader.ahead]
        slots[sim.agents.line[w, slot]] = slot
        _sift(sim, w, slot)
