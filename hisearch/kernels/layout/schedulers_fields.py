"""What the records of ``layout.sim`` have for workers with several schedulers (see ``engine.schedulers``)."""

from __future__ import annotations

import numpy as np

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("look_s", "f8"),  # LOCKSTEP, with tiers: when it looks again after forming no batch; FOREVER_S or NEVER_S
    # Leader: the worker's time in standby, and when its accelerators finish all launched work.
    ("standby_s", "f8"),
    ("awake_until_s", "f8"),
    ("wakes", "i8"),  # leader: steps that began in standby
    ("ffn_standby_s", "f8"),  # leader: the same two of FFN accelerators that stand apart
    ("ffn_wakes", "i8"),
    # DP ranks and micro-batches (see ``schedulers``).
    ("cache_id", "i4"),  # tree that has its KV
    ("formed", "i4"),  # LOCKSTEP: 1 where it has a batch in the lockstep step being formed; its tokens and chunks
    ("lockstep_tokens", "i8"),
    ("lockstep_chunks", "i8"),
    ("lockstep_sequences", "i8"),
    ("own_s", "f8"),  # LOCKSTEP: time of its batch without the part shared by all DP ranks
    ("host_s", "f8"),  # LOCKSTEP: host time of the batch
    ("lockstep_start_s", "f8"),
    ("lockstep_end_s", "f8"),
    ("lockstep_steps", "i4"),  # leader: outstanding lockstep steps, ends of the oldest and the newest
    ("next_scheduler", "i4"),  # leader, SGLang: the scheduler that gets the next request (round-robin)
    ("lockstep_oldest_s", "f8"),
    ("lockstep_newest_s", "f8"),
    ("dealt_tokens", "i8"),  # PIPE: prompt tokens of requests dealt to it since it formed a batch
]

#: SGLang, TensorRT-LLM: a launched step, for the processing of its results.
LAUNCH = np.dtype(
    [
        ("clock", "i8"),  # the worker's, including the step's decodes
        ("chunks", "i4"),  # of prompts
        ("partial", "i4"),  # the request among them whose prompt continues, or -1
        ("kind", "i4"),
        ("entries", "i4"),  # TensorRT-LLM: its decodes; with drafts all its requests, contexts first
    ],
    align=True,
)
