"""The log of steps: what a recording of a real engine is held against."""

from __future__ import annotations

import numpy as np

#: A step in the log.
STEP_LOG = np.dtype(
    [
        ("scheduled_s", "f8"),  # when the batch was formed
        ("start_s", "f8"),  # when the device started it
        ("end_s", "f8"),
        ("known_s", "f8"),  # when its results were taken in, where a pass that waited for requests came before; else 0
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

#: What came of that share, where its place does not tell: output tokens made, and whether it is a decode (0 or 1).
OUTPUT_LOG = np.dtype([("made", "i4"), ("decodes", "i4")], align=True)
