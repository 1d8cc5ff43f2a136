"""Each worker's queues of agents with pending loads: heaps by predicted call, then by index.

Rows of worker w: w for objects, W + w for KV, 2 W + w for KV that only storage has, 3 W + w for objects that only the
disk has.
"""

from __future__ import annotations

from hisearch.base.jit import kernel


@kernel
def _sooner(sim, a, b):
    call_a = sim.agents.agents[a].predicted_call
    call_b = sim.agents.agents[b].predicted_call
    return call_a < call_b or (call_a == call_b and a < b)


@kernel
def kv_row(sim, w):
    """Row of worker ``w``'s queue for KV."""
    return sim.config.workers + w


@kernel
def fetch_row(sim, w):
    """Row of worker ``w``'s queue for KV that only storage has."""
    return 2 * sim.config.workers + w


@kernel
def read_row(sim, w):
    """Row of worker ``w``'s queue for objects that only the disk has."""
    return 3 * sim.config.workers + w


@kernel
def _sift(sim, row, slot):
    line = sim.agents.line[row]
    slots = sim.agents.line_slot[row]
    size = sim.agents.line_size[row]
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
def stand(sim, row, a):
    """Put agent ``a`` into queue ``row``, or move it to its new place."""
    slots = sim.agents.line_slot[row]
    if slots[a] < 0:
        size = sim.agents.line_size[row]
        slots[a] = size
        sim.agents.line[row, size] = a
        sim.agents.line_size[row] = size + 1
    _sift(sim, row, slots[a])


@kernel
def step_out(sim, row, a):
    """Take agent ``a`` out of queue ``row``."""
    slots = sim.agents.line_slot[row]
    slot = slots[a]
    if slot < 0:
        return
    size = sim.agents.line_size[row] - 1
    sim.agents.line_size[row] = size
    slots[a] = -1
    if slot != size:
        sim.agents.line[row, slot] = sim.agents.line[row, size]
        slots[sim.agents.line[row, slot]] = slot
        _sift(sim, row, slot)
