"""Data-parallel vLLM engines whose experts lie on each other's accelerators: no engine steps without the others.

Every engine schedules for itself (``restatement.vllm``); each step then begins for all at once and ends for all at
once, since the experts of every layer wait for the tokens of all. An engine without work takes part with an empty
batch. Slow and obvious: one Python pass per step and engine.

A request goes to the engine with the smallest ``4 * waiting + running``, the first of them on a tie, as vLLM's internal
balancer scores them (``DPLBAsyncMPClient``, 0.19); its counts are taken to be current, where the engine's are up to
0.1 s old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hisearch.validate.restatement.recording import BatchEntry, Request
from hisearch.validate.restatement.vllm import VllmConfig, VllmWorker

#: ``(chunks (new, cached), decodes context_before, sequences that sample)`` of one engine's step.
Batch = tuple[list[tuple[int, int]], list[int], int]
#: Seconds of a step, by the engines' batches; an engine that sits the step out has an empty one.
GroupCost = Callable[[Sequence[Batch]], float]

#: Of an engine that sits a step out.
EMPTY: Batch = ([], [], 0)


@dataclass(frozen=True)
class Served:
    """Seconds by request id: when the scheduler took it in, made its first token, its last one."""

    queued_s: dict[object, float]
    first_token_s: dict[object, float]
    finish_s: dict[object, float]


def serve(config: VllmConfig, engines: int, requests: Sequence[Request], cost: GroupCost) -> Served:
    """Serve ``requests`` on ``engines`` engines that step together."""
    workers = [VllmWorker(config, lambda _chunks, _decodes, _sampling: 0.0) for _ in range(engines)]
    pending = deque(sorted(requests, key=lambda request: (request.arrival_s, request.id)))
    outstanding: deque[tuple[float, list[VllmWorker]]] = deque()
    queued: dict[object, float] = {}
    now = 0.0
    while pending or any(worker.has_work for worker in workers):
        if not any(worker.has_work for worker in workers):
            now = max(now, pending[0].arrival_s)
        queued |= _route(pending, workers, now)
        formed = _step(workers, now, cost)
        if formed is not None:
            outstanding.append(formed)
        if outstanding and (formed is None or len(outstanding) == workers[0].most_outstanding):
            now, done = outstanding.popleft()
            queued |= _route(pending, workers, now)
            for worker in done:
                worker.process()
    firsts: dict[object, float] = {}
    ends: dict[object, float] = {}
    for worker in workers:
        firsts |= worker.first_token_s
        ends |= worker.finish_s
    return Served(queued, firsts, ends)


def _route(pending: deque[Request], workers: list[VllmWorker], now: float) -> dict[object, float]:
    """Requests that arrive up to ``now``, the end of a step, go to engines as they stand before its results."""
    taken_in = {}
    while pending and pending[0].arrival_s <= now:
        request = pending.popleft()
        taken_in[request.id] = now
        min(workers, key=lambda worker: 4 * len(worker.waiting) + len(worker.running)).receive(request)
    return taken_in


def _step(workers: list[VllmWorker], now: float, cost: GroupCost) -> tuple[float, list[VllmWorker]] | None:
    """Let every engine form a batch at ``now``; the end of their common step, and who has a batch in it."""
    steps = [worker.form(now) if worker.has_work else None for worker in workers]
    if all(step is None for step in steps):
        return None
    start_s = max([now, *(worker.device_free_s for worker in workers)])
    end_s = start_s + cost([EMPTY if step is None else batch_of(step.batch) for step in steps])
    for worker, step in zip(workers, steps, strict=True):
        worker.device_free_s = end_s
        if step is not None:
            step.start_s, step.end_s = start_s, end_s
    return end_s, [worker for worker, step in zip(workers, steps, strict=True) if step is not None]


def batch_of(entries: Sequence[BatchEntry]) -> Batch:
    """A batch as its cost is asked for."""
    chunks = [(entry.new, entry.computed) for entry in entries if not entry.decode]
    return chunks, [entry.computed for entry in entries if entry.decode], sum(entry.samples for entry in entries)
