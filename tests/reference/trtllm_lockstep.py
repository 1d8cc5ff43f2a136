"""TensorRT-LLM's attention data parallelism (``enable_attention_dp``), restated: ranks with one queue and one step.

Sources: ``pyexecutor/scheduler/adp_router.py`` (``DefaultADPRouter``), ``py_executor.py`` (``_balance_adp_requests``,
``_can_queue``, ``_pad_attention_dp_dummy_request``). Slow and obvious: one Python pass per rank and step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.reference.restatement.recording import Request
from tests.reference.restatement.vllm_lockstep import EMPTY, GroupCost, Served, batch_of

from .trtllm import Share, TrtllmWorker
from .trtllm_state import LiveRequest, TrtllmConfig


@dataclass
class Group:
    """The ranks of one worker.

    Attributes:
        queue: requests not dealt to a rank, oldest first.
        outstanding: lockstep steps, oldest first: their end, and the ranks with a batch in them.
        unequal_steps, batching_steps: for how many steps contexts were held back, and why.
    """

    config: TrtllmConfig
    ranks: list[TrtllmWorker]
    cost: GroupCost
    queue: deque[Request] = field(default_factory=deque)
    outstanding: deque[tuple[float, list[TrtllmWorker]]] = field(default_factory=deque)
    device_free_s: float = 0.0
    unequal_steps: int = 0
    batching_steps: int = 0

    @property
    def has_work(self) -> bool:
        return bool(self.queue) or any(rank.active for rank in self.ranks)

    def deal(self) -> None:
        """Longest prompt first, to the rank with the fewest prompt tokens that has less than an equal share."""
        active = [len(rank.active) for rank in self.ranks]
        places = len(self.ranks) * self.config.max_batch_size - sum(active)
        new = [self.queue.popleft() for _ in range(min(places, len(self.queue)))]
        most = max(*active, -(-(sum(active) + len(new)) // len(self.ranks)))
        for request in sorted(new, key=lambda request: -request.input_tokens):
            open_ranks = [rank for rank in self.ranks if len(rank.active) < most]
            rank = min(
                open_ranks, key=lambda rank: (sum(r.request.input_tokens for r in rank.active), len(rank.active))
            )
            rank.active.append(LiveRequest(request, 0))

    def pass_at(self, now: float) -> bool:
        """Deal, choose and launch a lockstep step, if any; returns whether one was launched."""
        self.deal()
        chosen = [rank.choose() for rank in self.ranks]
        if self.config.enable_balance and self._holds_back(chosen):
            chosen = [([], generations) for _, generations in chosen]
        stands_still = any(
            rank.active and not shares and not generations
            for rank, (shares, generations) in zip(self.ranks, chosen, strict=True)
        )
        if stands_still and self.outstanding:
            return False
        steps = [
            rank.start(now, shares, generations) if shares or generations else None
            for rank, (shares, generations) in zip(self.ranks, chosen, strict=True)
        ]
        if not any(steps):
            return False
        start_s = max(now, self.device_free_s)
        self.device_free_s = start_s + self.cost([EMPTY if step is None else batch_of(step.batch) for step in steps])
        for rank, step in zip(self.ranks, steps, strict=True):
            rank.device_free_s = self.device_free_s
            if step is not None:
                step.start_s, step.end_s = start_s, self.device_free_s
        with_batch = [rank for rank, step in zip(self.ranks, steps, strict=True) if step is not None]
        self.outstanding.append((self.device_free_s, with_batch))
        return True

    def _holds_back(self, chosen: Sequence[tuple[list[Share], list[LiveRequest]]]) -> bool:
        """Whether all hold their contexts back; a rank without requests runs a decode of no one."""
        if not self.has_work:
            return False
        decodes = [
            len(generations) if rank.active else 1 for rank, (_, generations) in zip(self.ranks, chosen, strict=True)
        ]
        have_places = all(count < self.config.max_batch_size for count in decodes)
        if have_places and all(shares for shares, _ in chosen):
            self.unequal_steps = 0
            if not all(decodes):
                return False
            if self.batching_steps < self.config.batching_wait_iters:
                self.batching_steps += 1
                return True
            self.batching_steps = 0
            return False
        self.unequal_steps += 1
        if self.unequal_steps >= self.config.timeout_iters or not all(decodes):
            self.unequal_steps = 0
            return False
        return True


def serve(config: TrtllmConfig, ranks: int, requests: Sequence[Request], cost: GroupCost) -> Served:
    """Serve ``requests`` on a worker of ``ranks`` ranks; ``cost``: seconds of a lockstep step."""
    workers = [TrtllmWorker(config, lambda _chunks, _decodes, _sampling: 0.0) for _ in range(ranks)]
    return serve_by(workers, requests, cost)


def serve_by(ranks: list[TrtllmWorker], requests: Sequence[Request], cost: GroupCost) -> Served:
    """Serve on these ranks: fresh, alike, with their own step times 0."""
    group = Group(ranks[0].config, ranks, cost)
    pending = deque(sorted(requests, key=lambda request: (request.arrival_s, request.id)))
    queued: dict[object, float] = {}
    now = 0.0
    while pending or group.has_work or group.outstanding:
        if not group.has_work and not group.outstanding:
            now = max(now, pending[0].arrival_s)
        while pending and pending[0].arrival_s <= now:
            queued[pending[0].id] = now
            group.queue.append(pending.popleft())
        launched = group.pass_at(now)
        if group.outstanding and (not launched or len(group.outstanding) == group.ranks[0].most_outstanding):
            now, done = group.outstanding.popleft()
            for rank in done:
                rank.process()
            for rank in ranks:
                rank.respond()
    firsts: dict[object, float] = {}
    ends: dict[object, float] = {}
    tokens: dict[object, list[float]] = {}
    for rank in group.ranks:
        firsts |= rank.first_token_s
        ends |= rank.finish_s
        tokens |= rank.token_s
    return Served(queued, firsts, ends, tokens)
