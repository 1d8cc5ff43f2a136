"""The arrays of a pool, by its number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from hisearch.base.jit import kernel
from hisearch.kernels.core.handle import HandleType, handle_at
from hisearch.kernels.layout import sim as la

# Kinds of a pool's next event.
SERVED, END, START = 0, 1, 2


def at(fleet: Any, p: int) -> la.Sim:
    """The arrays of pool ``p``."""
    sim: la.Sim = handle_at(int(fleet.sims[p]))  # type: ignore[assignment]
    return sim


@kernel
def first(fleet):
    """The first pool that takes arriving requests; its records have the outcome of requests that reached no worker."""
    return at(fleet, fleet.members[0].pool)


@intrinsic
def _as_sim(_typing: Any, address: Any) -> Any:
    def generate(_context: Any, _builder: Any, _signature: Any, values: Any) -> Any:
        return values[0]

    return HandleType(la.Sim)(types.int64), generate


@overload(at)
def _at(fleet, p):  # type: ignore[no-untyped-def]  # numba compares the argument lists
    def call(fleet, p):  # type: ignore[no-untyped-def]
        return _as_sim(fleet.sims[p])

    return call


@kernel
def update_next_event(fleet, p):
    """Update the time and kind of pool ``p``'s next event."""
    sim = at(fleet, p)
    time = np.inf
    kind = START
    if sim.counters[la.EVENT_HEAP] > 0:
        worker = sim.workers[sim.event_heap[0]]
        time = worker.event_s
        kind = START if worker.phase == la.FORMING else END
    if sim.counters[la.SERVING] > 0:
        served = sim.servers[sim.server_heap[0]].end_s
        if served <= time:
            time = served
            kind = SERVED
    fleet.next_s[p] = time
    fleet.next_kind[p] = kind
