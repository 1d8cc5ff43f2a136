"""All arrays of a pool of workers.

Notation
    N requests, M nodes of the trace's prefix tree (trace nodes), W workers, P tokens per KV page
    worker  an entry of ``Sim.workers``: a scheduler, of which a worker has several where it has DP ranks or
            micro-batches (see ``schedulers``)
    tree    a prefix cache: one per worker (index w), of its HBM or of HBM and host memory, and one per store
    node    a run of whole pages of one tree, all cached; node v < number of trees is the (empty) root of tree v
    clock   a worker's count of decode steps. All its decoding requests advance by one token per tick, so progress is
            not stored per request; one with ``finish_clock`` f has f - clock tokens to go
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from hisearch.base.policies import EVICTIONS, QUEUE_ORDERS
from hisearch.kernels.core.handle import Array, Handle, Record
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.layout.fleet import Fleet, Trace

# Engines.
VLLM, SGLANG, TRTLLM = 0, 1, 2
# Engine entries of vLLM with tiers (see ``engine_calls``); its engine is VLLM.
VLLM_OFFLOAD, VLLM_LMCACHE = 3, 4
# Engine entry of decode workers, whatever their engine.
DECODE_WORKER = 5
# Entry for agents, called by SGLang or vLLM; not an engine.
AGENTS = 6
# Codes of eviction policies that other kernels know.
LRU, LFU, FIFO, MRU, DISTANCE = (EVICTIONS.code(name) for name in ("lru", "lfu", "fifo", "mru", "distance"))
# TensorRT-LLM's capacity policies.
GUARANTEED_NO_EVICT, MAX_UTILIZATION = 0, 1
# Orders of the waiting queue.
FCFS, PRIORITY = (QUEUE_ORDERS.code(name) for name in ("fcfs", "priority"))

# Kinds of schedulers of a worker (see ``schedulers``): a single one, DP ranks, micro-batches of a pipeline.
SINGLE, LOCKSTEP, PIPE = 0, 1, 2

# Request outcomes; the same numbers as simulate.result.Outcome.
IN_FLIGHT, FINISHED, TOO_LARGE, UNREACHED, SHED, LOST = 0, 1, 2, 3, 4, 5

# Worker phases, by its next event.
# IDLE: none. STEPPING: the end of the oldest outstanding step. FAST_FORWARDING: the end of a fast-forward (see
# ``device``). FORMING: a pass that forms the next batch.
# RESTING, leader in LOCKSTEP: no lockstep step is under way; the time at which a DP rank looks again, if any.
IDLE, STEPPING, FAST_FORWARDING, FORMING, RESTING = 0, 1, 2, 3, 4

# States of a vLLM or TensorRT-LLM request. ADMITTED: in this pass; PROMPT: partly computed; SKIPPED: a decode that is
# left out of this step; DRAINING: its last token is being made; DRAINED: likewise, but preempted meanwhile.
WAITING, ADMITTED, PROMPT, DECODING, SKIPPED, DRAINING, DRAINED = 0, 1, 2, 3, 4, 5, 6

# A clock or a count that is never reached, and a time.
NEVER = 2**62
FOREVER_S = 1e300
# ``WORKER.look_s`` of a DP rank that waits for an event that will never happen.
NEVER_S = math.inf

# Part of a request in the prompt batch of a step; DECODED: it was decoding when it was preempted (vLLM).
PROMPT_GOES_ON, PROMPT_ENDS, LATE_DECODE, DECODED = 0, 1, 2, 3

#: State and outcome of a request.
REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),  # at the router
        ("scheduled_s", "f8"),  # first put into a batch
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("joined_s", "f8"),  # SGLang: end of the prefill after which it joined the decodes
        ("last_token_s", "f8"),  # of a request that lost its KV or was skipped in a step: time of its newest token
        ("hit_tokens", "i8"),  # cached in HBM at the first admission
        ("host_hit_tokens", "i8"),  # loaded back from the host tier at the first admission
        ("storage_hit_tokens", "i8"),  # likewise, after a fetch into the host tier for this request
        ("fetched_tokens", "i8"),  # fetched to the host by its newest fetch
        ("far_fetched_tokens", "i8"),  # of these, the last ones, from the farther of two stores
        ("generated", "i8"),  # output tokens sampled; not updated while decoding (see finish_clock)
        ("computed", "i8"),  # tokens whose KV exists, or will after the outstanding steps; not updated while decoding
        ("locked_tokens", "i8"),  # depth of ``node``: tokens whose pages belong to the tree
        ("chunk", "i8"),  # tokens computed in the step now running
        ("finish_clock", "i8"),  # worker clock at which its last token appears
        ("order", "i8"),  # position in its worker's history of admissions; TensorRT-LLM: of arrivals
        ("prompt_tokens", "i8"),  # TensorRT-LLM: tokens of its last prompt, see trtllm.py
        ("sampled_step", "i8"),  # vLLM: serial of the newest step that sampled a token for it; see vllm_memory
        ("joined_step", "i8"),  # vLLM: serial of the first step in which it decodes; SGLang: the clock before it
        ("mark", "i8"),  # vLLM: serial of the newest step that it was put into
        ("next", "i4"),  # neighbours in the running or the waiting list
        ("prev", "i4"),
        # vLLM, TensorRT-LLM: neighbours among unfinished prompts, endings of a step, or skipped decodes; only
        # prev_aside: the next prompt that the same step ended (TensorRT-LLM). SGLang: the next finished_pending
        # request, or the next one still to be looked up in storage
        ("next_aside", "i4"),
        ("prev_aside", "i4"),
        ("heap_slot", "i4"),  # position in the worker's finish heap, -1 outside
        ("worker", "i4"),
        ("node", "i4"),  # deepest locked tree node
        ("preemptions", "i4"),
        ("outcome", "i4"),
        (
            "decoding_at_first_token",
            "i4",
        ),  # requests that decoded on its worker when it made its first token, and its last
        ("decoding_at_last_token", "i4"),
        ("part", "i4"),  # PROMPT_GOES_ON: more chunks follow; PROMPT_ENDS: it samples; LATE_DECODE: see vllm
        ("state", "i4"),  # vLLM: see above
        ("skipped_step", "i4"),  # vLLM: 1 where it was skipped in the step before it joined the decodes
        ("waits", "i4"),  # vLLM: see vllm_memory.newest_waits
        ("away", "i4"),  # decode workers: see ``decoding``; prefill workers: 1 while its KV is held to be sent
        ("redirect", "i4"),  # vLLM: first redirect record of its path (see ``queue``), -1: none
        ("fetch", "i4"),  # SGLang: its fetch from storage, or -1
        ("capped", "i4"),  # SGLang: 1 while it may generate more than admission reserves (see ``sglang.running``)
        ("serial", "i4"),  # SGLang: the step that last computed prompt tokens of it; -1 once it is retracted
    ],
    align=True,
)

# Values of NODE.queued; 0: in no free queue. TOMBSTONE: a tombstone, see copies; ON_HOST: see trtllm_host.
TOMBSTONE, FREE, ON_HOST = -1, 1, 2


#: A run of cached pages.
NODE = np.dtype(
    [
        ("begin", "i8"),  # depth in tokens, a multiple of P
        ("end", "i8"),
        ("tick", "i8"),  # radix: last access to it or to a removed node below it (nodes below count too: see radix)
        ("hits", "i8"),  # radix: insertions that ended in it, or in a removed node below it
        ("serial", "i8"),  # radix: order of creation
        ("parent", "i4"),
        ("trace_node", "i4"),  # trace node in which its last page completes
        ("lock", "i4"),  # queue: requests that hold it; radix: requests that hold it directly + locked children
        ("children", "i4"),
        ("first", "i4"),  # the copy of its pages that look-ups find, -1: there is a single copy (see copies)
        ("duplicate_block", "i4"),  # the next copy of its pages
        ("next", "i4"),  # free-queue neighbours; in the free list: the next free record
        ("prev", "i4"),
        ("heap_slot", "i4"),  # place among the leaves that may be evicted (see eviction), -1 outside
        ("queued", "i4"),  # FREE or ON_HOST while in that free queue; TOMBSTONE
    ],
    align=True,
)

#: Further fields of a node of a radix cache, for some eviction orders and some orders of the waiting queue.
NODE_RANK = np.dtype(
    [
        ("rank", "i8"),  # order of creation among siblings; the upper part of a split node keeps its rank
        ("priority", "i4"),  # highest of the insertions that ended in it, or in a removed node below it
        ("weight", "i4"),  # waiting requests that match to it or below, while the queue is being sorted
    ],
    align=True,
)

#: SGLang: a request in a waiting queue that is not simply fcfs (see ``sglang.order``).
QUEUED = np.dtype(
    [
        ("key", "i8"),  # lowest first
        ("stem", "i4"),  # lpm: trace node of the prefix by which requests are grouped, or -1
    ],
    align=True,
)

#: One prefix cache and its memory.
TREE = np.dtype(
    [
        ("capacity_pages", "i8"),
        # Pages not held by a running request (queue); pages without content (radix).
        ("free_pages", "i8"),
        ("evictable_pages", "i8"),  # radix: unlocked pages in the tree; TensorRT-LLM's host cache: those with content
        ("evicted_tokens", "i8"),
        ("expired_tokens", "i8"),
        ("given_tokens", "i8"),  # store: moved to another store, which holds them instead
        ("stored_tokens", "i8"),  # written into it
        ("read_tokens", "i8"),  # read out of it
        ("demoted_tokens", "i8"),  # store: evicted to the store behind it
        ("peak_pages", "i8"),
        ("eviction", "i8"),
        ("worth", "f8"),  # gdsf: the greatest value evicted so far
        ("target", "f8"),  # store, arc: target size of T1 in pages, see store_arc
        ("tick", "i8"),  # radix: accesses so far; store: operations
        ("began", "i8"),  # store: tick at which the present operation began
        ("serial", "i8"),  # radix: nodes made so far
        ("once_pages", "i8"),  # store, arc: size of T1
        ("tier", "i4"),  # store: row of Sim.store_tiers
        ("shadows", "i4"),  # store, arc: first of its additional trees
        ("head", "i4"),  # free queue
        ("tail", "i4"),
        ("heap_size", "i4"),  # leaves that may be evicted, see eviction
        ("line_places", "i4"),
        ("line_begin", "i4"),
        ("line_end", "i4"),
        ("gone_head", "i4"),  # store: evicted pages that the store behind it gets, see moves
        ("gone_tail", "i4"),
        ("copies", "i4"),  # nodes beyond the first of each group of copies
    ],
    align=True,
)

#: State and totals of a worker.
WORKER = np.dtype(
    [
        ("event_s", "f8"),  # time of its next event
        ("now_s", "f8"),  # with tiers: its scheduler's time, which a wait for a copy advances within a pass
        ("oldest_start_s", "f8"),  # outstanding steps: launched, results not processed (see ``device``)
        ("oldest_end_s", "f8"),
        ("newest_start_s", "f8"),
        ("newest_end_s", "f8"),  # when the device is free
        ("busy_s", "f8"),
        ("energy_j", "f8"),
        ("ratio", "f8"),  # SGLang's new-token ratio
        ("decode_end_s", "f8"),  # SGLang: end of the newest step in which requests decoded, of the one before it
        ("decode_before_s", "f8"),
        ("load_back_s", "f8"),  # when the copies that the step being formed waits for have ended
        ("ready_s", "f8"),  # LOCKSTEP, vLLM with offloading: earliest start of its batch
        ("look_s", "f8"),  # LOCKSTEP, with tiers: when it looks again after forming no batch; FOREVER_S or NEVER_S
        # SGLang, budget of the prefill pass: tokens set aside, taken, and left of both limits.
        ("reserved_tokens", "f8"),
        ("taken_tokens", "i8"),
        ("input_left", "i8"),
        ("chunk_left", "i8"),
        # SGLang, outputs to come (see ``sglang.running``).
        ("horizon_tokens", "i8"),
        ("finished_pending_tokens", "i8"),
        ("next_uncapped", "i8"),
        ("clock", "i8"),
        ("context_tokens", "i8"),  # decoding requests: sum of tokens read by the next step (known tokens)
        # The most that one of them reads, less ``clock``: constant while it decodes; stale after that one has left.
        ("longest_tokens", "i8"),
        ("longest_stale", "i8"),
        ("squared_tokens", "i8"),  # sum over them of (tokens read less ``clock``) squared; likewise constant
        ("fast_forward_steps", "i8"),  # decode steps that the present event covers
        ("fast_forward_open", "i4"),  # 1 where ``event_s`` is only a lower bound of that event
        (
            "fast_forward_pages",
            "i8",
        ),  # of those needed after its first step, the pages taken before its end (see ``outlook``)
        ("fast_forward_s", "f8"),  # time of the pass that planned it
        ("fast_forward_from_s", "f8"),  # with overlap: when the first of them starts
        ("orders", "i8"),
        ("front_orders", "i8"),  # SGLang: likewise for requests that join at the front, decreasing from 0
        ("launched", "i8"),  # serial of the newest launched step
        ("steps", "i8"),
        ("requests", "i8"),
        ("preemptions", "i8"),
        ("prefill_tokens", "i8"),
        ("decode_tokens", "i8"),
        ("peak_pages", "i8"),
        ("allocated_pages", "i8"),  # TensorRT-LLM: see trtllm_memory
        ("promised_pages", "i8"),
        ("host_hit_tokens", "i8"),
        ("far_hit_tokens", "i8"),  # hits on tokens fetched for its requests from the farther of two stores
        (
            "held_path_end",
            "i4",
        ),  # deepest node of the path in Sim.ways (see lists.path_at), and the place reached on it
        ("held_path_at", "i4"),
        ("running_head", "i4"),
        ("running_tail", "i4"),
        ("running", "i4"),  # requests in the running list
        ("decoding", "i4"),  # of those, requests that decode
        ("chunked", "i4"),  # SGLang: request whose prompt is unfinished, or -1
        ("prompts_head", "i4"),  # vLLM, TensorRT-LLM: running requests whose prompt is unfinished, in running order
        ("prompts_tail", "i4"),
        ("skipped_step", "i4"),  # vLLM: decodes that were skipped in the newest step
        ("joins", "i4"),  # SGLang: used entries of Sim.joins
        ("skipped_head", "i4"),  # vLLM: decodes that the step being formed leaves out
        ("futile", "i4"),  # vLLM: preemptions since the last sampled token
        ("draining", "i4"),  # vLLM, TensorRT-LLM: running requests whose last token is being made
        ("endings_new", "i4"),  # likewise: requests that the newest, the older outstanding step makes the last token of
        ("endings_old", "i4"),
        ("kv_pending_head", "i4"),  # decode workers: requests whose KV is being transferred, and their number
        ("kv_pending_tail", "i4"),
        ("kv_pending", "i4"),
        ("lost_head", "i4"),  # vLLM: requests preempted in the newest pass, by prev_aside
        ("ended_prompts_new", "i4"),  # TensorRT-LLM: prompts that the newest, the older outstanding step ends
        ("ended_prompts_old", "i4"),
        ("waiting_head", "i4"),
        ("waiting_tail", "i4"),
        ("waiting", "i4"),
        ("finish_heap_size", "i4"),
        ("batch_size", "i4"),  # prompt chunks in the step now running
        ("phase", "i4"),
        ("outstanding", "i4"),  # steps launched whose results are not processed: at most 1, with overlap 2
        ("full", "i4"),  # SGLang: batch_is_full; TensorRT-LLM: there were too few pages for a waiting request
        ("finished_pending", "i4"),  # SGLang: in the running list, known to have finished, not yet filtered out
        ("finished_pending_head", "i4"),  # their list, by next_aside
        ("capped", "i4"),  # SGLang: decoding requests that are capped
        ("ends", "i4"),  # SGLang: ends collected in this pass, -1 before the first admission
        ("last", "i4"),  # SGLang: kind of the batch formed by the last pass, 0 if it formed none
        ("held_head", "i4"),  # SGLang: requests that arrived and were not received yet (see ``inbox``), by next
        ("held_tail", "i4"),
        ("skipped", "i8"),  # SGLang: weight of the passes since requests were last received
        ("event_slot", "i4"),  # position in the event heap, -1 outside
        # Leader: the worker's time in standby, and when its accelerators finish all launched work.
        ("standby_s", "f8"),
        ("awake_until_s", "f8"),
        # DP ranks and micro-batches (see ``schedulers``).
        ("cache_id", "i4"),  # tree that has its KV
        ("formed", "i4"),  # LOCKSTEP: 1 where it has a batch in the lockstep step being formed; its tokens and chunks
        ("lockstep_tokens", "i8"),
        ("lockstep_chunks", "i8"),
        ("own_s", "f8"),  # LOCKSTEP: time of its batch without the part shared by all DP ranks
        ("host_s", "f8"),  # LOCKSTEP: host time of the batch
        ("lockstep_start_s", "f8"),
        ("lockstep_end_s", "f8"),
        ("lockstep_steps", "i4"),  # leader: outstanding lockstep steps, ends of the oldest and the newest
        ("next_scheduler", "i4"),  # leader, SGLang: the scheduler that gets the next request (round-robin)
        ("lockstep_oldest_s", "f8"),
        ("lockstep_newest_s", "f8"),
        ("dealt_tokens", "i8"),  # PIPE: prompt tokens of requests dealt to it since it formed a batch
    ],
    align=True,
)

# Columns of Sim.counters.
# FREE_NODE: first released node record, or -1; NODES_LEFT: available records; EVENT_HEAP: its size.
# LOG_*: entries used of the log's arrays; LOG_LOST_TAKEN: lost requests that a logged step already accounts for.
FREE_NODE, NODES_USED, NODES_LEFT, FAULT, EVENT_HEAP = 0, 1, 2, 3, 4
# LARGEST_GROUP: copies in the largest group of duplicate blocks so far, see ``copies``.
# PASSES: TensorRT-LLM: passes so far, see trtllm_pass.
LOG_STEPS, LOG_ENTRIES, LOG_LOST, LOG_LOST_TAKEN, LARGEST_GROUP, PASSES = 5, 6, 7, 8, 9, 10
# SERVING: servers with a job; FREE_FETCH, FETCHES_USED: as for nodes; LOG_FETCHES: entries of the log of fetches.
SERVING, FREE_FETCH, FETCHES_USED, LOG_FETCHES = 11, 12, 13, 14
# FREE_TRANSFER, TRANSFERS_USED, FREE_RUN, RUNS_USED, RUNS_LEFT: as for nodes.
FREE_TRANSFER, TRANSFERS_USED, FREE_RUN, RUNS_USED, RUNS_LEFT = 15, 16, 17, 18, 19
# FREE_MOVE, MOVES_USED: as for nodes.
FREE_MOVE, MOVES_USED = 20, 21
COUNTERS = 22

# Values of counters[FAULT], any of which voids the run.
# STUCK: requests preempt each other forever, and none makes a token.
NODE_POOL_FULL, OUT_OF_MEMORY, LOG_FULL, STUCK = 1, 2, 3, 4

# Kinds of a logged step; vLLM has only the first.
ANY_STEP, PREFILL_STEP, DECODE_STEP, MIXED_STEP = 0, 1, 2, 3

#: Preemptions without a sampled token, per request that a worker may run, after which it counts as stuck.
FUTILE_PREEMPTIONS = 1000

#: Upper bound of the node records that one event takes, per request that a worker may run (and a few): at most six for
#: each request that ends, is preempted or is admitted.
NODES_PER_REQUEST = 12


#: SGLang: a launched step, for the processing of its results.
LAUNCH = np.dtype(
    [
        ("clock", "i8"),  # the worker's, including the step's decodes
        ("chunks", "i4"),  # of prompts
        ("partial", "i4"),  # the request among them whose prompt continues, or -1
        ("kind", "i4"),
    ],
    align=True,
)

#: Requests that joined the decodes since the newest decode step, by the end of their prefill.
JOIN = np.dtype([("at_s", "f8"), ("requests", "i8")], align=True)

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
        ("standby_after_s", "f8"),  # idle time after which accelerators draw less
        ("page_tokens", "i8"),
        ("capacity_pages", "i8"),
        ("host_pages", "i8"),  # 0: no host tier
        ("hicache", "i8"),  # SGLang: 1 with a host tier
        ("store_pool", "i8"),  # decode workers: pool to whose storage they write outputs back, or -1
        ("store_tier", "i8"),  # tier of that storage
        ("prefix_caching", "i8"),
        ("max_running", "i8"),
        ("chunk_tokens", "i8"),
        ("max_prefill_tokens", "i8"),
        ("max_request_tokens", "i8"),  # the model's window
        ("horizon_s", "f8"),  # of the run: what links carry after it is counted separately
        ("eviction", "i8"),
        ("schedule", "i8"),  # order of the waiting queue
        ("overlap", "i8"),  # a batch is formed while the previous one runs
        ("chunked_prefill", "i8"),  # 0: a prompt is never cut by the budget
        ("long_prefill_tokens", "i8"),  # vLLM: most tokens of one request a step; 0: no such limit
        ("reserve_full_prompt", "i8"),  # vLLM: admission needs pages for all known tokens, not only for the first chunk
        ("watermark_pages", "i8"),  # vLLM: pages that admission leaves free
        ("capacity_policy", "i8"),  # TensorRT-LLM
        ("mixed_chunk", "i8"),  # SGLang: running requests decode along with prefills
        ("receive_interval", "i8"),  # SGLang: weight of passes between two receptions of requests (see ``inbox``)
        ("ignore_eos", "i8"),  # SGLang: output lengths are fixed; has its own admission rule without radix cache
        ("shared_outputs", "i8"),  # vLLM: prompts may contain outputs of requests that still decode (owner_head)
        ("log", "i8"),  # 1: steps are logged
        ("conservativeness", "f8"),
    ],
    align=True,
)

#: A step in the log.
STEP_LOG = np.dtype(
    [
        ("scheduled_s", "f8"),  # when the batch was formed
        ("start_s", "f8"),  # when the device started it
        ("end_s", "f8"),
        ("ratio", "f8"),  # SGLang's new-token ratio
        ("free_tokens", "i8"),  # once the batch was formed
        ("evictable_tokens", "i8"),
        ("host_tokens", "i8"),  # held by the worker's stores of the first tier, the second, the third
        ("storage_tokens", "i8"),
        ("farther_tokens", "i8"),
        ("first_entry", "i8"),  # its entries: consecutive in the log's entries
        ("first_lost", "i8"),
        ("entries", "i4"),
        ("lost", "i4"),
        ("worker", "i4"),
        ("kind", "i4"),
    ],
    align=True,
)

#: A request's share of a step.
ENTRY_LOG = np.dtype([("computed", "i8"), ("tokens", "i4"), ("request", "i4")], align=True)

#: Scalars of ``latency.costs.StepCosts``.
HOST_COST = np.dtype(
    [
        ("step_s", "f8"),
        ("per_sequence_s", "f8"),
        ("skewed", "i8"),
        # Knots of ``mixed_decode_s``, a flat table; 0 where there is no such table.
        ("mixed_prompts", "i8"),
        ("mixed_befores", "i8"),
        ("mixed_sequences", "i8"),
        ("mixed_means", "i8"),
        # Likewise of ``late``, and its further parameter.
        ("late_sequences", "i8"),
        ("late_longs", "i8"),
        ("late_contexts", "i8"),
        ("late_ratio", "f8"),
        # ``HostFloor``.
        ("floor_step_s", "f8"),
        ("floor_sequence_s", "f8"),
        ("floor_pieces_s", "f8"),
        ("floor_eager_s", "f8"),
        ("floor_graph_tokens", "i8"),
    ],
    align=True,
)


class Costs(Handle):
    """``latency.costs.StepCosts`` for kernels; read-only."""

    FIELDS: ClassVar[dict[str, Any]] = {
        "host": Record(HOST_COST),
        "token_s": Array("f8", 1),
        "sequence_s": Array("f8", 1),
        "chunk_rate": Array("f8", 2),
        "decode_s": Array("f8", 2),
        "mixed_decode_s": Array("f8", 1),
        "prompt_s": Array("f8", 1),
        "skew_s": Array("f8", 1),
        "late": Array("f8", 1),
    }


class Sim(Handle):
    """All arrays of a pool in a running simulation, modified in place; arrays shared by pools are in ``layout.fleet``.

    blank (1,): a request that has not arrived.
    node_ranks, queued: further fields of nodes and requests; of length 1 where they are not used. Likewise for a host
        tier: hosted (of nodes), hosts (W,), fetches, servers (SERVERS W,) and their heap, moves.
    trees: first those with content by prefix (V of them: the workers', the stores', their shadows). Then pools without
        such content: the workers' separate pools of objects, if any, and the host pools of HiCache and TensorRT-LLM.
    deepest_cached (V, M): deepest node of tree v with a page that completes in trace node s, or -1; of a store: its
        first run in trace node s.
    trace_paths (W, depth of the trace tree): nodes on the path of the prompt that is computed in chunks, deepest first.
    links: of worker w to the host and back at 2 w and 2 w + 1. Then of each store for writing and reading, except host
        memory of a single worker. Then of each node's network, out and in. Then of host memory itself, in and out, of
        each worker whose DP ranks share it. Decode workers that write back to another pool's storage have only the
        links to the host and back and those of the networks.
    store_tiers (tiers of stores,): nearest first. users, users_next (M,), users_end (M,): future users of a trace
        node's pages (see ``foresight``), of length 0 where they are not used.
    offloading: vLLM's tiers, and the state of their KV connectors, of length 1 where there are none: offloaded (N,),
        fresh (1,): of a request that has not arrived; connectors (W,), notes (2 W,), transfers; stores (S,) with
        run_rows (S, 3 LISTS), run_deepest_cached (S, M): deepest run in each trace node, runs, and pending
        uses (S, USES); next_filling (tokens of a block,): scratch;
        block_tables (L,), each with block_table_rows (L, 3 LISTS), blocks (L, slots) and buckets (L, a power of two);
        of each trace node block_base (M,): key of its first block, and node_blocks (M, 2): the number of that block on
        the path, and one past the number of its last block; path (2, blocks of the longest path): scratch. Of LMCache's
        T tiers: writes (stores behind host memory, writes): rings; groups (L, slots); worker_stores (W, T): each
        worker's block table in each tier; matched_chunks_in (N, T): chunks that a request's look-up matched there.
    residue (W, P): decoding requests by (tokens computed - clock) mod P.
    finish_heap, batch (W, max_running); evict_heap (trees, 2 leaves): request and node indices.
    launches (2 W,), prompts (2 W, max_running): SGLang's outstanding steps and the requests whose prompts they compute,
        in rows 2 w + serial of the step mod 2.
    ends (2 W, max_running + 1): SGLang without radix cache: tokens left and held of requests, by tokens left; scratch.
    queue_order (2, N): requests of the waiting queue being sorted; scratch. shuffle_rng (W,): streams of random orders.
    owner_head (M,), owner, next_owner: requests whose output covers a trace node (see ``owners``).
    pledged (M,): pass in which a page in a trace node was pledged (see ``trtllm.step``), empty elsewhere.
    stage_free_s (workers, schedulers): when a stage of a pipeline has finished all its batches. shared_s,
        lockstep_pad: time of the part shared by DP ranks, by tokens per rank; tokens that the fullest rank's batch is
        padded to.
    event_heap (W,). counters (COUNTERS,).
    gaps (BINS,): inter-token latencies (see ``gaps``).
    log_steps, log_entries, log_lost: the log, empty where it is off; lost are preempted or retracted requests.
    """

    FIELDS: ClassVar[dict[str, Any]] = {
        "config": Record(CONFIG),
        "fleet": Fleet,
        "trace": Trace,
        "agents": al.Agents,
        "seconds": Costs,
        "joules": Costs,
        "requests": Array(REQUEST, 1),
        "blank": Array(REQUEST, 1),
        "workers": Array(WORKER, 1),
        "trees": Array(TREE, 1),
        "nodes": Array(NODE, 1),
        "node_ranks": Array(NODE_RANK, 1),
        "queued": Array(QUEUED, 1),
        "tiers": Record(hl.TIERS),
        "store_tiers": Array(hl.STORE_TIER, 1),
        "users": Array("i4", 1),
        "users_next": Array("i8", 1),
        "users_end": Array("i8", 1),
        "hosted": Array(hl.HOSTED, 1),
        "hosts": Array(hl.HOST, 1),
        "fetches": Array(hl.FETCH, 1),
        "servers": Array(hl.SERVER, 1),
        "moves": Array(hl.MOVE, 1),
        "server_heap": Array("i4", 1),
        "links": Array(hl.LINK, 1),
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
        "deepest_cached": Array("i4", 2),
        "trace_paths": Array("i4", 2),
        "residue": Array("i8", 2),
        "finish_heap": Array("i4", 2),
        "batch": Array("i4", 2),
        "launches": Array(LAUNCH, 1),
        "joins": Array(JOIN, 2),
        "prompts": Array("i4", 2),
        "ends": Array("i8", 2),
        "queue_order": Array("i4", 2),
        "shuffle_rng": Array("u8", 1),
        "evict_heap": Array("i4", 2),
        "owner_head": Array("i4", 1),
        "owner": Array("i4", 1),
        "next_owner": Array("i4", 1),
        "pledged": Array("i8", 1),
        "stage_free_s": Array("f8", 2),
        "shared_s": Array("f8", 1),
        "lockstep_pad": Array("i8", 1),
        "event_heap": Array("i4", 1),
        "counters": Array("i8", 1),
        "gaps": Array("i8", 1),
        "log_steps": Array(STEP_LOG, 1),
        "log_entries": Array(ENTRY_LOG, 1),
        "log_lost": Array("i4", 1),
    }
