"""LoRA adapters under both engines, restated: which a batch may have, where they are, what a step waits for and adds.

Source of every rule: recordings of the engines' own schedulers with their own caches and pools of adapters
(``hisearch.record.vllm_adapters``, ``hisearch.record.sglang.adapters``). Steps go through adapters in rising order.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from tests.reference.restatement.recording import BatchEntry, Cost, Recording, Request
from tests.reference.restatement.sglang import SglangWorker
from tests.reference.restatement.sglang import drive as drive_sglang
from tests.reference.restatement.sglang_admission import Admission, Verdict
from tests.reference.restatement.sglang_state import Batch, LiveRequest, SglangConfig
from tests.reference.restatement.vllm import VllmConfig, VllmWorker
from tests.reference.restatement.vllm import drive as drive_vllm
from tests.reference.restatement.vllm_state import LiveRequest as VllmRequest

#: Most tokens of a request that an adapter which drains still takes, over the most that one of its others has to go.
DRAIN_TOLERANCE = 1.2


@dataclass(frozen=True)
class LoraConfig:
    """Settings of both engines, and the laws of a recording.

    Attributes:
        slots: adapters of a batch. copies: vLLM: adapters in host memory.
        fifo, overlaps, drain_wait_s: SGLang: see its ``--lora-eviction-policy``, ``--enable-lora-overlap-loading`` and
            ``--lora-drain-wait-threshold``.
        load_s, read_s, step_s, adapter_s, token_s: laws.
    """

    slots: int
    copies: int = 0
    fifo: bool = False
    overlaps: bool = False
    drain_wait_s: float = 0.0
    load_s: float = 0.0
    read_s: float = 0.0
    step_s: float = 0.0
    adapter_s: float = 0.0
    token_s: float = 0.0

    @classmethod
    def from_recording(cls, lora: dict[str, Any]) -> LoraConfig:
        """``config.lora`` of either engine."""
        laws = {name: lora[name] for name in ("load_s", "step_s", "adapter_s", "token_s")}
        if "max_loras" in lora:
            copies = lora["max_cpu_loras"] or lora["max_loras"]
            return cls(lora["max_loras"], copies, read_s=lora["read_s"], **laws)
        return cls(
            lora["max_loras_per_batch"], fifo=lora["lora_eviction_policy"] == "fifo",
            overlaps=lora["enable_lora_overlap_loading"], drain_wait_s=lora["lora_drain_wait_threshold"], **laws,
        )  # fmt: skip

    def more_s(self, work: list[tuple[int | None, int]]) -> float:
        """Seconds that (adapter, tokens) of each request add to a step, without loads."""
        own = [(adapter, tokens) for adapter, tokens in work if adapter is not None]
        if not own:
            return 0.0
        adapters = len({adapter for adapter, _ in own})
        return self.step_s + adapters * self.adapter_s + sum(tokens for _, tokens in own) * self.token_s


class VllmLoraWorker(VllmWorker):
    """vLLM with adapters: ``slots`` and ``copies`` are ordered, the least recently used first."""

    def __init__(self, config: VllmConfig, lora: LoraConfig, cost: Cost) -> None:
        super().__init__(config, cost)
        self.lora = lora
        self.slots: OrderedDict[int, None] = OrderedDict()
        self.copies: OrderedDict[int, None] = OrderedDict()
        self._passed_over: set[VllmRequest] = set()
        self._adapter: dict[Any, int | None] = {}

    def receive(self, request: Request) -> None:
        """Queue a request; call in order of (arrival, id)."""
        self._adapter[request.id] = request.adapter
        super().receive(request)

    def _admit(self, now: float) -> None:
        """Admit waiting requests until one fails, passing over those whose adapter would be one too many."""
        running = self.running if "counts_idle_loras" in self.config.rules else list(self._shares)
        used = {live.request.adapter for live in running} - {None}
        for live in list(self.waiting):
            if not self._may_admit(self.waiting):
                return
            adapter = live.request.adapter
            if adapter is not None and adapter not in used and len(used) == self.lora.slots:
                self._passed_over.add(live)
                continue
            if not self._start(live, self._lookup(live), 0, now):
                return
            self.waiting.remove(live)
            self._passed_over.discard(live)
            used |= {adapter} - {None}

    def _preempt(self, victim: VllmRequest) -> None:
        super()._preempt(victim)
        if "one_waiting_queue" in self.config.rules or self.config.policy != "fcfs":
            return
        self.waiting.remove(victim)
        behind = 0
        while behind < len(self.waiting) and self.waiting[behind] in self._passed_over:
            behind += 1
        self.waiting.insert(behind, victim)

    def _price(self, batch: list[BatchEntry]) -> float:
        work = [(self._adapter[entry.id], entry.new) for entry in batch]
        stall_s = 0.0
        for adapter in sorted({adapter for adapter, _ in work if adapter is not None}):
            stall_s += self._touch(adapter)
        return super()._price(batch) + self.lora.more_s(work) + stall_s

    def _touch(self, adapter: int) -> float:
        """Bring an adapter into host memory, and from there into a slot."""
        seconds = 0.0
        if adapter not in self.copies:
            if len(self.copies) == self.lora.copies:
                oldest, _ = self.copies.popitem(last=False)
                self.slots.pop(oldest, None)
            self.copies[adapter] = None
            seconds += self.lora.read_s
        self.copies.move_to_end(adapter)
        if adapter not in self.slots:
            if len(self.slots) == self.lora.slots:
                self.slots.popitem(last=False)
            self.slots[adapter] = None
            seconds += self.lora.load_s
        self.slots.move_to_end(adapter)
        return seconds


def _order(adapter: int | None) -> tuple[bool, int]:
    """The base model first, then by number."""
    return (adapter is not None, adapter or 0)


class SglangLoraWorker(SglangWorker):
    """SGLang with adapters, of which the base model, None, is one.

    Attributes:
        slots: who has which, None in the first at the beginning. used: adapters but for the base model, the next to be
            evicted first. copying: with overlaps: ends of copies under way. drains_for: see ``_settle_draining``.
    """

    def __init__(self, config: SglangConfig, lora: LoraConfig, cost: Cost) -> None:
        super().__init__(config, cost)
        self.lora = lora
        self.slots: list[int | str | None] = [None, *["empty"] * (lora.slots - 1)]
        self.used: list[int] = []
        self.copying: dict[int | None, float] = {}
        self.stream_s = 0.0
        self.drains_for: dict[int | None, int] = {}
        self._queued_s: dict[Any, float] = {}

    def _receive_arrivals(self) -> None:
        super()._receive_arrivals()
        for live in self.waiting:
            self._queued_s.setdefault(live.request.id, self.clock.now_s)

    def next_event_s(self) -> float | None:
        """When an idle worker with requests waiting needs another pass, if no request arrives before.

        Infinity: a copy that has ended keeps others out until a request of its adapter comes, as 0.5.9 has it.
        """
        ends = [end_s for end_s in self.copying.values() if end_s > self.clock.now_s]
        return min(ends, default=math.inf if self.copying else None)

    def _queue_again(self, live: LiveRequest) -> None:
        super()._queue_again(live)
        self._queued_s[live.request.id] = self.clock.now_s

    # ---- admission -------------------------------------------------------------------------------------------------

    def _admit_waiting(self, admission: Admission) -> None:
        counted = self._counted(admission)
        if self.lora.drain_wait_s:
            self._settle_draining()
        for live in self.waiting:
            if self.config.holds("ends_on_spent_budget") and admission.budget_is_spent:
                break
            if not self._may_admit(live, counted):
                continue
            if len(admission.admitted) >= self._places(admission):
                self.running.full = True
            if self.running.full:
                break
            self.cache.find_prefix(live)
            verdict = admission.try_admit(live)
            counted.add(live.request.adapter)
            if verdict is Verdict.NO_TOKEN:
                served = admission.admitted or self.running.requests
                self.running.full = bool(served) or not self.config.holds("full_if_occupied")
            if verdict is not Verdict.CONTINUE:
                break

    def _counted(self, admission: Admission) -> set[int | None]:
        if not self.config.holds("counts_chunked_lora"):
            return {live.request.adapter for live in self.running.requests}
        running = {live.request.adapter for live in self.running.requests if not live.finished}
        return running | {live.request.adapter for live in admission.admitted}

    def _may_admit(self, live: LiveRequest, counted: set[int | None]) -> bool:
        adapter = live.request.adapter
        if adapter in self.drains_for and live.max_new > self._to_go(adapter) * DRAIN_TOLERANCE:
            return False
        if adapter in counted:
            return True
        if self.lora.overlaps:
            return self._try_copy(adapter, counted)
        return len(counted) < self.lora.slots

    def _try_copy(self, adapter: int | None, counted: set[int | None]) -> bool:
        """Whether an adapter is there; if not, begin to copy it where there is a slot for it."""
        now, keeps = self.clock.now_s, self.config.holds("counts_chunked_lora")
        if keeps:
            self.copying = {other: end_s for other, end_s in self.copying.items() if end_s > now}
        if adapter in self.copying:
            if keeps or self.copying[adapter] > now:
                return False
            del self.copying[adapter]
            return True
        if keeps and adapter in self.slots:
            return True
        wanted = {adapter, *counted, *self.copying}
        if len(wanted) > self.lora.slots:
            return False
        self.stream_s = max(self.stream_s, now) + self._bring(wanted)
        if keeps and self.stream_s <= now:
            return True
        self.copying[adapter] = self.stream_s
        return False

    # ---- draining --------------------------------------------------------------------------------------------------

    def _to_go(self, adapter: int | None) -> int:
        """Most tokens that a running request of an adapter has to go."""
        of_it = [live for live in self.running.requests if live.request.adapter == adapter]
        return max((live.max_new - live.generated for live in of_it), default=0)

    def _settle_draining(self) -> None:
        """Let a running adapter drain for each that has waited too long; the longest wait and the least to go first."""
        running = {live.request.adapter for live in self.running.requests}
        if len(running) >= self.lora.slots:
            waits: dict[int | None, float] = {}
            for live in self.waiting:
                wait_s = self.clock.now_s - self._queued_s[live.request.id]
                waits[live.request.adapter] = max(waits.get(live.request.adapter, 0.0), wait_s)
            starving = [adapter for adapter, wait_s in waits.items() if wait_s > self.lora.drain_wait_s]
            starving = [adapter for adapter in starving if adapter not in self.drains_for.values()]
            may_drain = [adapter for adapter in running if adapter not in self.drains_for]
            for adapter in sorted(starving, key=lambda each: (-waits[each], _order(each))):
                if not may_drain:
                    break
                drained = min(may_drain, key=lambda each: (self._to_go(each), _order(each)))
                may_drain.remove(drained)
                if adapter is not None:
                    self.drains_for[drained] = adapter
        self.drains_for = {adapter: other for adapter, other in self.drains_for.items() if adapter in running}

    # ---- slots -----------------------------------------------------------------------------------------------------

    def _bring(self, wanted: set[int | None]) -> float:
        """Bring adapters into slots; returns the seconds of the copies."""
        ordered = sorted(wanted, key=_order)
        for adapter in ordered:
            if adapter is None or (self.lora.fifo and adapter in self.used):
                continue
            if adapter in self.used:
                self.used.remove(adapter)
            self.used.append(adapter)
        copies = 0
        for adapter in ordered:
            if adapter in self.slots:
                continue
            copies += adapter is not None
            self.slots[self._free_slot(wanted)] = adapter
        return copies * self.lora.load_s

    def _free_slot(self, wanted: set[int | None]) -> int:
        """An empty slot, or that of the adapter that goes first; of the base model only where no other may go."""
        if "empty" in self.slots:
            return self.slots.index("empty")
        victim = next((adapter for adapter in self.used if adapter in self.slots and adapter not in wanted), None)
        slot = self.slots.index(victim)
        if victim is not None:
            self.used.remove(victim)
        return slot

    def _launch(self, batch: Batch) -> Any:
        adapters = [live.request.adapter for live in batch.requests]
        work = [(adapter, self._entry(batch, live).new) for adapter, live in zip(adapters, batch.requests, strict=True)]
        more_s = self.lora.more_s(work)
        if not self.lora.overlaps:
            more_s += self._bring(set(adapters))
        plain, self.cost = self.cost, _slower(self.cost, more_s)
        try:
            return super()._launch(batch)
        finally:
            self.cost = plain


def _slower(cost: Cost, more_s: float) -> Cost:
    def slower(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
        return cost(chunks, decodes, sampling) + more_s

    return slower


def replay_vllm(config: VllmConfig, lora: LoraConfig, requests: list[Request], cost: Cost) -> Recording:
    """Run one vLLM worker over ``requests`` until all have finished."""
    return drive_vllm(VllmLoraWorker(config, lora, cost), requests)


def replay_sglang(config: SglangConfig, lora: LoraConfig, requests: list[Request], cost: Cost) -> Recording:
    """Likewise of SGLang.

    Raises:
        ValueError: a request can never be served.
    """
    worker = SglangLoraWorker(config, lora, cost)
    for request in requests:
        reason = worker.rejection(request)
        if reason is not None:
            raise ValueError(f"request {request.id}: {reason}")
    return drive_sglang(worker, requests)
