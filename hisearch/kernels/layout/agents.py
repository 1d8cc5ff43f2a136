"""Arrays of agents: their calls, their objects, and the loads of these.

Notation
    N requests, A agents, O objects, W workers, G gates, H hints, M nodes of the trace's prefix tree, E entries
    object  data of an agent that must be in HBM while its call runs, such as an adapter or an index. It is loaded from
            host memory, never computed, and takes whole pages, of the KV pool or of a pool of its own
    copy    of an object, in host memory; if not all copies fit there, a disk has every object
    predicted call: an agent's place in the predicted order of calls, smaller is sooner, in the policy's unit
            (see ``predicted_calls``). Of an object or cached page that several agents use: the least of theirs
    entry   a place in ``least`` for an agent's predicted call, which counts towards something shared
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.kernels.core.handle import Array, Handle, Record

# When an object is loaded. AT_LAUNCH: by the step that needs it, which waits. ON_CALL: once its agent calls; other
# requests go first meanwhile. AHEAD: likewise, and before the call if the predicted call is near.
AT_LAUNCH, ON_CALL, AHEAD = 0, 1, 2
# Predicted calls. BY_USE: minus the end of the last call. BY_DURATION: likewise, but objects whose keeping until
# the next call costs more than loading are evicted first. BY_STEPS: whole steps to the next call. BY_DISTANCE: the
# exact prediction. BY_SLOT: none; objects lie in numbered slots, and the first one not needed by the batch is evicted.
BY_USE, BY_DURATION, BY_STEPS, BY_DISTANCE, BY_SLOT = 0, 1, 2, 3, 4
# Source of predictions: the trace's hints; of an agent's past gaps the mean, the last, or their moving average; the
# population's past gaps that were longer than the agent has been away; the trace itself.
HINTS, PAST, ORACLE, LAST, EWMA, SURVIVAL = 0, 1, 2, 3, 4, 5

#: Past gaps are counted by their length, GAPS_PER_OCTAVE bins for each doubling from GAP_LEAST_S on.
GAP_LEAST_S, GAPS_PER_OCTAVE, GAP_BINS = 1e-3, 4, 120

# Where an object is in HBM.
ABSENT, LOADING, RESIDENT = 0, 1, 2
# Whether host memory has a copy; it always has one if all copies fit. Dropped objects are on the disk.
COPIED, DROPPED, COMING = 0, 1, 2

# A worker's servers for agents, behind all others: AGENT_SERVERS w + one of these. LOADER: loads objects, one at a
# time. CLOCK: expires when a predicted call becomes near; that of worker 0 also when a hint is to be given. DISK: reads
# objects into host memory, one at a time.
LOADER, CLOCK, DISK = 0, 1, 2
AGENT_SERVERS = 3

#: Predicted call of an agent that is calling: this plus its rank, before all idle agents; and of data without a user.
CALLING = -1e9
NOBODY = 1e300

#: Weight of an object loaded ahead in the moving share of those that were used. Assumed.
AHEAD_EVIDENCE = 1.0 / 32

#: Settings.
POLICY = np.dtype(
    [
        ("loading", "i8"),
        ("order", "i8"),
        ("source", "i8"),
        ("by_frames", "i8"),  # 1 where the steps of hints are frames
        ("objects", "i8"),
        ("shared", "i8"),  # 1 where objects take pages of the KV pool
        ("preempts", "i8"),  # 1 where a load for a call interrupts a load ahead
        ("tested", "i8"),  # 1 where predictions are used only while they order calls better than last use does
        ("ahead_s", "f8"),  # how near a predicted call must be for a load ahead: in seconds, …
        ("ahead_steps", "f8"),  # … or in frames
        ("budget_pages", "i8"),  # most pages loaded ahead and not used yet, of objects …
        ("kv_budget_pages", "i8"),  # … and of KV from host memory; 0: no KV is loaded ahead
        ("host_pages", "i8"),  # host memory for copies of objects, with a disk behind it; 0: all copies fit
        ("noise", "f8"),  # of the predicted time to a call: standard deviation of its logarithm, and …
        ("bias", "f8"),  # … factor
    ],
    align=True,
)

AGENT = np.dtype(
    [
        ("predicted_call", "f8"),  # its predicted call as the policy orders it
        ("raw_prediction", "f8"),  # its predicted call from the newest prediction; NOBODY: not known
        ("duration_s", "f8"),  # from its last call's end to the predicted call
        ("end_s", "f8"),  # of its last call, -1 before the first
        ("gap_s", "f8"),  # of its past gaps: mean, last or moving average
        ("rank", "f8"),  # of its oldest call in flight among all arrivals
        ("gaps", "i8"),
        ("calls", "i4"),  # in flight
        ("worker", "i4"),  # of its newest call; before the first call the only worker, else -1
        ("trace_node", "i4"),  # trace node at the end of its newest call
        ("entry", "i4"),  # of the path to that node, -1: shared with nobody
        ("newest", "i4"),  # request of its newest call
        ("sought", "i4"),  # trace node whose path was fetched ahead from storage, -1: none
        ("next_call", "i4"),  # request, -1: none
        ("fresh_pages", "i8"),  # KV loaded ahead for its next call that is still in HBM
        ("predicted_at_s", "f8"),  # when its newest prediction was made
        ("sampled_at", "f8"),  # when its prediction was last sampled, in the unit of predictions; -1: no sample is open
        ("sampled_left", "f8"),  # from then to the predicted call
    ],
    align=True,
)

#: An object, independent of workers.
THING = np.dtype(
    [
        ("pages", "i8"),
        ("load_s", "f8"),
        ("read_s", "f8"),  # from the disk
        ("owner", "i4"),  # its only user, or -1
        ("first", "i4"),  # entries of its users
        ("after", "i4"),
    ],
    align=True,
)

#: An object at a worker.
OBJECT = np.dtype(
    [
        ("node", "i4"),  # its record among the nodes: parent is the object, next the worker, lock counts its calls
        ("where", "i4"),
        ("fresh", "i4"),  # 1 where it was loaded ahead and has not been used yet
        ("on_host", "i4"),  # COPIED, DROPPED, COMING
        ("copy_node", "i4"),  # the copy's record among the nodes, as ``node``, where copies may be dropped
        ("batch", "i8"),  # BY_SLOT: the newest batch with objects to load that needed it
    ],
    align=True,
)

#: A worker's loading.
LOADER_STATE = np.dtype(
    [
        ("at_launch_s", "f8"),  # time of the loads of the step being formed
        ("begun_s", "f8"),
        ("pool", "i8"),  # tree whose pages objects take
        ("object", "i8"),  # being loaded, or -1; O: KV
        ("agent", "i8"),  # that the load is for
        ("fresh_pages", "i8"),
        ("ahead_worth", "f8"),  # recent share of objects loaded ahead that were used
        ("loads", "i8"),  # ended loads; of them loads ahead; of these, objects used
        ("loads_ahead", "i8"),
        ("used_ahead", "i8"),
        ("preempted", "i8"),
        ("evicted", "i8"),
        ("object_calls", "i8"),  # calls that need objects, …
        ("resident_calls", "i8"),  # … and of them those with all resident when they arrived
        ("loaded_pages", "i8"),
        ("load_s", "f8"),  # of loads that have ended
        ("stall_s", "f8"),  # of the loads that a step waited for
        ("wasted_s", "f8"),  # of loads that were preempted
        ("peak_pages", "i8"),
        ("batch", "i8"),  # BY_SLOT: batches that had objects to load
        ("slots", "i8"),  # taken
        ("held", "i8"),  # objects of running calls, …
        ("lost", "i8"),  # … and of them those that are not resident
        # KV loaded ahead of its call.
        ("kv_node", "i4"),  # deepest node of the load under way, -1: none
        ("kv_anchor", "i4"),  # deepest node of its path in HBM
        ("kv_pages", "i8"),  # taken for it
        ("kv_fresh_pages", "i8"),
        ("kv_loads", "i8"),  # that have ended
        ("kv_loaded_pages", "i8"),  # that they added to the cache, …
        ("kv_used_pages", "i8"),  # … and calls then used
        ("kv_moved_pages", "i8"),  # transferred, including pages that others had loaded or computed meanwhile
        ("kv_load_s", "f8"),
        # KV fetched from storage ahead of its call.
        ("fetch", "i4"),  # under way, -1: none
        ("fetch_agent", "i4"),
        ("fetch_request", "i4"),  # request that the fetch is registered for
        ("fetches", "i8"),  # that read all that storage had
        ("fetches_called", "i8"),  # that their call took over
        ("fetches_stopped", "i8"),  # for another call
        ("fetched_pages", "i8"),  # that host memory did not have
        # Objects read from the disk into host memory.
        ("copies", "i8"),  # tree whose pages their copies take
        ("reading", "i8"),  # being read, or -1
        ("read_for", "i8"),  # agent
        ("read_ahead", "i8"),  # 1 where it began before its call
        ("read_begun_s", "f8"),
        ("reads", "i8"),  # ended reads, and of them reads ahead
        ("reads_ahead", "i8"),
        ("reads_preempted", "i8"),
        ("dropped", "i8"),  # copies
        ("read_s", "f8"),  # of reads that have ended
        ("read_wasted_s", "f8"),  # of reads that were preempted
        ("peak_copies", "i8"),  # pages
    ],
    align=True,
)

#: State of the population of agents.
POPULATION = np.dtype(
    [
        ("steps", "i8"),  # gates that have opened
        ("arrivals", "i8"),
        ("opened_s", "f8"),  # when the last gate opened
        ("step_s", "f8"),  # mean of a step
        ("step_count", "i8"),
        ("right", "f8"),  # recent share of pairs of agents ordered correctly: by prediction …
        ("right_by_use", "f8"),  # … and by last use
        ("pairs", "i8"),
        ("trusted", "i8"),  # 1 where predictions are used
        ("hints", "i8"),  # delayed, not given yet
        ("switches", "i8"),
        ("refreshed", "i8"),  # agent whose estimate was renewed last
        # What predictions are worth, see ``agents.worth``.
        ("compared", "i8"),  # pairs of agents, …
        ("ordered", "i8"),  # … ordered correctly by prediction, …
        ("ordered_by_use", "i8"),  # … and by last use
        ("predicted_calls", "i8"),  # calls with a prediction before them, …
        ("in_time", "i8"),  # … made before the call by at least what loading the agent's objects takes
        ("lead_s", "f8"),  # sum of the times between prediction and call
        ("samples", "i8"),  # predictions sampled whose call has come: …
        ("said_near", "i8"),  # … said to be near enough to load ahead, …
        ("came_near", "i8"),  # … that came as near, …
        ("near_as_said", "i8"),  # … both
        ("said", "f8"),  # sum of predicted times to the call, in the unit of predictions, …
        ("came", "f8"),  # … and of the times that it took
    ],
    align=True,
)


class Agents(Handle):
    """Arrays of agents; of length 0 or 1 where there are none.

    agent (N,): of each request.
    agents (A,), next_call (N,): the agent's next request. uses_begin (A + 1,), uses, uses_entry: objects of each agent,
        and its entries for those that others use too.
    things (O,), objects (W, O), loaders (W,). slots (W, S): the object in each slot, where they are numbered, or -1.
    line, line_slot (4 W, A), line_size (4 W,): queues of agents with pending loads (see ``load_queue``).
    owner, first, after (M,): a trace node's only agent, or -1; its place, and that after its last descendant.
    entries_begin, entries_end (M,): entries of a shared node. entry (N,): of each request's path. least (2 E,): minima.
    keys: eviction key of each node of a cache, where eviction is by predicted call.
    hint_begin (N + G + 2,): of each trigger, its first hint, the start's at 0. hint_agent, hint_after_s, hint_s,
        hint_steps (H,). hint_line (H,): delayed hints, a heap by hint_at_s (H,).
    gap_counts, gap_sums_s (GAP_BINS,): past gaps of all agents by length: how many, and their sum.
    rng, worth_rng (1,): random streams, of prediction errors and pairs, and of samples of predictions.
    """

    FIELDS: ClassVar[dict[str, Any]] = {
        "policy": Record(POLICY),
        "population": Record(POPULATION),
        "agent": Array("i4", 1),
        "agents": Array(AGENT, 1),
        "next_call": Array("i4", 1),
        "uses_begin": Array("i4", 1),
        "uses": Array("i4", 1),
        "uses_entry": Array("i4", 1),
        "things": Array(THING, 1),
        "objects": Array(OBJECT, 2),
        "loaders": Array(LOADER_STATE, 1),
        "slots": Array("i4", 2),
        "line": Array("i4", 2),
        "line_slot": Array("i4", 2),
        "line_size": Array("i8", 1),
        "owner": Array("i4", 1),
        "first": Array("i4", 1),
        "after": Array("i4", 1),
        "entries_begin": Array("i4", 1),
        "entries_end": Array("i4", 1),
        "entry": Array("i4", 1),
        "least": Array("f8", 1),
        "keys": Array("f8", 1),
        "holds": Array("i4", 1),
        "hint_begin": Array("i4", 1),
        "hint_agent": Array("i4", 1),
        "hint_after_s": Array("f8", 1),
        "hint_s": Array("f8", 1),
        "hint_steps": Array("f8", 1),
        "hint_line": Array("i4", 1),
        "hint_at_s": Array("f8", 1),
        "gap_counts": Array("i8", 1),
        "gap_sums_s": Array("f8", 1),
        "rng": Array("u8", 1),
        "worth_rng": Array("u8", 1),
    }


#: Operations. BEGIN: empty worker w's caches. ARRIVES: request r has reached worker w. READY: 1 where r's objects allow
#: its admission, 0 where other requests may go before it, FULL where none may. MISSING: tokens of the KV pool that its
#: absent objects would take. HOLD: lock its objects. LET_GO: unlock them. LOAD: load the absent ones in the step being
#: formed. ENDS: r has made its last token. DONE: a server for agents has finished a part. PASS: a pass begins.
#: TOO_LARGE: 1 where r can never be served. URGENT: the step being formed loads KV back. STEP: a step of kind r is
#: formed; used with numbered slots. YIELD: the step lacks KV pages; 1 where a load under way has given some back.
BEGIN, ARRIVES, READY, MISSING, HOLD, LET_GO, LOAD, ENDS, DONE, PASS, TOO_LARGE = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
URGENT, STEP, YIELD = 11, 12, 13
FULL = 2
