"""Arrays that the pools of a deployment share: arrivals, the router's view of the workers, KV transfers.

Notation
    N requests, M nodes of the trace's prefix tree, P pools, W workers of all pools: *members*
    model   the model that a request is for; a pool serves one model, and its members are on that model's routes only
    front   members that take arriving requests for a model: those of unified and of prefill pools
    back    members that take requests over from prefill pools: those of decode pools
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.base.policies import ADMISSIONS, ROUTERS
from hisearch.base.router_rules import router_fields
from hisearch.kernels.core.handle import Array, Handle, Record

#: Roles of a pool: prefill and decode; prefill up to the first token; decode from there.
UNIFIED, PREFILL, DECODE = 0, 1, 2

#: Sides of a model; rows of Fleet.routes are ``SIDES * model + side``.
FRONT, BACK = 0, 1
SIDES = 2

# States of a member: not there (yet, or any more); takes requests; only finishes its requests; starts up.
ABSENT, UP, DRAINING, STARTING = 0, 1, 2, 3

# Kinds of incidents of a member.
COMES_UP, IS_DRAINED, DIES, HOST_DIES = 0, 1, 2, 3

#: A worker as the router knows it.
MEMBER = np.dtype(
    [
        ("weight", "f8"),  # relative capacity; 1 for the fastest member of its model
        ("prefill_tokens_per_s", "f8"),  # that it can compute
        ("price", "f8"),  # US dollars per hour
        ("begun_s", "f8"),  # when it was started, and its cost begins; NaN: never
        ("up_s", "f8"),  # when it takes, or began to take, requests
        ("gone_s", "f8"),  # when it had drained, or died; NaN: not
        ("inflight_tokens", "i8"),  # prompt tokens of its requests in flight
        ("inflight_requests", "i8"),
        ("streaming", "i8"),  # disaggregated: requests with an answer under way, from it or from its decode worker
        ("outstanding_tokens", "i8"),  # likewise, only of prompts without a first token
        ("prefix_index_tokens", "i8"),  # cache_aware: prompt tokens of it in the router's tree
        ("taken", "i8"),  # requests sent to it
        # In an index of blocks (see ``block_index``): blocks of it; of the prompt now being routed.
        ("index_blocks", "i8"),
        ("matched_blocks", "i8"),
        ("cut_blocks", "i8"),  # of cut_node, those from its beginning that are gone
        ("cut_node", "i4"),  # trace node of which a part is gone; 0: none
        ("first_send", "i4"),  # the earliest that the index remembers, and the latest; 0: none
        ("last_send", "i4"),
        ("pool", "i4"),
        ("index", "i4"),  # among its pool's workers
        ("state", "i4"),
        ("starts", "i4"),  # 1: it is up from the beginning
        ("died", "i4"),  # 1: it is gone, and its KV lost
        ("route", "i4"),  # row of Fleet.routes
        ("place", "i4"),  # in its router's order of workers, from 0; see Fleet.at_place
        ("nic", "i4"),  # first of its rows of Fleet.nics
        # What router policies keep of each member.
        *((state.name, state.dtype) for policy in ROUTERS.values() for state in policy.member_state),
    ],
    align=True,
)

#: A follow-up whose arrival at the router is known.
PENDING_FOLLOW_UP = np.dtype([("arrival_s", "f8"), ("request", "i8")], align=True)

#: A gate: requests that have not ended, the first behind it.
GATE = np.dtype([("left", "i4"), ("head", "i4")], align=True)

#: cache_aware: the node of the router's own tree that a trace node is part of. Its data is that of its last trace node.
TREE_NODE = np.dtype(
    [
        ("bottom", "i4"),  # the last trace node of it; -1: the trace node is not in the tree
        ("name", "i4"),  # of a last trace node: place of the worker that matches go to; see ``router_tree.DRAWN``
    ],
    align=True,
)

#: cache_aware: what a worker that holds a node of the router's tree has of it.
TREE_END = np.dtype(
    [
        ("stamp", "i4"),  # clock at which the node was stamped for it; 0: never
        ("children", "i4"),  # nodes right below that it holds as well
        ("row", "i4"),  # of Fleet.tree_ends: row of Fleet.shared_ends that has all this instead; 0: one worker holds it
    ],
    align=True,
)

#: cache_aware: a stamp, in a worker's line of them. next: the one after it; 0: none.
TREE_STAMP = np.dtype([("at", "i4"), ("node", "i4"), ("next", "i4")], align=True)

#: A request that was sent, for indexes that forget the prompts that a member was sent first. next: the one sent to the
#: same member after it; 0: none. Sends are numbered from 1.
SEND = np.dtype([("at_s", "f8"), ("request", "i4"), ("next", "i4")], align=True)

#: dynamo_kv: prompt tokens that a request counts for, until its first token at ``at_s`` (infinity: not known yet).
#: next: in its member's list of those with a known first token the one after it, plus 1; 0: none.
UNCACHED = np.dtype([("at_s", "f8"), ("tokens", "i8"), ("next", "i4")], align=True)

#: manual: a session. Where it was sent (-1: it is new), its requests in flight there, and when it was last heard of.
KEY = np.dtype([("place", "i4"), ("requests", "i4"), ("used_s", "f8")], align=True)

#: The members that a router chooses among, its policy, and its state.
ROUTE = np.dtype(
    [
        ("policy", "i8"),  # code of ``base.policies.ROUTERS``
        ("first", "i8"),  # its members: consecutive ones from here on
        ("members", "i8"),
        ("ups", "i8"),  # its members that take requests; these are in Fleet.up from ``first`` on, in the router's order
        ("disaggregated", "i8"),  # 1: its members are prefill or decode workers
        ("word", "i8"),  # its members' bits: ``words`` words of Fleet.prefix_index from here on
        ("words", "i8"),
        ("window_first", "i8"),  # its places in Fleet.window: ``window_places`` from here on
        ("window_places", "i8"),
        ("drawn", "i8"),  # place that a recording says was drawn, and the next; -1: draws are the stream's
        ("drawn_next", "i8"),
        ("draws", "i8"),  # choices left to chance
        ("unseen", "i8"),  # draws that no choice showed at once
        *router_fields(),  # rules of its router's release (1: it holds)
        # What router policies are told and remember.
        *((parameter.name, parameter.dtype) for parameter in ROUTERS.parameters().values()),
        *((state.name, state.dtype) for policy in ROUTERS.values() for state in policy.state),
    ],
    align=True,
)

# State of a request between a prefill and a decode worker: none; it waits for pages on the decode worker before its
# prompt is computed; its prompt is being computed; its prompt is computed, and it waits for pages on the decode worker;
# its KV is being transferred; its KV has arrived.
NO_TRANSFER, RESERVING, COMPUTING, COMPUTED, MOVING, ARRIVED = 0, 1, 2, 3, 4, 5

# Scheduled actions: send a request to its prefill worker, to its decode worker; its KV arrives; retry it; its prompt
# has been computed for a decode worker that has died.
TO_PREFILL, TO_DECODE, ARRIVAL, RETRY, ORPHANED = 0, 1, 2, 3, 4

#: A request that a decode worker takes over from a prefill worker, or that its worker has lost.
KV_TRANSFER = np.dtype(
    [
        ("action_s", "f8"),  # time of its scheduled action
        ("ready_s", "f8"),  # when the first of its KV can be sent
        ("tokens", "i8"),  # to be transferred
        ("source", "i4"),  # members
        ("target", "i4"),
        ("state", "i4"),
        ("action", "i4"),  # what is scheduled for it
        ("retries", "i4"),
    ],
    align=True,
)

#: Output of a request that a decode worker writes back to storage (see ``output_write_back``).
WRITE_BACK = np.dtype(
    [
        ("copied_s", "f8"),  # when host memory has it
        ("begin", "i8"),  # its pages: from token to token, both multiples of a page
        ("end", "i8"),
        ("written", "i8"),  # up to where storage has it
        ("held_pages", "i8"),  # of HBM, until it has been copied
        ("next", "i4"),  # the next one in a server's queue
    ],
    align=True,
)

#: The network of a worker's accelerators, or of a DP rank's, out or in. It serves one transfer after another.
NIC = np.dtype(
    [
        ("base_s", "f8"),
        ("s_per_token", "f8"),  # of one accelerator's share of a token's KV, over its port
        ("slot_s_per_token", "f8"),  # likewise over its own slot; 0: KV goes another way
        ("copies", "i8"),  # whether copies to host memory use the slot too
        ("shares", "i8"),  # whether it passes what slots share on the way to the network (Sim.ports)
        ("ranks", "f8"),  # accelerators
        ("last_tokens", "f8"),  # out, pipelined: most tokens still to be sent when the prompt has been computed
        ("free_s", "f8"),
        ("busy_s", "f8"),
        ("tokens", "i8"),
        ("transfers", "i8"),
    ],
    align=True,
)

#: How prefill workers transfer KV.
TRANSFER = np.dtype(
    [
        ("reserve_first", "i8"),  # 1: prompts are computed once the decode worker has reserved pages for them (SGLang)
        ("pipelined", "i8"),  # 1: computed KV is sent while the rest is computed
        ("layer_share", "f8"),  # pipelined: share of the last step's KV that is still to be sent when the step ends
        ("forward_s", "f8"),  # from the end of the prefill to the decode worker's queue
        ("local_tokens", "i8"),  # a prompt with fewer tokens to compute stays on the decode worker; 0: none
        ("reserved_tokens", "i8"),  # SGLang: kept free for each request on a decode worker
    ],
    align=True,
)

#: A planned event of a member, such as its start or its death.
INCIDENT = np.dtype([("at_s", "f8"), ("member", "i4"), ("kind", "i4")], align=True)

#: An autoscaler. A worker that it starts is a new member with cold caches.
SCALER = np.dtype(
    [
        ("period_s", "f8"),
        ("look_s", "f8"),  # when it looks next
        ("target", "f8"),  # of its metric, per worker
        ("startup_s", "f8"),
        ("calm_s", "f8"),  # it stops workers only if there have been too many for this long
        ("many_s", "f8"),  # since when there are too many workers; infinity: there are not
        ("first", "i8"),  # its members: consecutive ones from here on
        ("members", "i8"),
        ("used", "i8"),  # members ever started
        ("ready", "i8"),  # of these, those that have come up
        ("least", "i8"),  # workers
        ("most", "i8"),
        ("metric", "i8"),
    ],
    align=True,
)

#: Settings that hold for all pools.
FLEET = np.dtype(
    [
        ("pools", "i8"),
        ("horizon_s", "f8"),
        ("late_s", "f8"),  # a first token is late where it takes longer than this
        ("late_requests", "i8"),  # once more requests than this were late, the run stops
        ("retry_s", "f8"),  # after which a request whose worker has died is retried
        ("retries", "i8"),  # at most
        ("scrape_s", "f8"),  # when the next router gets its workers' metrics; infinity: none does
        ("admission", "i8"),  # code of ``base.policies.ADMISSIONS``
        # What admission policies are told and remember.
        *((parameter.name, parameter.dtype) for parameter in ADMISSIONS.parameters().values()),
        *((state.name, state.dtype) for policy in ADMISSIONS.values() for state in policy.state),
    ],
    align=True,
)

# Columns of Fleet.counters. NEXT_OPEN: first turns delivered; PENDING: follow-ups in the heap; LATE: requests whose
# first token was late; EVENTS: handled by the event loop; ACTIONS: size of the heap of Fleet.action_heap; INCIDENTS:
# those that have happened; SHORT: 1 where an autoscaler has no member left to start, which voids the run; POOLED:
# requests of Fleet.pool that have arrived; SENDS: requests in Fleet.sends; TREE_STAMPS, SHARED_ENDS: those in use of
# Fleet.tree_stamps and Fleet.shared_ends.
NEXT_OPEN, PENDING, LATE, EVENTS, ACTIONS, INCIDENTS, SHORT, POOLED, SENDS = 0, 1, 2, 3, 4, 5, 6, 7, 8
TREE_STAMPS, SHARED_ENDS = 9, 10
COUNTERS = 11


class Trace(Handle):
    """``traces.compiled.TraceArrays`` for kernels; read-only."""

    FIELDS: ClassVar[dict[str, Any]] = {
        "input_tokens": Array("i8", 1),
        "output_tokens": Array("i8", 1),
        "max_output_tokens": Array("i8", 1),
        "think_s": Array("f8", 1),
        "priority": Array("i4", 1),
        "prompt_node": Array("i4", 1),
        "output_node": Array("i4", 1),
        "parent": Array("i4", 1),
        "start_tokens": Array("i8", 1),
        "end_tokens": Array("i8", 1),
    }


class Fleet(Handle):
    """Arrays that all pools share.

    sims (P,): addresses of the pools' ``layout.Sim`` (see ``pools``). next_s, next_kind (P,): of each pool's next
        event (see ``cluster``).
    front_of (N,): row of the front of each request's model; of length 0 with a single model.
    arrival_s (N,): at the router; NaN before it is known. front_end_s (N,): between a request's sending and its
        arrival; of a follow-up yet to be sent, if it meets nobody; of length 0 without a front end. sent_to (N,):
        member, or -1. pending (N,): a heap of follow-ups by arrival; open_loop (N0,): first turns in order of arrival.
        follower_head, follower_next (N,): linked lists of the requests that wait for a request. pool: requests that
        arrive one after another, each when any request has ended.
    gate (M,): that waits for a request's end, or -1, and from N on further ones; gate_next (M,): where a request's next
        one is, or -1. gates (G,), behind_next (N,): requests that follow when all of a gate's requests have ended. M
        and G are 0 where there are none.
    routes (2 models,): see ROUTE. members (W,): those of all fronts, then of all backs. up (W,): see ROUTE. at_place
        (W,): members in their routers' order: that at place p of a route is ``at_place[route.first + p]``. candidates
        (W,): scratch, places among which a draw is made.
    scores (W,): scratch, of the members that are up, ``Fleet.up`` alike. path (M,): scratch, of prefix_cache.
    keys, winners (4 routes, 2 * a power of two not below W): tournament trees of the least and the most loaded members
        (see ``tournament``), four rows per route.
    prefix_index (M, words): bits of the places whose members hold a trace node, approximate or exact. tree (M, models):
        see TREE_NODE, of length 1 without cache_aware. tree_ends (M, models), shared_ends (M models + 1, W of fronts),
        tree_stamps: see TREE_END, TREE_STAMP; of length 0 where no tree can grow to be trimmed.
    stamps (M, W of fronts): of indexes of blocks the send that last touched a node; of length 0 without any.
    sends: see SEND; of length 1 without an index of blocks. active (M, W of fronts): dynamo_kv: requests in flight on a
        worker whose prompts have a node, of length 0 without it; uncached (N,): see UNCACHED.
    affinity (N,): consistent_hash: where on the ring a request's key lies; consistent_hashing: the key's hash. ring
        (points,), ring_member (points,): the members' points on it, ascending.
    key (N,): manual: a request's session, a column of keys_known (routes, sessions), see KEY; empty without manual.
    window (2 N,): bucket: requests sent, in order, separately for each front; sent_s (2 N,): when; window_member
        (2 N,): to which member; bounds (W,): longest prompt of each bucket; lengths (2 N,): scratch.
    transfer, kv_transfers (N,), action_heap (N,), nics (2 W,): KV transfers; kv_transfers and action_heap of length 1
        without any. due: requests with
        a scheduled action, by time. nics: of each member, or of each of its DP ranks, out and in.
    output_write_back (N,): output write-back of decode workers; of length 1 where there is none.
    incidents: in order of time. scalers: of pools that have one.
    rng (routes,): a stream for each.
    """

    FIELDS: ClassVar[dict[str, Any]] = {
        "config": Record(FLEET),
        "trace": Trace,
        "sims": Array("i8", 1),
        "next_s": Array("f8", 1),
        "next_kind": Array("i8", 1),
        "front_of": Array("i4", 1),
        "arrival_s": Array("f8", 1),
        "front_end_s": Array("f8", 1),
        "sent_to": Array("i4", 1),
        "pending": Array(PENDING_FOLLOW_UP, 1),
        "open_loop": Array("i4", 1),
        "follower_head": Array("i4", 1),
        "follower_next": Array("i4", 1),
        "pool": Array("i4", 1),
        "gate": Array("i4", 1),
        "gates": Array(GATE, 1),
        "behind_next": Array("i4", 1),
        "gate_next": Array("i4", 1),
        "routes": Array(ROUTE, 1),
        "members": Array(MEMBER, 1),
        "up": Array("i4", 1),
        "keys": Array("f8", 2),
        "winners": Array("i4", 2),
        "at_place": Array("i4", 1),
        "candidates": Array("i8", 1),
        "scores": Array("f8", 1),
        "path": Array("i4", 1),
        "prefix_index": Array("u8", 2),
        "tree": Array(TREE_NODE, 2),
        "tree_ends": Array(TREE_END, 2),
        "shared_ends": Array(TREE_END, 2),
        "tree_stamps": Array(TREE_STAMP, 1),
        "stamps": Array("i4", 2),
        "sends": Array(SEND, 1),
        "active": Array("i4", 2),
        "uncached": Array(UNCACHED, 1),
        "affinity": Array("u8", 1),
        "ring": Array("u8", 1),
        "ring_member": Array("i4", 1),
        "key": Array("i4", 1),
        "keys_known": Array(KEY, 2),
        "window": Array("i4", 1),
        "window_member": Array("i4", 1),
        "sent_s": Array("f8", 1),
        "bounds": Array("i8", 1),
        "lengths": Array("i8", 1),
        "transfer": Record(TRANSFER),
        "kv_transfers": Array(KV_TRANSFER, 1),
        "action_heap": Array("i4", 1),
        "nics": Array(NIC, 1),
        "output_write_back": Array(WRITE_BACK, 1),
        "incidents": Array(INCIDENT, 1),
        "scalers": Array(SCALER, 1),
        "rng": Array("u8", 2),
        "counters": Array("i8", 1),
    }
