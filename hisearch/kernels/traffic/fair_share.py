"""Service that tenants have received from a worker, by which fair orders of its queue go.

Notation
    service  1 per prompt token and 2 per output token, as of Sheng et al., "Fairness in Serving Large Language Models"
             (OSDI 2024), whatever is cached. A prompt is charged when it is first admitted, with the token that its
             prefill samples. Each decode step charges the requests that it decodes. What is retracted or preempted is
             charged again for the token that its next prefill samples, not for its prompt.
    counter  service of a tenant, and what it was lifted by when it came back. It is ``charged`` and 2 for each of its
             decoding requests and each tick of the worker's clock (see ``layout.sim``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la

#: Service per prompt token and per output token (the paper's w_p and w_q).
INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2


@kernel
def tenant_of(sim, w, r):
    """Record of the tenant of ``r`` on worker ``w``."""
    return sim.tenants[w, sim.queued[r].tenant]


@kernel
def counter(sim, w, t):
    """Counter of tenant ``t``."""
    tenant = sim.tenants[w, t]
    return tenant.charged + OUTPUT_WEIGHT * tenant.decoding * sim.workers[w].clock


@kernel
def admission_charge(sim, r):
    """What the admission of the waiting ``r`` is charged."""
    scheduled_s = sim.requests[r].scheduled_s
    first = scheduled_s != scheduled_s
    return (INPUT_WEIGHT * sim.trace.input_tokens[r] if first else 0) + OUTPUT_WEIGHT


@kernel
def admit(sim, w, r):
    """Charge the admission of ``r``, before it is noted as scheduled."""
    worker = sim.workers[w]
    t = sim.queued[r].tenant
    tenant = sim.tenants[w, t]
    tenant.charged += admission_charge(sim, r)
    tenant.waiting -= 1
    if tenant.waiting == 0:
        worker.last_tenant = t
    worker.admitted_counter = max(worker.admitted_counter, counter(sim, w, t))


@kernel
def join_decode(sim, w, r):
    """``r`` decodes from the next step on."""
    tenant = tenant_of(sim, w, r)
    tenant.decoding += 1
    tenant.charged -= OUTPUT_WEIGHT * sim.workers[w].clock


@kernel
def leave_decode(sim, w, r):
    """``r`` no longer decodes."""
    tenant = tenant_of(sim, w, r)
    tenant.decoding -= 1
    tenant.charged += OUTPUT_WEIGHT * sim.workers[w].clock


@kernel
def reset(sim, w):
    """A worker that starts knows of no service."""
    for t in range(sim.tenants.shape[1]):
        tenant = sim.tenants[w, t]
        tenant.charged = 0
        tenant.decoding = 0
        tenant.waiting = 0
    sim.workers[w].last_tenant = -1
    sim.workers[w].admitted_counter = 0


@kernel
def arrives(sim, r):
    """Request ``r`` enters the queue; the next pass that sorts it lifts its tenant's counter where that is due."""
    sim.queued[r].entered = 0


def entering(floor: Any) -> Any:
    """Kernel ``(sim, w, count)``: requests that came since the last pass enter, and ``ahead`` becomes the counters.

    A tenant that has nothing waiting when a request of it enters is lifted to ``floor(sim, w)`` at least.
    """

    @kernel
    def enter(sim, w, count):
        tenants = sim.tenants[w]
        for t in range(tenants.shape[0]):
            tenants[t].waiting = 0
        for k in range(count):
            queued = sim.queued[sim.queue_order[0, k]]
            if queued.entered:
                tenants[queued.tenant].waiting += 1
        for k in range(count):
            queued = sim.queued[sim.queue_order[0, k]]
            if queued.entered:
                continue
            queued.entered = 1
            tenant = tenants[queued.tenant]
            if tenant.waiting == 0:
                tenant.charged += max(np.int64(floor(sim, w)) - counter(sim, w, queued.tenant), 0)
                tenant.since = sim.workers[w].entries
                sim.workers[w].entries += 1
            tenant.waiting += 1
        for t in range(tenants.shape[0]):
            tenants[t].ahead = counter(sim, w, t)

    return enter


@kernel
def least_waiting(sim, w):
    """Smallest counter of the tenants that have requests waiting; ``NEVER`` where none has."""
    least = la.NEVER
    for t in range(sim.tenants.shape[1]):
        if sim.tenants[w, t].waiting > 0:
            least = min(least, counter(sim, w, t))
    return least
