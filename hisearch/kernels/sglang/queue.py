"""What orders of SGLang's waiting queue are made of: look-ups, and a stable sort by key or by node of the cache."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QUEUE_ORDERS
from hisearch.kernels.cache import tree
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.traffic import lists, waiting_order

#: Bits of the orders whose keys are cache nodes.
_WEIGHS_NODES = QUEUE_ORDERS.mask(lambda order: order.weighs_nodes)


@kernel
def known_tokens(sim, r):
    """Tokens of ``r`` that are known: its prompt, and what it generated before it was retracted."""
    return sim.trace.input_tokens[r] + sim.requests[r].generated


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


#: Brings ``queue_order[0]`` into order.
sort_by_key = waiting_order.sorted_by(_precedes)
