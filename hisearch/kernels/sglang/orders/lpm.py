"""Longest cached prefix first.

A request that matches at most 32 cached tokens and has 32 in common with such a one before it goes last. It is fcfs
while more than 128 wait. Source: SGLang's ``SchedulePolicy`` (0.5.9), and recordings of it.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import QueueOrder
from hisearch.kernels.sglang import queue
from hisearch.kernels.traffic import lists

ORDER = QueueOrder("Longest cached prefix first.", every_pass=True, needs_cache=True, flag="lpm")

#: It is fcfs while more than this many requests wait.
QUEUE_LIMIT = 128
#: Cached tokens up to which a request's likeness to an earlier one counts, and tokens that make them alike.
ALIKE_TOKENS = 32


@kernel
def arrives(sim, r):
    """Note the trace-tree node of the last of ``r``'s first ``ALIKE_TOKENS`` known tokens, or -1."""
    if queue.known_tokens(sim, r) < ALIKE_TOKENS:
        sim.queued[r].stem = -1
        return
    s = lists.path_end(sim, r)
    while sim.trace.start_tokens[s] >= ALIKE_TOKENS - sim.config.keys_pairs:
        s = sim.trace.parent[s]
    sim.queued[r].stem = s


@kernel
def sort(sim, w, count):
    """By tokens that match, the most first."""
    if count > QUEUE_LIMIT:
        return
    row = sim.queue_order[0]
    seen = sim.queue_order[1]
    distinct = 0
    for k in range(count):
        queued = sim.queued[row[k]]
        matched, on_host, _ = queue.match(sim, w, row[k])
        queued.key = -matched
        if sim.config.matches_less_than_all:
            queued.key = -min(matched + on_host, queue.known_tokens(sim, row[k]) - 1)
        if matched > ALIKE_TOKENS:
            continue
        alike = False
        for j in range(distinct):
            if queued.stem >= 0 and seen[j] == queued.stem:
                alike = True
                break
        if alike:
            queued.key = 1
        else:
            seen[distinct] = queued.stem
            distinct += 1
    queue.sort_by_key(sim, count)
