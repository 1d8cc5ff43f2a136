"""Closed loops of random prompts."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.sampling import stream
from hisearch.traces.trace import make_trace
from hisearch.validate.silicon.campaigns import Conditions
from hisearch.validate.silicon.rows import SiliconRow


class Loop(NamedTuple):
    """A closed loop: see ``Conditions``; ``slots`` requests in flight."""

    slots: int
    input_tokens: int
    output_tokens: int
    input_share: float
    output_share: float
    requests_per_slot: int

    @classmethod
    def of(cls, row: SiliconRow, conditions: Conditions) -> Loop:
        """The loop of a row's client."""
        return cls(
            row.concurrency, conditions.prompt_tokens(row), row.output_tokens, conditions.input_share,
            conditions.output_share, conditions.requests_per_slot,
        )  # fmt: skip


@functools.lru_cache(maxsize=256)
def closed_loop(loop: Loop) -> CompiledTrace:
    """``slots * requests_per_slot`` requests without shared prefixes, to be simulated ``pooled``: ``slots`` in flight.

    Benchmark clients hold a semaphore of ``slots`` places (``benchmark_serving.py --max-concurrency``): a free place
    takes the next request. Lengths are drawn uniformly, in whole tokens, from the stated share of the nominal one up to
    it. The first of every slot are sent at once, and queue at the front end.
    """
    count = loop.slots * loop.requests_per_slot
    draw = stream("silicon", loop.slots, loop.input_tokens, loop.output_tokens)
    inputs, outputs = (
        draw.integers(max(int(share * nominal), 1), nominal + 1, count)
        for nominal, share in ((loop.input_tokens, loop.input_share), (loop.output_tokens, loop.output_share))
    )
    index = np.arange(count)
    first = index < loop.slots
    trace = make_trace(
        arrival_s=np.where(first, 0.0, np.nan),
        input_tokens=inputs,
        output_tokens=outputs,
        previous=np.where(first, -1, index - loop.slots),
        open_loop=False,
    )
    return compile_trace(trace, "closed loop", "closed_loop")
