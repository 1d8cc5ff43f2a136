"""A prefill worker and a decode worker with one link between them, over any restated vLLM worker.

vLLM's order alone: a prompt is computed, its request goes to the decode worker, which takes blocks for it and asks for
its KV. A request whose KV has come computes the last token of its prompt. Source: ``v1/core/sched/scheduler.py`` of the
modelled releases, states WAITING_FOR_REMOTE_KVS and WAITING. Blocks are freed at once (``defers_frees`` is off).

``SglangDecode`` has SGLang's order: the decode worker takes memory first, and the first token comes with the KV.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.reference.restatement.recording import Request, Step
from tests.reference.restatement.vllm import StuckError, VllmWorker
from tests.reference.restatement.vllm_drafts import DraftsWorker
from tests.reference.restatement.vllm_state import LiveRequest


class Ask(NamedTuple):
    """A request of a decode worker for the KV of ``tokens`` tokens."""

    request: Request
    tokens: int


class PrefillMixin(VllmWorker):
    """Keeps the blocks of what it has computed until they have been sent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: dict[Any, LiveRequest] = {}
        self.sends: set[Any] = set()

    def _finish(self, live: LiveRequest, now: float) -> None:
        if live.request.id not in self.sends:
            super()._finish(live, now)
            return
        self.running.remove(live)
        self._held[live.request.id] = live
        self.finish_s[live.request.id] = now

    def sent(self, request_id: Any) -> None:
        """Free the blocks of a request whose KV has arrived."""
        self._release(self._held.pop(request_id))


class DecodeMixin(VllmWorker):
    """Asks for the KV of requests, in the order of its queue, and runs them once it has come.

    Attributes:
        asks: requests for KV that the newest pass made; the driver takes them out.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._remote: set[Any] = set()
        self._pending: list[LiveRequest] = []
        self._arrived: set[Any] = set()
        self._resumes = False
        self.asks: list[Ask] = []

    @property
    def queued(self) -> int:
        """Number of requests that do not run."""
        return len(self.waiting) + len(self._pending)

    def receive_remote(self, request: Request) -> None:
        """Queue a request whose prompt another worker has computed."""
        self._remote.add(request.id)
        self.receive(request)

    def arrive(self, request_id: Any) -> None:
        """The KV of a request has come."""
        self._arrived.add(request_id)

    def _admit(self, now: float) -> None:
        for live in list(self._pending):
            if not self._may_admit([live]):
                break
            if live.request.id in self._arrived:
                if not self._resume(live, now):
                    return
                self._pending.remove(live)
        while self._may_admit(self.waiting):
            live = self.waiting[0]
            hits = self._lookup(live)
            if live.request.id in self._remote:
                if not self._ask(live, hits):
                    return
            elif not self._start(live, hits, 0, now):
                return
            self.waiting.pop(0)

    def _resume(self, live: LiveRequest, now: float) -> bool:
        live.computed -= 1
        self._resumes = True
        runs = self._start(live, [], 0, now)
        self._resumes = False
        if not runs:
            live.computed += 1
        return runs

    def _reserved(self) -> int:
        """Blocks that have to be left free when KV is asked for."""
        return 0

    def _has_room(self, live: LiveRequest, hits: list[int]) -> bool:
        needed = -(-live.request.input_tokens // self.config.block_size) - len(hits) + self._reserved()
        needed += sum(map(self.pool.is_free, hits))
        if self.running:
            needed += int(self.config.watermark * self.config.num_blocks)
        return needed <= len(self.pool.free)

    def _ask(self, live: LiveRequest, hits: list[int]) -> bool:
        if not self._has_room(live, hits):
            return False
        prompt, size = live.request.input_tokens, self.config.block_size
        self._hold(live, hits, prompt)
        while len(live.blocks) < -(-prompt // size):
            live.blocks.append(self.pool.take())
        self.reused_tokens[live.request.id] = len(hits) * size
        self._remote.discard(live.request.id)
        self._pending.append(live)
        self.asks.append(Ask(live.request, prompt - len(hits) * size))
        return True


class DraftsDecodeMixin(DecodeMixin):
    """With drafts; goes below ``DraftsWorker`` in the order of resolution."""

    _lookahead: int
    config: Any

    def _ask(self, live: LiveRequest, hits: list[int]) -> bool:
        self._lookahead = 0
        return super()._ask(live, hits)

    def _reserved(self) -> int:
        if "reserves_first_check" not in self.config.rules:
            return 0
        size = self.config.block_size
        ahead = 1 + self.config.draft_tokens * (2 if self.config.drafter_has_kv else 1)
        own = -(-ahead // size)
        return own + sum(-(-(live.request.input_tokens + ahead) // size) - len(live.blocks) for live in self._pending)

    def _start(self, live: LiveRequest, hits: list[int], loaded: int, now: float) -> bool:
        if self._resumes:
            self._lookahead = self.config.draft_tokens if self.config.drafter_has_kv else 0
        return super()._start(live, hits, loaded, now)


class Prefill(PrefillMixin):
    """vLLM without drafts."""


class Decode(DecodeMixin):
    """vLLM without drafts."""


class DraftsPrefill(DraftsWorker, PrefillMixin):
    """vLLM with drafts, whose requests make one token."""


class DraftsDecode(DraftsWorker, DraftsDecodeMixin):
    """vLLM with drafts."""


class SglangDecodeMixin(DecodeMixin):
    """SGLang's: memory is taken for the prompt and ``reserved_tokens`` more, also for each request that it has."""

    reserved_tokens = 0

    def form(self, now: float) -> Step | None:
        """Requests whose KV has come run first; the rest is vLLM's pass, without a budget."""
        for live in list(self._pending):
            if live.request.id in self._arrived and len(self.running) < self.config.max_num_seqs:
                self._pending.remove(live)
                self._join(live, now)
        return super().form(now)

    def _join(self, live: LiveRequest, now: float) -> None:
        live.generated = 1
        self.first_scheduled_s.setdefault(live.request.id, now)
        self.first_token_s[live.request.id] = now
        self.token_s[live.request.id].append(now)
        self.running.append(live)

    def _admit(self, now: float) -> None:
        while self.waiting:
            live = self.waiting[0]
            if live.request.id in self._remote:
                if not self._ask(live, []):
                    return
            elif not self._may_admit(self.waiting) or not self._start(live, self._lookup(live), 0, now):
                return
            self.waiting.pop(0)

    def _has_room(self, live: LiveRequest, hits: list[int]) -> bool:
        residents = len(self.running) + len(self._pending)
        if residents >= self.config.max_num_seqs:
            return False
        free = len(self.pool.free) * self.config.block_size - self.reserved_tokens * residents
        alone = min(live.request.max_output_tokens, 4096) if residents == 0 else 0
        return live.request.input_tokens + max(self.reserved_tokens, alone) <= free


class SglangDecode(SglangDecodeMixin):
    """SGLang without drafts."""


class SglangDraftsDecode(DraftsWorker, SglangDecodeMixin):
    """SGLang with drafts."""

    def _ask(self, live: LiveRequest, hits: list[int]) -> bool:
        self._lookahead = 0
        return super()._ask(live, hits)

    def _join(self, live: LiveRequest, now: float) -> None:
        super()._join(live, now)
        self._generated[live] = 1
        self._drafts[live] = self.config.draft_tokens


@dataclass
class Link:
    """The network of either worker: one transfer after another."""

    base_s: float
    s_per_token: float
    free_s: float = 0.0

    def move(self, tokens: int, now: float) -> float:
        """Send ``tokens`` at ``now``; returns when they have arrived."""
        self.free_s = max(now, self.free_s) + self.base_s + tokens * self.s_per_token
        return self.free_s


@dataclass
class Side:
    """A worker and where it is between passes."""

    worker: Any
    ends: deque[float] = field(default_factory=deque)
    awake: bool = False


_ARRIVAL, _ACTION, _STEP_END, _PASS = range(4)
_PREFILL, _DECODE = 0, 1
_TO_PREFILL, _TO_DECODE, _KV = range(3)


class Pair:
    """One run of a prefill and a decode worker over an open-loop trace.

    Args:
        reserve_first: the decode worker takes memory before the prompt is computed.
        forward_s: from the end of a prompt to the decode worker's queue.
    """

    def __init__(
        self, prefill: Any, decode: Any, requests: list[Request], link: Link, *, reserve_first: bool, forward_s: float
    ) -> None:
        self.sides = (Side(prefill), Side(decode))
        self.requests = {request.id: request for request in requests}
        self.link = link
        self.reserve_first, self.forward_s = reserve_first, forward_s
        self._asked: dict[Any, int] = {}
        self.events = [(request.arrival_s, _ARRIVAL, request.id, 0) for request in requests]
        heapq.heapify(self.events)

    def run(self) -> Pair:
        """Handle events until none is left.

        Raises:
            StuckError: remaining requests can never proceed.
        """
        while self.events:
            now, kind, index, what = heapq.heappop(self.events)
            if kind == _ARRIVAL:
                self._arrive(index, now)
            elif kind == _ACTION:
                self._act(index, what, now)
            elif kind == _STEP_END:
                self._end_step(index, now)
            else:
                self._form(index, now)
        done = self.sides[_DECODE].worker.finish_s
        if any(request.output_tokens > 1 and request.id not in done for request in self.requests.values()):
            raise StuckError("requests wait for what never comes")
        return self

    def _push(self, at_s: float, kind: int, index: int, what: int = 0) -> None:
        heapq.heappush(self.events, (at_s, kind, index, what))

    def _arrive(self, index: int, now: float) -> None:
        request = self.requests[index]
        if request.output_tokens > 1 and self.reserve_first:
            self.sides[_DECODE].worker.receive_remote(request)
            self._wake(_DECODE, now)
        else:
            self._to_prefill(request, now)

    def _to_prefill(self, request: Request, now: float) -> None:
        prefill = self.sides[_PREFILL].worker
        if request.output_tokens > 1:
            prefill.sends.add(request.id)
        prefill.receive(replace(request, output_tokens=1, max_output_tokens=1))
        self._wake(_PREFILL, now)

    def _act(self, index: int, what: int, now: float) -> None:
        if what == _TO_PREFILL:
            self._to_prefill(self.requests[index], now)
        elif what == _TO_DECODE:
            self.sides[_DECODE].worker.receive_remote(self.requests[index])
            self._wake(_DECODE, now)
        else:
            self.sides[_PREFILL].worker.sent(index)
            if self.sides[_PREFILL].worker.waiting:
                self._wake(_PREFILL, now)
            self.sides[_DECODE].worker.arrive(index)
            self._wake(_DECODE, now)

    def _form(self, side: int, now: float) -> None:
        place = self.sides[side]
        step = place.worker.form(now)
        if side == _DECODE:
            for ask in place.worker.asks:
                self._asked[ask.request.id] = ask.tokens
                if self.reserve_first:
                    self._push(now, _ACTION, ask.request.id, _TO_PREFILL)
                else:
                    self._push(self.link.move(ask.tokens, now), _ACTION, ask.request.id, _KV)
            place.worker.asks.clear()
        if step is not None:
            place.ends.append(step.end_s)
        if not place.ends:
            place.awake = False
        elif step is None or len(place.ends) == place.worker.most_outstanding:
            self._push(place.ends[0], _STEP_END, side)
        else:
            self._push(now, _PASS, side)

    def _end_step(self, side: int, now: float) -> None:
        place = self.sides[side]
        place.ends.popleft()
        for request in place.worker.process():
            if side == _PREFILL and request.id in place.worker.sends:
                if self.reserve_first:
                    self._push(self.link.move(self._asked[request.id], now), _ACTION, request.id, _KV)
                else:
                    self._push(now + self.forward_s, _ACTION, request.id, _TO_DECODE)
        self._push(now, _PASS, side)

    def _wake(self, side: int, now: float) -> None:
        if not self.sides[side].awake:
            self.sides[side].awake = True
            self._push(now, _PASS, side)
