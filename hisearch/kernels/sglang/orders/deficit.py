"""Deficit round robin over tenants: each in turn may use a quantum of service per round, and what it has left over.

The quantum is the prompt tokens of a prefill pass (``chunk_tokens``). Outputs are charged as they are made, so that a
tenant may owe service, and then waits for as many rounds as that takes. A tenant that comes back has saved up nothing,
and goes last in the round under way. Source: Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round-Robin"
(SIGCOMM 1995). A tenant's counter and the round stand for its deficit: round * quantum - counter.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder
from hisearch.kernels.traffic import fair_share, waiting_order

ORDER = QueueOrder(
    "Deficit round robin: tenants in turn, a prefill pass's tokens of service each; no release has it.",
    engines=("vllm", "sglang"),
    every_pass=True,
    counts_service=True,
)

#: Turns within a round that keys have places for; there are fewer requests.
_TURNS = 2**31


@kernel
def _round(sim, service):
    """Round in which a tenant's counter may reach ``service``."""
    return (service + sim.config.chunk_tokens - 1) // sim.config.chunk_tokens


@kernel
def _floor(sim, w):
    """Counter of a tenant that has its whole quantum of the round under way left."""
    return max(_round(sim, sim.workers[w].admitted_counter) - 1, 0) * sim.config.chunk_tokens


_enter = fair_share.entering(_floor)


@kernel
def arrives(sim, r):
    """See ``fair_share``."""
    fair_share.arrives(sim, r)


@kernel
def sort(sim, w, count):
    """By the round that has room for it, then by the turn of its tenant, which is since when that has been waiting."""
    _enter(sim, w, count)
    for k in range(count):
        r = sim.queue_order[0, k]
        tenant = fair_share.tenant_of(sim, w, r)
        tenant.ahead += fair_share.admission_charge(sim, r)
        sim.queued[r].key = _round(sim, tenant.ahead) * _TURNS + tenant.since
    waiting_order.sort_by_key(sim, count)
