"""All arrays of a pool of workers.

Notation
    N requests, M nodes of the trace's prefix tree (trace nodes), W workers, P tokens per KV page
    worker  an entry of ``Sim.workers``: a scheduler, of which a worker has several where it has DP ranks or
            micro-batches (see ``schedulers``)
    tree    a prefix cache: one per worker (index w), of its HBM or of HBM and host memory, and one per store
    node    a run of whole pages of one tree, all cached; node v < number of trees is the (empty) root of tree v
    clock   a worker's count of decode steps. All its decoding requests advance by one token per tick, so progress is
            not stored per request; one with ``finish_clock`` f has f - clock tokens to go (see ``kernels.vllm``)
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from hisearch.base.policies import EVICTIONS, QUEUE_ORDERS
from hisearch.kernels.core.handle import Array, Handle, Record
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import (
    client,
    decode_fields,
    schedulers_fields,
    sglang_fields,
    tiers_fields,
    trtllm_fields,
    vllm_fields,
)
from hisearch.kernels.layout import components as cl
from hisearch.kernels.layout import costs as cost_layout
from hisearch.kernels.layout import grammars as gr
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import kv_groups as gl
from hisearch.kernels.layout import lora as ll
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.layout.fleet import Fleet, Trace
from hisearch.kernels.layout.log import ENTRY_LOG, OUTPUT_LOG, STEP_LOG
from hisearch.kernels.layout.tree import NODE, NODE_RANK, TREE

# Engines.
VLLM, SGLANG, TRTLLM = 0, 1, 2
# Engine entries of vLLM with tiers (see ``engine_calls``); its engine is VLLM.
VLLM_OFFLOAD, VLLM_LMCACHE = 3, 4
# Engine entry of decode workers, whatever their engine.
DECODE_WORKER = 5
# Entry for agents, called by SGLang or vLLM; not an engine.
AGENTS = 6
# Engine entry of vLLM for models with several groups of KV blocks; its engine is VLLM.
VLLM_GROUPS = 7
# Engine entries of vLLM with tiers as of 0.33, and with drafted tokens of each engine and of decode workers.
VLLM_CHUNK_OFFLOAD, VLLM_DRAFTS, SGLANG_DRAFTS, DRAFTS_DECODE_WORKER, TRTLLM_DRAFTS = 8, 9, 10, 11, 12
# Codes of eviction policies that other kernels know.
LRU, LFU, FIFO, MRU, DISTANCE = (EVICTIONS.code(name) for name in ("lru", "lfu", "fifo", "mru", "distance"))
# TensorRT-LLM's capacity policies, and how it cuts contexts.
GUARANTEED_NO_EVICT, MAX_UTILIZATION, STATIC_BATCH = 0, 1, 2
FIRST_COME_FIRST_SERVED, EQUAL_PROGRESS = 0, 1
# Orders of the waiting queue.
FCFS, PRIORITY, LPM, EDF = (QUEUE_ORDERS.code(name) for name in ("fcfs", "priority", "lpm", "edf"))

# Kinds of schedulers of a worker (see ``schedulers``): a single one, DP ranks, micro-batches of a pipeline.
SINGLE, LOCKSTEP, PIPE = 0, 1, 2

# Request outcomes; the same numbers as simulate.result.Outcome.
IN_FLIGHT, FINISHED, TOO_LARGE, UNREACHED, SHED, LOST = 0, 1, 2, 3, 4, 5

# Worker phases, by its next event. IDLE: none. STEPPING: the end of the oldest outstanding step. FAST_FORWARDING: the
# end of a fast-forward (see ``device``). FORMING: a pass that forms the next batch.
# RESTING, leader in LOCKSTEP: no lockstep step is under way; the time at which a DP rank looks again, if any.
IDLE, STEPPING, FAST_FORWARDING, FORMING, RESTING = 0, 1, 2, 3, 4

# Status of a vLLM or TensorRT-LLM request. ADMITTED: in this pass; PROMPT: partly computed; SKIPPED: a decode that is
# left out of this step; DRAINING: its last token is being made; DRAINED: likewise, but preempted meanwhile. VERIFYING:
# it decodes, and checks drafted tokens. SGLang's with drafts are WAITING, VERIFYING or DRAINING.
WAITING, ADMITTED, PROMPT, DECODING, SKIPPED, DRAINING, DRAINED, VERIFYING = 0, 1, 2, 3, 4, 5, 6, 7

# A clock or a count that is never reached, and a time.
NEVER = 2**62
FOREVER_S = 1e300
# ``WORKER.look_s`` of a DP rank that waits for an event that will never happen.
NEVER_S = math.inf

# Share of a request in ``Sim.batch``. PROMPT_GOES_ON: more chunks follow; PROMPT_ENDS: it samples; LISTED_DECODE: a
# decode that the clock does not count, as a resumed request's or drafts'; DECODED: it decoded when preempted (vLLM).
PROMPT_GOES_ON, PROMPT_ENDS, LISTED_DECODE, DECODED = 0, 1, 2, 3

#: State and outcome of a request.
REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),  # at the router
        ("scheduled_s", "f8"),  # first put into a batch
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("last_token_s", "f8"),  # of a request that lost its KV or was skipped in a step: time of its newest token
        ("hit_tokens", "i8"),  # cached in HBM at the first admission
        ("generated", "i8"),  # output tokens sampled; not updated while decoding (see finish_clock)
        ("computed", "i8"),  # tokens whose KV exists, or will after the outstanding steps; not updated while decoding
        ("locked_tokens", "i8"),  # depth of ``node``: tokens whose pages belong to the tree
        ("chunk", "i8"),  # tokens computed in the step now running
        ("finish_clock", "i8"),  # worker clock at which its last token appears
        ("order", "i8"),  # position in its worker's history of admissions; TensorRT-LLM: of arrivals
        ("next", "i4"),  # neighbours in the running or the waiting list
        ("prev", "i4"),
        # vLLM, TensorRT-LLM: neighbours among unfinished prompts, endings of a step, or skipped decodes. SGLang: the
        # next finished_pending request, or the next one still to be looked up in storage
        ("next_aside", "i4"),
        ("prev_aside", "i4"),
        ("heap_slot", "i4"),  # position in the worker's finish heap, -1 outside
        ("worker", "i4"),
        ("node", "i4"),  # deepest locked tree node
        ("preemptions", "i4"),
        ("outcome", "i4"),
        ("status", "i4"),  # WAITING to VERIFYING, see above
        ("chunk_kind", "i4"),  # PROMPT_GOES_ON to DECODED, see above
        *client.REQUEST,
        *vllm_fields.REQUEST,
        *sglang_fields.REQUEST,
        *trtllm_fields.REQUEST,
        *decode_fields.REQUEST,
        *tiers_fields.REQUEST,
    ],
    align=True,
)

# Values of NODE.queued; 0: in no free queue. TOMBSTONE: a tombstone, see copies; ON_HOST: see ``trtllm.host``.
TOMBSTONE, FREE, ON_HOST = -1, 1, 2

#: State and totals of a worker.
WORKER = np.dtype(
    [
        ("event_s", "f8"),  # time of its next event
        ("oldest_start_s", "f8"),  # outstanding steps: launched, results not processed (see ``device``)
        ("oldest_end_s", "f8"),
        ("newest_start_s", "f8"),
        ("newest_end_s", "f8"),  # when the device is free
        ("busy_s", "f8"),
        ("clock", "i8"),
        ("context_tokens", "i8"),  # decoding requests: sum of tokens read by the next step (known tokens)
        # The most that one of them reads, less ``clock``: constant while it decodes; stale after that one has left.
        ("longest_tokens", "i8"),
        ("longest_stale", "i8"),
        ("squared_tokens", "i8"),  # sum over them of (tokens read less ``clock``) squared; likewise constant
        ("fast_forward_steps", "i8"),  # decode steps that the present event covers
        ("fast_forward_open", "i4"),  # 1 where ``event_s`` is only a lower bound of that event
        ("fast_forward_pages", "i8"),  # behind its first step: taken before its end (see ``outlook``)
        ("fast_forward_s", "f8"),  # time of the pass that planned it
        ("fast_forward_from_s", "f8"),  # with overlap: when the first of them starts
        ("orders", "i8"),
        ("launched_step", "i8"),  # number of the newest launched step, from 1
        ("steps", "i8"),
        ("requests", "i8"),
        ("preemptions", "i8"),
        ("prefill_tokens", "i8"),
        ("decode_tokens", "i8"),
        ("peak_pages", "i8"),
        ("held_path_end", "i4"),  # deepest node of Sim.trace_paths (see lists.path_at), and the place reached on it
        ("held_path_at", "i4"),
        ("running_head", "i4"),
        ("running_tail", "i4"),
        ("running", "i4"),  # requests in the running list
        ("decoding", "i4"),  # of those, requests that decode
        ("draining", "i4"),  # running requests whose last token is being made; SGLang's have left the running list
        ("waiting_head", "i4"),
        ("waiting_tail", "i4"),
        ("waiting", "i4"),
        ("finish_heap_size", "i4"),
        ("batch_size", "i4"),  # prompt chunks in the step now running
        ("phase", "i4"),
        ("outstanding", "i4"),  # steps launched whose results are not processed: at most 1, with overlap 2
        ("full", "i4"),  # SGLang: batch_is_full; TensorRT-LLM: there were too few pages for a waiting request
        ("event_slot", "i4"),  # position in the event heap, -1 outside
        *client.WORKER,
        *ll.WORKER,
        *gr.WORKER,
        *vllm_fields.ORDERED,
        *vllm_fields.WORKER,
        *sglang_fields.WORKER,
        *trtllm_fields.WORKER,
        *decode_fields.WORKER,
        *schedulers_fields.WORKER,
        *cost_layout.WORKER,
        *tiers_fields.WORKER,
    ],
    align=True,
)

# Columns of Sim.counters.
# FREE_NODE: first released node record, or -1; NODES_LEFT: available records; EVENT_HEAP: its size.
# LOG_*: entries used of the log's arrays; LOG_LOST_TAKEN: lost requests that a logged step already accounts for.
FREE_NODE, NODES_USED, NODES_LEFT, FAULT, EVENT_HEAP = 0, 1, 2, 3, 4
# LARGEST_GROUP: copies in the largest group of duplicate blocks so far (``copies``). PASSES: TensorRT-LLM's so far.
LOG_STEPS, LOG_ENTRIES, LOG_LOST, LOG_LOST_TAKEN, LARGEST_GROUP, PASSES = 5, 6, 7, 8, 9, 10
# SERVING: servers with a job; FREE_FETCH, FETCHES_USED: as for nodes; LOG_FETCHES: entries of the log of fetches.
SERVING, FREE_FETCH, FETCHES_USED, LOG_FETCHES = 11, 12, 13, 14
# FREE_TRANSFER to MOVES_USED: as for nodes.
FREE_TRANSFER, TRANSFERS_USED, FREE_RUN, RUNS_USED, RUNS_LEFT, FREE_MOVE, MOVES_USED = 15, 16, 17, 18, 19, 20, 21
COUNTERS = 22

# counters[FAULT]; any voids the run. STUCK: endless preemptions without a token. OUT_OF_SLOTS: too many adapters.
NODE_POOL_FULL, OUT_OF_MEMORY, LOG_FULL, STUCK, OUT_OF_SLOTS = 1, 2, 3, 4, 5

# Kinds of a logged step; vLLM has only the first.
ANY_STEP, PREFILL_STEP, DECODE_STEP, MIXED_STEP = 0, 1, 2, 3

#: Preemptions without a sampled token, per request that a worker may run, after which it counts as stuck.
FUTILE_PREEMPTIONS = 1000

#: Upper bound of the node records that one event takes, per request that a worker may run (and a few): at most six for
#: each request that ends, is preempted or is admitted.
NODES_PER_REQUEST = 12

#: Settings of a pool. Tokens and pages are int64, seconds float64.
CONFIG = np.dtype(
    [
        ("engine", "i8"),
        ("engine_entry", "i8"),  # address of the engine entry (see ``engine_calls``)
        ("objects", "i8"),  # SGLang, vLLM: address of the entry of ``agents``, 0: agents have only KV
        ("pool", "i8"),  # among those of the fleet
        ("role", "i8"),  # see ``layout.fleet``
        ("first_member", "i8"),  # its workers are consecutive members of the fleet from here on
        ("workers", "i8"),  # schedulers of all workers
        ("schedulers", "i8"),  # per worker: DP ranks or micro-batches, else 1
        ("scheduler_kind", "i8"),
        ("page_tokens", "i8"),
        ("rank_page_tokens", "i8"),  # SGLang: by which admission counts where ranks share each page, else page_tokens
        ("capacity_pages", "i8"),
        ("prefix_caching", "i8"),
        ("max_running", "i8"),
        ("chunk_tokens", "i8"),
        ("max_request_tokens", "i8"),  # the model's window
        ("horizon_s", "f8"),  # of the run: what links carry after it is counted separately
        ("eviction", "i8"),
        ("schedule", "i8"),  # order of the waiting queue
        ("overlap", "i8"),  # a batch is formed while the previous one runs
        ("chunked_prefill", "i8"),  # 0: a prompt is never cut by the budget
        ("log", "i8"),  # 1: steps are logged
        ("thinks", "i8"),  # 1: some request of the pool thinks (see ``traffic.thinking``)
        *client.CONFIG,
        *ll.CONFIG,
        *gr.CONFIG,
        *vllm_fields.CONFIG,
        *sglang_fields.CONFIG,
        *cost_layout.CONFIG,
        *trtllm_fields.CONFIG,
        *decode_fields.CONFIG,
        *tiers_fields.CONFIG,
    ],
    align=True,
)


class Sim(Handle):
    """All arrays of a pool in a running simulation, modified in place; arrays shared by pools are in ``layout.fleet``.

    blank (1,): a request that has not arrived.
    node_ranks, queued: further fields of nodes and requests; of length 1 where they are not used. Likewise for a host
        tier: hosted (of nodes), hosts (W,), fetches, lookups (of requests), servers (SERVERS W,) and their heap, moves.
    trees: first those with content by prefix (V of them: the workers', the stores', their shadows). Then pools without
        such content: the workers' separate pools of objects, if any, and the host pools of HiCache and TensorRT-LLM.
    deepest_cached (V, M): deepest node of tree v with a page that completes in trace node s, or -1; stores: first run.
    trace_paths (W, depth of the trace tree): nodes on the path of the prompt that is computed in chunks, deepest first.
    links: of worker w to the host and back at 2 w and 2 w + 1. Then of each store for writing and reading, except host
        memory of a single worker. Then of each node's network, out and in. Then of what is shared on the way to host
        memory, into and out of it. shared (W, levels): the link into it that worker w takes, out of it next; ports:
        those that KV between workers takes. Decode workers that write back to another pool's storage lack the stores'.
    store_tiers (tiers of stores,): nearest first. users, users_next, users_end (M,): of a trace node (``foresight``).
    offloading: vLLM's tiers, and the state of their KV connectors, of length 1 where there are none: offloaded (N,),
        fresh (1,): of a request that has not arrived; connectors (W,), notes (2 W,), transfers; stores (S,) with
        run_rows (S, 3 LISTS), run_deepest_cached (S, M): deepest run in each trace node, runs, and pending uses (S,
        USES); next_filling (tokens of a block,): scratch; block_tables (L,), each with block_table_rows (L, 3 LISTS),
        blocks (L, slots) and buckets (L, a power of two); of each trace node block_base (M,): key of its first block,
        and node_blocks (M, 2): the number of that block on the path, and one past the number of its last block; path
        (2, blocks of the longest path): scratch. Of LMCache's T tiers: writes (stores behind host memory, writes):
        rings; groups (L, slots); worker_stores (W, T): each worker's block table in each tier; matched_chunks_in (N,
        T): chunks matched there. other_pools (V,), other_nodes (of nodes), other_requests (N,): SGLang's second pool.
    kv_groups: groups of KV blocks under vLLM; of length 1 where there is only one group: kv_pools (W,), kv_blocks (W,
        blocks), kv_buckets (W, a power of two), held (N,) and kv_tables (W max_running, pages of all groups): blocks of
        running requests, with next_tables (W max_running,), the list of free tables.
    residue (W, P): decoding requests by (tokens computed - clock) mod P. gaps (BINS,): see ``gaps``. finish_heap,
        batch (W, max_running); request indices; evict_heap: nodes, those of each tree in its ``TREE.places``.
    launches (2 W,), prompts (2 W, max_running): outstanding steps of SGLang and TensorRT-LLM, and the requests whose
        prompts they compute, in rows 2 w + number of the step mod 2. counters (COUNTERS,).
    ends (2 W, max_running + 1): SGLang without radix cache: tokens left and held of requests, by tokens left; scratch.
    queue_order (2, N): requests of the waiting queue being sorted; scratch. shuffle_rng (W,): streams of random orders.
    tenants (W, tenants): see ``traffic.fair_share``. ttft_targets_s: by priority; both of one place where not used.
    pinned, ends_by_limit (N,): 1 where end-of-sequence tokens are ignored; where a declared limit ends the output.
    accepted (drafted tokens,): probability that the first 1, 2, … are all accepted; of length 1 where there are none.
    owner_head (M,), owner, next_owner: requests whose output covers a trace node (see ``owners``).
    pledged (M,): pass that pledged a page in a trace node (see ``trtllm.step``), empty elsewhere. event_heap (W,).
    stage_free_s (workers, schedulers): when a stage of a pipeline has finished all its batches. shared_s, by_kind_s,
        draft_shared_s, lockstep_pad: as ``LockstepCosts``, ``DraftCosts``. compiled_lengths (W, tokens).
    log_steps, log_entries, log_lost (preempted, retracted), log_outputs (drafted tokens): the log, empty where off.
    """

    FIELDS: ClassVar[dict[str, Any]] = {
        "config": Record(CONFIG),
        "fleet": Fleet,
        "trace": Trace,
        "agents": al.Agents,
        "lora": ll.Lora,
        "grammars": gr.Grammars,
        "seconds": cost_layout.Costs,
        "joules": cost_layout.Costs,
        "attached_joules": cost_layout.Costs,
        "link_joules": cost_layout.Costs,
        "requests": Array(REQUEST, 1),
        "blank": Array(REQUEST, 1),
        "workers": Array(WORKER, 1),
        "trees": Array(TREE, 1),
        "nodes": Array(NODE, 1),
        "node_ranks": Array(NODE_RANK, 1),
        "queued": Array(sglang_fields.QUEUED, 1),
        "tiers": Record(hl.TIERS),
        "store_tiers": Array(hl.STORE_TIER, 1),
        "users": Array("i4", 1),
        "users_next": Array("i8", 1),
        "users_end": Array("i8", 1),
        "hosted": Array(hl.HOSTED, 1),
        "hosts": Array(hl.HOST, 1),
        "fetches": Array(hl.FETCH, 1),
        "lookups": Array(hl.LOOKUP, 1),
        "servers": Array(hl.SERVER, 1),
        "moves": Array(hl.MOVE, 1),
        "server_heap": Array("i4", 1),
        "links": Array(hl.LINK, 1),
        "shared": Array("i4", 2),
        "ports": Array("i4", 2),
        "log_fetches": Array(hl.FETCH_LOG, 1),
        "offloading": Record(tl.OFFLOADING),
        "offloaded": Array(tl.OFFLOADED, 1),
        "fresh": Array(tl.OFFLOADED, 1),
        "connectors": Array(tl.CONNECTOR, 1),
        "notes": Array(tl.NOTES, 1),
        "transfers": Array(tl.TRANSFER, 1),
        "stores": Array(tl.STORE, 1),
        "runs": Array(tl.RUN, 1),
        "run_rows": Array("i8", 2),
        "run_deepest_cached": Array("i4", 2),
        "uses": Array(tl.USE, 2),
        "next_filling": Array("i4", 1),
        "block_tables": Array(tl.BLOCK_TABLE, 1),
        "block_table_rows": Array("i4", 2),
        "blocks": Array(tl.BLOCK, 2),
        "buckets": Array("i4", 2),
        "block_base": Array("i8", 1),
        "node_blocks": Array("i8", 2),
        "path": Array("i8", 2),
        "writes": Array(tl.WRITE, 2),
        "groups": Array(tl.GROUP, 2),
        "worker_stores": Array("i4", 2),
        "matched_chunks_in": Array("i8", 2),
        "other_pools": Array(cl.POOL, 1),
        "other_nodes": Array(cl.NODE, 1),
        "other_requests": Array(cl.REQUEST, 1),
        "kv_groups": Record(gl.GROUPS),
        "kv_pools": Array(gl.POOL, 1),
        "kv_blocks": Array(gl.BLOCK, 2),
        "kv_buckets": Array("i4", 2),
        "kv_tables": Array("i4", 2),
        "next_tables": Array("i4", 1),
        "held": Array(gl.HELD, 1),
        "deepest_cached": Array("i4", 2),
        "trace_paths": Array("i4", 2),
        "residue": Array("i8", 2),
        "finish_heap": Array("i4", 2),
        "batch": Array("i4", 2),
        "launches": Array(schedulers_fields.LAUNCH, 1),
        "joins": Array(sglang_fields.JOIN, 2),
        "prompts": Array("i4", 2),
        "ends": Array("f8", 2),
        "queue_order": Array("i4", 2),
        "shuffle_rng": Array("u8", 1),
        "tenants": Array(sglang_fields.TENANT, 2),
        "ttft_targets_s": Array("f8", 1),
        "evict_heap": Array("i4", 1),
        "pinned": Array("i1", 1),
        "ends_by_limit": Array("i1", 1),
        "accepted": Array("f8", 1),
        "compiled_lengths": Array("i1", 2),
        "thinking": client.Thinking,
        "owner_head": Array("i4", 1),
        "owner": Array("i4", 1),
        "next_owner": Array("i4", 1),
        "pledged": Array("i8", 1),
        "stage_free_s": Array("f8", 2),
        "shared_s": Array("f8", 1),
        "draft_shared_s": Array("f8", 1),
        "lockstep_pad": Array("i8", 1),
        "by_kind_s": Array("f8", 2),
        "event_heap": Array("i4", 1),
        "counters": Array("i8", 1),
        "gaps": Array("i8", 1),
        "log_steps": Array(STEP_LOG, 1),
        "log_entries": Array(ENTRY_LOG, 1),
        "log_outputs": Array(OUTPUT_LOG, 1),
        "log_lost": Array("i4", 1),
    }
