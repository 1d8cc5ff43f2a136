"""SGLang's scheduler for models with linear attention, restated in its own terms, by the rules of 0.5.23.

Beside KV slots there is a pool of states. A running request has a state of its own, and with an extra buffer one or
two more, into which a state at a multiple of the chunk is kept for the radix cache: of prefills the last such one, of
decode steps those at an interval. Source: ``mem_cache/unified_cache/components/mamba.py``, ``mem_cache/memory_pool.py:
HybridReqToTokenPool``, ``mem_cache/allocation.py: ensure_mamba_capacity``, ``managers/schedule_batch.py`` (what names
``mamba``) and ``managers/scheduler_components/batch_result_processor.py``; the tree is ``sglang_states_tree``'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tests.reference.restatement.recording import Cost, Recording, Request, Step
from tests.reference.restatement.sglang import SglangWorker, drive
from tests.reference.restatement.sglang_admission import Admission, Verdict
from tests.reference.restatement.sglang_cache import KvCache, OutOfMemoryError
from tests.reference.restatement.sglang_order import WaitingOrder
from tests.reference.restatement.sglang_state import WINDOW_KEYS, Batch, LiveRequest, SglangConfig
from tests.reference.restatement.sglang_states_tree import StateTree
from tests.reference.restatement.sglang_tree import RadixNode

Strategy = Literal["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"]


@dataclass(frozen=True)
class StatesConfig(SglangConfig):
    """Settings by the engine's names.

    Attributes:
        max_mamba_cache_size: the pool of states.
        mamba_radix_cache_strategy: how states get into the radix cache.
        mamba_track_interval: tokens between states that decode steps keep.
        mamba_chunk_size: the model's: a prefill has states at multiples of it.
        mamba_max_states_per_path: states that a path of the tree keeps where it can; -1 for any number.
    """

    max_mamba_cache_size: int = 1
    mamba_radix_cache_strategy: Strategy = "auto"
    mamba_track_interval: int = 256
    mamba_chunk_size: int = 64
    mamba_max_states_per_path: int = -1

    @classmethod
    def from_recording(cls, config: dict[str, object], version: str = "0.5.23") -> StatesConfig:
        """As ``SglangConfig.from_recording``."""
        not_taken = ("block_ids_size", "hicache", "speculation", "lora", "structured", *WINDOW_KEYS)
        return cls(**{key: value for key, value in config.items() if key not in not_taken}, version=version)  # type: ignore[arg-type]

    @property
    def strategy(self) -> Strategy:
        """The strategy in force; without radix cache no state is kept."""
        if self.disable_radix_cache:
            return "no_buffer"
        if self.mamba_radix_cache_strategy != "auto":
            return self.mamba_radix_cache_strategy
        return "no_buffer" if self.disable_overlap_schedule and self.page_size == 1 else "extra_buffer"

    @property
    def buffers(self) -> int:
        """States beside its own that a request takes at its admission."""
        if self.strategy == "no_buffer":
            return 0
        return 1 if self.strategy == "extra_buffer_lazy" or self.disable_overlap_schedule else 2

    @property
    def chunk(self) -> int:
        """Tokens of which a prefill keeps a state at a multiple, counted from its first."""
        return max(self.mamba_chunk_size, self.page_size)

    @property
    def interval(self) -> int:
        """Tokens of which decode steps keep a state at each multiple."""
        return math.lcm(self.chunk, self.page_size, self.mamba_track_interval)


@dataclass
class _States:
    """What a request has of states.

    Attributes:
        own: whether it has its own.
        buffers: those beside it.
        branching: chunks of tokens that full attention had at its last match, where states had fewer; None otherwise.
        kept: tokens of the state that goes into the tree next, None if there is none.
        before: those of the state kept before that, where it is still there.
        locked: whether its lock is on a node's state, too.
    """

    own: bool = False
    buffers: int = 0
    branching: int | None = None
    kept: int | None = None
    before: int | None = None
    locked: bool = False

    @property
    def count(self) -> int:
        """All that it holds."""
        return self.own + self.buffers


class StatesCache(KvCache):
    """KV slots, states and the tree.

    Attributes:
        free_states: states that neither a request nor the tree has.
    """

    config: StatesConfig
    tree: StateTree | None

    def __init__(self, config: StatesConfig) -> None:
        super().__init__(config)
        self.free_states = config.max_mamba_cache_size
        self._states: dict[LiveRequest, _States] = {}
        if self.tree:
            limit = config.mamba_max_states_per_path
            self.tree = StateTree(config.page_size, config.radix_eviction_policy, limit if limit >= 0 else None)

    @property
    def evictable_states(self) -> int:
        """States in the tree at which no request's cached prefix ends."""
        return self.tree.evictable_states if self.tree else 0

    def _of(self, live: LiveRequest) -> _States:
        return self._states.setdefault(live, _States())

    # ---- before admission ------------------------------------------------------------------------------------------

    def find_prefix(self, live: LiveRequest) -> None:
        """As of ``KvCache``; the state of what matched is copied into a state of the request's own."""
        live.prefix = 0
        states = self._of(live)
        states.branching = None
        if self.tree:
            live.prefix, live.node, full = self.tree.match_state(live.request.content, live.known - 1)
            aligned = full // self.config.chunk * self.config.chunk
            if aligned > live.prefix:
                states.branching = aligned
            if live.node.stateful:
                self._take_own(states, live.node)
        live.protected = live.prefix
        live.extend = live.known - live.prefix

    def _take_own(self, states: _States, matched: RadixNode) -> None:
        assert self.tree
        if self.free_states == 0:
            self.tree.lock(matched, 1)
            self._evict_states(1)
            self.tree.lock(matched, -1)
        self._take(1)
        states.own = True

    def give_back(self, live: LiveRequest) -> None:
        """The request is not admitted: free the state that its match took."""
        states = self._of(live)
        self.free_states += states.own
        states.own = False

    def match_all(self, live: LiveRequest) -> tuple[int, int, RadixNode]:
        """As of ``KvCache``."""
        assert self.tree
        matched, node = self.tree.match(live.request.content, live.known)
        return matched, 0, node

    # ---- locks and memory ------------------------------------------------------------------------------------------

    def lock(self, live: LiveRequest) -> None:
        """As of ``KvCache``; also the state at the prefix's end."""
        super().lock(live)
        self._of(live).locked = True

    def unlock(self, live: LiveRequest) -> None:
        """As of ``KvCache``."""
        if self.tree and live.node and not self._of(live).locked:
            self.tree.lock_state(live.node, 1)
        super().unlock(live)
        self._of(live).locked = False

    def ensure_free_pages(self, tokens: int) -> None:
        """As of ``KvCache``; states of evicted leaves are free, too."""
        if self.free_tokens < tokens and self.tree:
            gone, states = self.tree.evict_tokens(tokens - self.free_tokens)
            self.free_tokens += gone
            self.free_states += states

    def _evict_states(self, states: int) -> None:
        if self.tree:
            tokens, gone = self.tree.evict_states(states)
            self.free_tokens += tokens
            self.free_states += gone

    def _take(self, states: int) -> None:
        self.free_states -= states
        if self.free_states < 0:
            raise OutOfMemoryError("no state is free, nor can one be evicted")

    # ---- steps -----------------------------------------------------------------------------------------------------

    def take_prefill(self, batch: list[LiveRequest]) -> None:
        """As of ``KvCache``; states first, then what is to be kept of the step is known."""
        needed = 0
        for live in batch:
            states = self._of(live)
            buffers = 0 if states.buffers else self.config.buffers
            needed += (not states.own) + buffers
            states.own, states.buffers = True, states.buffers or buffers
        if self.free_states < needed:
            self._evict_states(needed - self.free_states)
        self._take(needed)
        super().take_prefill(batch)
        for live in batch if self.config.buffers else ():
            self._keep_of_prefill(live)

    def _keep_of_prefill(self, live: LiveRequest) -> None:
        """Keep the state at the last multiple of the chunk, counted from the prefix.

        Of a step that crosses the end of full attention's cached prefix it is the state there, if it is at a multiple.
        """
        states, chunk = self._of(live), self.config.chunk
        if live.extend < chunk:
            return
        states.kept = live.prefix + live.extend // chunk * chunk
        branching = states.branching
        if branching is not None and live.prefix < branching < states.kept and (branching - live.prefix) % chunk == 0:
            states.kept = branching

    def take_decode(self, batch: list[LiveRequest], *, mixed: bool = False) -> None:
        """As of ``KvCache``; a lazy buffer takes a second state for a step at the interval.

        Without one the step writes over the state that was kept. A mixed step keeps nothing, and gives it back.
        """
        super().take_decode(batch, mixed=mixed)
        if self.config.strategy != "extra_buffer_lazy":
            return
        for live in batch:
            states = self._of(live)
            if live.committed % self.config.interval or states.buffers > 1:
                continue
            if self.free_states == 0:
                states.kept = None
            elif not mixed:
                self._take(1)
                states.buffers = 2

    def note_decoded(self, live: LiveRequest, tokens: int) -> None:
        """A decode step has computed the state after ``tokens`` tokens."""
        if not self.config.buffers or tokens % self.config.interval:
            return
        states = self._of(live)
        if self.config.strategy == "extra_buffer_lazy":
            self.free_states += states.buffers - 1
            states.buffers = 1
        else:
            states.before = states.kept
        states.kept = tokens

    def keep_unfinished(self, live: LiveRequest, *, chunk: bool = False) -> None:
        """As of ``KvCache``, as far as a state is kept: it goes into the tree, and the request takes another."""
        del chunk
        computed = live.prefix + live.extend
        states = self._of(live)
        tokens = states.kept if self.config.buffers else computed
        if self.tree and tokens is not None:
            self._take_another(live)
            taken, node = self._insert_state(live, min(tokens, computed))
            self.free_states += not taken
            self.unlock(live)
            live.node = node
            self.lock(live)
        states.kept = states.before = None
        live.prefix = computed

    def _take_another(self, live: LiveRequest) -> None:
        if self.free_states == 0:
            if self.config.strategy == "extra_buffer_lazy" and self._of(live).locked and live.node:
                assert self.tree
                self.tree.lock_state(live.node, -1)
                self._of(live).locked = False
            self._evict_states(1)
        self._take(1)

    def keep_finished(self, live: LiveRequest) -> None:
        """As of ``KvCache``, as far as a state is kept, which goes into the tree."""
        states = self._of(live)
        tokens = self._kept_at_end(live)
        if self.tree and tokens:
            taken, _ = self._insert_state(live, tokens)
            if taken and self.config.buffers:
                states.buffers -= 1
            elif taken:
                states.own = False
        self.drop(live)

    def _kept_at_end(self, live: LiveRequest) -> int:
        """Tokens of the state that a finished request leaves; the one before, where the last is behind its end."""
        if not self.config.buffers:
            return live.committed
        states = self._of(live)
        if (states.kept or 0) <= live.committed:
            return states.kept or 0
        return states.before if states.before is not None and states.before <= live.committed else 0

    def _insert_state(self, live: LiveRequest, tokens: int) -> tuple[bool, RadixNode]:
        """Add whole pages and the state; returns whether the tree has taken the state, and the node."""
        assert self.tree
        content, priority = live.request.content, live.request.priority
        duplicates, taken, node = self.tree.insert_state(
            content, tokens, priority, inserted=live.inserted, protected=live.protected
        )
        if taken:
            self.free_states += self.tree.drop_excess(node)
        self.free_tokens += duplicates
        live.protected = tokens // self.page_size * self.page_size
        live.inserted = max(live.inserted, live.protected)
        return taken, node

    def drop(self, live: LiveRequest) -> None:
        """As of ``KvCache``, with all states of the request."""
        self.free_states += self._of(live).count
        super().drop(live)
        del self._states[live]

    def check(self, holders: list[LiveRequest]) -> None:
        """As of ``KvCache``, also for states."""
        super().check(holders)
        held = sum(states.count for states in self._states.values())
        assert self.free_states >= 0
        assert self.free_states + (self.tree.states if self.tree else 0) + held == self.config.max_mamba_cache_size
        if self.tree:
            self.tree.check()


class StatesAdmission(Admission):
    """The budget of one prefill pass; states do not count, because there are enough for all running requests."""

    cache: StatesCache

    def try_admit(self, live: LiveRequest) -> Verdict:
        """As of ``Admission``."""
        verdict = super().try_admit(live)
        if live not in self.admitted:
            self.cache.give_back(live)
        return verdict


class StatesWorker(SglangWorker):
    """One engine of a model with linear attention."""

    config: StatesConfig
    cache: StatesCache

    def __init__(self, config: StatesConfig, cost: Cost) -> None:
        super().__init__(config, cost)
        self.cache = StatesCache(config)
        self.order = WaitingOrder(config, self.cache)

    def _admission(self, mixed_tokens: int) -> Admission:
        return StatesAdmission(self.config, self.cache, self.running.requests, self.ratio, mixed_tokens)

    def process(self) -> list[Request]:
        """As of ``SglangWorker``; states that a decode step was to keep are there before requests end."""
        done = self.outstanding[0]
        for live, entry in zip(done.requests, done.step.batch, strict=True):
            if not (done.prefill or live.finished or live.retracted):
                self.cache.note_decoded(live, entry.computed + entry.new)
        return super().process()

    def _launch(self, batch: Batch) -> Step:
        step = super()._launch(batch)
        step.pool = (*step.pool, self.cache.free_states, self.cache.evictable_states)
        return step


def replay(config: StatesConfig, requests: list[Request], cost: Cost) -> Recording:
    """Drive a worker of these settings over ``requests``.

    Raises:
        ValueError: a request can never be served.
        RuntimeError: the engine fails on these requests, or waits for ever.
    """
    worker = StatesWorker(config, cost)
    for request in requests:
        reason = worker.rejection(request)
        if reason is not None:
            raise ValueError(f"request {request.id}: {reason}")
    return drive(worker, requests)
