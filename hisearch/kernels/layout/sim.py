"""Every array of a pool of workers, declared once.

Notation
    N requests, M nodes of the trace's prefix tree, W workers, P tokens per KV page
    tree    a prefix cache: one per worker (index w), of its HBM or of HBM and host memory, and one per store
    node    a run of whole pages of one tree, all cached; node v < number of trees is the (empty) root of tree v
    clock   a worker's count of decode steps: all its decoding requests advance by one token per tick, so that progress
            is never stored per request; one with ``finish_clock`` f has f - clock tokens to go
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from hisearch.base.policies import EVICTIONS
from hisearch.kernels.core.handle import Array, Handle, Record
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.layout.fleet import Fleet, Trace

# Engines, as kernels know them.
VLLM, SGLANG, TRTLLM = 0, 1, 2
# Doors of vLLM with tiers (see ``engine_calls``); its engine is VLLM.
VLLM_OFFLOAD, VLLM_LMCACHE = 3, 4
# Of decode workers, whatever their engine.
DECODE_WORKER = 5
# What agents need, beside SGLang or vLLM; no engine of its own.
AGENTS = 6
# Evictions that kernels beside their own know.
LRU, LFU, FIFO, MRU, DISTANCE = (EVICTIONS.code(name) for name in ("lru", "lfu", "fifo", "mru", "distance"))
# TensorRT-LLM's capacity policies.
GUARANTEED_NO_EVICT, MAX_UTILIZATION = 0, 1
# Orders of the waiting queue.
FCFS, PRIORITY, LPM, LOF, DFS_WEIGHT, SHUFFLED = 0, 1, 2, 3, 4, 5

# What the lanes of a worker share (see ``schedulers``): it has but one, attention groups, pipeline stages.
ALONE, LOCKSTEP, PIPE = 0, 1, 2

# Request outcomes; the same numbers as simulate.result.Outcome.
IN_FLIGHT, FINISHED, TOO_LARGE, UNREACHED, SHED, LOST = 0, 1, 2, 3, 4, 5

# Worker phases: what its next event is.
# IDLE none; STEPPING the end of the oldest outstanding step; FAST_FORWARDING the end of a run of decode steps (see
# ``device``); FORMING a pass that forms the next batch.
# Leader of a WAVE: RESTING no wave is out; a look at what lanes wait for, where one is due.
IDLE, STEPPING, FAST_FORWARDING, FORMING, RESTING = 0, 1, 2, 3, 4

# States of a vLLM or TensorRT-LLM request. ADMITTED: in this pass; PROMPT: computed in part; SKIPPED: a decode that
# this step leaves out; DRAINING: its last token is being made; DRAINED: likewise, but preempted meanwhile.
WAITING, ADMITTED, PROMPT, DECODING, SKIPPED, DRAINING, DRAINED = 0, 1, 2, 3, 4, 5, 6

# A clock or a count that is not reached, and a time.
NEVER = 2**62
FOREVER_S = 1e300
# Of a lane that waits (``WORKER.look_s``): nothing will ever come.
NOTHING_S = math.inf

# What a request does in the prompt batch of a step; DECODED: it was decoding when it was preempted (vLLM).
PROMPT_GOES_ON, PROMPT_ENDS, LATE_DECODE, DECODED = 0, 1, 2, 3

#: State and outcome of a request.
REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),  # at the router
        ("scheduled_s", "f8"),  # first put into a batch
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("joined_s", "f8"),  # SGLang: end of the prefill after which it joined the decodes
        ("last_token_s", "f8"),  # of a request that lost its KV or sat out a step: when it made its newest token
        ("hit_tokens", "i8"),  # found in HBM at the first admission
        ("host_hit_tokens", "i8"),  # loaded back from the host tier at the first admission
        ("storage_hit_tokens", "i8"),  # likewise, having been fetched into it for this request
        ("fetched_tokens", "i8"),  # brought to the host by its newest fetch
        ("far_fetched_tokens", "i8"),  # of these, at their end, those from the farther of two stores
        ("generated", "i8"),  # output tokens sampled; not kept up to date while decoding (see finish_clock)
        ("computed", "i8"),  # tokens whose KV exists, or will once the outstanding steps have run; likewise
        ("locked_tokens", "i8"),  # depth of ``node``: tokens whose pages belong to the tree
        ("chunk", "i8"),  # tokens computed in the step now running
        ("finish_clock", "i8"),  # worker clock at which its last token appears
        ("order", "i8"),  # position in its worker's history of admissions; TensorRT-LLM: of arrivals
        ("prompt_tokens", "i8"),  # TensorRT-LLM: tokens that its last prompt had, see trtllm.py
        ("sampled_step", "i8"),  # vLLM: serial of the newest step that sampled a token for it; see vllm_memory
        ("joined_step", "i8"),  # vLLM: serial of the first step in which it decodes; SGLang: the clock before it
        ("mark", "i8"),  # vLLM: serial of the newest step that it was put into
        ("next", "i4"),  # neighbours in the running or the waiting list
        ("prev", "i4"),
        # vLLM, TensorRT-LLM: neighbours among unfinished prompts, endings of a step, or those that sit out; prev_aside
        # alone: the next prompt that the same step ended (TensorRT-LLM). SGLang: the next that lingers, or that is yet
        # to be looked up in storage
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
        ("state", "i4"),  # vLLM: see below
        ("skipped_step", "i4"),  # vLLM: 1 where it sat out the step before it joined the decodes
        ("waits", "i4"),  # vLLM: see vllm_memory.newest_waits
        ("away", "i4"),  # decode workers: see ``decoding``; prefill workers: 1 while KV is held to be sent
        ("tombstone", "i4"),  # vLLM: where its way through the tree leaves the parents (see queue), -1: nowhere
        ("fetch", "i4"),  # SGLang: what it fetches from storage, or -1
        ("capped", "i4"),  # SGLang: 1 while it may generate more than admission reserves for (see ``sglang.running``)
        ("serial", "i4"),  # SGLang: the step that last computed prompt tokens of it; -1 once it is retracted
    ],
    align=True,
)

# Where NODE.queued says that a node is; 0: in no free queue. GHOST: see copies; ON_HOST: see trtllm_host.
GHOST, FREE, ON_HOST = -1, 1, 2


#: A run of cached pages.
NODE = np.dtype(
    [
        ("begin", "i8"),  # depth in tokens, a multiple of P
        ("end", "i8"),
        ("tick", "i8"),  # radix: last access, own or of a node below that is gone (those below count too: see radix)
        ("hits", "i8"),  # radix: insertions that ended in it, or in a node below that is gone
        ("serial", "i8"),  # radix: order of creation
        ("parent", "i4"),
        ("trace_node", "i4"),  # trace-tree node in which its last page completes
        ("lock", "i4"),  # queue: requests that hold it; radix: those that hold it directly + locked children
        ("children", "i4"),
        ("first", "i4"),  # copies of the same pages: the one that a look-up finds, -1: there is but one (see copies)
        ("duplicate_block", "i4"),  # the next copy
        ("next", "i4"),  # free-queue neighbours; in the free list: the next free record
        ("prev", "i4"),
        ("heap_slot", "i4"),  # place among the leaves that may be evicted (see eviction), -1 outside
        ("queued", "i4"),  # FREE or ON_HOST while in that free queue; GHOST
    ],
    align=True,
)

#: More on a node of a radix cache, where its eviction or the order of the waiting queue asks for it.
STANDING = np.dtype(
    [
        ("rank", "i8"),  # order of creation among siblings; a split's upper part takes the place of the whole
        ("priority", "i4"),  # highest of the insertions that ended in it, or in a node below that is gone
        ("weight", "i4"),  # waiting requests that match to it or below, while the queue is being sorted
    ],
    align=True,
)

#: SGLang: a request in a waiting queue that is not simply fcfs (see ``sglang.order``).
QUEUED = np.dtype(
    [
        ("key", "i8"),  # lowest first
        ("stem", "i4"),  # lpm: trace-tree node by which requests are alike, or -1
    ],
    align=True,
)

#: One prefix cache and its memory.
TREE = np.dtype(
    [
        ("capacity_pages", "i8"),
        # Pages to be had without taking them from a running request (queue); pages without content (radix).
        ("free_pages", "i8"),
        ("evictable_pages", "i8"),  # radix: unlocked pages in the tree; TensorRT-LLM's host cache: those with content
        ("evicted_tokens", "i8"),
        ("expired_tokens", "i8"),
        ("given_tokens", "i8"),  # store: handed to another one, which holds them instead
        ("stored_tokens", "i8"),  # written into it
        ("read_tokens", "i8"),  # read out of it
        ("demoted_tokens", "i8"),  # store: likewise, for the store behind it
        ("peak_pages", "i8"),
        ("eviction", "i8"),
        ("worth", "f8"),  # gdsf: the greatest value evicted so far
        ("target", "f8"),  # store, arc: wanted size of T1 in pages, see store_arc
        ("tick", "i8"),  # radix: accesses so far; store: operations
        ("began", "i8"),  # store: tick at which the present operation began
        ("serial", "i8"),  # radix: nodes made so far
        ("once_pages", "i8"),  # store, arc: size of T1
        ("tier", "i4"),  # store: row of Sim.store_tiers
        ("shadows", "i4"),  # store, arc: first of the trees that it has beside its own
        ("head", "i4"),  # free queue
        ("tail", "i4"),
        ("heap_size", "i4"),  # leaves that may be evicted, see eviction
        ("line_room", "i4"),
        ("line_begin", "i4"),
        ("line_end", "i4"),
        ("gone_head", "i4"),  # store: evicted pages that the one behind it gets, see moves
        ("gone_tail", "i4"),
        ("copies", "i4"),  # nodes beyond the first of each group of copies
    ],
    align=True,
)

#: State and totals of a worker.
WORKER = np.dtype(
    [
        ("event_s", "f8"),  # time of its next event
        ("now_s", "f8"),  # with tiers: where its scheduler is, which waiting for a copy moves on within a pass
        ("oldest_start_s", "f8"),  # outstanding steps: launched, results not taken in (see ``device``)
        ("oldest_end_s", "f8"),
        ("newest_start_s", "f8"),
        ("newest_end_s", "f8"),  # when the device is free
        ("busy_s", "f8"),
        ("energy_j", "f8"),
        ("ratio", "f8"),  # SGLang's new-token ratio
        ("decode_end_s", "f8"),  # SGLang: end of the newest step in which requests decoded, of the one before it
        ("decode_before_s", "f8"),
        ("load_back_s", "f8"),  # when the copies that the step being formed waits for have ended
        ("ready_s", "f8"),  # WAVE, vLLM with offloading: before which its batch may not start
        ("look_s", "f8"),  # WAVE, with tiers: when it looks again, having formed nothing; or FOREVER_S, or NOTHING_S
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
        # Of them, the most that one reads, less ``clock``: constant while it decodes; stale where that one has left.
        ("longest_tokens", "i8"),
        ("longest_stale", "i8"),
        ("squared_tokens", "i8"),  # sum of squares of what each of them reads, less ``clock``; likewise constant
        ("fast_forward_steps", "i8"),  # decode steps that the present event covers
        ("fast_forward_open", "i4"),  # whether that event is only known to be no sooner than ``event_s``
        (
            "fast_forward_pages",
            "i8",
        ),  # of those that it takes behind its first step, taken before its end (see ``outlook``)
        ("fast_forward_s", "f8"),  # when the pass was that planned them
        ("fast_forward_from_s", "f8"),  # with overlap: when the first of them starts
        ("orders", "i8"),
        ("front_orders", "i8"),  # SGLang: likewise for requests that join at the front, downwards from 0
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
        ("far_hit_tokens", "i8"),  # of what was fetched for its requests and hit: from the farther of two stores
        ("way_end", "i4"),  # deepest node of the way in Sim.ways (see lists.path_at), and the place reached on it
        ("way_at", "i4"),
        ("running_head", "i4"),
        ("running_tail", "i4"),
        ("running", "i4"),  # requests in the running list
        ("decoding", "i4"),  # of those, requests that decode
        ("chunked", "i4"),  # SGLang: request whose prompt is unfinished, or -1
        ("prompts_head", "i4"),  # vLLM, TensorRT-LLM: running requests whose prompt is unfinished, in running order
        ("prompts_tail", "i4"),
        ("skipped_step", "i4"),  # vLLM: decodes that sat out the newest step
        ("joins", "i4"),  # SGLang: used entries of Sim.joins
        ("skipped_head", "i4"),  # vLLM: decodes that the step being formed leaves out
        ("futile", "i4"),  # vLLM: preemptions since a token was sampled
        ("draining", "i4"),  # vLLM, TensorRT-LLM: running requests whose last token is being made
        ("endings_new", "i4"),  # likewise: requests that the newest, the older outstanding step makes the last token of
        ("endings_old", "i4"),
        ("kv_pending_head", "i4"),  # decode workers: requests whose KV is on the way, and how many they are
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
        ("outstanding", "i4"),  # steps launched whose results are not taken in: at most 1, with overlap 2
        ("full", "i4"),  # SGLang: batch_is_full; TensorRT-LLM: a waiting request did not find its pages
        ("finished_pending", "i4"),  # SGLang: in the running list, known to have finished, not yet filtered out
        ("finished_pending_head", "i4"),  # they, by next_aside
        ("capped", "i4"),  # SGLang: decoding requests that are capped
        ("ends", "i4"),  # SGLang: ends collected in this pass, -1 before the first admission
        ("last", "i4"),  # SGLang: kind of the batch formed by the last pass, 0 if it formed none
        ("held_head", "i4"),  # SGLang: requests that came and were not looked for yet (see ``inbox``), by next
        ("held_tail", "i4"),
        ("skipped", "i8"),  # SGLang: weight of the passes since the last look
        ("event_slot", "i4"),  # position in the event heap, -1 outside
        # Leader: what the worker spent in standby, and when its accelerators end what they have been given.
        ("standby_s", "f8"),
        ("awake_until_s", "f8"),
        # Lanes (see ``schedulers``).
        ("cache_id", "i4"),  # tree that has its KV
        ("formed", "i4"),  # WAVE: 1 where it has a batch in the wave being formed, of so many tokens and chunks
        ("lockstep_tokens", "i8"),
        ("lockstep_chunks", "i8"),
        ("own_s", "f8"),  # WAVE: what its batch takes by itself
        ("host_s", "f8"),  # WAVE: what its host needs for the batch
        ("lockstep_start_s", "f8"),
        ("lockstep_end_s", "f8"),
        ("lockstep_steps", "i4"),  # leader: outstanding waves, ends of the oldest and the newest
        ("next_scheduler", "i4"),  # leader, SGLang: whose turn it is
        ("lockstep_oldest_s", "f8"),
        ("lockstep_newest_s", "f8"),
        ("dealt_tokens", "i8"),  # PIPE: prompt tokens of requests that it got since it formed a batch
    ],
    align=True,
)

# Columns of Sim.counters.
# FREE_NODE: first given-back node record, or -1; NODES_LEFT: records that can still be had; EVENT_HEAP: its size.
# LOG_*: entries used of the log's arrays; LOG_LOST_TAKEN: of the lost requests, those that a step already accounts for.
FREE_NODE, NODES_USED, NODES_LEFT, FAULT, EVENT_HEAP = 0, 1, 2, 3, 4
# LARGEST_GROUP: copies in the largest group of the same pages so far, see ``copies``.
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
# STUCK: requests preempt each other for ever, and none makes a token.
NODE_POOL_FULL, OUT_OF_MEMORY, LOG_FULL, STUCK = 1, 2, 3, 4

# Kinds of a logged step; vLLM has but one.
ANY_STEP, PREFILL_STEP, DECODE_STEP, MIXED_STEP = 0, 1, 2, 3

#: Preemptions without a token sampled in between, per request that a worker may run, after which it is stuck.
FUTILE_PREEMPTIONS = 1000

#: Node records that one event can take, per request that a worker may run (and a few): at most six for each one that
#: ends, is preempted or admitted.
NODES_PER_REQUEST = 12


#: SGLang: what must be known of a launched step when its results are taken in.
LAUNCH = np.dtype(
    [
        ("clock", "i8"),  # the worker's, the step's decodes included
        ("chunks", "i4"),  # of prompts
        ("partial", "i4"),  # the request among them whose prompt goes on, or -1
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
        ("engine_entry", "i8"),  # address of the engine's door (see ``engine_calls``)
        ("objects", "i8"),  # SGLang, vLLM: address of the door of ``agents``, 0: agents have nothing but KV
        ("pool", "i8"),  # among those of the fleet
        ("role", "i8"),  # see ``layout.fleet``
        ("first_member", "i8"),  # its workers are so many members of the fleet from here on
        ("workers", "i8"),  # lanes of all workers
        ("schedulers", "i8"),  # of a worker
        ("scheduler_kind", "i8"),
        ("standby_after_s", "f8"),  # idle time after which accelerators draw less
        ("page_tokens", "i8"),
        ("capacity_pages", "i8"),
        ("host_pages", "i8"),  # 0: no host tier
        ("hicache", "i8"),  # SGLang: 1 with a host tier
        ("store_pool", "i8"),  # decode workers: pool whose storage gets what they make, or -1
        ("store_tier", "i8"),  # which tier of it
        ("prefix_caching", "i8"),
        ("max_running", "i8"),
        ("chunk_tokens", "i8"),
        ("max_prefill_tokens", "i8"),
        ("max_request_tokens", "i8"),  # the model's window
        ("horizon_s", "f8"),  # of the run: what links still carry then is told apart
        ("eviction", "i8"),
        ("schedule", "i8"),  # order of the waiting queue
        ("overlap", "i8"),  # a batch is formed while the one before it runs
        ("chunked_prefill", "i8"),  # 0: a prompt is never cut by the budget
        ("long_prefill_tokens", "i8"),  # vLLM: most tokens of one request a step; 0: no such limit
        ("reserve_full_prompt", "i8"),  # vLLM: admission needs room for all known tokens, not for the first chunk alone
        ("watermark_pages", "i8"),  # vLLM: pages that admission leaves free
        ("capacity_policy", "i8"),  # TensorRT-LLM
        ("mixed_chunk", "i8"),  # SGLang: running requests decode along with prefills
        ("receive_interval", "i8"),  # SGLang: weight of passes between two looks at what has come (see ``inbox``)
        ("ignore_eos", "i8"),  # SGLang: outputs are pinned, which has a rule of its own where the radix cache is off
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
        ("start_s", "f8"),  # when the device got to it
        ("end_s", "f8"),
        ("ratio", "f8"),  # SGLang's new-token ratio
        ("free_tokens", "i8"),  # once the batch was formed
        ("evictable_tokens", "i8"),
        ("host_tokens", "i8"),  # held by the worker's stores of the first tier, the second, the third
        ("storage_tokens", "i8"),
        ("farther_tokens", "i8"),
        ("first_entry", "i8"),  # its entries: consecutive ones of the log's entries
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
        # Knots of ``mixed_decode_s``, whose axes lie in one; 0 where there is no such table.
        ("mixed_prompts", "i8"),
        ("mixed_befores", "i8"),
        ("mixed_sequences", "i8"),
        ("mixed_means", "i8"),
        # Likewise of ``late``; and what it has beside them.
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
    """All arrays of a pool in a running simulation, modified in place; what pools share is in ``layout.fleet``.

    blank (1,): a request that has not arrived.
    standings, queued: beside nodes and requests; of length 1 where nothing asks for them. Likewise hosted (beside
        nodes), hosts (W,), fetches, servers (SERVERS W,) and their heap, moves, which a host tier has.
    trees: those with content by prefix (V of them: the workers', the stores', their shadows), then the workers' pools
        of objects, if they have one apart, and the host pools of HiCache and TensorRT-LLM, which have none of their
        own.
    deepest_cached (V, M): deepest node of tree v with a page that completes in trace-tree node s, or -1; of a store:
        its first
        run there.
    ways (W, depth of the trace tree): nodes on the way of the prompt that is computed in chunks, deepest first.
    links: of worker w to the host and back at 2 w and 2 w + 1, then of each store for writing and reading (not of host
        memory of one worker's own), then of each node's network, out and in, then of host memory itself, in and out,
        of each worker whose attention groups share it; of decode workers that send to storage, which is another
        pool's, those to the host and back and the networks'.
    store_tiers (tiers of stores,): nearest first. users, users_next (M,), users_end (M,): who will use a trace-tree
        node's pages (see ``foresight``), of length 0 where nobody asks.
    offloading: vLLM's tiers, and what its connectors keep, of length 1 where there are none: offloaded (N,),
        fresh (1,): of a request that has not arrived; connectors (W,), notes (2 W,), transfers; stores (S,) with
        run_rows (S, 3 LISTS), run_deepest_cached (S, M): deepest run in each trace-tree node, runs, and
        uses (S, USES) that wait to be settled; due (tokens of a block,): scratch;
        ledgers (L,), each with block_table_rows (L, 3 LISTS), blocks (L, slots) and buckets (L, a power of two); of
        each trace-tree node block_base (M,): key of its first block, and node_blocks (M, 2): number of that on the
        path, and one behind its last one's; path (2, blocks of the longest path): scratch. Of LMCache's T tiers: writes
        (stores behind host memory, writes): rings; groups (L, slots); worker_stores (W, T): each worker's ledger in
        each tier;
        found_in (N, T): chunks that a request's look-up found there.
    residue (W, P): decoding requests by (tokens computed - clock) mod P.
    finish_heap, batch (W, max_running); evict_heap (trees, 2 leaves): request and node indices.
    launches (2 W,), prompts (2 W, max_running): SGLang's outstanding steps and the requests whose prompts they compute,
        in rows 2 w + serial of the step mod 2.
    ends (2 W, max_running + 1): SGLang without radix cache: tokens left and held of requests, by tokens left; scratch.
    queue_order (2, N): requests of the waiting queue being sorted; scratch. shuffle_rng (W,): streams of random orders.
    owner_head (M,), owner, next_owner: requests whose output covers a trace-tree node (see ``owners``).
    pledged (M,): pass in which a page in a trace-tree node was pledged (see ``trtllm.step``), empty elsewhere.
    stage_free_s (workers, lanes): when a stage of a pipeline has passed on all that it got. shared_s, lockstep_pad:
        what
        attention groups do together, by tokens of each, and tokens that a fullest batch is padded to.
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
        "standings": Array(STANDING, 1),
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
        "due": Array("i4", 1),
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
        "found_in": Array("i8", 2),
        "deepest_cached": Array("i4", 2),
        "ways": Array("i4", 2),
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
