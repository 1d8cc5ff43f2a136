"""A pipeline of stages, event by event: one engine that keeps as many batches in flight as there are stages.

One queue and one list of running requests. A batch is formed as long as fewer are in flight than there are stages and
something can be scheduled; then the oldest is waited for, and only then arrivals are looked at again. Requests of a
batch in flight are not scheduled, but for prompts that are cut: their chunks follow each other. A batch passes the
stages in order; a stage takes an equal share of the pass and has one batch at a time. No prefix cache, ample memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

#: Seconds of a pass by (chunks (new, cached), contexts that decodes read, sequences that sample).
Cost = Callable[[list[tuple[int, int]], list[int], int], float]


@dataclass
class PipelineRequest:
    """A request, and what became of it."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    computed: int = 0
    generated: int = 0
    in_flight: bool = False
    first_token_s: float = field(default=-1.0)
    finish_s: float = field(default=-1.0)


def serve(
    requests: Sequence[PipelineRequest], stages: int, chunk_tokens: int, max_running: int, cost: Cost
) -> list[PipelineRequest]:
    """Serve ``requests``, in order of arrival; returns them with their times."""
    pending, waiting = deque(requests), deque[PipelineRequest]()
    running: list[PipelineRequest] = []
    flight: deque[tuple[float, list[PipelineRequest]]] = deque()
    stage_free_s = [0.0] * stages
    now = 0.0
    while pending or waiting or running:
        if not (waiting or running or flight):
            now = max(now, pending[0].arrival_s)
        while pending and pending[0].arrival_s <= now:
            waiting.append(pending.popleft())
        batch = _schedule(waiting, running, chunk_tokens, max_running) if len(flight) < stages else []
        if batch:
            seconds = _launch(batch, cost)
            at = now
            for stage in range(stages):
                at = max(at, stage_free_s[stage]) + seconds / stages
                stage_free_s[stage] = at
            flight.append((at, [request for request, _ in batch if request.in_flight]))
            continue
        now, done = flight.popleft()
        for request in done:
            request.in_flight = False
            if request.generated == 1:
                request.first_token_s = now
            if request.generated == request.output_tokens:
                request.finish_s = now
                running.remove(request)
    return list(requests)


def _schedule(
    waiting: deque[PipelineRequest], running: list[PipelineRequest], budget: int, max_running: int
) -> list[tuple[PipelineRequest, int]]:
    batch = []
    for request in running:
        missing = max(request.input_tokens - request.computed, 0) or 1
        if request.in_flight or budget == 0:
            continue
        batch.append((request, min(missing, budget)))
        budget -= min(missing, budget)
    while waiting and budget > 0 and len(running) < max_running:
        request = waiting.popleft()
        running.append(request)
        batch.append((request, min(request.input_tokens, budget)))
        budget -= min(request.input_tokens, budget)
    return batch


def _launch(batch: list[tuple[PipelineRequest, int]], cost: Cost) -> float:
    chunks, decodes, sampling = [], [], 0
    for request, tokens in batch:
        if request.computed < request.input_tokens:
            chunks.append((tokens, request.computed))
        else:
            decodes.append(request.computed + 1)
        request.computed += tokens
        if request.computed >= request.input_tokens:
            request.generated += 1
            request.in_flight = True
            sampling += 1
    return cost(chunks, decodes, sampling)
