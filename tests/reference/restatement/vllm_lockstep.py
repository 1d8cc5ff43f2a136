"""Data-parallel vLLM engines whose experts lie on each other's accelerators: no engine steps without the others.

Every engine schedules for itself (``restatement.vllm``). Each lockstep step then begins and ends for all at once, since
the experts of every layer wait for the tokens of all. An engine without work takes part with an empty batch. Slow and
obvious: one Python pass per step and engine.

A request goes to the engine with the smallest ``4 * waiting + running``, on a tie to the first, as vLLM's internal
balancer scores them (``DPLBAsyncMPClient``, 0.19). Counts are taken to be current, while the engine's are up to
0.1 s old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.reference.restatement.recording import BatchEntry, Request
from tests.reference.restatement.vllm import StuckError, VllmConfig, VllmWorker

#: ``(chunks (new, cached), decodes context_before, sequences that sample)`` of one engine's step.
Batch = tuple[list[tuple[int, int]], list[int], int]
#: Seconds of a lockstep step, by the engines' batches; an idle engine has an empty one.
GroupCost = Callable[[Sequence[Batch]], float]

#: Batch of an idle engine.
EMPTY: Batch = ([], [], 0)


@dataclass(frozen=True)
class Served:
    """Seconds by request id: when the scheduler took it in, its first token, its last token, all of them."""

    queued_s: dict[object, float]
    first_token_s: dict[object, float]
    finish_s: dict[object, float]
    token_s: dict[object, list[float]]


def serve(config: VllmConfig, engines: int, requests: Sequence[Request], cost: GroupCost) -> Served:
    """Serve ``requests`` on ``engines`` engines in lockstep."""
    return serve_by(
        [VllmWorker(config, lambda _chunks, _decodes, _sampling: 0.0) for _ in range(engines)], requests, cost
    )


def serve_by(workers: Sequence[VllmWorker], requests: Sequence[Request], cost: GroupCost) -> Served:
    """Serve on these engines, which may have host memory: fresh, alike, with their own step times 0.

    Raises:
        StuckError: remaining requests can never proceed.
    """
    pending = deque(sorted(requests, key=lambda request: (request.arrival_s, request.id)))
    outstanding: deque[tuple[float, list[VllmWorker]]] = deque()
    queued: dict[object, float] = {}
    now = 0.0
    while pending or any(worker.has_work for worker in workers):
        # A step whose requests have all ended is waited for all the same, as by one engine alone.
        if not outstanding and not any(worker.has_work for worker in workers):
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
        elif formed is None and any(worker.has_work for worker in workers):
            now = _next_pass_s(workers, pending, now)
    firsts: dict[object, float] = {}
    ends: dict[object, float] = {}
    tokens: dict[object, list[float]] = {}
    for worker in workers:
        firsts |= worker.first_token_s
        ends |= worker.finish_s
        tokens |= worker.token_s
    return Served(queued, firsts, ends, tokens)


def _route(pending: deque[Request], workers: Sequence[VllmWorker], now: float) -> dict[object, float]:
    """Route requests that arrive up to ``now``, the end of a step, by the engines' counts before its results."""
    taken_in = {}
    while pending and pending[0].arrival_s <= now:
        request = pending.popleft()
        taken_in[request.id] = now
        min(workers, key=lambda worker: 4 * worker.queued + len(worker.running)).receive(request)
    return taken_in


def _next_pass_s(workers: Sequence[VllmWorker], pending: deque[Request], now: float) -> float:
    """When to try again after no engine formed a batch: at an engine's own time, or at the next arrival."""
    times = [worker.look_again_s for worker in workers if worker.has_work and worker.look_again_s is not None]
    times += [request.arrival_s for request in list(pending)[:1]]
    if not times:
        raise StuckError("requests wait for what never comes")
    return max(now, min(times))


def _step(workers: Sequence[VllmWorker], now: float, cost: GroupCost) -> tuple[float, list[VllmWorker]] | None:
    """Let every engine form a batch at ``now``; the end of the lockstep step, and the engines with a batch in it."""
    with_work = [worker.has_work for worker in workers]
    steps = [worker.form(now) if has_work else None for worker, has_work in zip(workers, with_work, strict=True)]
    ready_s = [worker.launch_s for worker, has_work in zip(workers, with_work, strict=True) if has_work]
    if all(step is None for step in steps):
        return None
    start_s = max([now, *(worker.device_free_s for worker in workers), *ready_s])
    end_s = start_s + cost([EMPTY if step is None else batch_of(step.batch) for step in steps])
    for worker, step in zip(workers, steps, strict=True):
        worker.device_free_s = end_s
        if step is not None:
            step.start_s, step.end_s = start_s, end_s
    return end_s, [worker for worker, step in zip(workers, steps, strict=True) if step is not None]


def batch_of(entries: Sequence[BatchEntry]) -> Batch:
    """A batch in the form that ``GroupCost`` takes."""
    chunks = [(entry.new, entry.computed) for entry in entries if not entry.decode]
    return chunks, [entry.computed for entry in entries if entry.decode], sum(entry.samples for entry in entries)
