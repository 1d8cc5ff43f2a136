"""Closed loops of random prompts, and the steps for which a prompt is held back in them."""

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
    """A closed loop: see ``Conditions``; ``slots`` requests in flight.

    burst_gap_s: between two of the first requests of an attention group, while the front end reads the others'.
    """

    slots: int
    input_tokens: int
    output_tokens: int
    input_share: float
    output_share: float
    requests_per_slot: int
    burst_gap_s: float = 0.0

    @classmethod
    def of(cls, row: SiliconRow, conditions: Conditions, slots: int, burst_gap_s: float = 0.0) -> Loop:
        """The loop of a row's client; ``slots``: of those that are simulated."""
        return cls(
            slots, conditions.prompt_tokens(row), row.output_tokens, conditions.input_share, conditions.output_share,
            conditions.requests_per_slot, burst_gap_s,
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
        arrival_s=np.where(first, loop.burst_gap_s * index, np.nan),
        input_tokens=inputs,
        output_tokens=outputs,
        previous=np.where(first, -1, index - loop.slots),
        open_loop=False,
    )
    return compile_trace(trace, "closed loop", "closed_loop")


def held_steps(conditions: Conditions, row: SiliconRow, slots: int) -> float:
    """Steps of one token for which a prompt is held back, on average.

    A batch opens with its first prompt and closes g steps later, while others come at a rate of
    ``slots * groups / output_tokens`` a step. It holds the first for g steps and the others for g / 2. With attention
    groups it closes as soon as each of them has a prompt. A prompt goes to the group that has just ended a request,
    any of them, so it takes ``groups * (1 + 1/2 + ... + 1/groups)`` prompts until all have one. The first request of
    every slot finds an idle engine, which holds nothing back. A step that makes several tokens counts as that many
    steps of one.
    """
    groups = row.parallelism.attention_data
    rate = slots * groups / row.output_tokens
    gather = float(conditions.gather_steps)
    if groups > 1:
        prompts = groups * sum(1.0 / missing for missing in range(1, groups + 1))
        gather = min(gather, (prompts - 1.0) / rate)
    later_prompts = gather * rate
    steps = gather * (1.0 + later_prompts / 2.0) / (1.0 + later_prompts)
    return steps * conditions.tokens_per_step * (1.0 - 1.0 / conditions.requests_per_slot)
