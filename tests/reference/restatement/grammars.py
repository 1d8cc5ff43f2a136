"""Grammars of structured output under both engines, restated: who waits for which, in what order, and what steps take.

Source of every rule: recordings of the engines' own schedulers and managers of grammars
(``hisearch.record.vllm_grammars``, ``hisearch.record.sglang.grammars``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.reference.restatement.recording import BatchEntry, Cost, Recording, Request, Step
from tests.reference.restatement.sglang import SglangWorker
from tests.reference.restatement.sglang import drive as drive_sglang
from tests.reference.restatement.sglang_state import Batch, LiveRequest, SglangConfig
from tests.reference.restatement.vllm import VllmConfig, VllmWorker
from tests.reference.restatement.vllm import drive as drive_vllm
from tests.reference.restatement.vllm_state import LiveRequest as VllmRequest

#: SGLang: seconds between two looks at the grammars that a pass waits for, and looks of a pass.
LOOK_S, LOOKS = 0.005 / 10, 10


@dataclass(frozen=True)
class GrammarConfig:
    """The laws of a recording: see ``hisearch.record.grammars``."""

    compile_s: tuple[float, ...]
    threads: int
    sequence_s: float = 0.0

    @classmethod
    def from_recording(cls, structured: dict[str, Any]) -> GrammarConfig:
        """``config.structured`` of either engine."""
        return cls(tuple(structured["compile_s"]), structured["threads"], structured["sequence_s"])


class Compiler:
    """Threads that compile, in the order in which they are asked; what is compiled is kept."""

    def __init__(self, config: GrammarConfig) -> None:
        self._config = config
        self._free_s = [0.0] * config.threads
        self._ready_s: dict[int, float] = {}

    def compile(self, grammar: int, now: float) -> float:
        """When a grammar that is asked for at ``now`` is there."""
        self._free_s.sort()
        start_s = max(now, self._free_s[0])
        if grammar not in self._ready_s:
            self._ready_s[grammar] = start_s + self._config.compile_s[grammar - 1]
        self._free_s[0] = max(start_s, self._ready_s[grammar])
        return self._free_s[0]


class VllmGrammarWorker(VllmWorker):
    """vLLM with grammars.

    Before ``one_waiting_queue`` requests with a grammar that have not run stand in a queue of their own, which goes
    first: here at the head of ``waiting``.
    """

    def __init__(self, config: VllmConfig, grammars: GrammarConfig, cost: Cost) -> None:
        super().__init__(config, cost)
        self.grammars = grammars
        self.compiler = Compiler(grammars)
        self._ready_s: dict[Any, float] = {}
        self._ahead: list[Any] = []

    def receive(self, request: Request) -> None:
        """Queue a request; call in order of (arrival, id)."""
        super().receive(request)
        if request.grammar is None:
            return
        self._ready_s[request.id] = self.compiler.compile(request.grammar, request.arrival_s)
        if self._has_two_queues:
            self.waiting.insert(len(self._ahead), self.waiting.pop())
            self._ahead.append(request.id)

    @property
    def _has_two_queues(self) -> bool:
        return self.config.policy == "fcfs" and "one_waiting_queue" not in self.config.rules

    def form(self, now: float) -> Step | None:
        """Form the next batch at ``now``, and note when the next grammar is there."""
        step = super().form(now)
        waits_s = [self._ready_s.get(live.request.id, now) for live in self.waiting]
        self.look_again_s = min((ready_s for ready_s in waits_s if ready_s > now), default=None)
        return step

    def _admit(self, now: float) -> None:
        """Admit waiting requests until one fails, passing over those whose grammars are not there."""
        for live in list(self.waiting):
            if not self._may_admit(self.waiting):
                return
            if self._ready_s.get(live.request.id, now) > now:
                continue
            if not self._start(live, self._lookup(live), 0, now):
                return
            self.waiting.remove(live)
            if live.request.id in self._ahead:
                self._ahead.remove(live.request.id)

    def _preempt(self, victim: VllmRequest) -> None:
        super()._preempt(victim)
        if self._has_two_queues:
            self.waiting.insert(len(self._ahead), self.waiting.pop(0))

    def _price(self, batch: list[BatchEntry]) -> float:
        masked = sum(entry.samples and entry.id in self._ready_s for entry in batch)
        return max(super()._price(batch), masked * self.grammars.sequence_s)


class SglangGrammarWorker(SglangWorker):
    """SGLang with grammars.

    Attributes:
        compiling: requests that wait for their grammar, and when that is there. cached: grammars whose requests do not
            wait: a pass has found them there.
    """

    def __init__(self, config: SglangConfig, grammars: GrammarConfig, cost: Cost) -> None:
        super().__init__(config, cost)
        self.grammars = grammars
        self.compiler = Compiler(grammars)
        self.compiling: list[tuple[LiveRequest, float]] = []
        self.cached: set[int] = set()

    def _receive_arrivals(self) -> None:
        """Queue arrivals; the compilations of new grammars begin now."""
        before = len(self.waiting)
        super()._receive_arrivals()
        arrived, self.waiting = self.waiting[before:], self.waiting[:before]
        for live in arrived:
            grammar = live.request.grammar
            if grammar is None or grammar in self.cached:
                self.waiting.append(live)
            else:
                self.compiling.append((live, self.compiler.compile(grammar, self.clock.now_s)))

    @property
    def passes_at_once(self) -> bool:
        """Whether a pass follows an idle one at once: each has waited for grammars by itself."""
        return bool(self.compiling)

    def _next_batch(self) -> Batch | None:
        if self.compiling:
            self._poll()
        return super()._next_batch()

    def _poll(self) -> None:
        """Look for grammars, some time long at most, and queue the requests whose grammars are there."""
        begin_s = self.clock.now_s
        ready: set[int] = set()
        looks = 0
        while looks < LOOKS:
            now = begin_s + looks * LOOK_S
            for index, (_, ready_s) in enumerate(self.compiling):
                if ready_s <= now:
                    ready.add(index)
            if len(ready) == len(self.compiling) and self.config.holds("stops_polling"):
                break
            looks += 1
        if looks:
            self.clock.now_s = self._moment_s = begin_s + looks * LOOK_S
            self.moment += 1
        # The engine goes through a set of indices, in the order of its hash table.
        for index in ready:
            live, _ = self.compiling[index]
            assert live.request.grammar is not None
            self.cached.add(live.request.grammar)
            live.moment = self.moment
            self.waiting.append(live)
        self.compiling = [entry for index, entry in enumerate(self.compiling) if index not in ready]

    def _launch(self, batch: Batch) -> Step:
        masked = sum(live.request.grammar is not None for live in batch.requests)
        plain, self.cost = self.cost, _at_least(self.cost, masked * self.grammars.sequence_s)
        try:
            return super()._launch(batch)
        finally:
            self.cost = plain


def _at_least(cost: Cost, host_s: float) -> Cost:
    def longer(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
        return max(cost(chunks, decodes, sampling), host_s)

    return longer


def replay_vllm(config: VllmConfig, grammars: GrammarConfig, requests: list[Request], cost: Cost) -> Recording:
    """Run one vLLM worker over ``requests`` until all have finished."""
    return drive_vllm(VllmGrammarWorker(config, grammars, cost), requests)


def replay_sglang(config: SglangConfig, grammars: GrammarConfig, requests: list[Request], cost: Cost) -> Recording:
    """Likewise of SGLang.

    Raises:
        ValueError: a request can never be served.
    """
    worker = SglangGrammarWorker(config, grammars, cost)
    for request in requests:
        reason = worker.rejection(request)
        if reason is not None:
            raise ValueError(f"request {request.id}: {reason}")
    return drive_sglang(worker, requests)
