"""Arrays of LoRA adapters: which each request asks for, and where a worker has them.

Notation
    N requests, K adapters, W workers, S slots of a worker in HBM
    adapter K   the base model, where the engine counts it as an adapter (SGLang)
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.kernels.core.handle import Array, Handle, Record

#: Settings; seconds and joules are those of a whole worker.
POLICY = np.dtype(
    [
        ("slots", "i8"),  # adapters that a batch may have; 0: no adapters are served
        ("adapters", "i8"),  # K
        ("copies", "i8"),  # adapters that host memory holds, with a disk behind it; 0: all of them, from the beginning
        ("base_slot", "i8"),  # 1 where the base model takes a slot of its own
        ("fifo", "i8"),  # 1 where the adapter that came first goes first; else the least recently used
        ("overlaps", "i8"),  # 1 where adapters are copied beside steps, on a stream of their own
        ("drain_wait_s", "f8"),  # wait after which others make room for an adapter; 0: never
        # What adapters add to a step: if it has none, if it has any, for each of them, for each token of theirs.
        ("base_s", "f8"),
        ("step_s", "f8"),
        ("adapter_s", "f8"),
        ("token_s", "f8"),
        ("adapter_j", "f8"),
        ("token_j", "f8"),
    ],
    align=True,
)

#: An adapter, independent of workers: seconds of a copy from host memory into a slot, and of a read from the disk.
ADAPTER = np.dtype([("load_s", "f8"), ("read_s", "f8")], align=True)

#: An adapter at a worker.
PLACE = np.dtype(
    [
        ("slot", "i8"),  # -1: none
        ("used", "i8"),  # tick of its last use, or of its first since it was evicted (fifo); 0: not known
        ("copied", "i8"),  # tick of the last use of its copy in host memory; 0: there is none
        ("counted_in", "i8"),  # the newest count, of a pass or step, that has it
        ("ready_s", "f8"),  # with overlaps: end of its copy under way; -1: none is
        ("wanted", "i8"),  # the newest fetch that wanted it in a slot
        # Draining: when the first request that waits for it entered the queue, whether any runs, most tokens that
        # one of these has to go, whether it waited too long, whether it may drain, for which adapter it does, or -1.
        ("since_s", "f8"),
        ("runs", "i8"),
        ("tokens_to_go", "i8"),
        ("starves", "i8"),
        ("may_drain", "i8"),
        ("drains_for", "i8"),
    ],
    align=True,
)

#: A worker's state and totals.
STATE = np.dtype(
    [
        ("tick", "i8"),
        ("count_number", "i8"),  # counts begun so far, of passes and steps
        ("counted", "i8"),  # adapters in the newest one
        ("fetches", "i8"),
        ("resident", "i8"),  # slots taken, …
        ("copies", "i8"),  # … and copies in host memory
        ("stream_s", "f8"),  # with overlaps: when the last copy ends
        ("stall_s", "f8"),  # of the loads that the step being formed waits for
        ("loads", "i8"),
        ("evicted", "i8"),
        ("reads", "i8"),
        ("load_s", "f8"),
        ("read_s", "f8"),
        ("passed_over", "i8"),  # times that a pass left a request for want of a slot
        ("steps", "i8"),  # with adapters; of those, adapters and tokens of theirs
        ("step_adapters", "i8"),
        ("step_tokens", "i8"),
        ("step_s", "f8"),  # that adapters added to steps, without loads
    ],
    align=True,
)

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [("serves_adapters", "i8")]

#: State of a worker that its steps ask for: what adapters, or grammars, add to each step of the same requests.
WORKER: list[tuple[str, str]] = [("more_s", "f8"), ("lora_j", "f8"), ("lora_adapters", "i8"), ("lora_tokens", "i8")]


class Lora(Handle):
    """Arrays of adapters; of length 0 or 1 where none are served.

    adapter (N,): of each request, K for the base model. adapters (K + 1,). places (W, K + 1), states (W,).
    slots (W, S): the adapter in each slot, -1: none. members (2 W, K + 1): adapters that a pass counts or a step has,
        then those wanted in slots, in rising order; scratch.
    queued_s (N,): with draining: when a waiting request entered its queue; -1: the next pass takes it in.
    """

    FIELDS: ClassVar[dict[str, Any]] = {
        "policy": Record(POLICY),
        "adapter": Array("i4", 1),
        "adapters": Array(ADAPTER, 1),
        "places": Array(PLACE, 2),
        "states": Array(STATE, 1),
        "slots": Array("i4", 2),
        "members": Array("i4", 2),
        "queued_s": Array("f8", 1),
    }
