"""Predictions of agents' next calls by a function of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hisearch.traces.agents import label, of_sessions
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import freeze
from hisearch.traces.distance_units import LOOK_WRONG, distance_caveat


class EndedCall(NamedTuple):
    """What is known when a call has ended.

    Attributes:
        agent: who called; without agents in the trace, its session. number: of its calls before this one.
        request_id: of the trace. input_tokens, output_tokens: of the call.
        name: of the agent; its number where the trace has no names.
    """

    agent: int
    number: int
    request_id: str
    input_tokens: int
    output_tokens: int
    name: str


def with_distances(
    trace: CompiledTrace, predict: Callable[[EndedCall], float | None], *, frames: bool = False
) -> CompiledTrace:
    """The trace with distances of your own: ``policy: distance`` goes by them, and by no other hint.

    Distances that are far from what the trace's times and frames say are a caution of the trace.

    Args:
        trace: of agents, or of sessions, each of which is an agent without an adapter.
        predict: seconds from a call's end to its agent's next call; None: nothing is said. Asked once for each call,
            with its ``agent``, ``number`` among the agent's calls, ``request_id``, ``input_tokens``, ``output_tokens``
            and the agent's ``name``.
        frames: ``predict`` says frames of the world, not seconds. A trace that goes by frames needs it.

    Raises:
        ValueError: a prediction is no number of at least 0, or frames where the trace has seconds, or the reverse.

    Example::

        hisearch.with_distances(hisearch.load_trace("agents.jsonl"), lambda call: 30.0 if call.number else 5.0)
    """
    agents = trace.agents if trace.agents is not None else of_sessions(trace.arrays.session, adapters=False)
    if frames and not agents.by_frames[0]:
        raise ValueError(f"trace {trace.name} has no frames; predict seconds")
    asked: dict[int, int] = {}
    trigger, said = [], []
    for call, agent in enumerate(agents.agent.tolist()):
        number = asked.get(agent, 0)
        asked[agent] = number + 1
        tokens = (int(trace.arrays.input_tokens[call]), int(trace.arrays.output_tokens[call]))
        value = predict(EndedCall(agent, number, trace.request_ids[call], *tokens, label(agents.names, agent)))
        if value is None:
            continue
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"predict: expected a number of at least 0 for {trace.request_ids[call]}, got {value!r}")
        trigger.append(call)
        said.append(float(value))
    if agents.by_frames[0] and not frames and any(said):
        raise ValueError(
            f"trace {trace.name} goes by frames of its world, in which seconds say nothing (predict said "
            f"{np.median(said):.3g} on median): predict frames, with frames=True"
        )
    seconds, nothing = np.array(said), np.zeros(len(said))
    hinted = agents._replace(
        hint_trigger=np.array(trigger, np.int32),
        hint_agent=agents.agent[trigger] if trigger else np.empty(0, np.int32),
        hint_after_s=nothing,
        hint_s=nothing if frames else seconds,
        hint_steps=seconds if frames else nothing,
    )
    arrays = trace.arrays
    caveat = distance_caveat(hinted, arrays.arrival_s, arrays.previous, arrays.think_s)
    cautions = tuple(caution for caution in trace.cautions if not caution.startswith(LOOK_WRONG))
    return freeze(
        trace.name, arrays, trace.request_ids, trace.skipped_rows, (*cautions, caveat) if caveat else cautions,
        trace.block_tokens, hinted, trace.models, trace.notes, trace.ignore_eos, grammars=trace.grammars,
    )  # fmt: skip
