"""Arrays of vLLM's tiers: blocks of their stores, and what its connectors know of requests and transfers.

Notation
    block   a run of tokens that a tier keeps as one: some pages; it belongs to the trace-tree node in which it
            completes. Every block of every path has a *key*: those of node s are ``block_base[s]`` and following
    ledger  blocks by key, each in one of a few lists, in order of use; see ``block_table``
"""

from __future__ import annotations

import numpy as np

#: Lists of a ledger. LRU has the first alone; ARC's T1 and T2, and their ghosts.
RECENT, FREQUENT, RECENT_GHOSTS, FREQUENT_GHOSTS = 0, 1, 2, 3
LISTS = 4
# Columns of Sim.block_table_rows and Sim.run_rows, for each list; the size in blocks.
HEAD, TAIL, SIZE = 0, 1, 2

#: Blocks of one trace-tree node that a store of vLLM's manager has, or remembers, in the same list and state, and that
#: lie behind each other in that list: the deepest first. See ``host_blocks``.
RUN = np.dtype(
    [
        ("begin", "i8"),  # number of its first block on the path
        ("end", "i8"),
        ("mark", "i8"),  # the newest call that it is not to be evicted for
        ("trace_node", "i4"),
        ("list", "i4"),
        ("prev", "i4"),  # neighbours in its list; next: in the free list too
        ("next", "i4"),
        ("deeper", "i4"),  # neighbours in the same trace-tree node
        ("higher", "i4"),
        ("users", "i4"),  # loads that read it
        ("owner", "i4"),  # the request that is storing it, -1: it can be found
        ("age", "i4"),  # the store's, where a use of it waits in Sim.uses
    ],
    align=True,
)

#: A block in a ledger.
BLOCK = np.dtype(
    [
        ("ready_s", "f8"),  # LMCache: when it can be found
        ("key", "i8"),
        ("count", "i8"),  # look-ups, in a ledger of counts; uses, where the least used goes first
        ("prev", "i4"),  # neighbours in its list; next: in the free list too
        ("next", "i4"),
        ("chain", "i4"),  # the next with the same hash
        ("list", "i4"),  # -1: none
        ("users", "i4"),  # LMCache, of host memory: the cache, saves, writes from it; behind it: writes to it
        ("pins", "i4"),  # LMCache: look-ups that found it and have not been served
        ("group", "i4"),  # LMCache: of chunks that have been used equally often
        ("writer", "i4"),  # LMCache, of host memory: the worker that puts it there
    ],
    align=True,
)

#: A store of vLLM's manager.
STORE = np.dtype(
    [
        ("target", "f8"),  # ARC: wanted size of T1
        ("capacity", "i8"),
        ("peak", "i8"),  # most blocks held
        ("evicted", "i8"),
        ("stored", "i8"),
        ("read", "i8"),
        ("marks", "i8"),
        ("age", "i4"),  # how often the uses that wait were settled, and one more
        ("uses", "i4"),  # that wait
    ],
    align=True,
)

#: A use of the blocks before ``end`` on the path to trace-tree node ``trace_node``, which waits to be settled; ``end``
#: is 0 where a later one makes up for it.
USE = np.dtype([("end", "i8"), ("trace_node", "i4")], align=True)

#: A ledger.
BLOCK_TABLE = np.dtype(
    [
        ("capacity", "i8"),
        ("evicted", "i8"),
        ("stored", "i8"),
        ("read", "i8"),
        ("fetched", "i8"),  # LMCache, of host memory: that came into it from stores behind it
        ("peak", "i8"),  # most blocks held; LMCache's host memory: chunks of room in use
        ("hit_tokens", "i8"),  # LMCache: found in it by requests when they were admitted for the first time
        ("free_slot", "i4"),  # first slot given back, or -1
        ("slots", "i4"),  # slots ever used
        ("used", "i4"),  # LMCache: chunks of its room in use by anybody
        ("writes_head", "i4"),  # LMCache: writes to it under way, a ring in Sim.writes
        ("writes", "i4"),
        ("eviction", "i4"),  # LMCache: what goes first
        ("free_group", "i4"),  # LMCache: first group given back, or -1
        ("groups", "i4"),  # LMCache: groups ever used
        ("link", "i4"),  # LMCache: of its own, for writing; the next one is for reading; -1: none
        ("networked", "i4"),  # LMCache: 1 where it lies behind the nodes' networks
        ("scope", "i4"),  # LMCache: whose it is (see ``layout.hicache``)
    ],
    align=True,
)

#: What vLLM's offloading connector or LMCache's knows of a request.
OFFLOADED = np.dtype(
    [
        ("load_end_s", "f8"),
        ("store_end_s", "f8"),  # end of its newest transfer to the host that has begun
        ("dealt_with", "i8"),  # leading blocks that need not be handed to the manager any more
        ("load_block", "i8"),  # first block of its load, which ends with ``dealt_with``
        ("load_tokens", "i8"),
        ("on_device", "i8"),  # tokens found on the device at its last look-up
        ("found", "i8"),  # LMCache: chunks that its look-up found
        ("tracked", "i8"),  # LMCache: leading tokens that count as its own
        ("saved", "i8"),  # LMCache: tokens that need not be saved any more
        ("use_age", "i4"),  # the store's when it used the store last, and where that is in Sim.uses
        ("use_at", "i4"),
        ("next_due", "i4"),  # the next one that fills a block in the same step of a coast
        ("storing", "i4"),  # 1 while blocks of it are on their way to the host, as far as the manager knows
        ("transfers", "i4"),  # to the host that have not been noted
        ("ever_stored", "i4"),
        ("loading", "i4"),  # NOT_LOADING, LOADING, NOTED, or LOADED once a pass has seen that
        ("next", "i4"),  # behind it among a worker's loads, its finished requests, or what was found of them
        ("awaited", "i4"),  # 1 where it has finished and transfers of its are under way
        ("holds", "i4"),  # 1 where it has finished and still holds its pages
        ("decodes", "i4"),  # LMCache: it has been in a step with one new token
        ("asked", "i4"),  # LMCache: 1 where ``found`` stands
    ],
    align=True,
)
NOT_LOADING, LOADING, NOTED, LOADED = 0, 1, 2, 3

#: A worker's connector.
CONNECTOR = np.dtype(
    [
        ("transfers_head", "i4"),  # to the host: begun ones, then those that the next pass begins
        ("transfers_tail", "i4"),
        ("prepared", "i4"),  # first of the latter, or -1
        ("loads_head", "i4"),  # requests that load, in order
        ("loads_tail", "i4"),
        ("new_load", "i4"),  # first of those whose load begins with this pass, or -1
        ("finished_head", "i4"),  # finished requests that the engine has not looked at
        ("finished_tail", "i4"),
        ("awaited", "i4"),  # how many finished requests' transfers are awaited
        ("skipped_head", "i4"),  # requests that load or were passed over
        ("skipped_tail", "i4"),
        ("skipped", "i4"),
        ("first_admitted", "i4"),  # of this pass, or -1
        ("lagging", "i4"),  # 1 where this pass found no room to store something
        ("network", "i4"),  # LMCache: link out of its node; the next one is for the way in
    ],
    align=True,
)

#: What a worker's look at its transfers, at the launch of a step, found; row 2 w + (serial of the step mod 2).
NOTES = np.dtype([("stored_head", "i4"), ("stored_tail", "i4"), ("loaded_head", "i4"), ("loaded_tail", "i4")])

#: A transfer to the host, in a list; in the free list by ``next``.
TRANSFER = np.dtype([("end_s", "f8"), ("tokens", "i8"), ("request", "i4"), ("next", "i4")], align=True)

#: A write by a worker to a store behind host memory: its slot there, and host memory: a ledger and a slot.
WRITE = np.dtype([("end_s", "f8"), ("slot", "i4"), ("host", "i4"), ("host_slot", "i4"), ("worker", "i4")], align=True)

#: Chunks of a store that have been used equally often; they are next to each other in its list. In the free list by
#: ``tail``.
GROUP = np.dtype([("tail", "i4")])

#: What moves KV between vLLM's tiers.
NO_KV_CONNECTOR, OFFLOAD, LMCACHE = 0, 1, 2

#: Settings of vLLM's tiers.
OFFLOADING = np.dtype(
    [
        ("kv_connector", "i8"),  # NO_KV_CONNECTOR, OFFLOAD or LMCACHE
        ("block_tokens", "i8"),
        ("stores", "i8"),  # of the first tier
        ("workers_per_store", "i8"),
        ("arc", "i8"),
        ("threshold", "i8"),  # look-ups after which a block is stored; 0: all are
        ("save_decode", "i8"),
    ],
    align=True,
)
