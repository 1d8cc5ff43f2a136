"""Each worker's queues of agents with pending loads: heaps by predicted call, then by index.

Rows of worker w: w for objects, W + w for KV, 2 W + w for KV that only storage has, 3 W + w for objects that only the
disk has.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.heap import indexed_heap


@kernel
def _sooner(queue, a, b):
    agents = queue[0].agents.agents
    return agents[a].predicted_call < agents[b].predicted_call or (
        agents[a].predicted_call == agents[b].predicted_call and a < b
    )


@kernel
def _note_slot(queue, a, slot):
    queue[0].agents.line_slot[queue[1], a] = slot


_sift, _push, _remove = indexed_heap(_sooner, _note_slot)


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
def stand(sim, row, a):
    """Put agent ``a`` into queue ``row``, or move it to its new place."""
    line = sim.agents.line[row]
    size = sim.agents.line_size[row]
    slot = sim.agents.line_slot[row, a]
    if slot < 0:
        sim.agents.line_size[row] = _push((sim, row), line, size, a)
    else:
        _sift((sim, row), line, size, slot)


@kernel
def step_out(sim, row, a):
    """Take agent ``a`` out of queue ``row``."""
    slot = sim.agents.line_slot[row, a]
    if slot >= 0:
        sim.agents.line_size[row] = _remove((sim, row), sim.agents.line[row], sim.agents.line_size[row], slot)
