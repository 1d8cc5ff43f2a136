"""What the records of ``layout.sim`` have for SGLang."""

from __future__ import annotations

import numpy as np

from hisearch.base.engine_rules import fields_of

#: State of a request.
REQUEST: list[tuple[str, str]] = [
    ("joined_s", "f8"),  # end of the prefill after which it joined the decodes
    ("joined_clock", "i8"),  # the worker's clock before the first step in which it decodes
    ("fetch", "i4"),  # its fetch from storage, or -1
    ("capped", "i4"),  # 1 while it may generate more than admission reserves (see ``sglang.running``)
    ("cut_tokens", "i8"),  # of its prompt that are never computed (see ``sglang.admission.cut_off``)
    ("inserted_tokens", "i8"),  # of it that it has put into the tree since it was admitted
    ("missing_tokens", "i8"),  # tokens that its last attempt at admission had to compute, as the engine notes them
    ("queued_at", "i8"),  # moment at which it entered the waiting queue (see ``WORKER.moments``)
    ("goes", "i4"),  # 1 while it is being preempted
    ("draining", "i4"),  # 1 where it has left the batch while its last token is in flight
    ("exceeds", "i4"),  # 1 where its last step made more tokens than its output has (see ``sglang.drafts.decode``)
    ("prompt_step", "i4"),  # number of the step that last computed prompt tokens of it; -1 once it is retracted
]

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("ratio", "f8"),  # SGLang's new-token ratio
    ("decode_end_s", "f8"),  # end of the newest step in which requests decoded, of the one before it
    ("decode_before_s", "f8"),
    # Budget of the prefill pass: tokens set aside, taken, left of both limits, and taken of the window's pool.
    ("reserved_tokens", "f8"),
    ("taken_tokens", "i8"),
    ("input_left", "i8"),
    ("chunk_left", "i8"),
    ("window_taken_tokens", "i8"),
    # Outputs to come (see ``sglang.running``).
    ("horizon_tokens", "i8"),
    ("sure_horizon_tokens", "i8"),
    ("sure", "i4"),  # decoding requests whose outputs to come are reserved in full
    ("sure_capped", "i4"),  # of those, capped ones
    ("finished_pending_tokens", "i8"),
    ("next_uncapped", "i8"),
    ("front_orders", "i8"),  # order of requests that join at the front, decreasing from 0
    ("chunked", "i4"),  # request whose prompt is unfinished, or -1
    ("joins", "i4"),  # used entries of Sim.joins
    ("finished_pending", "i4"),  # in the running list, known to have finished, not yet filtered out
    ("finished_pending_head", "i4"),  # their list, by next_aside
    ("capped", "i4"),  # decoding requests that are capped
    ("ends", "i4"),  # ends collected in this pass, -1 before the first admission
    ("last", "i4"),  # kind of the batch formed by the last pass, 0 if it formed none
    ("held_head", "i4"),  # requests that arrived and were not received yet (see ``inbox``), by next
    ("held_tail", "i4"),
    ("draining_head", "i4"),  # draining requests that decoded in the step in flight, by next_aside, in batch order
    ("draining_tail", "i4"),
    ("preempted_head", "i4"),  # requests that this pass has preempted, by next
    ("preempted_tail", "i4"),
    ("moments", "i8"),  # different times of passes so far
    ("moment_s", "f8"),  # the latest of them
    ("touches", "i8"),  # passes that may have touched the prefixes of waiting requests
    ("skipped", "i8"),  # weight of the passes since requests were last received
    # Orders that count service: requests that entered the queue of a tenant with nothing in it, largest counter right
    # after an admission, the tenant that was the last to have its last waiting request admitted, or -1.
    ("entries", "i8"),
    ("admitted_counter", "i8"),
    ("last_tenant", "i4"),
]

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("mixed_chunk", "i8"),  # running requests decode along with prefills
    ("receive_interval", "i8"),  # weight of passes between two receptions of requests (see ``inbox``)
    ("conservativeness", "f8"),
    ("max_prefill_tokens", "i8"),
    ("max_prefills", "i8"),  # most prompts of a prefill pass
    ("preempts", "i8"),  # priority scheduling: urgent requests preempt running ones
    ("priority_sign", "i8"),  # 1: lower priority values are more urgent; -1: higher ones
    ("preemption_threshold", "i8"),
    ("component", "i8"),  # what has a pool besides full attention's (see ``layout.components``)
    ("other_capacity", "i8"),  # of that pool, in its units
    ("window_tokens", "i8"),  # that a layer with a window sees besides the newest; 0: there is no pool for windows
    ("state_slots", "i8"),  # states of a request besides its own, between which it keeps those for the tree; 0: none
    ("state_grid_tokens", "i8"),  # prompts leave states for the tree behind multiples of so many tokens
    ("state_interval_tokens", "i8"),  # decodes at multiples of so many
    ("counts_service", "i8"),  # 1: the order of the queue goes by what tenants have received (see ``fair_share``)
    ("kernel_compile_s", "f8"),  # for which a step waits whose number of prompt tokens is new; 0: none
    ("keys_pairs", "i8"),  # drafted tokens of a head: keys of the tree are pairs of tokens, one less than tokens
    *fields_of("sglang"),  # whether each dated rule holds
]

#: A request in a waiting queue that is not simply fcfs (see ``sglang.order``).
QUEUED = np.dtype(
    [
        ("key", "i8"),  # lowest first
        ("stem", "i4"),  # lpm: trace node of the prefix by which requests are grouped, or -1
        ("tenant", "i4"),  # orders that count service: place of its tenant among those of the trace
        ("entered", "i4"),  # likewise: 1 once a pass has seen it in the queue
    ],
    align=True,
)

#: A tenant on a worker, where the order of the queue counts service (see ``traffic.fair_share``).
TENANT = np.dtype(
    [
        ("charged", "i8"),  # its counter, less 2 per decoding request and tick of the worker's clock
        ("ahead", "i8"),  # counter after those of its waiting requests that a sort has come to; scratch
        ("since", "i8"),  # which entry into the queue last was its first waiting request
        ("decoding", "i4"),
        ("waiting", "i4"),
    ],
    align=True,
)

#: Requests that joined the decodes since the newest decode step, by the end of their prefill.
JOIN = np.dtype([("at_s", "f8"), ("requests", "i8")], align=True)
