"""The cache's tree depth first.

Children go by the number of waiting requests that end in them or below. Requests that end in a node go behind those
below it. Source: SGLang's ``SchedulePolicy`` (0.5.9).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder
from hisearch.kernels.sglang import queue

ORDER = QueueOrder(
    "The radix tree depth first, by waiting requests below each node.",
    name="dfs-weight",
    every_pass=True,
    needs_cache=True,
    weighs_nodes=True,
    flag="dfs-weight",
)


@kernel
def _weigh(sim, w, d, change):
    """Add ``change`` to the weights of ``d`` and all above it."""
    while d >= sim.trees.shape[0]:
        sim.node_ranks[d].weight += change
        d = sim.nodes[d].parent


@kernel
def sort(sim, w, count):
    """Keys are cache nodes: ``queue.visited_before`` has their order."""
    for k in range(count):
        _, _, d = queue.match(sim, w, sim.queue_order[0, k])
        sim.queued[sim.queue_order[0, k]].key = d
    for k in range(count):
        _weigh(sim, w, sim.queued[sim.queue_order[0, k]].key, 1)
    queue.sort_by_key(sim, count)
    for k in range(count):
        _weigh(sim, w, sim.queued[sim.queue_order[0, k]].key, -1)
