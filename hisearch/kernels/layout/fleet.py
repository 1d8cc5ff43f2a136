"""The arrays that the pools of a deployment share: arrivals, the router's view of the workers, what is handed over.

Notation
    N requests, M nodes of the trace's prefix tree, P pools, W workers of all pools: *members*
    model   what a request is for; pools serve one each, and have members on the routes of that one alone
    front   members that take arriving requests for a model: those of unified and of prefill pools
    back    members that take over from prefill pools: those of decode pools
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.base.policies import ROUTERS
from hisearch.kernels.core.handle import Array, Handle, Record

#: Roles of a pool: it does both; it computes prompts and makes first tokens; it goes on from there.
UNIFIED, PREFILL, DECODE = 0, 1, 2

#: Sides of a model; rows of Fleet.routes are ``SIDES * model + side``.
FRONT, BACK = 0, 1
SIDES = 2

# Admission rules of the front.
ADMIT_ALL, QUEUE_CAP, TOKEN_BUCKET, SLO_SHEDDING = 0, 1, 2, 3

# States of a member: not there (yet, or any more); takes requests; finishes what it has; begins to run.
ABSENT, UP, DRAINING, STARTING = 0, 1, 2, 3

# What befalls a member.
COMES_UP, IS_DRAINED, DIES, HOST_DIES = 0, 1, 2, 3

# What an autoscaler looks at: requests in flight; seconds that prompts wait for their first token.
BY_REQUESTS, BY_WAIT = 0, 1

#: A worker as the router knows it.
MEMBER = np.dtype(
    [
        ("weight", "f8"),  # share of the load that it is fit for; 1 for the fittest of its model
        ("prefill_tokens_per_s", "f8"),  # that it can compute
        ("price", "f8"),  # US dollars an hour
        ("begun_s", "f8"),  # when it was started, and is paid for from; NaN: never
        ("up_s", "f8"),  # when it takes, or began to take, requests
        ("gone_s", "f8"),  # when it had drained, or died; NaN: not
        ("inflight_tokens", "i8"),  # prompt tokens of its requests in flight
        ("inflight_requests", "i8"),
        ("outstanding_tokens", "i8"),  # likewise, prompts without a first token alone
        ("prefix_index_tokens", "i8"),  # cache_aware: prompt tokens that it is believed to hold
        ("taken", "i8"),  # requests sent to it
        ("pool", "i4"),
        ("index", "i4"),  # among its pool's workers
        ("state", "i4"),
        ("starts", "i4"),  # 1: it is up from the beginning
        ("died", "i4"),  # 1: it is gone, with all that it held
        ("route", "i4"),  # row of Fleet.routes
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

#: Who a router chooses among, by what rule, and its state.
ROUTE = np.dtype(
    [
        ("policy", "i8"),  # code of ``base.policies.ROUTERS``
        ("first", "i8"),  # its members: so many from here on
        ("members", "i8"),
        ("ups", "i8"),  # of them, those that take requests: the first so many of Fleet.up from ``first`` on, ascending
        ("word", "i8"),  # its members' bits: so many words of Fleet.prefix_index from here on
        ("words", "i8"),
        ("window_first", "i8"),  # its places in Fleet.window: so many from here on
        ("window_places", "i8"),
        # What router policies are told and remember.
        *((parameter.name, parameter.dtype) for parameter in ROUTERS.parameters().values()),
        *((state.name, state.dtype) for policy in ROUTERS.values() for state in policy.state),
    ],
    align=True,
)

# Where a request is between a prefill and a decode worker: nowhere; both wait for room on the decode worker; its prompt
# is being computed; it waits for room, its prompt computed; its KV is on the way; it is there.
NOT_HANDED, RESERVING, COMPUTING, COMPUTED, MOVING, ARRIVED = 0, 1, 2, 3, 4, 5

# What is due: it is sent to its prefill worker, to its decode worker; its KV has arrived; it is tried again; its prompt
# has been computed for a decode worker that has died.
TO_PREFILL, TO_DECODE, ARRIVAL, RETRY, ORPHANED = 0, 1, 2, 3, 4

#: A request that a decode worker takes over from a prefill worker, or that its worker has lost.
HAND = np.dtype(
    [
        ("due_s", "f8"),
        ("ready_s", "f8"),  # when its KV begins to be there for the taking
        ("tokens", "i8"),  # that have to be moved
        ("source", "i4"),  # members
        ("target", "i4"),
        ("state", "i4"),
        ("due", "i4"),
        ("retries", "i4"),
    ],
    align=True,
)

#: What a decode worker has made of a request, on its way to storage (see ``output_write_back``).
WRITE_BACK = np.dtype(
    [
        ("copied_s", "f8"),  # when host memory has it
        ("begin", "i8"),  # its pages: from token to token, both multiples of a page
        ("end", "i8"),
        ("written", "i8"),  # up to where storage has it
        ("held_pages", "i8"),  # of HBM, until it has been copied
        ("next", "i4"),  # behind it in a server's line
    ],
    align=True,
)

#: The network of a worker's accelerators, or of an attention group's, out or in. It serves one transfer after another.
NIC = np.dtype(
    [
        ("base_s", "f8"),
        ("s_per_token", "f8"),  # of what one accelerator has of a token's KV, over its port
        ("ranks", "f8"),  # accelerators
        ("last_tokens", "f8"),  # out, pipelined: most tokens still to be sent when the prompt has been computed
        ("free_s", "f8"),
        ("busy_s", "f8"),
        ("tokens", "i8"),
        ("transfers", "i8"),
    ],
    align=True,
)

#: How prefill workers hand over.
TRANSFER = np.dtype(
    [
        ("reserve_first", "i8"),  # 1: prompts are computed once the decode worker has room for them (SGLang)
        ("pipelined", "i8"),  # 1: what is computed is sent while the rest is
        ("layer_share", "f8"),  # pipelined: share of what the last step computes that is still to be sent when it ends
        ("forward_s", "f8"),  # from the prefill worker's answer to the decode worker's queue
        ("local_tokens", "i8"),  # a prompt with fewer tokens to compute stays on the decode worker; 0: none
        ("reserved_tokens", "i8"),  # SGLang: kept free for each request on a decode worker
    ],
    align=True,
)

#: Something that is known beforehand to befall a member.
INCIDENT = np.dtype([("at_s", "f8"), ("member", "i4"), ("kind", "i4")], align=True)

#: An autoscaler. A worker that it starts is a member that was not there before: its caches are cold.
SCALER = np.dtype(
    [
        ("period_s", "f8"),
        ("look_s", "f8"),  # when it looks next
        ("target", "f8"),  # of what it looks at, for each worker
        ("startup_s", "f8"),
        ("calm_s", "f8"),  # it gives workers up only where they have been too many for so long
        ("many_s", "f8"),  # since when they are too many; infinity: they are not
        ("first", "i8"),  # its members: so many from here on
        ("members", "i8"),
        ("used", "i8"),  # of them, those that have ever been started
        ("ready", "i8"),  # of those, the ones that have come up since
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
        ("retry_s", "f8"),  # after which a request whose worker has died is tried again
        ("retries", "i8"),  # so many times at most
        ("admission", "i8"),
        ("queue_cap", "i8"),  # requests in flight for each member that is up
        ("tokens_rps", "f8"),  # token bucket: rate and depth
        ("tokens_burst", "f8"),
        ("shed_s", "f8"),  # slo_shedding: longest wait for a first token that is let in
        ("tokens", "f8"),  # token bucket: what is in it, and since when
        ("tokens_s", "f8"),
    ],
    align=True,
)

# Columns of Fleet.counters. NEXT_OPEN: first turns delivered; PENDING: follow-ups in the heap; LATE: requests whose
# first token was late; EVENTS: handled by the event loop; DUE: size of the heap of Fleet.due; INCIDENTS: those that
# have happened; SHORT: 1 where an autoscaler has no member left to start, which voids the run; POOLED: requests of
# Fleet.pool that have come.
NEXT_OPEN, PENDING, LATE, EVENTS, DUE, INCIDENTS, SHORT, POOLED = 0, 1, 2, 3, 4, 5, 6, 7
COUNTERS = 8


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
    """What all pools share.

    sims (P,): addresses of the pools' ``layout.Sim`` (see ``pools``). next_s, next_kind (P,): of each pool's next
        event (see ``cluster``).
    front_of (N,): row of the front of each request's model; of length 0 where there is but one model.
    arrival_s (N,): at the router; NaN before it is known. sent_to (N,): member, or -1. pending (N,): a heap of
        follow-ups by arrival; open_loop (N0,): first turns in order of arrival. follower_head, follower_next (N,): who
        waits for whom, as linked lists. pool: requests that come one after the other, each when any request has ended.
    gate (N,): that waits for a request's end, or -1; gates (G,), behind_next (N,): who follows when all of a gate's
        requests have ended; G is 0 where there are none.
    routes (2 models,): see ROUTE. members (W,): those of all fronts, then of all backs. up (W,): see ROUTE.
    keys, winners (4 routes, 2 * a power of two not below W): trees by which the least and the most loaded members are
        found (see ``tournament``), four rows a route.
    prefix_index (M, words): bits of the workers believed, or known, to hold a trace-tree node; used_s (M, W): when it
        was
        last asked of them, of length 0 where nothing is trimmed.
    affinity (N,): consistent_hash: where on the ring a request's key lies; ring (points,), ring_member (points,): the
        members' points on it, ascending.
    window (2 N,): bucket: requests sent, in order, each front's by themselves; sent_s (2 N,): when; window_member
        (2 N,): to whom; bounds (W,): longest prompt of each bucket; lengths (2 N,): scratch.
    transfer, hands (N,), due (N,), nics (2 W,): how requests are handed over; hands and due of length 1 where none is.
        due: those for which something is due, by time. nics: each member's, or each attention group's of it, out and
        in.
    output_write_back (N,): what decode workers send to storage; of length 1 where none does.
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
        "sent_to": Array("i4", 1),
        "pending": Array(PENDING_FOLLOW_UP, 1),
        "open_loop": Array("i4", 1),
        "follower_head": Array("i4", 1),
        "follower_next": Array("i4", 1),
        "pool": Array("i4", 1),
        "gate": Array("i4", 1),
        "gates": Array(GATE, 1),
        "behind_next": Array("i4", 1),
        "routes": Array(ROUTE, 1),
        "members": Array(MEMBER, 1),
        "up": Array("i4", 1),
        "keys": Array("f8", 2),
        "winners": Array("i4", 2),
        "prefix_index": Array("u8", 2),
        "used_s": Array("f8", 2),
        "affinity": Array("u8", 1),
        "ring": Array("u8", 1),
        "ring_member": Array("i4", 1),
        "window": Array("i4", 1),
        "window_member": Array("i4", 1),
        "sent_s": Array("f8", 1),
        "bounds": Array("i8", 1),
        "lengths": Array("i8", 1),
        "transfer": Record(TRANSFER),
        "hands": Array(HAND, 1),
        "due": Array("i4", 1),
        "nics": Array(NIC, 1),
        "output_write_back": Array(WRITE_BACK, 1),
        "incidents": Array(INCIDENT, 1),
        "scalers": Array(SCALER, 1),
        "rng": Array("u8", 2),
        "counters": Array("i8", 1),
    }
