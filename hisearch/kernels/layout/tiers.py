"""Arrays of vLLM's tiers: blocks of their stores, and its KV connectors' state of requests and transfers.

Notation
    block   the unit that a tier keeps: a fixed number of tokens, in whole pages. It belongs to the trace node in which
            it completes. Every block of every path has a *key*: those of node s are ``block_base[s]`` and following
    table   a block table: blocks by key, each in one of a few lists, in order of use; see ``block_table``

``Sim.runs`` has records of three kinds, from one free list (``host_runs.acquire``). Each has some of the fields:

    kind               made by             from                  begin, end             others
    run of blocks      ``host_runs``       Sim.run_rows, lists   numbers of blocks      all but flags
    use of blocks      ``vllm.chunk_uses`` OFFLOADED.uses_head   numbers of blocks      flags, next
    touched pages      ``queue.touch``     TREE.gone_head        tokens on their path   trace_node, owner, next

Touched pages are those that a pass gave away or hit while a copy may read them. Their owner is the request whose pages
they were, where no look-up finds them (begin and end are then tokens on its path); else -1.
"""

from __future__ import annotations

import numpy as np

#: Lists of a block table. LRU has only the first; ARC has T1, T2, and their ghost lists.
RECENT, FREQUENT, RECENT_GHOSTS, FREQUENT_GHOSTS = 0, 1, 2, 3
LISTS = 4
# Columns of Sim.block_table_rows and Sim.run_rows, for each list; the size in blocks.
HEAD, TAIL, SIZE = 0, 1, 2

#: A run of consecutive blocks of a trace node that a store of vLLM's manager holds, or keeps as ghosts. They have the
#: same list and state and are adjacent in that list, the deepest first. See ``host_blocks``, and above for other kinds.
RUN = np.dtype(
    [
        ("begin", "i8"),  # number of its first block on the path
        ("end", "i8"),
        ("protected_by", "i8"),  # the newest call that must not evict it
        ("use_flags", "i8"),  # of a use alone
        ("trace_node", "i4"),
        ("list", "i4"),
        ("prev", "i4"),  # neighbours in its list; next: in the free list too
        ("next", "i4"),
        ("deeper", "i4"),  # neighbours in the same trace node
        ("higher", "i4"),
        ("users", "i4"),  # loads that read it
        ("owner", "i4"),  # the request that is storing it, -1: look-ups find it
        ("age", "i4"),  # the store's age where a use of it is pending in Sim.uses
    ],
    align=True,
)

#: A block in a block table.
BLOCK = np.dtype(
    [
        ("ready_s", "f8"),  # LMCache: when look-ups find it
        ("key", "i8"),
        ("count", "i8"),  # look-ups, in a block table of counts; uses, under lfu; by chunk: rank (see ``chunk_store``)
        ("prev", "i4"),  # neighbours in its list; next: in the free list too
        ("next", "i4"),
        ("chain", "i4"),  # the next with the same hash
        ("list", "i4"),  # -1: none
        ("users", "i4"),  # LMCache, in host memory: the cache, saves, writes from it; in a store behind: writes to it
        ("pins", "i4"),  # LMCache: look-ups that matched it and have not been served
        ("group", "i4"),  # LMCache: of chunks with equal use counts
        ("writer", "i4"),  # LMCache, in host memory: the worker that writes it
    ],
    align=True,
)

#: A store of vLLM's manager.
STORE = np.dtype(
    [
        ("target", "f8"),  # ARC: target size of T1
        ("capacity", "i8"),
        ("evictable", "i8"),  # upper bound on the blocks that can be evicted
        ("peak", "i8"),  # most blocks held
        ("evicted", "i8"),
        ("stored", "i8"),
        ("read", "i8"),
        ("protecting_calls", "i8"),  # so far, see ``RUN.protected_by``
        ("held", "i8"),  # by chunk: blocks
        ("newest_rank", "i8"),  # by chunk: of its requests
        ("age", "i4"),  # 1 + how often the pending uses were applied
        ("uses", "i4"),  # pending
    ],
    align=True,
)

#: A pending use of the blocks before ``end`` on the path to trace node ``trace_node``; ``end`` is 0 where a later use
#: replaces it.
USE = np.dtype([("end", "i8"), ("trace_node", "i4")], align=True)

#: A block table.
BLOCK_TABLE = np.dtype(
    [
        ("capacity", "i8"),
        ("evicted", "i8"),
        ("stored", "i8"),
        ("read", "i8"),
        ("fetched", "i8"),  # LMCache, in host memory: chunks read from stores behind it
        ("peak", "i8"),  # most blocks held; in LMCache's host memory: most chunks allocated
        ("hit_tokens", "i8"),  # LMCache: hits of requests at their first admission
        ("free_slot", "i4"),  # first slot given back, or -1
        ("slots", "i4"),  # slots ever used
        ("used", "i4"),  # LMCache: chunks allocated
        ("writes_head", "i4"),  # LMCache: writes to it under way, a ring in Sim.writes
        ("writes", "i4"),
        ("eviction", "i4"),  # LMCache: eviction order
        ("free_group", "i4"),  # LMCache: first group given back, or -1
        ("groups", "i4"),  # LMCache: groups ever used
        ("link", "i4"),  # LMCache: its link for writing; the next one is for reading; -1: none
        ("networked", "i4"),  # LMCache: 1 where it is behind the nodes' networks
        ("scope", "i4"),  # LMCache: see ``layout.hicache``
    ],
    align=True,
)

#: State of a request in vLLM's offloading connector or LMCache's.
OFFLOADED = np.dtype(
    [
        ("load_end_s", "f8"),
        ("store_end_s", "f8"),  # end of its newest transfer to the host that has begun
        ("dealt_with", "i8"),  # leading blocks that the manager has already been given
        ("load_block", "i8"),  # first block of its load, which ends with ``dealt_with``
        ("load_tokens", "i8"),
        ("on_device", "i8"),  # tokens cached on the device at its last look-up
        ("hit_chunks", "i8"),  # LMCache: that its look-up matched
        ("tracked", "i8"),  # LMCache: leading tokens in the request's tracker
        ("tracked_at", "i8"),  # LMCache: tokens of the request when ``tracked`` was noted, without one sampled then
        ("saved", "i8"),  # LMCache: leading tokens already saved
        ("use_age", "i4"),  # the store's age at its last use of the store, and the place of that in Sim.uses
        ("use_at", "i4"),
        ("next_due", "i4"),  # the next request that fills a block in the same step of a fast-forward
        ("storing", "i4"),  # 1 while, to the manager's knowledge, blocks of it are being copied to the host
        ("transfers", "i4"),  # to the host that have not been noted
        ("ever_stored", "i4"),
        ("loading", "i4"),  # NOT_LOADING, LOADING, NOTED, or LOADED once a pass has seen that
        ("next", "i4"),  # the next one among a worker's loads, finished requests, or notes on these
        ("awaited", "i4"),  # 1 where it has finished and its transfers are still under way
        ("holds", "i4"),  # 1 where it has finished and still holds its pages
        ("decodes", "i4"),  # LMCache: it has been in a step with one new token
        ("asked", "i4"),  # LMCache: 1 where ``found`` is valid
        ("rank", "i8"),  # by chunk: in its store's order, and the slot that marks its place; -1: it has none
        ("place", "i4"),
        ("uses_head", "i4"),  # by chunk: ranges of blocks that it used, records of Sim.runs in order
        ("uses_tail", "i4"),
    ],
    align=True,
)
NOT_LOADING, LOADING, NOTED, LOADED = 0, 1, 2, 3

#: A worker's connector.
CONNECTOR = np.dtype(
    [
        ("transfers_head", "i4"),  # to the host: those under way, then those that the next pass begins
        ("transfers_tail", "i4"),
        ("prepared", "i4"),  # first of those that the next pass begins, or -1
        ("prepared_tail", "i4"),  # by chunk: the last of them
        ("loads_head", "i4"),  # requests that load, in order
        ("loads_tail", "i4"),
        ("new_load", "i4"),  # first of those whose load begins with this pass, or -1
        ("finished_head", "i4"),  # finished requests that the engine has not processed
        ("finished_tail", "i4"),
        ("awaited", "i4"),  # finished requests whose transfers are still under way
        ("skipped_head", "i4"),  # requests that load or were skipped
        ("skipped_tail", "i4"),
        ("skipped", "i4"),
        ("first_admitted", "i4"),  # of this pass, or -1
        ("lagging", "i4"),  # 1 where blocks did not fit into the store in this pass
        ("held_s", "f8"),  # by chunk: until when the newest pass holds the scheduler
        ("empty_noted", "i4"),  # by chunk: 1 where a pass without a batch has notes that are not acted on yet
        ("network", "i4"),  # LMCache: link out of its node; the next one is the link into it
    ],
    align=True,
)

#: Transfers that a worker notes as ended at the launch of a step; row 2 w + (number of the step mod 2). By chunk 3 rows
#: a worker, the third for passes without a batch; what is stored is a list of transfers, else of requests.
NOTES = np.dtype([("stored_head", "i4"), ("stored_tail", "i4"), ("loaded_head", "i4"), ("loaded_tail", "i4")])

#: A transfer to the host, in a list; in the free list by ``next``.
TRANSFER = np.dtype(
    [
        ("end_s", "f8"),
        ("begun_s", "f8"),  # when its pass began it, on which it may have to wait for others
        ("tokens", "i8"),
        ("begin", "i8"),  # by chunk: the request's blocks among which it copies some
        ("end", "i8"),
        ("request", "i4"),
        ("next", "i4"),
    ],
    align=True,
)

#: A write by a worker to a store behind host memory: its slot there, and the block table and slot in host memory.
WRITE = np.dtype([("end_s", "f8"), ("slot", "i4"), ("host", "i4"), ("host_slot", "i4"), ("worker", "i4")], align=True)

#: Chunks of a store with equal use counts, adjacent in its list. In the free list by ``tail``.
GROUP = np.dtype([("tail", "i4")])

#: KV connectors of vLLM's tiers.
NO_KV_CONNECTOR, OFFLOAD, LMCACHE, CHUNK_OFFLOAD = 0, 1, 2, 3

#: Settings of vLLM's tiers.
OFFLOADING = np.dtype(
    [
        ("kv_connector", "i8"),  # NO_KV_CONNECTOR, OFFLOAD, LMCACHE or CHUNK_OFFLOAD
        ("block_tokens", "i8"),
        ("stores", "i8"),  # of the first tier
        ("workers_per_store", "i8"),
        ("arc", "i8"),
        ("threshold", "i8"),  # look-ups after which a block is stored; 0: all are
        ("save_decode", "i8"),
        ("own_processes", "i8"),  # LMCache: its loads and saves do not hold the scheduler
    ],
    align=True,
)
