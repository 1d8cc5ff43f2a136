"""SGLang's waiting queue: its order, and when a pass would look at it.

    fcfs        by arrival; retracted requests enter anew, at the end
    priority    lower values first, then as fcfs (--enable-priority-scheduling --schedule-low-priority-values-first;
                the engine's default is higher values first)
    lof         longest declared output first
    lpm         longest cached prefix first; a request that matches at most 32 cached tokens and has 32 in common with
                such a one before it goes last; fcfs while more than 128 wait
    dfs-weight  the cache's tree depth first, children by the number of waiting requests that end in them or below, and
                requests that end in a node behind those below it
    random      shuffled, by a stream of the worker's own

The last three are established anew by each pass that tries to prefill; equal requests keep their order. Without radix
cache lpm and dfs-weight are fcfs. Under priority every pass tries, full or not, since a waiting request might preempt
running ones; it does where their values differ by more than 10 (--priority-scheduling-preemption-threshold), which is
left out. Sources: SGLang's documented server arguments, its ``SchedulePolicy`` (0.5.9), and recordings of lpm.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import tree
from hisearch.kernels.core import rng
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import cache as prefixes
from hisearch.kernels.traffic import lists

#: lpm is fcfs while more than this many requests wait.
LPM_QUEUE_LIMIT = 128
#: lpm: cached tokens up to which a request's likeness to an earlier one counts, and tokens that make them alike.
ALIKE_TOKENS = 32


@kernel
def closed(sim, w):
    """True where a pass would not try to admit anything."""
    worker = sim.workers[w]
    if sim.config.schedule == la.PRIORITY:
        return worker.running >= sim.config.max_running
    return worker.full != 0


@kernel
def _known(sim, r):
    return sim.trace.input_tokens[r] + sim.requests[r].generated


@kernel
def _stem(sim, r):
    """Trace-tree node of the last of ``r``'s first ``ALIKE_TOKENS`` known tokens, or -1."""
    if _known(sim, r) < ALIKE_TOKENS:
        return -1
    s = lists.path_end(sim, r)
    while sim.trace.start_tokens[s] >= ALIKE_TOKENS:
        s = sim.trace.parent[s]
    return s


@kernel
def enqueue(sim, w, r):
    """Queue ``r``: at the end, or where its key puts it."""
    schedule = sim.config.schedule
    if schedule == la.LPM:
        sim.queued[r].stem = _stem(sim, r)
    if schedule != la.LOF and schedule != la.PRIORITY:
        lists.wait_last(sim, w, r)
        return
    key = -sim.trace.max_output_tokens[r] if schedule == la.LOF else sim.trace.priority[r]
    sim.queued[r].key = key
    before = sim.workers[w].waiting_tail
    while before >= 0 and sim.queued[before].key > key:
        before = sim.requests[before].prev
    lists.wait_after(sim, w, before, r)


@kernel
def _collect(sim, w):
    """Fill ``queue_order[0]`` with the waiting list."""
    count = 0
    r = sim.workers[w].waiting_head
    while r >= 0:
        sim.queue_order[0, count] = r
        count += 1
        r = sim.requests[r].next


@kernel
def _relink(sim, w):
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
def _shuffle(sim, w):
    """Fisher and Yates, from the end."""
    row = sim.queue_order[0]
    for last in range(sim.workers[w].waiting - 1, 0, -1):
        other = rng.below(sim.shuffle_rng[w : w + 1], last + 1)
        held = row[last]
        row[last] = row[other]
        row[other] = held


@kernel
def _match(sim, w, r):
    """Look up all known tokens of ``r``, which counts as an access. Returns (tokens, node).

    Each look-up may split a node, and there may be more of them than a pass has node records for.
    """
    if sim.counters[la.NODES_LEFT] < la.NODES_PER_REQUEST * (sim.config.max_running + 2):
        sim.counters[la.FAULT] = la.NODE_POOL_FULL
        return 0, sim.workers[w].cache_id
    return prefixes.walk(sim, w, lists.path_end(sim, r), tree.floor_page(sim, _known(sim, r)))


@kernel
def _rank_by_prefix(sim, w):
    """Set the waiting requests' keys for lpm: tokens that are missing, so to say."""
    count = sim.workers[w].waiting
    row = sim.queue_order[0]
    seen = sim.queue_order[1]
    distinct = 0
    for k in range(count):
        queued = sim.queued[row[k]]
        matched, _ = _match(sim, w, row[k])
        queued.key = -matched
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


@kernel
def _weigh(sim, w, d, change):
    """Add ``change`` to the weights of ``d`` and all above it."""
    while d >= sim.trees.shape[0]:
        sim.standings[d].weight += change
        d = sim.nodes[d].parent


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
    sa = sim.standings[a]
    sb = sim.standings[b]
    if sa.weight != sb.weight:
        return sa.weight > sb.weight
    return sa.rank < sb.rank


@kernel
def _precedes(sim, a, b):
    """True where request ``a`` goes before ``b`` even if it stands behind it. dfs-weight's keys are cache nodes."""
    ka = sim.queued[a].key
    kb = sim.queued[b].key
    if sim.config.schedule == la.DFS_WEIGHT:
        return ka != kb and _visited_before(sim, ka, kb)
    return ka < kb


@kernel
def _sort(sim, count):
    """Merge sort of ``queue_order[0]``, bottom up, equal ones keeping their order."""
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


@kernel
def sort_waiting(sim, w):
    """Bring the waiting list into the order in which this pass looks at it."""
    schedule = sim.config.schedule
    count = sim.workers[w].waiting
    if schedule == la.FCFS or schedule == la.LOF or schedule == la.PRIORITY or count == 0:
        return
    if schedule == la.SHUFFLED:
        _collect(sim, w)
        _shuffle(sim, w)
        _relink(sim, w)
        return
    if not sim.config.prefix_caching or (schedule == la.LPM and count > LPM_QUEUE_LIMIT):
        return
    _collect(sim, w)
    if schedule == la.LPM:
        _rank_by_prefix(sim, w)
        _sort(sim, count)
    else:
        for k in range(count):
            _, d = _match(sim, w, sim.queue_order[0, k])
            sim.queued[sim.queue_order[0, k]].key = d
        for k in range(count):
            _weigh(sim, w, sim.queued[sim.queue_order[0, k]].key, 1)
        _sort(sim, count)
        for k in range(count):
            _weigh(sim, w, sim.queued[sim.queue_order[0, k]].key, -1)
    _relink(sim, w)
