"""vLLM's waiting queue in a fair order of tenants (``traffic.fair_share``): established by each pass that may admit.

No release has one. The running list keeps its order, and the last running request is the first to be preempted, as by
arrival; it then waits before the others of its tenant.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QUEUE_ORDERS
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.traffic import waiting_order

_FAIR = QUEUE_ORDERS.subset(lambda order: order.counts_service)
#: Code of a fair order among all orders -> among these.
_CODES = tuple(_FAIR.code(name) if name in _FAIR else -1 for name in QUEUE_ORDERS)

_sort = dispatcher(_FAIR, "sort", "sim, w, count")


@kernel
def sort_waiting(sim, w):
    """Bring the waiting list into the order in which this pass looks at it."""
    if sim.workers[w].waiting == 0:
        return
    waiting_order.collect(sim, w)
    _sort(_CODES[sim.config.schedule], sim, w, sim.workers[w].waiting)
    waiting_order.relink(sim, w)
