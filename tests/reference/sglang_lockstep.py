"""Attention groups of SGLang (``--enable-dp-attention``), with cache tiers or without, restated.

Each group has a scheduler, a radix tree and a host pool (``restatement.sglang``). Requests are routed round robin
(``data_parallel_controller.py``). All schedulers make a pass together and exchange the batches that they formed, so
that all go on when the last one is done. Their steps begin and end together, no sooner than any load-back of a group.
Slow and obvious: one Python pass per group and step.

Groups share host memory, through which all copies pass, and the store behind their host pools, whose keys name the
rank within a group (``HiCacheController``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.reference.restatement.recording import Recording, Request, Step
from tests.reference.restatement.sglang import SglangWorker
from tests.reference.restatement.sglang_host_cache import HostCache
from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference.restatement.sglang_storage import StorageTier, advance
from tests.reference.restatement.transfers import CopyLaw, Link
from tests.reference.restatement.vllm_lockstep import EMPTY, GroupCost, batch_of


@dataclass
class _Worker:
    """The groups of one worker.

    Attributes:
        outstanding: lockstep steps, oldest first: their end, and the groups with a batch in them.
        device_free_s: when the newest lockstep step ends.
        steps: of all groups, by lockstep step and group.
    """

    groups: list[SglangWorker]
    storage: list[StorageTier]
    cost: GroupCost
    outstanding: deque[tuple[float, list[SglangWorker]]] = field(default_factory=deque)
    device_free_s: float = 0.0
    steps: list[Step] = field(default_factory=list)

    @property
    def has_unfinished(self) -> bool:
        return any(group.has_unfinished for group in self.groups)

    def meet(self, now: float) -> float:
        """Advance all clocks to the end of the last scheduler's pass, ``now`` or later; returns that time."""
        ready_s = max([now, *(group.clock.now_s for group in self.groups)])
        for group in self.groups:
            group.clock.now_s = ready_s
        return ready_s

    def pass_at(self, now: float) -> tuple[float, bool, float | None]:
        """A pass of all: when it is done, whether it launched a lockstep step, and an idle worker's next pass."""
        advance(self.storage, now)
        formed = [group.form(now) for group in self.groups]
        event_times = [group.next_event_s() for group in self.groups if group.waiting]
        ready_s = self.meet(now)
        steps = [step for step in formed if step is not None]
        if steps:
            start_s = max(ready_s, self.device_free_s)
            end_s = start_s + self.cost([EMPTY if step is None else batch_of(step.batch) for step in formed])
            end_s = max([end_s, *(step.load_back[1] for step in steps if step.load_back is not None)])
            for step in steps:
                step.scheduled_s, step.start_s, step.end_s = ready_s, start_s, end_s
            self.device_free_s = end_s
            with_batch = [group for group, step in zip(self.groups, formed, strict=True) if step is not None]
            self.outstanding.append((end_s, with_batch))
            self.steps += steps
        return ready_s, bool(steps), min((event_s for event_s in event_times if event_s is not None), default=None)


def serve(
    configs: Sequence[SglangConfig],
    requests: Sequence[Request],
    cost: GroupCost,
    memory: tuple[CopyLaw, CopyLaw] | None = None,
) -> Recording:
    """Serve ``requests`` on a worker with an attention group for each of ``configs``.

    Args:
        configs: of the groups, equal except for their seeds.
        requests: acceptable to the groups.
        cost: seconds of a lockstep step.
        memory: times of host memory itself for copies into it, and out of it; None: no time.

    Raises:
        OutOfMemoryError, RuntimeError: as of ``restatement.sglang.drive``.
    """
    worker = _Worker(*_groups(configs, memory), cost)
    pending = deque(sorted(requests, key=lambda request: (request.arrival_s, request.id)))
    turn, now = 0, 0.0
    while pending or worker.has_unfinished or worker.outstanding:
        while pending and pending[0].arrival_s <= now:
            worker.groups[turn % len(configs)].receive(pending.popleft())
            turn += 1
        now, formed, look_s = worker.pass_at(now)
        if worker.outstanding and (not formed or len(worker.outstanding) == worker.groups[0].most_outstanding):
            end_s, done = worker.outstanding.popleft()
            for group in done:
                group.process()
            now = worker.meet(end_s)
        elif not formed:
            times = [pending[0].arrival_s] if pending else []
            times += [] if look_s is None else [look_s]
            now = max(now, min(times, default=now))
    return _recording(worker)


def _groups(
    configs: Sequence[SglangConfig], memory: tuple[CopyLaw, CopyLaw] | None
) -> tuple[list[SglangWorker], list[StorageTier]]:
    """Fresh groups with the shared links and store of a worker, and their storage tiers."""
    groups = [SglangWorker(config, lambda _chunks, _decodes, _sampling: 0.0) for config in configs]
    shared = None if memory is None else (Link(memory[0]), Link(memory[1]))
    storage: list[StorageTier] = []
    for group in groups:
        if not isinstance(group.cache, HostCache):
            continue
        if shared is not None:
            group.cache.host.to_host.beyond, group.cache.to_device.beyond = shared
        if group.cache.storage is not None:
            storage.append(group.cache.storage)
            group.cache.storage.store = storage[0].store
    return groups, storage


def _recording(worker: _Worker) -> Recording:
    """Steps and times of all groups."""
    firsts: dict[Any, float] = {}
    ends: dict[Any, float] = {}
    reused: dict[Any, int] = {}
    tokens: dict[Any, list[float]] = {}
    log = []
    for group in worker.groups:
        firsts |= group.first_token_s
        ends |= group.finish_s
        reused |= group.reused_tokens
        tokens |= group.token_s
        log += group.storage_log()
    return Recording(worker.steps, firsts, ends, reused, sorted(log, key=lambda row: row[0]), tokens)
