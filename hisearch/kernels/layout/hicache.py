"""Arrays of cache tiers: HiCache's nodes, fetches and servers, and the links that all movers use.

Those of vLLM's movers: ``layout.tiers``. Where they stand among all arrays, and their shapes: ``layout.sim.Sim``.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.policies import EVICTIONS

# Where a node of a cache with a host tier is (``HOSTED.where``); 0: nowhere any more, see ``hicache``.
IN_HBM, ON_HOST = 1, 2
# When a request stops waiting for what it fetches from storage.
BEST_EFFORT, WAIT_COMPLETE, TIMEOUT = 0, 1, 2
# Whose a store is: a worker's, of all its lanes, and gone with it; a node's; all workers'.
OF_WORKER, OF_NODE, OF_ALL = 0, 1, 2
# When an entry of a store that has expired is dropped.
LAZY, PERIODIC, PRESSURE = 0, 1, 2
# What becomes of a run of a store whose turn to go has come: it goes, goes to the end of its queue, or of the second.
GOES, GOES_ROUND, MOVES_ON = 0, 1, 2
# The servers that a worker has beside its scheduler: SERVERS w + one of these.
WRITER, ASKER, READER, CONNECTOR_SERVER = 0, 1, 2, 3
SERVERS = 4
#: Pages that are read or written together.
BATCH_PAGES = 128

#: More on a node of a cache with a host tier, and on a run of a store.
HOSTED = np.dtype(
    [
        ("at_s", "f8"),  # end of the copy that holds it; in a store: its last use
        ("value", "f8"),  # in a store under gdsf: what it is worth
        ("spare_from", "i8"),  # in a store under tlru: token from which its sequences can do without it
        ("written", "i8"),  # how far it has been written to storage
        ("where", "i4"),  # IN_HBM | ON_HOST
        ("device_children", "i4"),  # children in HBM
        ("host_locks", "i4"),  # storage operations that use its host copy
        ("settled", "i4"),  # 1 where it and all above it have the hits and the copy that they can get
        ("queue", "i4"),  # in a store with two queues: which of them it is in, 0 or 1
        ("below", "i4"),  # scratch: the next node of a way down
        ("next_copy", "i4"),  # behind it in a stream of copies
        ("next_write", "i4"),  # behind it in the line for storage
    ],
    align=True,
)

#: SGLang with a host tier: a lane's copies.
HOST = np.dtype(
    [
        ("loading_tokens", "i8"),  # to be loaded back by the batch being formed
        ("fetching_tokens", "i8"),  # of prefetches that have not been taken
        ("fetched_tokens", "i8"),  # that have come from storage so far
        ("released_pages", "i8"),  # of host memory that prefetches turned out not to need, not noted yet
        ("to_host_head", "i4"),  # nodes being copied
        ("to_host_tail", "i4"),
        ("to_hbm_head", "i4"),
        ("to_hbm_tail", "i4"),
        ("loading", "i4"),  # nodes that the batch being formed loads back
        ("entering_head", "i4"),  # requests that have entered the queue and not been looked up in storage
        ("entering_tail", "i4"),
        ("revoked", "i4"),  # fetches found not to be worth it, not noted yet
        ("revoked_tail", "i4"),
        ("written", "i4"),  # nodes that storage has, not noted yet
        ("place", "i4"),  # the lane in whose place it stands on its node: itself, or the dead one's that it is back for
    ],
    align=True,
)

#: What a request fetches from storage into host memory.
FETCH = np.dtype(
    [
        ("begun_s", "f8"),
        ("begin", "i8"),  # token behind which it begins
        ("wanted", "i8"),  # tokens that host memory was taken for
        ("found", "i8"),  # tokens that storage has; 0 until it has answered
        ("read", "i8"),  # tokens that have arrived
        ("far", "i8"),  # of the batch under way, tokens that come from the farther of two stores
        ("far_read", "i8"),  # of those that have arrived
        ("request", "i4"),
        ("trace_node", "i4"),  # the path that it lies on
        ("above", "i4"),  # node whose host copy is locked meanwhile
        ("next", "i4"),  # behind it in a server's line, among the revoked, in the free list
        ("stopped", "i4"),  # the scheduler has taken what had arrived
        ("registered", "i4"),  # it is its request's fetch
        ("served", "i4"),  # a server still has it
        ("refused", "i4"),  # storage has too little
        ("ahead", "i4"),  # begun ahead of its request, which has not looked into storage yet
    ],
    align=True,
)

#: Pages of a trace-tree node that move to another store of a chain.
MOVE = np.dtype(
    [
        ("begin", "i8"),  # what is before has moved
        ("end", "i8"),
        ("trace_node", "i4"),
        ("to", "i4"),  # tier
        ("priority", "i4"),
        ("next", "i4"),  # behind it in a line, among what a store has let go, in the free list
    ],
    align=True,
)

#: A server beside a worker's scheduler: one job after another, in parts.
SERVER = np.dtype([("end_s", "f8"), ("head", "i4"), ("tail", "i4"), ("slot", "i4")], align=True)

#: A path that bytes take: transfers one after another, each of ``base_s + tokens * s_per_token``.
LINK = np.dtype(
    [
        ("base_s", "f8"),
        ("s_per_token", "f8"),
        ("free_s", "f8"),
        ("busy_s", "f8"),  # by all that has been sent
        ("beyond_s", "f8"),  # of that, behind the horizon
        ("tokens", "i8"),  # sent
        ("beyond_tokens", "i8"),  # of these, in transfers that end behind the horizon
        ("transfers", "i8"),
    ],
    align=True,
)

#: Tiers below HBM as HiCache moves them. Rules and laws: ``hicache``, ``hicache.storage``.
TIERS = np.dtype(
    [
        ("write_hits", "i8"),  # hits at which a node is copied to the host; 0: when it is evicted (write_back)
        ("load_back_tokens", "i8"),  # fewer are not loaded back
        ("storage", "i8"),  # tiers of stores behind host memory: 0, 1 or 2
        ("exclusive", "i8"),  # 1 where what one of two stores holds the other does not
        ("workers_per_node", "i8"),  # lanes, all of them
        ("first_memory", "i8"),  # link into the first worker's host memory, which its lanes share, or -1; out is next
        ("fetch_policy", "i8"),
        ("fetch_threshold", "i8"),
        ("fetch_limit_tokens", "i8"),  # of all fetches of a worker together
        ("priorities", "i8"),  # 1 where a store evicts by priority
        ("query_s", "f8"),  # until storage has said what it has
        ("timeout_base_s", "f8"),
        ("timeout_s_per_ki_token", "f8"),
    ],
    align=True,
)

#: A tier of stores, and where they are among the trees and the links.
STORE_TIER = np.dtype(
    [
        ("first", "i8"),  # its first store; the others follow
        ("stores", "i8"),
        ("workers_per_store", "i8"),  # lanes, all of them
        ("scope", "i8"),  # whose a store is
        ("first_shadow", "i8"),  # with two queues: the first store's first shadow
        ("first_link", "i8"),  # to write to the first store; reading is next, then the next store's
        ("first_network", "i8"),  # out of the first node, where the tier lies behind the nodes' networks; or -1
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

#: What a fetch came to: as SGLang's recordings have it.
FETCH_LOG = np.dtype([("at_s", "f8"), ("tokens", "i8"), ("request", "i4"), ("event", "i4")], align=True)
REVOKED, READING, READ = 0, 1, 2
