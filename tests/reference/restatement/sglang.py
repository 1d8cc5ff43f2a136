"""SGLang's scheduler, restated: prefill first, else decode; retraction; radix cache; with and without overlap.

Source of every rule: the recordings of SGLang's own ``Scheduler`` and the rules noted with them. The limits on a
request's length are those of its ``TpModelWorker`` (``max_req_len``, ``max_req_input_len``). The host tier (HiCache)
is ``HostCache``'s.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tests.reference.restatement.recording import BatchEntry, Cost, Recording, Request, Step, step_seconds
from tests.reference.restatement.sglang_admission import Admission, Verdict
from tests.reference.restatement.sglang_cache import KvCache
from tests.reference.restatement.sglang_copies import Clock
from tests.reference.restatement.sglang_host_cache import HostCache
from tests.reference.restatement.sglang_order import WaitingOrder
from tests.reference.restatement.sglang_state import CLIP_OUTPUT_TOKENS, Batch, LiveRequest, SglangConfig
from tests.reference.restatement.vllm import StuckError

#: Tokens per remaining request that a retraction frees, and by which it raises the ratio.
RETRACT_DECODE_STEPS = 20

#: Weight of a pass towards the next receive of arrivals: after a decode step, and after another step.
DECODE_WEIGHT, OTHER_WEIGHT = 1, 1000


@dataclass
class _Outstanding:
    """A batch on (or queued for) the device, as it was when launched."""

    step: Step
    requests: list[LiveRequest]
    prefill: bool
    partial: LiveRequest | None
    decoding: list[LiveRequest]


class SglangWorker:
    """One engine. Drive it with ``receive``, ``form`` and ``process``; everything else is for inspection.

    Attributes:
        inbox: requests that have arrived and that no pass has received yet.
        waiting: the queue, head first.
        running: the running batch; requests of the last prefill join it on the next pass.
        chunked: the request whose prompt continues in the next prefill.
        ratio: new-token ratio.
        clock: time of the scheduler; a pass that waits for a copy advances it.
        outstanding: launched batches whose results are not processed, oldest first (without overlap: at most one).
        first_scheduled_s, reused_tokens: by request id, at the first admission.
        preemptions: retractions by request id, only those that had one.
    """

    def __init__(self, config: SglangConfig, cost: Cost) -> None:
        self.config = config
        self.cost = cost
        self.clock = Clock()
        self.cache = HostCache(config, config.hicache, self.clock) if config.hicache else KvCache(config)
        self.order = WaitingOrder(config, self.cache)
        self.inbox: list[Request] = []
        self.skipped = 0
        self.waiting: list[LiveRequest] = []
        self.running = Batch()
        self.last: Batch | None = None
        self.chunked: LiveRequest | None = None
        self.ratio = config.initial_ratio
        self.outstanding: list[_Outstanding] = []
        self.unfinished = 0
        self.device_free_s = 0.0
        self.first_scheduled_s: dict[Any, float] = {}
        self.first_token_s: dict[Any, float] = {}
        self.token_s: dict[Any, list[float]] = defaultdict(list)
        self.finish_s: dict[Any, float] = {}
        self.reused_tokens: dict[Any, int] = {}
        self.preemptions: dict[Any, int] = {}
        self.moment = 0
        self._moment_s = -1.0
        self._retracted: list[LiveRequest] = []
        self._preempted: list[LiveRequest] = []

    @property
    def most_outstanding(self) -> int:
        """Batches that may be launched without their results processed."""
        return 1 if self.config.disable_overlap_schedule else 2

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens of the KV pool."""
        return self.config.capacity_tokens

    @property
    def held_tokens(self) -> int:
        """Tokens neither free nor evictable."""
        return self.config.capacity_tokens - self.cache.free_tokens - self.cache.evictable_tokens

    @property
    def evicted_tokens(self) -> int:
        """Cached tokens dropped so far."""
        return self.cache.evicted_tokens

    def storage_log(self) -> list[tuple[float, Any, str, int]]:
        """Results of prefetches from storage: ``(time, id, "revoked" | "reading" | "read", tokens)``."""
        return self.cache.storage_log() if isinstance(self.cache, HostCache) else []

    @property
    def has_unfinished(self) -> bool:
        """Whether requests wait or run."""
        return self.unfinished > 0

    @property
    def longest_tokens(self) -> int:
        """Most prompt + output tokens of one request.

        The engine clips the output limit to ``capacity - 2`` in all. With the radix cache off and pinned outputs its
        admission test rounds computed tokens up to pages. A request clipped to more than this would wait for ever.
        """
        spare = self.config.rank_page if self.config.plays_out_ends else 1
        return self.config.capacity_tokens - 1 - spare

    def rejection(self, request: Request) -> str | None:
        """Why the request can never be served in full, or None.

        The engine refuses prompts of ``capacity - 6`` tokens or more and clips output limits (see ``longest_tokens``);
        a request whose declared limit would be clipped is rejected.
        """
        capacity = self.config.capacity_tokens
        if request.input_tokens >= capacity - 6:
            return f"prompt of {request.input_tokens} tokens, the pool of {capacity} takes less than {capacity - 6}"
        total = request.input_tokens + request.max_output_tokens
        if total > self.longest_tokens:
            return f"{total} tokens exceed the {self.longest_tokens} that a pool of {capacity} serves"
        page = self.config.page_size
        most = capacity - (-(-request.input_tokens // page) + 1) * page - 1
        if self.config.holds("needs_page") and request.max_output_tokens > most:
            return f"{request.max_output_tokens} output tokens exceed the {most} that a pool of {capacity} leaves"
        return None

    def receive(self, request: Request) -> None:
        """Add an arriving request; call in order of (arrival, id)."""
        self.inbox.append(request)
        self.unfinished += 1

    def _receive_arrivals(self) -> None:
        """Queue arrivals if this pass receives: with enough passes since the last time, idle ones included."""
        self.skipped += OTHER_WEIGHT if self.last is not None and self.last.prefill else DECODE_WEIGHT
        if self.skipped < self.config.scheduler_recv_interval:
            return
        self.skipped = 0
        for request in self.inbox:
            longest = self.longest_tokens - request.input_tokens
            pinned = self.config.ignore_eos if request.pinned is None else request.pinned
            live = LiveRequest(request, min(request.max_output_tokens, longest), pinned=pinned, moment=self.moment)
            self.waiting.append(live)
            self.cache.begin_prefetch(live)
        self.inbox = []

    def form(self, now: float) -> Step | None:
        """Form the next batch at ``now`` and queue it on the device; None if nothing can run.

        A pass without a batch (and, with overlap, without results to wait for) is idle: it resets the ratio. It may
        also clear the mark that kept requests from being admitted, or what it took for one may be free again: other
        passes follow at once. Then, while copies or prefetches are under way, the next is at ``next_event_s``.

        Raises:
            RuntimeError: requests wait and none can ever be admitted.
        """
        if now > self._moment_s:
            self.moment += 1
            self._moment_s = now
        self.clock.now_s = max(self.clock.now_s, now)
        self._receive_arrivals()
        batch = self._next_batch()
        idle = batch is None and (self.config.disable_overlap_schedule or self.last is None)
        if idle:
            empty = not self.waiting and not self.running.requests and not self.cache.under_way
            empty = empty and not self.passes_at_once
            if empty or not self.config.holds("resets_ratio_when_empty"):
                self.ratio = self.config.initial_ratio
            self.last = None
            jumps = self.passes_at_once or (self.config.jumps and self.next_event_s() is not None)
            if self.waiting and not jumps:
                for _ in range(1 + self.config.scheduler_recv_interval):
                    if batch is None and self.inbox:
                        self._receive_arrivals()
                    batch = batch or self._next_batch()
                if batch is None and self.next_event_s() is None:
                    raise StuckError(f"request {self.waiting[0].request.id} waits and can never be admitted")
        self.last = batch
        return None if batch is None else self._launch(batch)

    @property
    def passes_at_once(self) -> bool:
        """Whether a pass follows an idle one at once, whatever waits."""
        return False

    def next_event_s(self) -> float | None:
        """When an idle worker with requests waiting needs another pass, if no request arrives before."""
        return self.cache.next_event_s()

    def process(self) -> list[Request]:
        """Take in the results of the oldest outstanding batch, at its end; returns the requests that finished."""
        done = self.outstanding.pop(0)
        self.clock.now_s = max(self.clock.now_s, done.step.end_s)
        finished = []
        for live in done.requests:
            if live is done.partial or live.finished or live.retracted:
                continue
            live.generated += 1
            if live.generated == 1:
                self.first_token_s[live.request.id] = self.clock.now_s
            self.token_s[live.request.id].append(self.clock.now_s)
            if live.generated == live.request.output_tokens:
                live.finished = True
                self.cache.keep_finished(live)
                self.finish_s[live.request.id] = self.clock.now_s
                self.unfinished -= 1
                finished.append(live.request)
            elif done.prefill and live not in done.decoding:
                self.cache.keep_unfinished(live)
        self.cache.begin_writing()
        return finished

    # ---- forming a batch -------------------------------------------------------------------------------------------

    def _next_batch(self) -> Batch | None:
        self._retracted = []
        self._preempted = []
        if self.config.holds("notes_every_pass"):
            self.cache.take_note(self.waiting)
        if self.chunked:
            self.cache.keep_unfinished(self.chunked, chunk=True)
        if self.last and self.last.prefill:
            self._join_last_prefill(self.last)
        if self.config.holds("filters_every_pass"):
            before = len(self.running.requests)
            self.running.drop_finished()
            if len(self.running.requests) < before:
                self.running.full = False
        batch = self._form_prefill()
        if batch:
            return batch
        if self.running.requests and self._form_decode():
            return self.running
        return None

    def _drain(self) -> bool:
        """Let requests that the batch in flight ends by their declared limit leave; returns whether there were any."""
        if not self.config.holds("skips_last_decode") or self.config.disable_overlap_schedule or not self.outstanding:
            return False
        flying = self.outstanding[-1].requests
        ending = [live for live in self.running.requests if live in flying and live.generated + 1 >= live.max_new]
        self.running.drop_finished(also=tuple(ending))
        return bool(ending)

    def _join_last_prefill(self, last: Batch) -> None:
        """Move requests of the last prefill to the running batch, except finished ones and one with prompt left."""
        before = len(last.requests)
        last.drop_finished(also=(self.chunked, last.partial))
        if len(last.requests) < before:
            self.running.full = False
        if not last.requests:
            return
        if self.running.requests:
            self.running.requests = self.running.requests + last.requests
        else:
            self.running = Batch(last.requests)

    def _form_prefill(self) -> Batch | None:
        if not self._may_prefill():
            return None
        if not self.config.holds("notes_every_pass"):
            self.cache.take_note(self.waiting)
        self.order.sort(self.waiting)
        self.order.touch(self.waiting)
        mixed_tokens = len(self.running.requests) if self.config.mixed else 0
        admission = self._admission(mixed_tokens)
        if self.chunked:
            self.chunked.extend = self.chunked.known - self.chunked.prefix
            self.chunked = admission.go_on(self.chunked)
        self._admit_waiting(admission)
        for live in self._preempted:
            self._queue_again(live)
        if not admission.admitted:
            return None
        return self._prefill_batch(admission)

    def _may_prefill(self) -> bool:
        """Whether the pass tries to prefill; without places it marks the batch as full."""
        places = self.config.max_running_requests - len(self.running.requests)
        preempts = self.config.enable_priority_scheduling
        if preempts or (self.config.holds("filters_every_pass") and not self.running.requests):
            self.running.full = False
        if self.chunked is None and (self.running.full or not self.waiting):
            return False
        # Before the rule the engine's test was the wrong way round.
        if places <= 0 and not preempts and (self.chunked is None) == self.config.holds("looks_for_places_first"):
            self.running.full = True
            return False
        return True

    def _admission(self, mixed_tokens: int) -> Admission:
        return Admission(self.config, self.cache, self.running.requests, self.ratio, mixed_tokens)

    def _places(self, admission: Admission) -> int:
        """Requests that a pass admits at most."""
        del admission
        return self.config.max_running_requests - len(self.running.requests)

    def _admit_waiting(self, admission: Admission) -> None:
        for live in self.waiting:
            if self.config.holds("ends_on_spent_budget") and admission.budget_is_spent:
                break
            if len(admission.admitted) >= self._places(admission):
                self.running.full = True
            if self.running.full and not (self.config.enable_priority_scheduling and self._preempt(live, admission)):
                break
            if not self.cache.end_prefetch(live):
                continue
            self.cache.find_prefix(live)
            if self.cache.lost_prefix(live):
                continue
            verdict = admission.try_admit(live)
            if verdict is Verdict.NO_TOKEN:
                # With a host tier a pass may fail because copies hold memory: it is retried.
                served = admission.admitted or self.running.requests
                always = self.config.hicache is None and not self.config.holds("full_if_occupied")
                self.running.full = bool(served) or always
            if verdict is not Verdict.CONTINUE:
                break

    def _prefill_batch(self, admission: Admission) -> Batch:
        """Take slots for admitted requests; in mixed mode the running requests decode in the same step."""
        for live in admission.admitted:
            if live in self.waiting:
                self.order.admit(live)
        self.waiting = [live for live in self.waiting if live not in admission.admitted]
        if admission.partial:
            self.chunked = admission.partial
        for live in admission.admitted:
            live.retracted = False
            self.cache.note_admitted(live)
            live.committed = live.prefix
            self.reused_tokens.setdefault(live.request.id, live.prefix)
        loading = self.cache.begin_loading()
        self.cache.take_prefill(admission.admitted)
        batch = Batch(admission.admitted, prefill=True, partial=self.chunked, loading=loading)
        if self.config.mixed and self.running.requests:
            self.running.drop_finished()
            if self._drain():
                self.running.full = False
            fits = not self.config.holds("mixes_what_fits") or self.cache.decode_fits(self.running.requests)
            if self.running.requests and fits:
                batch.decoding = self.running.requests
                self.cache.take_decode(batch.decoding, mixed=True)
                batch.requests = batch.requests + batch.decoding
                self.running = Batch(full=self.running.full)
        return batch

    def _form_decode(self) -> bool:
        """Decode the running batch: finished requests leave, then requests are retracted until the rest fits.

        Returns whether any decodes.
        """
        running = self.running
        before = len(running.requests)
        running.drop_finished()
        drained = self._drain()
        if not running.requests:
            running.full = False
            return False
        if self.cache.decode_fits(running.requests):
            self.ratio = max(self.ratio - self.config.ratio_decay, self.config.least_ratio)
        elif drained:
            running.full = False
            return False
        else:
            self._retract()
        if len(running.requests) < before:
            running.full = False
        self.cache.take_decode(running.requests)
        return True

    def _preempt(self, live: LiveRequest, admission: Admission) -> bool:
        """Preempt running requests for a far more urgent one, if that makes room for it."""
        sign = self.config.priority_sign
        needed = live.missing + min(live.max_new, CLIP_OUTPUT_TOKENS) - admission.total_left
        running = [other for other in self.running.requests if not other.finished]
        running.sort(key=lambda other: (-other.request.priority * sign, -other.moment))
        victims: list[LiveRequest] = []
        for other in running:
            gap = (other.request.priority - live.request.priority) * sign
            if gap <= self.config.priority_scheduling_preemption_threshold or (victims and needed <= 0):
                break
            victims.append(other)
            needed -= admission.reserved_for(other)
        if not victims or needed > 0:
            return False
        left = len(self.running.requests)
        for other in [other for other in self.running.requests if other in victims]:
            admission.reserved -= admission.reserved_for(other)
            left -= 1
            self._release(other, left)
        self.running.requests = [other for other in self.running.requests if other not in victims]
        self._preempted.extend(victims)
        return True

    def _release(self, live: LiveRequest, left: int) -> None:
        """Free what a request holds that is retracted or preempted, and room for the ``left`` others."""
        flies = bool(self.outstanding) and live in self.outstanding[-1].requests and self.outstanding[-1].prefill
        self.cache.drop(live)
        self.cache.ensure_free_pages(RETRACT_DECODE_STEPS * left)
        live.retracted = True
        live.missing = live.known - (0 if flies else 1) if self.config.holds("knows_lost_tokens") else 0
        self.preemptions[live.request.id] = self.preemptions.get(live.request.id, 0) + 1

    def _queue_again(self, live: LiveRequest) -> None:
        live.moment = self.moment
        self.cache.begin_prefetch(live)
        self.waiting.append(live)

    def _retract(self) -> None:
        """Retract at least one, until the rest fits, from the end (most generated first, then shortest prompt)."""
        stay = sorted(self.running.requests, key=lambda live: (-live.generated, live.request.input_tokens))
        while len(stay) > 1 and (not self._retracted or not self.cache.decode_fits(stay)):
            live = stay.pop()
            self._release(live, len(stay))
            self._retracted.append(live)
        self.running.requests = stay
        for live in self._retracted:
            self._queue_again(live)
        generated = sum(live.generated for live in stay)
        limit = sum(live.max_new for live in stay)
        self.ratio = min(1.0, (generated + RETRACT_DECODE_STEPS * len(stay)) / (limit + 1))

    def _launch(self, batch: Batch) -> Step:
        now = self.clock.now_s
        entries = [self._entry(batch, live) for live in batch.requests]
        start_s = max(now, self.device_free_s)
        end_s = start_s + step_seconds(self.cost, entries)
        if batch.loading:
            end_s = max(end_s, batch.loading.end_s)
        kind = ("mixed" if batch.decoding else "prefill") if batch.prefill else "decode"
        pool = (self.cache.free_tokens, self.cache.evictable_tokens)
        retracted = [live.request.id for live in (*self._preempted, *self._retracted)]
        load_back = (batch.loading.tokens, batch.loading.end_s) if batch.loading else None
        step = Step(start_s, end_s, now, entries, retracted, kind, pool, self.ratio, load_back)
        for live in batch.requests:
            self.first_scheduled_s.setdefault(live.request.id, now)
            if not batch.prefill or live in batch.decoding:
                self.order.decode(live)
        self.device_free_s = end_s
        self.outstanding.append(
            _Outstanding(step, list(batch.requests), batch.prefill, batch.partial, list(batch.decoding))
        )
        return step

    def _entry(self, batch: Batch, live: LiveRequest) -> BatchEntry:
        if batch.prefill and live not in batch.decoding:
            return BatchEntry(live.request.id, live.prefix, live.extend, False, live is not batch.partial)
        return BatchEntry(live.request.id, live.committed - 1, 1, True, True)


def replay(config: SglangConfig, requests: list[Request], cost: Cost) -> Recording:
    """``drive`` a worker of these settings over ``requests``.

    Raises:
        ValueError: a request can never be served.
    """
    worker = SglangWorker(config, cost)
    for request in requests:
        reason = worker.rejection(request)
        if reason is not None:
            raise ValueError(f"request {request.id}: {reason}")
    return drive(worker, requests)


def drive(worker: SglangWorker, requests: list[Request]) -> Recording:
    """Run a fresh worker over requests that it accepts until all have finished.

    A pass may wait for copies (write_back): the next one begins no earlier, and sees arrivals until then.
    """
    pending = sorted(requests, key=lambda request: (request.arrival_s, request.id))
    steps: list[Step] = []
    now = 0.0
    while pending or worker.has_unfinished or worker.outstanding:
        while pending and pending[0].arrival_s <= now:
            worker.receive(pending.pop(0))
        step = worker.form(now)
        now = worker.clock.now_s
        if step is not None:
            steps.append(step)
        if worker.outstanding and (step is None or len(worker.outstanding) == worker.most_outstanding):
            worker.process()
            now = worker.clock.now_s
        elif step is None:
            now = _next_pass_s(worker, pending)
    times = worker.first_token_s, worker.finish_s, worker.reused_tokens
    return Recording(steps, *times, worker.storage_log(), worker.token_s)


def _next_pass_s(worker: SglangWorker, pending: list[Request]) -> float:
    """When an idle worker's next pass is: at once, at the next arrival or, with requests waiting, the next event."""
    if worker.inbox or worker.passes_at_once:
        return worker.clock.now_s
    times = [pending[0].arrival_s] if pending else []
    event_s = worker.next_event_s() if worker.waiting else None
    if event_s == math.inf and not pending:
        raise StuckError(f"request {worker.waiting[0].request.id} waits and nothing will come that admits it")
    return min([*times, event_s] if event_s is not None else times, default=worker.clock.now_s)
