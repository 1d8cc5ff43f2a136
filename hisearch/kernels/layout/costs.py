"""Step costs, as kernels read them, and what a worker draws."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.kernels.core.handle import Array, Handle, Record

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
        # ``DraftCosts``; 0 tokens without.
        ("draft_tokens", "i8"),
        ("draft_share", "f8"),
        # ``SharedPrompts``; 1 rank without.
        ("shared_ranks", "i8"),
        ("shared_layout", "i8"),
    ],
    align=True,
)


#: Totals of a worker.
WORKER: list[tuple[str, str]] = [
    ("energy_j", "f8"),  # of its steps, above idle
    ("attached_j", "f8"),  # of that, by devices attached to its accelerators
    ("link_j", "f8"),  # and by links between its devices
]

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("standby_after_s", "f8"),  # idle time after which accelerators draw less
    ("wake_s", "f8"),  # from then to the start of a step
    ("ffn_standby_after_s", "f8"),  # likewise of FFN accelerators that stand apart
    ("ffn_wake_s", "f8"),
    ("attached", "i8"),  # 1: devices are attached to accelerators, and attached_joules are theirs; 0: not read
    ("linked", "i8"),  # 1: link_joules are those of links between devices; 0: not read
]


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
        "draft_token_s": Array("f8", 1),
        "draft_sequence_s": Array("f8", 1),
        "shared_s": Array("f8", 1),
        "whole_rate": Array("f8", 2),
    }
