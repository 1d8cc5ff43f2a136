"""Attention groups of SGLang (``--enable-dp-attention``), with cache tiers or without, restated.

Each group has a scheduler, a radix tree and a host pool (``restatement.sglang``); requests are dealt out in turn
(``data_parallel_controller.py``, round robin). All schedulers make a pass at a time and tell each other what they have
formed, so that all go on when the last one is done; their steps begin together and end together, no sooner than what
any of them loads back. Slow and obvious: one Python pass per group and step.

What groups share: host memory, through which all copies pass, and the store behind their host pools, where keys name
the rank within a group (``HiCacheController``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hisearch.validate.lockstep import EMPTY, GroupCost, batch_of
from hisearch.validate.restatement.recording import Recording, Request, Step
from hisearch.validate.restatement.sglang import SglangWorker
from hisearch.validate.restatement.sglang_host_cache import HostCache
from hisearch.validate.restatement.sglang_state import SglangConfig
from hisearch.validate.restatement.sglang_storage import StorageTier, advance
from hisearch.validate.restatement.transfers import CopyLaw, Link


@dataclass
class _Worker:
    """The groups of one worker.

    Attributes:
        lockstep_table: outstanding ones, oldest first: their end, and the groups with a batch in them.
        device_free_s: when the newest of them ends.
        steps: of all groups, by wave and group.
    """

    groups: list[SglangWorker]
    storage: list[StorageTier]
    cost: GroupCost
    lockstep_table: deque[tuple[float, list[SglangWorker]]] = field(default_factory=deque)
    device_free_s: float = 0.0
    steps: list[Step] = field(default_factory=list)

    @property
    def has_unfinished(self) -> bool:
        return any(group.has_unfinished for group in self.groups)

    def meet(self, now: float) -> float:
        """All go on when the last scheduler is done, at ``now`` or later; returns when."""
        ready_s = max([now, *(group.clock.now_s for group in self.groups)])
        for group in self.groups:
            group.clock.now_s = ready_s
        return ready_s

    def pass_at(self, now: float) -> tuple[float, bool, float | None]:
        """A pass of all: when it is done, whether a wave is out by it, and when an idle worker looks again."""
        advance(self.storage, now)
        formed = [group.form(now) for group in self.groups]
        looks = [group.next_event_s() for group in self.groups if group.waiting]
        ready_s = self.meet(now)
        steps = [step for step in formed if step is not None]
        if steps:
            start_s = max(ready_s, self.device_free_s)
            end_s = start_s + self.cost([EMPTY if step is None else batch_of(step.batch) for step in formed])
            end_s = max([end_s, *(step.load_back[1] for step in steps if step.load_back is not None)])
            for step in steps:
                step.scheduled_s, step.start_s, step.end_s = ready_s, start_s, end_s
            self.device_free_s = end_s
            mine = [group for group, step in zip(self.groups, formed, strict=True) if step is not None]
            self.lockstep_table.append((end_s, mine))
            self.steps += steps
        return ready_s, bool(steps), min((look for look in looks if look is not None), default=None)


def serve(
    configs: Sequence[SglangConfig],
    requests: Sequence[Request],
    cost: GroupCost,
    memory: tuple[CopyLaw, CopyLaw] | None = None,
) -> Recording:
    """Serve ``requests`` on a worker with an attention group for each of ``configs``.

    Args:
        configs: of the groups, alike but for their seeds.
        requests: that the groups accept.
        cost: seconds of a step of all.
        memory: what host memory itself takes for what is copied into it, and out of it; None: no time.

    Raises:
        OutOfMemoryError, RuntimeError: as of ``restatement.sglang.drive``.
    """
    worker = _Worker(*_groups(configs, memory), cost)
    pending = deque(sorted(requests, key=lambda request: (request.arrival_s, request.id)))
    turn, now = 0, 0.0
    while pending or worker.has_unfinished or worker.lockstep_table:
        while pending and pending[0].arrival_s <= now:
            worker.groups[turn % len(configs)].receive(pending.popleft())
            turn += 1
        now, formed, look_s = worker.pass_at(now)
        if worker.lockstep_table and (not formed or len(worker.lockstep_table) == worker.groups[0].most_outstanding):
            end_s, done = worker.lockstep_table.popleft()
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
    """Fresh groups that share what the groups of a worker do, and their storage tiers."""
    made = [SglangWorker(config, lambda _chunks, _decodes, _sampling: 0.0) for config in configs]
    shared = None if memory is None else (Link(memory[0]), Link(memory[1]))
    storage: list[StorageTier] = []
    for group in made:
        if not isinstance(group.cache, HostCache):
            continue
        if shared is not None:
            group.cache.host.to_host.beyond, group.cache.to_device.beyond = shared
        if group.cache.storage is not None:
            storage.append(group.cache.storage)
            group.cache.storage.store = storage[0].store
    return made, storage


def _recording(worker: _Worker) -> Recording:
    """What all groups did."""
    firsts: dict[Any, float] = {}
    ends: dict[Any, float] = {}
    reused: dict[Any, int] = {}
    log = []
    for group in worker.groups:
        firsts |= group.first_token_s
        ends |= group.finish_s
        reused |= group.reused_tokens
        log += group.storage_log()
    return Recording(worker.steps, firsts, ends, reused, sorted(log, key=lambda row: row[0]))
