"""Arrays of cache tiers: HiCache's nodes, fetches and servers, and the links that all KV connectors use.

Arrays of vLLM's KV connectors are in ``layout.tiers``. ``layout.sim.Sim`` lists all arrays with their shapes.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.policies import EVICTIONS, PREFETCHES, WRITE_POLICIES

# Where a node of a cache with a host tier is (``HOSTED.where``); 0: in neither any more, see ``hicache``.
IN_HBM, ON_HOST = 1, 2
# Scope of a store: a worker, all its schedulers, and gone with it; a node; all workers.
OF_WORKER, OF_NODE, OF_ALL = 0, 1, 2
# When an expired entry of a store is dropped.
LAZY, PERIODIC, PRESSURE = 0, 1, 2
# What becomes of a run of a store whose turn to go has come: it goes, goes to the end of its queue, or of the second.
GOES, GOES_ROUND, MOVES_ON = 0, 1, 2
# The servers of a worker other than its scheduler: SERVERS w + one of these.
WRITER, ASKER, READER, CONNECTOR_SERVER = 0, 1, 2, 3
SERVERS = 4
#: Pages that are read or written together.
BATCH_PAGES = 128

#: Further fields of a node of a cache with a host tier, and of a run of a store.
HOSTED = np.dtype(
    [
        ("at_s", "f8"),  # end of the copy that locks it; in a store: its last use
        ("value", "f8"),  # in a store under gdsf: its priority
        ("dispensable_from", "i8"),  # in a store under tlru: token from which its sequences do not need it
        ("written", "i8"),  # tokens up to which it has been written to storage
        ("where", "i4"),  # IN_HBM | ON_HOST
        ("device_children", "i4"),  # children in HBM
        ("host_locks", "i4"),  # storage operations that use its host copy
        ("settled", "i4"),  # 1 where neither hits nor copies of it and all nodes above it can change any more
        ("queue", "i4"),  # in a store with two queues: which of them it is in, 0 or 1
        ("below", "i4"),  # scratch: the next node on a path downwards
        ("next_copy", "i4"),  # the next one in a stream of copies
        ("next_write", "i4"),  # the next one in the queue for storage
    ],
    align=True,
)

#: SGLang with a host tier: copies of a scheduler.
HOST = np.dtype(
    [
        ("writing_tokens", "i8"),  # of nodes whose copies to the host begin with the next merged one
        ("loading_tokens", "i8"),  # to be loaded back by the batch being formed
        ("fetching_tokens", "i8"),  # of prefetches that the scheduler has not taken
        ("fetched_tokens", "i8"),  # that have arrived from storage so far
        ("released_pages", "i8"),  # of host memory that prefetches did not need, not noted yet
        ("to_host_head", "i4"),  # nodes being copied
        ("to_host_tail", "i4"),
        ("to_hbm_head", "i4"),
        ("to_hbm_tail", "i4"),
        ("loading", "i4"),  # nodes that the batch being formed loads back
        ("passes", "i8"),  # since it began
        ("hits_head", "i4"),  # fetches whose query has ended, not noted yet
        ("hits_tail", "i4"),
        ("done_head", "i4"),  # fetches that have been read, not noted yet
        ("done_tail", "i4"),
        ("retries", "i4"),  # waiting requests that are to be looked up again
        ("entering_head", "i4"),  # requests that have entered the queue and have not been looked up in storage
        ("entering_tail", "i4"),
        ("revoked", "i4"),  # fetches with too little in storage, not noted yet
        ("revoked_tail", "i4"),
        ("written", "i4"),  # nodes that storage has, not noted yet
        ("place", "i4"),  # its place among the schedulers of its node: its own, or that of the dead one it replaces
    ],
    align=True,
)

#: A request's fetch from storage into host memory.
FETCH = np.dtype(
    [
        ("begun_s", "f8"),
        ("begin", "i8"),  # token after which it begins
        ("wanted", "i8"),  # tokens that host memory was taken for
        ("stored_tokens", "i8"),  # tokens that storage has; 0 until the query has ended
        ("read", "i8"),  # tokens that have arrived
        ("far", "i8"),  # of the batch under way, tokens from the farther of two stores
        ("far_read", "i8"),  # likewise, of the tokens that have arrived
        ("request", "i4"),
        ("trace_node", "i4"),  # the path that it lies on
        ("above", "i4"),  # node whose host copy is locked meanwhile
        ("next", "i4"),  # the next one in a server's queue, among the revoked, in the free list
        ("stopped", "i4"),  # the scheduler has taken what had arrived
        ("registered", "i4"),  # it is its request's fetch
        ("served", "i4"),  # a server still has it
        ("refused", "i4"),  # storage has too little
        ("taken", "i4"),  # host memory was taken for what was found
        ("noted", "i8"),  # tokens that a pass has noted as arrived
        ("ahead", "i4"),  # begun ahead of its request, which has not looked into storage yet
    ],
    align=True,
)

#: What a request waits for from storage, from release 0.5.20 on (see ``hicache.prefetch``).
LOOKUP = np.dtype(
    [
        ("matched", "i8"),  # tokens that its last look-up found in both tiers
        ("due", "i8"),  # pass from which on it is looked up again, -1: not set yet
        ("wait_s", "f8"),  # when it was first held up by a fetch
        ("timeout_s", "f8"),  # how long it waits from then on
        ("attempts", "i4"),  # repeated look-ups
        ("retry", "i4"),  # 1 while it is to be looked up again
        ("waits", "i4"),  # 1 since it was first held up
        ("late", "i4"),  # 1 since it has waited too long
    ],
    align=True,
)

#: Pages of a trace node that move to another store of a chain.
MOVE = np.dtype(
    [
        ("begin", "i8"),  # the pages before have moved
        ("end", "i8"),
        ("trace_node", "i4"),
        ("to", "i4"),  # tier
        ("priority", "i4"),
        ("next", "i4"),  # the next one in a queue, among a store's evicted pages, in the free list
    ],
    align=True,
)

#: A server of a worker other than its scheduler: one job after another, in parts.
SERVER = np.dtype([("end_s", "f8"), ("head", "i4"), ("tail", "i4"), ("slot", "i4")], align=True)

#: A link: transfers one after another, each of ``base_s + tokens * s_per_token``.
LINK = np.dtype(
    [
        ("base_s", "f8"),
        ("s_per_token", "f8"),
        ("free_s", "f8"),
        ("busy_s", "f8"),  # time of all transfers sent
        ("beyond_s", "f8"),  # of that, after the horizon
        ("tokens", "i8"),  # sent
        ("beyond_tokens", "i8"),  # of these, in transfers that end after the horizon
        ("transfers", "i8"),
    ],
    align=True,
)

#: Tiers below HBM as HiCache moves them. Rules and laws: ``hicache``, ``hicache.storage``.
TIERS = np.dtype(
    [
        ("write_policy", "i8"),  # codes of ``base.policies.WRITE_POLICIES`` and ``PREFETCHES``
        ("prefetch", "i8"),
        ("load_back_tokens", "i8"),  # fewer are not loaded back
        ("jumps", "i8"),  # an idle scheduler does not pass again before the next event
        ("storage", "i8"),  # tiers of stores behind host memory: 0, 1 or 2
        ("exclusive", "i8"),  # 1 where a page is in at most one of the two stores
        ("workers_per_node", "i8"),  # counts schedulers
        ("fetch_threshold", "i8"),
        ("fetch_limit_tokens", "i8"),  # of all fetches of a worker together
        ("priorities", "i8"),  # 1 where a store evicts by priority
        ("query_s", "f8"),  # time of a storage query
        *((p.name, p.dtype) for kind in (WRITE_POLICIES, PREFETCHES) for p in kind.parameters().values()),
    ],
    align=True,
)

#: A tier of stores, and their indices among the trees and the links.
STORE_TIER = np.dtype(
    [
        ("first", "i8"),  # its first store; the others follow
        ("stores", "i8"),
        ("workers_per_store", "i8"),  # counts schedulers
        ("scope", "i8"),  # OF_WORKER, OF_NODE or OF_ALL
        ("first_shadow", "i8"),  # with two queues: the first store's first shadow
        ("first_link", "i8"),  # for writing to the first store; the one for reading is next, then the next store's
        ("first_network", "i8"),  # out of the first node, if the tier is behind the nodes' networks; or -1
        ("pages", "i8"),  # of each store
        ("eviction", "i8"),
        ("reclaim", "i8"),
        ("swept", "i8"),  # periodic: sweeps so far
        ("reclaim_period_s", "f8"),
        ("ttl_s", "f8"),
        *((parameter.name, parameter.dtype) for parameter in EVICTIONS.parameters().values()),
    ],
    align=True,
)

#: Events of fetches, as in SGLang's recordings.
FETCH_LOG = np.dtype([("at_s", "f8"), ("tokens", "i8"), ("request", "i4"), ("event", "i4")], align=True)
REVOKED, READING, READ = 0, 1, 2
