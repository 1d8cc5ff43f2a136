"""What orders of SGLang's waiting queue are made of: look-ups, and a stable sort by key."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QUEUE_ORDERS
from hisearch.kernels.cache import tree
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.traffic import lists

#: Bits of the orders whose keys are cache nodes.
_WEIGHS_NODES = QUEUE_ORDERS.mask(lambda order: order.weighs_nodes)


@kernel
def known_tokens(sim, r):
    """Tokens of ``r`` that are known: its prompt, and what it generated before it was retracted."""
    return sim.trace.input_tokens[r] + sim.requests[r].generated


@kernel
def collect(sim, w):
    """Fill ``queue_order[0]`` with the waiting list."""
    count = 0
    r = sim.workers[w].waiting_head
    while r >= 0:
        sim.queue_order[0, count] = r
        count += 1
        r = sim.requests[r].next


@kernel
def relink(sim, w):
    """The waiting list in the order of ``queue_order[0]``."""
    worker = sim.workers[w]
    count = worker.waiting
    before = -1
    for k in range(count):
        request = sim.requests[sim.queue_order[0, k]]
        request.prev = before
        before = sim.queue_order[0, k]
        request.next = sim.queue_order[0, k + 1] if k + 1 < count else -1
    worker.waiting_head = sim.queue_order[0, 0]
    worker.waiting_tail = before


@kernel
def match(sim, w, r):
    """Look up all known tokens of ``r``, which counts as an access.

    Returns (tokens in HBM, host-only tokens behind them, node that ends with the former).

    Each look-up may split a node, and there may be more of them than a pass has node records for.
    """
    if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST * (sim.config.max_running + 2):
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return 0, 0, sim.workers[w].cache_id
    tokens = tree.floor_page(sim, known_tokens(sim, r) - sim.config.keys_pairs)
    return prefixes.walk_tiers(sim, w, lists.path_end(sim, r), tokens)


@kernel
def _visited_before(sim, a, b):
    """True where the depth-first walk is done with node ``a`` before it is with another one, ``b``."""
    nodes = sim.nodes
    while nodes[a].parent != nodes[b].parent:
        if nodes[a].begin > nodes[b].begin:
            a = nodes[a].parent
            if a == b:
                return True
        elif nodes[a].begin < nodes[b].begin:
            b = nodes[b].parent
            if a == b:
                return False
        else:
            a = nodes[a].parent
            b = nodes[b].parent
    sa = sim.node_ranks[a]
    sb = sim.node_ranks[b]
    if sa.weight != sb.weight:
        return sa.weight > sb.weight
    return sa.rank < sb.rank


@kernel
def _precedes(sim, a, b):
    """True where request ``a`` goes before ``b`` even if it stands behind it."""
    ka = sim.queued[a].key
    kb = sim.queued[b].key
    if _WEIGHS_NODES >> sim.config.schedule & 1:
        return ka != kb and _visited_before(sim, ka, kb)
    return ka < kb


@kernel
def sort_by_key(sim, count):
    """Stable merge sort of ``queue_order[0]`` by key, bottom up."""
    width = 1
    row = 0
    while width < count:
        source = sim.queue_order[row]
        target = sim.queue_order[1 - row]
        for low in range(0, count, 2 * width):
            middle = min(low + width, count)
            high = min(low + 2 * width, count)
            i = low
            j = middle
            for k in range(low, high):
                if i < middle and (j >= high or not _precedes(sim, source[j], source[i])):
                    target[k] = source[i]
                    i += 1
                else:
                    target[k] = source[j]
                    j += 1
        row = 1 - row
        width *= 2
    if row == 1:
        for k in range(count):
            sim.queue_order[0, k] = sim.queue_order[1, k]
