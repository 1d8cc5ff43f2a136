"""Arrays of structured output: which grammar each request's output follows, and which a worker has compiled.

Notation
    N requests, K grammars, W workers, T threads of a worker that compile
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.kernels.core.handle import Array, Handle, Record

#: Settings; all zero where no grammars are simulated.
POLICY = np.dtype(
    [
        ("fill_s", "f8"),  # host time of a step for each sequence with a grammar: its mask, …
        ("accept_s", "f8"),  # … and its token
        ("fill_threads", "i8"),  # vLLM: that fill masks beyond PARALLEL_FROM sequences; 0: one after another
        ("look_s", "f8"),  # host time of a pass for each request that it looks at whose grammar is not there
    ],
    align=True,
)

#: Sequences beyond which vLLM fills masks in threads, so many at a time (``StructuredOutputManager``).
PARALLEL_FROM, PARALLEL_BATCH = 128, 16
#: SGLang: seconds between two looks at the grammars that a pass waits for, and looks of a pass
#: (``SGLANG_GRAMMAR_POLL_INTERVAL``).
LOOK_S, LOOKS = 0.005 / 10, 10

#: A grammar at a worker.
PLACE = np.dtype(
    [
        ("ready_s", "f8"),  # when it is, or was, compiled; NaN: nobody has asked for it
        ("cached", "i8"),  # SGLang: 1 once a pass has found it compiled
    ],
    align=True,
)

#: A worker's state and totals.
STATE = np.dtype(
    [
        ("head", "i4"),  # SGLang: requests that wait for their grammars, by next
        ("tail", "i4"),
        ("waiting", "i8"),
        ("pass_s", "f8"),  # vLLM: time of the newest pass that admits, and its looks at grammars that were not there
        ("looks", "i8"),
        ("requests", "i8"),  # with a grammar
        ("compilations", "i8"),
        ("compile_s", "f8"),
        ("steps", "i8"),  # with grammars; of those, sequences with one, and the host's seconds
        ("sequences", "i8"),
        ("host_s", "f8"),
        ("polled_s", "f8"),  # SGLang: of passes that wait for grammars
    ],
    align=True,
)

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("compiles_grammars", "i8"),
    ("goes_by", "i8"),  # 1: passes may go by waiting requests, for adapters or grammars (see ``vllm.waiting``)
]

#: State of a worker that its steps ask for: sequences with grammars in each step, and what the host takes for them.
WORKER: list[tuple[str, str]] = [("masked", "i8"), ("grammar_s", "f8")]


class Grammars(Handle):
    """Arrays of grammars; of length 0 or 1 where none are simulated.

    grammar (N,): of each request, -1: free text. compile_s (K,). places (W, K), states (W,). threads (W, T): when each
        is free. asked_s, ready_s (N,): when a request asked for its grammar, and when that is there; NaN: free text.
    queued (N,), table (2, a power of two): SGLang: see ``sglang.grammar``; scratch.
    """

    FIELDS: ClassVar[dict[str, Any]] = {
        "policy": Record(POLICY),
        "grammar": Array("i4", 1),
        "compile_s": Array("f8", 1),
        "places": Array(PLACE, 2),
        "states": Array(STATE, 1),
        "threads": Array("f8", 2),
        "asked_s": Array("f8", 1),
        "ready_s": Array("f8", 1),
        "queued": Array("i4", 1),
        "table": Array("i4", 2),
    }
