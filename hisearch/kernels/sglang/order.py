"""SGLang's waiting queue: its order (``sglang.orders``), and when a pass would look at it."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.base.policies import QUEUE_ORDERS
from hisearch.kernels.core.dispatch import dispatcher, functions
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import lora as sglang_lora
from hisearch.kernels.sglang import (
    orders,  # noqa: F401  (kernels are compiled from all of them)
    queue,
)
from hisearch.kernels.sglang.orders import lpm
from hisearch.kernels.traffic import lists, waiting_order

_EVERY_PASS = QUEUE_ORDERS.mask(lambda order: order.every_pass)
_NEEDS_CACHE = QUEUE_ORDERS.mask(lambda order: order.needs_cache)
#: Bits of the orders that put a request into its place when it arrives.
_BY_KEY = sum(1 << QUEUE_ORDERS.code(name) for name in functions(QUEUE_ORDERS, "key"))

#: A pass of so many touches the cached prefixes of the first so many waiting requests.
_TOUCH_INTERVAL, _TOUCHED = 32, 128

_arrives = dispatcher(QUEUE_ORDERS, "arrives", "sim, r", otherwise="None")
_key = dispatcher(QUEUE_ORDERS, "key", "sim, r", otherwise="0")
_sort = dispatcher(QUEUE_ORDERS, "sort", "sim, w, count", otherwise="None")


@kernel
def closed(sim, w):
    """True where a pass would not try to admit anything."""
    return not sim.config.preempts and sim.config.window_tokens == 0 and sim.workers[w].full != 0


@kernel
def _sorts_late(sim):
    """Whether the order by keys is that of the last pass which sorted: later look-ups in storage go by it."""
    return _BY_KEY >> sim.config.schedule & 1 and sim.tiers.storage != 0 and sim.config.fetches_by_hits != 0


@kernel
def enqueue(sim, w, r, moment):
    """Queue ``r``: at the end, or where its key puts it. ``moment``: see ``WORKER.moments``."""
    schedule = sim.config.schedule
    sim.requests[r].queued_at = moment
    sglang_lora.enqueue(sim, w, r, moment)
    _arrives(schedule, sim, r)
    if not _BY_KEY >> schedule & 1:
        lists.wait_last(sim, w, r)
        return
    key = np.int64(_key(schedule, sim, r))
    sim.queued[r].key = key
    if _sorts_late(sim):
        lists.wait_last(sim, w, r)
        return
    before = sim.workers[w].waiting_tail
    while before >= 0 and sim.queued[before].key > key:
        before = sim.requests[before].prev
    lists.wait_after(sim, w, before, r)


@kernel
def _looks_up(sim, w):
    """Whether the order looks up all waiting requests, as far as the queue is short enough."""
    if not _NEEDS_CACHE >> sim.config.schedule & 1:
        return False
    return sim.config.schedule != la.LPM or sim.workers[w].waiting <= lpm.QUEUE_LIMIT


@kernel
def sort_waiting(sim, w):
    """Bring the waiting list into the order in which this pass looks at it."""
    schedule = sim.config.schedule
    count = sim.workers[w].waiting
    if count > 1 and _sorts_late(sim):
        waiting_order.collect(sim, w)
        queue.sort_by_key(sim, count)
        waiting_order.relink(sim, w)
    if not _EVERY_PASS >> schedule & 1 or count == 0:
        return
    if _NEEDS_CACHE >> schedule & 1 and not sim.config.prefix_caching:
        return
    waiting_order.collect(sim, w)
    _sort(schedule, sim, w, count)
    waiting_order.relink(sim, w)


@kernel
def touch_waiting(sim, w):
    """Touch the cached prefixes of the first waiting requests, the head's last, so that eviction takes others."""
    worker = sim.workers[w]
    if not sim.config.touches_waiting or worker.waiting == 0:
        return
    if not sim.config.prefix_caching or sim.config.eviction != la.LRU or _looks_up(sim, w):
        return
    worker.touches += 1
    if worker.touches % _TOUCH_INTERVAL != 1:
        return
    r = worker.waiting_head
    for _ in range(min(worker.waiting, _TOUCHED) - 1):
        r = sim.requests[r].next
    while r >= 0:
        queue.match(sim, w, r)
        r = sim.requests[r].prev
