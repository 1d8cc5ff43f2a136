"""Requests in, steps out: the interface that the restatements of both engines share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from tests.reference.restatement.content import Content

#: ``(chunks (new, cached), decodes context_before, sequences that sample) -> seconds`` of one step.
Cost = Callable[[list[tuple[int, int]], list[int], int], float]


@dataclass(frozen=True)
class Request:
    """One request; ``id`` breaks ties between equal arrivals.

    Attributes:
        arrival_s: seconds from the trace's start.
        input_tokens: prompt length, >= 1.
        output_tokens: true output length, >= 1.
        max_output_tokens: declared limit that the engine knows, >= output_tokens.
        content: names the tokens of prompt + output.
        priority: lower goes first (vLLM's priority policy).
        pinned: whether the client has the engine ignore end-of-sequence tokens; None: as the configuration says.
        tenant: whose it is.
        adapter: number of the LoRA adapter that it asks for; None: the base model.
        grammar: number of the grammar that its output follows; None: free text.
    """

    id: Any
    arrival_s: float
    input_tokens: int
    output_tokens: int
    max_output_tokens: int
    content: Content
    priority: int = 0
    pinned: bool | None = None
    tenant: int = 0
    adapter: int | None = None
    grammar: int | None = None


@dataclass(frozen=True)
class BatchEntry:
    """One request's share of a step.

    Attributes:
        computed: tokens that had their KV before the step.
        new: tokens the step computes.
        decode: whether the entry counts as a decode for the step's cost (else as a prompt chunk).
        samples: whether the step makes a token for the request.
    """

    id: Hashable
    computed: int
    new: int
    decode: bool
    samples: bool


@dataclass
class Step:
    """A batch that ran, or that is running.

    Attributes:
        start_s, end_s: seconds on the device.
        scheduled_s: when the batch was formed (``start_s`` unless scheduling runs ahead of the device).
        kind: SGLang only: ``prefill``, ``decode`` or ``mixed``.
        preempted: ids that lost their KV while the step was formed (vLLM: sorted; SGLang: in order of retraction).
        pool, ratio: SGLang only: ``[free tokens, evictable tokens]`` and the new-token ratio at launch; with sliding
            windows those of the window layers' pool behind them.
        load_back: SGLang only: ``(tokens, completion time)`` of the host-to-device copy that the step waits for.
    """

    start_s: float
    end_s: float
    scheduled_s: float
    batch: list[BatchEntry]
    preempted: list[Any] = field(default_factory=list)
    kind: str = ""
    pool: tuple[int, ...] = (0, 0)
    ratio: float = 0.0
    load_back: tuple[int, float] | None = None


@dataclass
class Recording:
    """Everything that one worker did; the dicts are by request id, times in seconds.

    ``storage_log`` is SGLang's storage tier's: ``(time, id, "revoked" | "reading" | "read", tokens)``.
    """

    steps: list[Step]
    first_token_s: dict[Any, float]
    finish_s: dict[Any, float]
    reused_tokens: dict[Any, int]
    storage_log: list[tuple[float, Any, str, int]] = field(default_factory=list)
    token_s: dict[Any, list[float]] = field(default_factory=dict)


def step_seconds(cost: Cost, batch: list[BatchEntry]) -> float:
    """Price a batch."""
    chunks = [(entry.new, entry.computed) for entry in batch if not entry.decode]
    decodes = [entry.computed for entry in batch if entry.decode]
    return cost(chunks, decodes, sum(entry.samples for entry in batch))
