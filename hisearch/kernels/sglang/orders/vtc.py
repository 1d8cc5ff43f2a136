"""Virtual token counter: the tenant with the least service goes first, and its requests by arrival.

A tenant that comes back is lifted to the least counter among those that wait, so that it has saved up nothing. Where
nobody waits, to that of the tenant that was the last to wait. Of two tenants that both have requests waiting, neither
gets more service than the other beyond a bound that does not grow. Source: Sheng et al., "Fairness in Serving Large
Language Models" (OSDI 2024), algorithm 2; all tenants weigh the same. Lifts come with the first pass that sorts.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import fair_share, waiting_order

ORDER = QueueOrder(
    "Virtual token counter: the tenant that has received the least service first; no release has it.",
    engines=("vllm", "sglang"),
    every_pass=True,
    counts_service=True,
)


@kernel
def _floor(sim, w):
    least = fair_share.least_waiting(sim, w)
    if least < la.NEVER:
        return least
    last = sim.workers[w].last_tenant
    return fair_share.counter(sim, w, last) if last >= 0 else 0


_enter = fair_share.entering(_floor)


@kernel
def arrives(sim, r):
    """See ``fair_share``."""
    fair_share.arrives(sim, r)


@kernel
def sort(sim, w, count):
    """By the tenant's counter once those before it in the queue are admitted."""
    _enter(sim, w, count)
    for k in range(count):
        r = sim.queue_order[0, k]
        tenant = fair_share.tenant_of(sim, w, r)
        sim.queued[r].key = tenant.ahead
        tenant.ahead += fair_share.admission_charge(sim, r)
    waiting_order.sort_by_key(sim, count)
