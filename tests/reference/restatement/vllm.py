"""vLLM's v1 scheduler, restated block by block, by the rules of any modelled release (``base.engine_rules``).

Source of every rule: the recordings of vLLM's own ``Scheduler`` and KV cache manager and the rules noted with them.

Terms: a request's *known* tokens are its prompt and its generated tokens. *Computed* tokens have their KV, or will have
it when the outstanding batches have run. A token *in flight* is being made by an outstanding batch (asynchronous only).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from hisearch.specs.deployments.engine_rules import rules_of
from tests.reference.restatement.content import page
from tests.reference.restatement.fair_share import FairShare
from tests.reference.restatement.recording import BatchEntry, Cost, Recording, Request, Step, step_seconds
from tests.reference.restatement.vllm_pool import BlockPool
from tests.reference.restatement.vllm_state import LiveRequest, Outstanding

#: Preemptions without a token in between, per request that may run, after which the engine is taken to be stuck.
FUTILE_PREEMPTIONS = 1000


#: Settings of a recording that ``vllm_groups`` and ``vllm_states`` read.
GROUP_SETTINGS = (
    "sliding_window", "hybrid_window", "prefix_cache_retention_interval", "mamba_groups", "mamba_prefill_checkpoints",
)  # fmt: skip


class StuckError(RuntimeError):
    """The engine makes no progress: see ``FUTILE_PREEMPTIONS``."""


@dataclass(frozen=True)
class VllmConfig:
    """Scheduler settings, by vLLM's names if it has one.

    Attributes:
        max_num_seqs: most running requests.
        max_tokens: tokens per step (``max_num_batched_tokens``).
        num_blocks: pool size; one of them is the null block.
        block_size: tokens per block.
        prefix: prefix caching.
        chunked_prefill: False: a prompt is never split by the budget.
        long_prefill_token_threshold: most tokens of one request per step; 0 is off.
        long_prefill_token_threshold_adaptive: at least an equal share of max_tokens for each request.
        scheduler_reserve_full_isl: admission needs free blocks for all known tokens, not only for the first chunk.
        policy: ``fcfs`` or ``priority``.
        fair: order of tenants by ``fair_share``, in place of fcfs.
        ttft_targets_s: with the latter, where deadlines stand in place of priority values: by priority, None for none.
        async_scheduling: a batch is formed while the one before it runs.
        watermark: share of all blocks that admission leaves free while something runs.
        rules: names of the dated rules that hold; the newest modelled release's by default.
    """

    max_num_seqs: int
    max_tokens: int
    num_blocks: int
    block_size: int = 16
    prefix: bool = True
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    ttft_targets_s: tuple[float | None, ...] = ()
    fair: str = ""
    async_scheduling: bool = False
    watermark: float = 0.0
    rules: frozenset[str] = rules_of("vllm")

    def rank(self, request: Request) -> float:
        """What is lowest for the most urgent: its priority value, or its deadline."""
        if not self.ttft_targets_s:
            return request.priority
        target_s = self.ttft_targets_s[min(request.priority, len(self.ttft_targets_s) - 1)]
        return math.inf if target_s is None else request.arrival_s + target_s

    @classmethod
    def from_recording(cls, config: dict[str, Any], version: str = "") -> VllmConfig:
        """Settings of a case of release ``version``; ``max_model_len`` is never reached and is ignored.

        Raises:
            ValueError: the case has a connector, which is not restated.
        """
        if config.get("offload") is not None:
            raise ValueError("offload: the connector is not restated")
        ranks = "decode_context_parallel_size"
        prompts = "prefill_context_parallel_size"  # No decision depends on it.
        others = ("max_model_len", "offload", "speculation", "lora", "structured", ranks, prompts, *GROUP_SETTINGS)
        settings = {key: value for key, value in config.items() if key not in others}
        settings["block_size"] *= config.get(ranks, 1)
        return cls(**settings, rules=rules_of("vllm", version))


class VllmWorker:
    """One engine. Drive it with ``receive``, ``form`` and ``process``; everything else is for inspection.

    Attributes:
        waiting, running: the queue (head first) and the running list (in order).
        outstanding: formed batches whose results are not processed, oldest first (synchronous: at most one).
        first_scheduled_s, reused_tokens: by request id, at the first admission.
        preemptions: by request id, only those that had one.
        launch_s: earliest start of the newest pass's batch; 0: at once.
        held_s: until when the newest launch holds the scheduler; results that it keeps waiting count from then on.
        look_again_s: when to try again if the newest pass formed no batch and none is outstanding; None: never.
    defers_frees: blocks of a request in an outstanding batch are freed with the results of the newest batch launched.
    """

    def __init__(self, config: VllmConfig, cost: Cost) -> None:
        self.config = config
        self.cost = cost
        self.pool = BlockPool(config.num_blocks, "unhashed_first" in config.rules)
        self.waiting: list[LiveRequest] = []
        self.running: list[LiveRequest] = []
        self.outstanding: list[Outstanding] = []
        self.first_scheduled_s: dict[Any, float] = {}
        self.first_token_s: dict[Any, float] = {}
        self.token_s: dict[Any, list[float]] = defaultdict(list)
        self.finish_s: dict[Any, float] = {}
        self.reused_tokens: dict[Any, int] = {}
        self.preemptions: dict[Any, int] = {}
        self.device_free_s = 0.0
        self.look_again_s: float | None = None
        self.launch_s = 0.0
        self.held_s = 0.0
        self.defers_frees = False
        self._launched = 0
        self._deferred: list[tuple[int, list[int]]] = []
        self._shares: dict[LiveRequest, int] = {}
        self._preempted: list[LiveRequest] = []
        self._futile = 0
        self._requests = 0
        self._share_order = FairShare(config.fair, config.max_tokens) if config.fair else None

    @property
    def most_outstanding(self) -> int:
        """Batches that may be launched without their results processed."""
        return 2 if self.config.async_scheduling else 1

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the usable blocks hold."""
        return self.pool.usable_blocks * self.config.block_size

    @property
    def held_tokens(self) -> int:
        """Capacity of the blocks held by requests, in tokens."""
        return self.pool.held_blocks * self.config.block_size

    @property
    def evicted_tokens(self) -> int:
        """Cached tokens dropped so far."""
        return self.pool.evicted_blocks * self.config.block_size

    @property
    def queued(self) -> int:
        """Number of requests that do not run."""
        return len(self.waiting)

    @property
    def has_work(self) -> bool:
        """Whether requests wait or run."""
        return bool(self.waiting or self.running)

    def rejection(self, request: Request) -> str | None:
        """Why the request can never be served, or None.

        Prompt and output must fit into the usable blocks, but for the last token, which is never computed. With chunked
        prefill off they must also fit into one step, since vLLM then refuses a model length above the step's budget.
        """
        total = request.input_tokens + request.max_output_tokens - 1
        if _ceil_div(total, self.config.block_size) > self.pool.usable_blocks:
            return f"{total} tokens exceed the pool's {self.kv_capacity_tokens}"
        if not self.config.chunked_prefill and total > self.config.max_tokens:
            return f"{total} tokens exceed the step budget of {self.config.max_tokens} and chunked prefill is off"
        return None

    def receive(self, request: Request) -> None:
        """Queue a request; call in order of (arrival, id)."""
        live = LiveRequest(request, rank=self.config.rank(request))
        if self.config.policy == "priority":
            self._insert_by_urgency(live)
        else:
            self.waiting.append(live)

    def form(self, now: float) -> Step | None:
        """Form the next batch at ``now`` and queue it on the device; None if nothing can be scheduled.

        A pass that only preempted is followed by another one at the same time, unless a result is outstanding.
        """
        while True:
            self._schedule(now)
            if self._shares or not self._preempted or self.outstanding:
                break
        return self._launch(now) if self._shares else None

    def _launch(self, now: float) -> Step:
        """Queue the batch just formed on the device."""
        batch = [self._entry(live, share) for live, share in self._shares.items()]
        sampled = [live for live, entry in zip(self._shares, batch, strict=True) if entry.samples]
        start_s, end_s = self._span(now, self._price(batch))
        preempted = sorted(live.request.id for live in self._preempted)
        step = Step(start_s, end_s, now, batch, preempted)
        if sampled:
            self._futile = 0
        if self._share_order:
            for live in self._shares:
                if live.decodes and live.generated + live.in_flight < live.request.output_tokens:
                    self._share_order.decode(live)
        self._advance(sampled)
        self.device_free_s = end_s
        self._launched += 1
        for live in self._shares:
            live.scheduled_step = self._launched
        for live in sampled:
            live.decodes = True
        self.outstanding.append(Outstanding(step, list(self._shares), sampled))
        return step

    def _price(self, batch: list[BatchEntry]) -> float:
        return step_seconds(self.cost, batch)

    def _span(self, now: float, seconds: float) -> tuple[float, float]:
        """Start and end of the batch just formed, whose computation takes ``seconds``."""
        start_s = max(now, self.device_free_s)
        return start_s, start_s + seconds

    def process(self) -> list[Request]:
        """Take in the results of the oldest outstanding batch, at its end; returns the requests that finished."""
        done = self.outstanding.pop(0)
        self._free_deferred()
        end_s = max(done.step.end_s, self.held_s)
        finished = []
        for live in done.live:
            if live.request.id in self.finish_s:
                continue
            if live in done.sampled:
                live.in_flight -= 1
                live.generated += 1
                if live.generated == 1:
                    self.first_token_s[live.request.id] = end_s
                self.token_s[live.request.id].append(end_s)
            if live in self.running:
                self._publish(live, live.computed - live.in_flight)
            if live.generated == live.request.output_tokens:
                self._finish(live, end_s)
                finished.append(live.request)
        return finished

    # ---- forming a batch -------------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        """One pass: fills ``_shares`` (request -> tokens, in batch order) and ``_preempted``."""
        self._shares = {}
        self._preempted = []
        self._requests = len(self.running) + self.queued
        self._schedule_running()
        if not self._preempted:
            self._admit(now)

    @property
    def _budget(self) -> int:
        return self.config.max_tokens - sum(self._shares.values())

    def _schedule_running(self) -> None:
        position = 0
        while position < len(self.running) and self._budget > 0:
            live = self.running[position]
            share = self._share(live)
            if share == 0:
                position += 1
                continue
            while self._blocks_missing(live, share) > len(self.pool.free):
                victim = self._choose_victim()
                if self._defers(victim):
                    return
                ahead = self.running.index(victim) < position and "exact_victims" in self.config.rules
                if victim in self._shares or ahead:
                    position -= 1
                self._preempt(victim)
                if victim is live:
                    break
            if live in self.running:
                self._compute(live, share)
                position += 1
            elif self.config.policy == "fcfs" or "outlives_own_preemption" not in self.config.rules:
                return

    def _share(self, live: LiveRequest) -> int:
        """Tokens of a running request that the budget allows; 0: none is to be computed."""
        if live.waits_for_last_token:
            return 0
        share = min(self._cut(live.known + live.in_flight - live.computed), self._budget)
        return self._aligned(live, live.computed, share)

    def _aligned(self, live: LiveRequest, start: int, share: int) -> int:
        """The part of a share behind ``start`` tokens that a step computes, where it has to end at certain tokens."""
        return share

    def _admit(self, now: float) -> None:
        """Admit waiting requests from the head until the first one fails."""
        if self._share_order and self._may_admit(self.waiting):
            self.waiting[:] = self._share_order.ordered(self.waiting)
        while self._may_admit(self.waiting):
            live = self.waiting[0]
            if not self._start(live, self._lookup(live), 0, now):
                return
            self.waiting.pop(0)
            if self._share_order:
                self._share_order.admit(live)

    def _may_admit(self, queue: list[LiveRequest]) -> bool:
        return bool(queue) and self._budget > 0 and len(self.running) < self.config.max_num_seqs

    def _start(self, live: LiveRequest, hits: list[int], loaded: int, now: float) -> bool:
        """Run a waiting request with ``hits`` and ``loaded`` tokens from other tiers; False if it does not fit."""
        cached = live.computed + len(hits) * self.config.block_size + loaded
        wanted = self._wanted_at_first(live, cached)
        if wanted is None:
            return False
        share = self._cut(wanted)
        if not self.config.chunked_prefill and share > self._budget:
            return False
        share = self._aligned(live, cached, min(share, self._budget))
        if share == 0:
            return False
        if self.config.scheduler_reserve_full_isl and not self._fits_whole(live, hits):
            return False
        if not self._fits(live, hits, cached + share):
            return False
        self.running.append(live)
        self._hold(live, hits, cached)
        self.first_scheduled_s.setdefault(live.request.id, now)
        self.reused_tokens.setdefault(live.request.id, cached)
        self._compute(live, share)
        return True

    def _wanted_at_first(self, live: LiveRequest, cached: int) -> int | None:
        """Tokens that an admitted request wants to compute behind its ``cached`` ones; None: rather none at all."""
        return live.known - cached

    def _hold(self, live: LiveRequest, hits: list[int], cached: int) -> None:
        """Hold the hits of a request that has no blocks or no hits; ``cached`` tokens count as computed."""
        for block in hits:
            self.pool.hold(block)
        live.blocks += hits
        live.hashed += len(hits)
        live.computed = cached

    def _cut(self, tokens: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        if threshold == 0:
            return tokens
        if "lone_prompt_uncut" in self.config.rules:
            if self._requests <= 1:
                return tokens
            if self.config.long_prefill_token_threshold_adaptive:
                threshold = max(threshold, self.config.max_tokens // self._requests)
        return min(tokens, threshold)

    def _blocks_missing(self, live: LiveRequest, share: int) -> int:
        return _ceil_div(live.computed + share, self.config.block_size) - len(live.blocks)

    def _lookup(self, live: LiveRequest) -> list[int]:
        """Cached blocks of the request's leading pages; at least one known token is left to compute."""
        hits: list[int] = []
        if self.config.prefix:
            for index in range((live.known - 1) // self.config.block_size):
                block = self.pool.find(self._page(live, index))
                if block is None:
                    break
                hits.append(block)
        return hits

    def _page(self, live: LiveRequest, index: int) -> Any:
        """What names the request's page ``index``."""
        return page(live.request.content, index, self.config.block_size)

    def _fits_whole(self, live: LiveRequest, hits: list[int]) -> bool:
        """Whether all known tokens fit."""
        return self._fits(live, hits, live.known)

    def _fits(self, live: LiveRequest, hits: list[int], tokens: int) -> bool:
        """Whether ``tokens`` in all fit, with ``hits`` reused; a hit in the free queue also leaves it."""
        new_blocks = _ceil_div(tokens, self.config.block_size) - len(live.blocks) - len(hits)
        reserved_blocks = int(self.config.watermark * self.config.num_blocks) if self.running else 0
        return new_blocks + sum(map(self.pool.is_free, hits)) + reserved_blocks <= len(self.pool.free)

    def _compute(self, live: LiveRequest, share: int) -> None:
        """Give the request its share: take blocks, and publish those that known tokens fill."""
        for _ in range(self._blocks_missing(live, share)):
            live.blocks.append(self.pool.take())
        self._shares[live] = share
        self._publish(live, min(live.computed + share, live.known))

    def _publish(self, live: LiveRequest, tokens: int) -> None:
        """Publish every block that the request's first ``tokens`` tokens fill."""
        if not self.config.prefix:
            return
        while live.hashed < tokens // self.config.block_size:
            self.pool.publish(live.blocks[live.hashed], self._page(live, live.hashed))
            live.hashed += 1

    def _entry(self, live: LiveRequest, share: int) -> BatchEntry:
        """The recorded form of a share.

        A decode computes the one token that was made last; every other share is a chunk.
        """
        known_tokens = live.known + live.in_flight
        samples = live.computed + share == known_tokens
        decode = samples and share == 1 and known_tokens > live.request.input_tokens
        return BatchEntry(live.request.id, live.computed, share, decode, samples)

    def _advance(self, sampled: list[LiveRequest]) -> None:
        """Count the batch as computed from now on."""
        for live, share in self._shares.items():
            live.computed += share
        for live in sampled:
            live.in_flight += 1

    # ---- leaving ---------------------------------------------------------------------------------------------------

    def _choose_victim(self) -> LiveRequest:
        if self.config.policy == "fcfs":
            return self.running[-1]
        # max() keeps the first of equals: the one nearest the front
        return max(self.running, key=lambda live: (live.rank, live.request.arrival_s))

    def _preempt(self, victim: LiveRequest) -> None:
        self.running.remove(victim)
        self._shares.pop(victim, None)
        self._preempted.append(victim)
        self._futile += 1
        if self._futile > FUTILE_PREEMPTIONS * self.config.max_num_seqs:
            raise StuckError("requests preempt each other for ever")
        self._release(victim)
        victim.computed = 0
        victim.decodes = False
        victim.preemptions += 1
        self.preemptions[victim.request.id] = victim.preemptions
        if self.config.policy == "priority":
            self._insert_by_urgency(victim)
        else:
            self.waiting.insert(0, victim)

    def _finish(self, live: LiveRequest, now: float) -> None:
        """Finish a request; one preempted with its last token in flight finishes in the waiting queue."""
        (self.running if live in self.running else self.waiting).remove(live)
        self._release(live)
        self.finish_s[live.request.id] = now

    def _release(self, live: LiveRequest) -> None:
        if self._defers(live):
            self._deferred.append((self._launched, live.blocks))
        else:
            self.pool.release(live.blocks)
        live.blocks = []
        live.hashed = 0

    def _defers(self, live: LiveRequest) -> bool:
        """Whether the request's blocks would be freed later: a batch that is not processed yet may write them."""
        return self.defers_frees and live.scheduled_step > self._launched - len(self.outstanding)

    def _free_deferred(self) -> None:
        """Free the blocks that wait for batches processed by now."""
        while self._deferred and self._deferred[0][0] <= self._launched - len(self.outstanding):
            self.pool.release(self._deferred.pop(0)[1])

    def _insert_by_urgency(self, live: LiveRequest) -> None:
        self.waiting.append(live)
        self.waiting.sort(key=lambda waiting: waiting.urgency)


def replay(config: VllmConfig, requests: list[Request], cost: Cost) -> Recording:
    """Run one worker over ``requests`` until all have finished.

    Raises:
        ValueError: a request can never be served.
    """
    return drive(VllmWorker(config, cost), requests)


def drive(worker: VllmWorker, requests: list[Request]) -> Recording:
    """``replay`` with a worker of any kind.

    Raises:
        StuckError: remaining requests can never proceed.
    """
    for request in requests:
        reason = worker.rejection(request)
        if reason is not None:
            raise ValueError(f"request {request.id}: {reason}")
    pending = sorted(requests, key=lambda request: (request.arrival_s, request.id))
    steps: list[Step] = []
    now = 0.0
    while pending or worker.has_work:
        # An extra decode of a request that has finished is waited for too.
        if not worker.has_work and not worker.outstanding:
            now = max(now, pending[0].arrival_s)
        while pending and pending[0].arrival_s <= now:
            worker.receive(pending.pop(0))
        step = worker.form(now)
        if step is not None:
            steps.append(step)
        now = max(now, worker.held_s)
        if worker.outstanding:
            if step is None or len(worker.outstanding) == worker.most_outstanding:
                now = max(now, worker.outstanding[0].step.end_s)
                worker.process()
        elif worker.has_work:
            events = [request.arrival_s for request in pending[:1]]
            if worker.look_again_s is not None:
                events.append(worker.look_again_s)
            if not events:
                raise StuckError("requests wait for what never comes")
            now = max(now, min(events))
    return Recording(steps, worker.first_token_s, worker.finish_s, worker.reused_tokens, token_s=worker.token_s)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
