"""The arrays of a HiCache run checked against themselves, wherever it stops (L3, L4): slow walks over everything.

Every record in use is exactly one of: a node of a worker's tree, in HBM, on the host or both; a run of a store; a node
that has been dropped above ones on the host alone, and these, which are cut off: they hold host memory, and no look-up
comes to them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from hisearch.kernels.hicache import servers
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from tests.kernels import invariants as shared
from tests.kernels import store_invariants as store_checks


@dataclass
class Records:
    """What the records in use are, by worker or store."""

    nodes: dict[int, list[int]]
    runs: dict[int, list[int]]
    cut_off: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)


def check(sim: la.Sim) -> None:
    """Raise AssertionError unless everything adds up."""
    records = _sorted_records(sim)
    owners = _owners_of_cut_off(sim, records)
    lockers = _host_lockers(sim)
    for w in range(int(sim.config.workers)):
        nodes, cut_off = records.nodes[w], [d for d in records.cut_off if owners[d] == w]
        in_hbm = [d for d in nodes if sim.hosted[d].where & hl.IN_HBM]
        shared._check_shape(sim, w, nodes)
        _check_deepest_cached(sim, w, nodes, cut_off)
        _check_presence(sim, w, nodes)
        _check_hbm_heap(sim, w, in_hbm)
        holders = shared._check_lists(sim, w)
        _check_locks(sim, w, nodes, holders)
        shared._check_pages(sim, w, in_hbm, holders)
        _check_host_pool(sim, w, nodes + cut_off, lockers)
        _check_fetches(sim, w)
    for v in store_checks.stores(sim):
        store_checks.check_store(sim, v, records.runs[v])
    if sim.tiers.storage:
        _check_chain(sim)
    _check_servers(sim)
    _check_links(sim)
    _check_events(sim)


def check_at_rest(sim: la.Sim) -> None:
    """``check``; once every request has ended, nothing is pending except copies that no pass has noted.

    A run ends with its last request; the servers' remaining jobs finish here.
    """
    check(sim)
    while sim.counters[la.SERVING] > 0:
        k = int(sim.server_heap[0])
        servers.end_part(sim, k, float(sim.servers[k].end_s))
    check(sim)
    assert set(sim.requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}
    for w in range(int(sim.config.workers)):
        worker = sim.workers[w]
        assert worker.phase == (la.RESTING if sim.config.scheduler_kind == la.LOCKSTEP else la.IDLE)
        assert worker.waiting == worker.decoding == worker.running - worker.finished_pending == 0
        member = sim.fleet.members[w // sim.config.schedulers]
        assert member.inflight_requests == member.inflight_tokens == 0
        assert not sim.residue[w].any()
        assert sim.hosts[w].fetching_tokens == 0
        assert worker.host_hit_tokens == sim.trees[host_pool(sim, w)].read_tokens + sim.hosts[w].loading_tokens
    assert sim.counters[la.SERVING] == 0
    _check_bytes(sim)


def host_pool(sim: la.Sim, w: int) -> int:
    """Index of worker ``w``'s host pool among the trees."""
    return len(sim.trees) - int(sim.config.workers) + w


# ---- what the records are --------------------------------------------------------------------------------------------


def _sorted_records(sim: la.Sim) -> Records:
    used = set(range(len(sim.trees), int(sim.counters[la.NODES_USED])))
    free = shared._chain(sim.nodes, int(sim.counters[la.FREE_NODE]))
    assert set(free) <= used
    used -= set(free)
    assert sim.counters[la.NODES_LEFT] == len(sim.nodes) - len(sim.trees) - len(used)
    runs = {
        v: store_checks.runs_of(sim, v)
        for v in range(int(sim.config.workers), len(sim.trees) - int(sim.config.workers))
    }
    records = Records({w: [] for w in range(int(sim.config.workers))}, runs)
    of_stores = [d for run_nodes in runs.values() for d in run_nodes]
    assert len(set(of_stores)) == len(of_stores)
    assert set(of_stores) <= used
    for d in sorted(used - set(of_stores)):
        root = _top(sim, d)
        if sim.hosted[d].where == 0:
            assert (sim.nodes[d].parent, sim.nodes[d].heap_slot) == (-1, -1)
            records.dropped.append(d)
        elif root < 0:
            records.cut_off.append(d)
        else:
            records.nodes[root].append(d)
    children = Counter(int(sim.nodes[d].parent) for d in records.cut_off)
    for d in records.dropped:
        assert sim.nodes[d].children == children[d] > 0
    for d in records.cut_off:
        assert sim.nodes[d].children == children[d]
        assert sim.hosted[d].where == hl.ON_HOST
        assert sim.nodes[d].begin == sim.nodes[sim.nodes[d].parent].end
    return records


def _top(sim: la.Sim, d: int) -> int:
    """The root above ``d``, or -1 above which nothing is."""
    while d >= len(sim.trees):
        d = int(sim.nodes[d].parent)
    return d


def _owners_of_cut_off(sim: la.Sim, records: Records) -> dict[int, int]:
    """Worker whose host pool holds the cut-off nodes: the one that may evict a leaf, or that of its user."""
    workers = range(int(sim.config.workers))
    cut_off = set(records.cut_off)
    owner: dict[int, int] = {}
    for w in workers:
        v = host_pool(sim, w)
        line, heap = shared.leaves_of(sim, v)
        for leaf in [*line, *heap, *_host_locks(sim, w)]:
            d = leaf
            while d in cut_off:
                assert owner.setdefault(d, w) == w
                d = int(sim.nodes[d].parent)
    assert set(owner) == cut_off
    return owner


# ---- HBM and host ----------------------------------------------------------------------------------------------------


def _check_deepest_cached(sim: la.Sim, w: int, nodes: list[int], cut_off: list[int]) -> None:
    """``deepest_cached`` is what walking over every page gives; without any it may lead to a node that is cut off."""
    page = int(sim.config.page_tokens)
    deepest: dict[int, tuple[int, int]] = {}
    for d in nodes:
        path = shared._path(sim, int(sim.nodes[d].trace_node))
        for end in range(int(sim.nodes[d].begin) + page, int(sim.nodes[d].end) + 1, page):
            trace_node = next(s for s in path if sim.trace.start_tokens[s] < end <= sim.trace.end_tokens[s])
            assert deepest.get(trace_node, (0, -1))[0] != end
            deepest[trace_node] = max(deepest.get(trace_node, (0, -1)), (end, d))
    for s, d in enumerate(sim.deepest_cached[w].tolist()):
        if s in deepest:
            assert d == deepest[s][1]
        else:
            assert d == -1 or d in cut_off


def _check_presence(sim: la.Sim, w: int, nodes: list[int]) -> None:
    """HBM is closed towards the root, what is settled too; children in HBM are counted."""
    in_hbm = Counter(int(sim.nodes[d].parent) for d in nodes if sim.hosted[d].where & hl.IN_HBM)
    for d in nodes:
        hosted, parent = sim.hosted[d], int(sim.nodes[d].parent)
        assert hosted.where & (hl.IN_HBM | hl.ON_HOST)
        if parent != w:
            assert sim.hosted[parent].where & hl.IN_HBM or not hosted.where & hl.IN_HBM
            assert sim.hosted[parent].settled or not hosted.settled
        assert hosted.where & hl.ON_HOST or not hosted.settled
        assert hosted.device_children == in_hbm[d]


def _check_hbm_heap(sim: la.Sim, w: int, in_hbm: list[int]) -> None:
    unlocked = [d for d in in_hbm if sim.nodes[d].lock == 0]
    assert sim.trees[w].evictable_pages == sum(shared._node_pages(sim, d) for d in unlocked)
    leaves = [d for d in unlocked if sim.hosted[d].device_children == 0]
    shared.check_leaves(sim, w, leaves, int(sim.config.eviction))


def _copies(sim: la.Sim, first: int) -> list[int]:
    nodes: list[int] = []
    while first >= 0:
        nodes.append(first)
        assert len(nodes) <= len(sim.nodes)
        first = int(sim.hosted[first].next_copy)
    return nodes


def _check_locks(sim: la.Sim, w: int, nodes: list[int], holders: list[int]) -> None:
    """A lock count is the requests that hold a node, the copies of it that are not noted, and its locked children."""
    host = sim.hosts[w]
    to_host, to_hbm = _copies(sim, int(host.to_host_head)), _copies(sim, int(host.to_hbm_head))
    for copies, tail in ((to_host, host.to_host_tail), (to_hbm, host.to_hbm_tail)):
        assert not copies or copies[-1] == tail
        ends = [float(sim.hosted[d].at_s) for d in copies]
        assert ends == sorted(ends)
    direct = Counter(int(sim.requests[r].node) for r in holders)
    direct.update([*to_host, *to_hbm, *_copies(sim, int(host.loading))])
    locked_children = Counter(int(sim.nodes[d].parent) for d in nodes if sim.nodes[d].lock > 0)
    assert set(direct) <= {w, *nodes}
    for d in [w, *nodes]:
        assert sim.nodes[d].lock == direct[d] + locked_children[d] + (d == w)
        assert d == w or sim.nodes[d].lock == 0 or sim.hosted[d].where & hl.IN_HBM
    assert all(sim.hosted[d].where & hl.ON_HOST for d in to_host)
    for r in holders:
        assert sim.nodes[sim.requests[r].node].end == sim.requests[r].locked_tokens


#: What is behind a job in the line of each kind of server.
_NEXT = {
    hl.WRITER: lambda sim, d: sim.hosted[d].next_write,
    hl.ASKER: lambda sim, f: sim.fetches[f].next,
    hl.READER: lambda sim, f: sim.fetches[f].next,
    hl.CONNECTOR_SERVER: lambda sim, m: sim.moves[m].next,
}


def _line(sim: la.Sim, k: int) -> list[int]:
    """Jobs of server ``k``: nodes for a writer, moves for a KV connector, fetches for the others."""
    jobs, job = [], int(sim.servers[k].head)
    while job >= 0:
        jobs.append(job)
        assert len(jobs) <= len(sim.nodes)
        job = int(_NEXT[k % hl.SERVERS](sim, job))
    assert not jobs or jobs[-1] == sim.servers[k].tail
    return jobs


def _registered(sim: la.Sim, w: int) -> list[int]:
    """Fetches of worker ``w``'s requests."""
    fetches = [int(sim.requests[r].fetch) for r in range(len(sim.requests)) if sim.requests[r].worker == w]
    return [f for f in fetches if f >= 0]


def _host_locks(sim: la.Sim, w: int) -> list[int]:
    """Nodes whose host copies storage uses, once for each use."""
    if not sim.tiers.storage:
        return []
    written, d = [], int(sim.hosts[w].written)
    while d >= 0:
        written.append(d)
        d = int(sim.hosted[d].next_write)
    above = [int(sim.fetches[f].above) for f in _registered(sim, w)]
    return [d for d in [*_line(sim, hl.SERVERS * w + hl.WRITER), *written, *above] if d >= len(sim.trees)]


def _host_lockers(sim: la.Sim) -> Counter[int]:
    return Counter(d for w in range(int(sim.config.workers)) for d in _host_locks(sim, w))


def _check_host_pool(sim: la.Sim, w: int, nodes: list[int], lockers: Counter[int]) -> None:
    """Free pages, pages of nodes and of fetches are all there are; what may go has its place in the order (L3)."""
    v, page = host_pool(sim, w), int(sim.config.page_tokens)
    pool = sim.trees[v]
    on_host = [d for d in nodes if sim.hosted[d].where & hl.ON_HOST]
    for d in nodes:
        assert sim.hosted[d].host_locks == lockers[d]
        assert sim.hosted[d].where & hl.ON_HOST or not lockers[d]
    fetched = _fetch_pages(sim, w) if sim.tiers.storage else 0
    held = sum(shared._node_pages(sim, d) for d in on_host)
    assert pool.free_pages >= 0
    known = pool.free_pages + held + fetched + int(sim.hosts[w].released_pages)
    # The engine names fetches by request: that an earlier one of a retracted request was not worth it ends the newer
    # one, whose memory nobody gives back.
    may_leak = sim.tiers.storage and sim.workers[w].preemptions > 0
    assert known <= pool.capacity_pages if may_leak else known == pool.capacity_pages
    assert held + fetched <= pool.peak_pages <= pool.capacity_pages
    assert pool.capacity_pages * page == sim.config.host_pages * page
    leaves = [
        d
        for d in on_host
        if sim.hosted[d].where == hl.ON_HOST and sim.nodes[d].children == 0 and not sim.hosted[d].host_locks
    ]
    shared.check_leaves(sim, v, leaves, int(sim.config.eviction))


# ---- storage ---------------------------------------------------------------------------------------------------------


def _fetch_pages(sim: la.Sim, w: int) -> int:
    """Host pages of fetches that the tree has not got."""
    tokens = sum(int(sim.fetches[f].wanted) for f in _line(sim, hl.SERVERS * w + hl.ASKER))
    reading = _line(sim, hl.SERVERS * w + hl.READER)
    for f in reading:
        fetch = sim.fetches[f]
        tokens += int(fetch.stored_tokens - (fetch.read if fetch.stopped else 0))
    done = [f for f in _registered(sim, w) if not sim.fetches[f].served]
    return (tokens + sum(int(sim.fetches[f].read) for f in done)) // int(sim.config.page_tokens)


def _check_fetches(sim: la.Sim, w: int) -> None:
    """Each request's fetch is its own, none has read more than was found, nor found more than was wanted.

    A fetch is its request's or has been taken, or was not worth it. One of a request that was retracted may be taken
    from it in place of an earlier one that was not worth it (see ``_check_host_pool``).
    """
    if not sim.tiers.storage:
        return
    registered = _registered(sim, w)
    assert len(set(registered)) == len(registered)
    assert sim.hosts[w].fetching_tokens == sum(int(sim.fetches[f].wanted) for f in registered)
    querying, reading = _line(sim, hl.SERVERS * w + hl.ASKER), _line(sim, hl.SERVERS * w + hl.READER)
    revoked, f = [], int(sim.hosts[w].revoked)
    while f >= 0:
        revoked.append(f)
        f = int(sim.fetches[f].next)
    assert len({*querying, *reading, *revoked}) == len(querying) + len(reading) + len(revoked)
    for f in {*registered, *querying, *reading, *revoked}:
        fetch = sim.fetches[f]
        assert fetch.registered == (f in registered)
        assert fetch.served == (f in [*querying, *reading, *revoked])
        assert fetch.registered or fetch.stopped or f in revoked or sim.requests[fetch.request].preemptions > 0
        assert 0 <= fetch.read <= fetch.stored_tokens <= fetch.wanted
        assert f not in [*querying, *revoked] or fetch.stored_tokens == 0
        above = int(fetch.above)
        if fetch.registered and above >= len(sim.trees):
            assert sim.nodes[above].end == fetch.begin
            assert sim.hosted[above].where & hl.ON_HOST


def _check_servers(sim: la.Sim) -> None:
    """Servers with a job are in their heap, in order of time."""
    if not sim.tiers.storage:
        return
    heap = sim.server_heap[: sim.counters[la.SERVING]].tolist()
    assert sorted(heap) == [k for k in range(len(sim.servers)) if sim.servers[k].head >= 0]
    assert [int(sim.servers[k].slot) for k in heap] == list(range(len(heap)))
    keys = [(float(sim.servers[k].end_s), k) for k in heap]
    assert all(keys[(slot - 1) // 2] < keys[slot] for slot in range(1, len(keys)))
    assert all(sim.servers[k].slot == -1 for k in range(len(sim.servers)) if k not in heap)


# ---- links and events ------------------------------------------------------------------------------------------------


def _check_links(sim: la.Sim) -> None:
    """A link's time is that of its transfers by its law, one after another; host links move what the pools count."""
    for link in sim.links:
        assert abs(link.busy_s - (link.transfers * link.base_s + link.tokens * link.s_per_token)) <= 1e-9
        assert link.busy_s <= link.free_s + 1e-9
    workers, shared_from = int(sim.config.workers), memory_links(sim)
    for w in range(workers):
        pool = sim.trees[host_pool(sim, w)]
        # Copies that the next merge sends count as stored already.
        assert sim.links[2 * w].tokens + sim.hosts[w].writing_tokens == pool.stored_tokens
        assert sim.links[2 * w + 1].tokens == pool.read_tokens
    for k in range(shared_from, len(sim.links)):
        through = [w for w in range(workers) for at in sim.shared[w] if k - 1 <= at <= k]
        mine = [sim.links[2 * w + (k - shared_from) % 2]["tokens"] for w in through]
        assert sim.links[k].tokens == sum(mine)


def memory_links(sim: la.Sim) -> int:
    """Where links begin that are shared on the way to host memory: behind all others."""
    return int(sim.shared.min()) if sim.shared.size else len(sim.links)


def _check_bytes(sim: la.Sim) -> None:
    """What the links have moved is what the stores have been given and read out of (L4)."""
    workers = int(sim.config.workers)
    stores = store_checks.stores(sim)
    for v in stores:
        write, read = sim.links[2 * v], sim.links[2 * v + 1]
        assert read.tokens == sim.trees[v].read_tokens + sim.trees[v].demoted_tokens
        # Pages that the store already has, or cannot hold, are transferred all the same.
        assert sim.trees[v].stored_tokens <= write.tokens
    networked = [tier for tier in sim.store_tiers if tier.first_network >= 0]
    if networked:
        networks = sim.links[2 * workers + 2 * len(stores) : memory_links(sim)]
        behind = [v for tier in networked for v in range(int(tier.first), int(tier.first + tier.stores))]
        for direction in (0, 1):
            at_stores = sum(int(sim.links[2 * v + direction].tokens) for v in behind)
            assert sum(int(link.tokens) for link in networks[direction::2]) == at_stores


def _check_chain(sim: la.Sim) -> None:
    """Nothing waits between operations to move on; exclusive: no page is in both stores of a worker.

    Unless others share the farther one, which may have been given what this worker's nearer one holds.
    """
    assert all(sim.trees[v].gone_head < 0 for v in store_checks.stores(sim))
    if not sim.tiers.exclusive:
        return
    near, far = sim.store_tiers
    if near.stores == far.stores and min(near.ttl_s, far.ttl_s) == np.inf:
        for k in range(int(near.stores)):
            held = store_checks.pages_of(sim, int(near.first) + k) & store_checks.pages_of(sim, int(far.first) + k)
            assert not held


def _check_events(sim: la.Sim) -> None:
    """As without tiers, but that an idle worker may wait for a copy or a deadline."""
    heap = sim.event_heap[: sim.counters[la.EVENT_HEAP]].tolist()
    schedulers = int(sim.config.schedulers)
    for w in range(0, len(sim.workers), schedulers):
        if sim.workers[w].phase not in (la.IDLE, la.RESTING):
            assert w in heap
        elif w in heap:
            assert sim.workers[w : w + schedulers]["waiting"].sum() > 0
    assert all(w % schedulers == 0 for w in heap)
    assert all(sim.workers[w].event_slot == slot for slot, w in enumerate(heap))
    assert all(sim.workers[heap[(k - 1) // 2]].event_s <= sim.workers[heap[k]].event_s for k in range(1, len(heap)))
