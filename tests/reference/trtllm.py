"""TensorRT-LLM's in-flight batching (PyTorch backend), restated block by block.

Sources: NVIDIA's documentation of TensorRT-LLM ("Scheduler", "KV Cache System", "Useful Runtime Options", "Overlap
Scheduler", "Long Sequences") and the sources of its capacity scheduler, micro-batch scheduler, KV cache manager,
eviction policy and PyExecutor. No recording of the engine confirms it. ``docs/simulator.md`` lists where
it departs from them.

Words: the *active* requests are those that the executor has taken from its queue, in order of arrival; of them the
*started* ones hold KV blocks: *contexts* whose prompt is being computed, and *generations*. A request's *known* tokens
are its prompt and what it has generated. A *late* generation is one behind its last token, which is in flight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from tests.reference.restatement.content import page
from tests.reference.restatement.recording import BatchEntry, Cost, Request, Step, step_seconds

from .trtllm_pool import TwoPools
from .trtllm_state import LiveRequest, TrtllmConfig


@dataclass(frozen=True)
class Share:
    """The chunk of a context, and the tokens that it counts for in the budget."""

    live: LiveRequest
    tokens: int
    counted: int


@dataclass
class _Outstanding:
    """A batch on (or queued for) the device, the requests it makes a token for, and its contexts."""

    step: Step
    sampled: list[LiveRequest]
    contexts: list[LiveRequest]


class TrtllmWorker:
    """One engine. Drive it with ``receive``, ``form`` and ``process``; everything else is for inspection.

    Attributes:
        queue: requests not active yet, head first.
        active: the active requests, in the order in which they became so: that of arrival, unless it is by priority.
        outstanding: formed batches whose results are not processed, oldest first.
        first_scheduled_s, reused_tokens: by request id, at the first start.
        onboarded_tokens: by request id, how many of its ``reused_tokens`` came from the host.
        preemptions: by request id, pauses, only those that had one.
    """

    def __init__(self, config: TrtllmConfig, cost: Cost) -> None:
        self.config = config
        self.cost = cost
        self.most_outstanding = 2 if config.overlap_scheduler else 1
        self.pool = TwoPools(config)
        self.queue: list[LiveRequest] = []
        self.active: list[LiveRequest] = []
        self.outstanding: list[_Outstanding] = []
        self.first_scheduled_s: dict[Any, float] = {}
        self.first_token_s: dict[Any, float] = {}
        self.token_s: dict[Any, list[float]] = defaultdict(list)
        self.finish_s: dict[Any, float] = {}
        self.reused_tokens: dict[Any, int] = {}
        self.onboarded_tokens: dict[Any, int] = {}
        self.preemptions: dict[Any, int] = {}
        self.device_free_s = 0.0
        self._received = 0
        self._paused: list[LiveRequest] = []
        self._pending_blocks: set[Hashable] = set()
        self._left_out: list[LiveRequest] = []
        self._waited = 0
        self._fetched = 0
        self._passed_s = 0.0

    @property
    def held_tokens(self) -> int:
        """Token slots in the blocks that requests hold."""
        return self.pool.held_blocks * self.config.tokens_per_block

    @property
    def evicted_tokens(self) -> int:
        """Cached tokens that have left the device so far."""
        return self.pool.evicted_blocks * self.config.tokens_per_block

    def rejection(self, request: Request) -> str | None:
        """Why the request can never be served here, or None.

        A context that is not chunked must fit into one step; after a pause it has grown by what was generated.
        """
        declared = request.input_tokens + request.max_output_tokens
        if self._blocks(declared) > self.config.num_blocks:
            return f"{declared} tokens exceed the pool's {self.config.num_blocks} blocks"
        longest = declared if self.config.policy == "max_utilization" else request.input_tokens
        if not self.config.enable_chunked_prefill and longest > self.config.max_num_tokens:
            return f"{longest} tokens exceed the step budget of {self.config.max_num_tokens}"
        return None

    def receive(self, request: Request) -> None:
        """Queue a request; call in order of (arrival, id)."""
        self.queue.append(LiveRequest(request, self._received))
        self.queue.sort(key=lambda live: self.config.urgency(live.request))
        self._received += 1
        self._fetched += 1

    @property
    def has_gathered(self) -> bool:
        """Whether as many requests have come since the last pass as may be active."""
        return self._fetched >= self.config.max_batch_size

    def gather(self, now: float) -> float | None:
        """Until when the pass at ``now`` waits for more requests, active ones or not; None: it does not wait."""
        if self.config.batch_wait_timeout_ms == 0.0 or self.has_gathered:
            return None
        return now + 1e-3 * self.config.batch_wait_timeout_ms

    @property
    def passes_again(self) -> bool:
        """Whether the last pass only paused, and no result is being waited for."""
        return self.paused_any and not self.outstanding

    def form(self, now: float) -> Step | None:
        """Form the next batch at ``now`` and queue it on the device; None if nothing can be scheduled.

        A pass that only paused is followed by another one at the same time, unless a result is being waited for. Where
        passes wait for requests, the next one does too (``passes_again``).
        """
        self._fetched = 0
        self._passed_s = now
        while self.queue and len(self.active) < self.config.max_batch_size:
            self.active.append(self.queue.pop(0))
        while True:
            shares, generations = self.choose()
            shares = self._hold_back(shares, len(generations))
            if shares or generations:
                return self.start(now, shares, generations)
            if not self.passes_again or self.config.batch_wait_timeout_ms:
                return None

    def choose(self) -> tuple[list[Share], list[LiveRequest]]:
        """The contexts of the next batch with their shares, and its generations; requests are paused for them."""
        contexts = self._fitting_contexts()
        generations = [live for live in self.active if self._generates(live) and live not in self._left_out]
        return self._share_out(contexts, len(generations)), generations

    @property
    def paused_any(self) -> bool:
        """Whether the newest choice paused a request."""
        return bool(self._paused)

    def start(self, now: float, shares: list[Share], generations: list[LiveRequest]) -> Step:
        """Form the batch that was chosen, and queue it on the device."""
        # Copies wait for batches already queued on the device.
        self.pool.copies_begin_s = max(now, self.device_free_s)
        contexts, batch = self._start_contexts(shares, len(generations), now)
        for live in generations:
            batch.append(self._decode(live))
        return self._launch(now, batch, contexts, generations)

    def _decode(self, live: LiveRequest) -> BatchEntry:
        self._allocate(live, live.computed + 1)
        return BatchEntry(live.request.id, live.computed, 1, True, True)

    def process(self) -> list[Request]:
        """Take in the results of the oldest outstanding batch, at its end; returns the requests that finished.

        A pass may have come later than that.
        """
        done = self.outstanding.pop(0)
        known_s = max(done.step.end_s, self._passed_s)
        for live in done.sampled:
            live.in_flight -= 1
            live.generated += 1
            if live.generated == 1:
                self.first_token_s[live.request.id] = known_s
            self.token_s[live.request.id].append(known_s)
        finished = [live for live in self.active if live.generated == live.request.output_tokens]
        for live in finished:
            self._release(live, live.known - 1)
            self.active.remove(live)
            self.finish_s[live.request.id] = known_s
        self._store_contexts(done.contexts)
        return [live.request for live in finished]

    def respond(self) -> None:
        """Results of a step have been taken in, of this engine or of others that step with it."""

    def _store_contexts(self, contexts: list[LiveRequest]) -> None:
        """After each chunk; all but the last token known."""
        for live in contexts:
            if live.started and live in self.active:
                tokens = min(live.known - 1, live.prompt_tokens)
                self._store(live, min(tokens, live.computed) if "stores_computed" in self.config.rules else tokens)

    # ---- who fits ---------------------------------------------------------------------------------------------------

    def _fitting_contexts(self) -> list[LiveRequest]:
        self._paused = []
        self._left_out = []
        self._pending_blocks = self._blocks_being_made()
        if self.config.policy == "max_utilization":
            return self._max_utilization()
        if self.config.policy == "static_batch" and any(live.started and not live.is_context for live in self.active):
            return []
        return self._guaranteed_no_evict()

    def _guaranteed_no_evict(self) -> list[LiveRequest]:
        """Contexts that may be computed, in order of arrival, while free blocks cover all that they will need.

        Blocks for the declared outputs of generations are set aside first. The first that does not fit ends the pass.
        """
        generating = [live for live in self.active if live.started and not live.is_context]
        available = len(self.pool.free) - sum(self._blocks(live.declared) - len(live.blocks) for live in generating)
        fitting = self._in_order(self.active, available)
        if not fitting and not generating:
            # The engine would stand still for good.
            fitting = self._in_order([live for live in self.active if live.started], available)
        return fitting

    def _in_order(self, requests: list[LiveRequest], available: int) -> list[LiveRequest]:
        fitting = []
        for live in requests:
            if live.started and not live.is_context:
                continue
            if not live.started and self._better_later(live):
                continue
            needed = self._blocks(live.declared) - (len(live.blocks) if live.started else self._held_blocks(live))
            if needed > available:
                break
            available -= needed
            fitting.append(live)
        return fitting

    def _max_utilization(self) -> list[LiveRequest]:
        """Contexts that may be computed while free blocks cover the next step; started requests are paused for them.

        A request that does not fit pauses the last started request, but none before itself; those behind a paused
        request are not looked at. A request that had one paused is looked at again: one that has not started then finds
        its own pending block, and is passed over.
        """
        fitting: list[LiveRequest] = []
        looked_at = list(self.active)
        position = 0
        while position < len(looked_at):
            live = looked_at[position]
            if not live.started and self._better_later(live):
                position += 1
                continue
            if sum(map(self._next_blocks, [*fitting, live])) <= len(self.pool.free):
                fitting.append(live)
                position += 1
                continue
            victims = [
                index
                for index in range(position, len(looked_at))
                if looked_at[index].started and not looked_at[index].waits_for_last_token
            ]
            if not victims:
                break
            self._pause(looked_at[victims[-1]])
            looked_at = looked_at[: victims[-1]]
        self._left_out = [live for live in self.active if live not in fitting]
        return [live for live in fitting if not live.started or live.is_context]

    def _next_blocks(self, live: LiveRequest) -> int:
        """Blocks that the request takes if it is scheduled now; a context takes all of its prompt's at its start."""
        if not live.started:
            return self._blocks(live.known) - self._held_blocks(live)
        if not self._generates(live):
            return 0
        return self._blocks(live.computed + 1) - len(live.blocks)

    def _generates(self, live: LiveRequest) -> bool:
        """Whether it makes a token, or is late: only an end by its declared limit is known before the results."""
        if not live.started or live.is_context:
            return False
        by_limit = live.request.output_tokens == live.request.max_output_tokens
        return not live.waits_for_last_token or not (by_limit and "ends_by_length" in self.config.rules)

    def _cached(self, live: LiveRequest) -> tuple[int, int]:
        """Blocks that the request would find if it started now: all, and those of them that requests hold."""
        cached = held = 0
        if self.config.enable_block_reuse:
            for index in range((live.known - 1) // self.config.tokens_per_block):
                identity = page(live.request.content, index, self.config.tokens_per_block)
                block = self.pool.find(identity)
                if block is None and not self.pool.is_on_host(identity):
                    break
                cached += 1
                held += block is not None and not self.pool.is_free(block)
        return cached, held

    def _held_blocks(self, live: LiveRequest) -> int:
        """Blocks that leave the need of a request that has not started."""
        return self._cached(live)[1] if "credits_reuse" in self.config.rules else 0

    def _credited_tokens(self, live: LiveRequest) -> int:
        """Tokens that leave the budget's count of a request that has not started."""
        if "credits_reuse" not in self.config.rules:
            return 0
        cached, held = self._cached(live)
        all_count = self.config.policy != "max_utilization" or "credits_unheld" in self.config.rules
        return (cached if all_count else held) * self.config.tokens_per_block

    def _blocks_being_made(self) -> set[Hashable]:
        """Of each context in progress, the first block that cannot be reused yet."""
        made = {self._first_missing(live) for live in self.active if live.started and live.is_context}
        made.discard(None)
        return made

    def _better_later(self, live: LiveRequest) -> bool:
        """Whether an earlier context is computing its first missing block; else it will compute that block itself."""
        missing = self._first_missing(live)
        if missing is None or self.config.policy == "static_batch":
            return False
        if missing in self._pending_blocks:
            return True
        self._pending_blocks.add(missing)
        return False

    def _first_missing(self, live: LiveRequest) -> Hashable | None:
        if self.config.enable_block_reuse:
            for index in range(live.known // self.config.tokens_per_block):
                identity = page(live.request.content, index, self.config.tokens_per_block)
                if self.pool.find(identity) is None and not self.pool.is_on_host(identity):
                    return identity
        return None

    # ---- forming the batch ------------------------------------------------------------------------------------------

    def _share_out(self, contexts: list[LiveRequest], generations: int) -> list[Share]:
        """Tokens of each context, from what the generations leave of the budget.

        The last chunk of a context that starts is counted without its cached tokens.
        """
        left = self.config.max_num_tokens - generations
        if self.config.chunking_policy == "equal_progress" and self.config.enable_chunked_prefill:
            return self._share_equally(contexts, left)
        shares = []
        for live in contexts:
            share = self._missing(live)
            counted = self._counted(live, share)
            if counted > left:
                if not self.config.enable_chunked_prefill:
                    break
                share = left // self.config.tokens_per_block * self.config.tokens_per_block
                counted = self._counted(live, share)
            if share > 0:
                shares.append(Share(live, share, counted))
                left -= counted
        return shares

    def _share_equally(self, contexts: list[LiveRequest], budget: int) -> list[Share]:
        """A block for each context in turn, unless all fit."""
        whole = [Share(live, self._missing(live), self._counted(live, self._missing(live))) for live in contexts]
        if sum(share.counted for share in whole) <= budget:
            return whole
        sizes = [0] * len(contexts)
        while True:
            before = list(sizes)
            if sum(map(self._counted, contexts, sizes)) >= budget:
                break
            for index, live in enumerate(contexts):
                grown = list(sizes)
                grown[index] = min(sizes[index] + self.config.tokens_per_block, self._missing(live))
                if sum(map(self._counted, contexts, grown)) <= budget and grown[index] <= self.config.max_num_tokens:
                    sizes = grown
            if sizes == before:
                break
        return [
            Share(live, size, self._counted(live, size)) for live, size in zip(contexts, sizes, strict=True) if size
        ]

    def _counted(self, live: LiveRequest, share: int) -> int:
        """Tokens of the budget that a chunk counts for: only one that ends the prompt leaves its cached tokens out."""
        credit = 0 if live.started else self._credited_tokens(live)
        missing = self._missing(live)
        return share if credit + share < missing else missing - credit

    def _hold_back(self, shares: list[Share], generations: int) -> list[Share]:
        """No contexts where they wait for a larger batch while generations run."""
        config = self.config
        if not config.batch_wait_timeout_iters and not config.batch_wait_max_tokens_ratio:
            return shares
        if not shares or not generations:
            return shares
        by_count = "credits_reuse" in config.rules
        tokens = generations + sum(share.counted if by_count else share.live.known for share in shares)
        late = self._waited >= config.batch_wait_timeout_iters
        if late or tokens >= config.batch_wait_max_tokens_ratio * config.max_num_tokens:
            self._waited = 0
            return shares
        self._waited += 1
        return []

    def _missing(self, live: LiveRequest) -> int:
        return (live.prompt_tokens if live.started else live.known) - live.computed

    def _unfinished_first(self, shares: list[tuple[LiveRequest, int]]) -> list[tuple[LiveRequest, int]]:
        return sorted(shares, key=lambda entry: entry[1] == self._missing(entry[0]))

    def _start_contexts(
        self, chosen: list[Share], generations: int, now: float
    ) -> tuple[list[LiveRequest], list[BatchEntry]]:
        """Start contexts, unfinished chunks first; where they find less than was credited, the last ones are cut.

        A share keeps a block, and ends with one.
        """
        shares = self._unfinished_first([(share.live, share.tokens) for share in chosen])
        for live, _ in shares:
            if not live.started:
                self._start(live, now)
        shares = self._unfinished_first([(live, min(share, self._missing(live))) for live, share in shares])
        excess = sum(share for _, share in shares) + generations - self.config.max_num_tokens
        size = self.config.tokens_per_block
        for index in reversed(range(len(shares))):
            if excess <= 0 or not self.config.enable_chunked_prefill:
                break
            live, share = shares[index]
            end = (live.computed + share - excess) // size * size
            cut = min(share, max(size, end - live.computed))
            excess -= share - cut
            shares[index] = live, cut
        shares = self._unfinished_first(shares)
        entries = [
            BatchEntry(live.request.id, live.computed, share, False, share == self._missing(live))
            for live, share in shares
        ]
        return [live for live, _ in shares], entries

    def _start(self, live: LiveRequest, now: float) -> None:
        """Reuse cached blocks, at most all but the last token, and take blocks for the rest of the prompt.

        Blocks on the host are claimed before any block is taken, so that evictions for them do not push them out.
        """
        live.started = True
        live.prompt_tokens = live.known
        claimed = []
        if self.config.enable_block_reuse:
            for index in range((live.known - 1) // self.config.tokens_per_block):
                identity = page(live.request.content, index, self.config.tokens_per_block)
                block = self.pool.find(identity)
                if block is not None:
                    assert not claimed, "the device is closed towards the root"
                    self.pool.hold(block)
                    live.blocks.append(block)
                elif self.pool.is_on_host(identity):
                    claimed.append((identity, self.pool.claim(identity)))
                else:
                    break
        live.blocks += self.pool.onboard(claimed)
        live.stored = len(live.blocks)
        live.computed = live.stored * self.config.tokens_per_block
        self._allocate(live, live.known)
        self.first_scheduled_s.setdefault(live.request.id, now)
        self.reused_tokens.setdefault(live.request.id, live.computed)
        self.onboarded_tokens.setdefault(live.request.id, len(claimed) * self.config.tokens_per_block)

    def _allocate(self, live: LiveRequest, tokens: int) -> None:
        while len(live.blocks) < self._blocks(tokens):
            live.blocks.append(self.pool.take())

    def _launch(
        self, now: float, batch: list[BatchEntry], contexts: list[LiveRequest], generations: list[LiveRequest]
    ) -> Step:
        start_s = max(now, self.device_free_s, self.pool.copies_end_s)
        end_s = start_s + step_seconds(self.cost, batch)
        step = Step(start_s, end_s, now, batch, sorted(live.request.id for live in self._paused))
        sampled = []
        for live, entry in zip([*contexts, *generations], batch, strict=True):
            late = live.waits_for_last_token
            live.computed += entry.new
            if entry.samples and not late:
                live.in_flight += 1
                sampled.append(live)
        self.device_free_s = end_s
        self.outstanding.append(_Outstanding(step, sampled, contexts))
        return step

    # ---- leaving ----------------------------------------------------------------------------------------------------

    def _pause(self, live: LiveRequest) -> None:
        """Release all its blocks; it restarts in its place, with its generated tokens as part of its prompt."""
        self._paused.append(live)
        self.preemptions[live.request.id] = self.preemptions.get(live.request.id, 0) + 1
        self._release(live, live.computed - live.in_flight)
        live.computed = 0

    def _release(self, live: LiveRequest, reusable: int) -> None:
        """Give the blocks back, last one first; those that the first ``reusable`` tokens fill can still be found."""
        self._store(live, reusable, leaves=True)
        self.pool.release(live.blocks)
        live.blocks = []
        live.stored = 0
        live.started = False

    def _store(self, live: LiveRequest, tokens: int, *, leaves: bool = False) -> None:
        """Put the blocks that ``tokens`` tokens fill into the reuse tree, up to the first that is there already.

        A request that leaves gives up its own for that one and goes on. Of a block that is on the host alone, that one
        is given up.
        """
        if not self.config.enable_block_reuse:
            return
        while live.stored < tokens // self.config.tokens_per_block:
            identity = page(live.request.content, live.stored, self.config.tokens_per_block)
            block = self.pool.find(identity)
            if not leaves and (block is not None or self.pool.is_on_host(identity)):
                return
            if block is None:
                if self.pool.is_on_host(identity):
                    self.pool.give_back(self.pool.claim(identity))
                self.pool.publish(live.blocks[live.stored], identity)
            else:
                self.pool.release([live.blocks[live.stored]])
                self.pool.hold(block)
                live.blocks[live.stored] = block
            live.stored += 1

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.config.tokens_per_block)
