"""SGLang's scheduler for models with sliding windows, restated in its own terms, by the rules of 0.5.23.

KV slots are of two pools, full attention's and the window layers'. Each token takes one in both; those of the window
layers are freed behind the window while a request runs. Source: ``mem_cache/allocator/swa.py``, ``mem_cache/common.py:
free_swa_out_of_window_slots``, ``mem_cache/prefill_budget.py: SWAPrefillBudget``, ``managers/schedule_batch.py:
ScheduleBatch.maybe_evict_swa``, ``mem_cache/unified_radix_cache.py``; the tree is ``sglang_windows_tree``'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.reference.restatement.recording import Cost, Recording, Request, Step
from tests.reference.restatement.sglang import SglangWorker, drive
from tests.reference.restatement.sglang_admission import Admission, Verdict
from tests.reference.restatement.sglang_cache import KvCache, OutOfMemoryError
from tests.reference.restatement.sglang_order import WaitingOrder
from tests.reference.restatement.sglang_state import CLIP_OUTPUT_TOKENS, STATE_KEYS, Batch, LiveRequest, SglangConfig
from tests.reference.restatement.sglang_tree import RadixNode
from tests.reference.restatement.sglang_windows_tree import Receipt, WindowNode, WindowTree

#: Tokens behind the window from which a decoding request's slots are freed (``SGLANG_SWA_EVICTION_INTERVAL``).
DECODE_INTERVAL = 128


@dataclass(frozen=True)
class WindowsConfig(SglangConfig):
    """Settings; ``max_total_tokens`` is full attention's pool.

    Attributes:
        sliding_window_size: tokens before a token that window layers read.
        swa_max_total_num_tokens: the window layers' pool.
    """

    sliding_window_size: int = 1
    swa_max_total_num_tokens: int = 1

    @classmethod
    def from_recording(cls, config: dict[str, object], version: str = "0.5.23") -> WindowsConfig:
        """As ``SglangConfig.from_recording``."""
        not_taken = ("block_ids_size", "hicache", "speculation", "lora", "structured", *STATE_KEYS)
        return cls(**{key: value for key, value in config.items() if key not in not_taken}, version=version)  # type: ignore[arg-type]

    @property
    def window_capacity_tokens(self) -> int:
        """The window layers' pool in whole pages."""
        return self.swa_max_total_num_tokens // self.page_size * self.page_size


@dataclass
class _Window:
    """What a request has of windows.

    Attributes:
        freed: tokens before which its own slots of the window layers are free.
        branching: tokens that full attention had at its last match, where windows had less; None otherwise.
        receipt: its lock.
        prefills, decodes: steps since its admission.
    """

    freed: int = 0
    branching: int | None = None
    receipt: Receipt | None = None
    prefills: int = 0
    decodes: int = 0


class WindowsCache(KvCache):
    """Both pools and the tree.

    Attributes:
        free_window_tokens: tokens of the window layers' free pages; ``free_tokens`` is full attention's.
    """

    config: WindowsConfig
    tree: WindowTree | None

    def __init__(self, config: WindowsConfig) -> None:
        super().__init__(config)
        self.window = config.sliding_window_size
        self.free_window_tokens = config.window_capacity_tokens
        self._windows: dict[LiveRequest, _Window] = {}
        if self.tree:
            self.tree = WindowTree(config.page_size, config.radix_eviction_policy, self.window)

    @property
    def evictable_window_tokens(self) -> int:
        """The window layers' tokens in the tree that no request's window holds."""
        return self.tree.evictable_window_tokens if self.tree else 0

    def _of(self, live: LiveRequest) -> _Window:
        return self._windows.setdefault(live, _Window())

    def find_prefix(self, live: LiveRequest) -> None:
        """As of ``KvCache``."""
        live.prefix = 0
        window = self._of(live)
        window.branching = None
        if self.tree:
            live.prefix, live.node, full = self.tree.match_window(live.request.content, live.known - 1)
            if full > live.prefix:
                window.branching = full
        live.protected = live.prefix
        live.extend = live.known - live.prefix

    def match_all(self, live: LiveRequest) -> tuple[int, int, RadixNode]:
        """As of ``KvCache``."""
        assert self.tree
        matched, node = self.tree.match(live.request.content, live.known)
        return matched, 0, node

    def lock(self, live: LiveRequest) -> None:
        """As of ``KvCache``."""
        if self.tree and live.node:
            assert isinstance(live.node, WindowNode)
            self._of(live).receipt = self.tree.acquire(live.node)

    def unlock(self, live: LiveRequest) -> None:
        """As of ``KvCache``."""
        receipt, self._of(live).receipt = self._of(live).receipt, None
        if self.tree and receipt:
            self.tree.release(receipt)

    def ensure_free_pages(self, tokens: int) -> None:
        """If fewer than ``tokens`` are free in a pool, evict what is missing there."""
        full, windows = max(tokens - self.free_tokens, 0), max(tokens - self.free_window_tokens, 0)
        if self.tree and (full or windows):
            gone, gone_windows = self.tree.evict_both(full, windows)
            self.free_tokens += gone
            self.free_window_tokens += gone_windows

    def decode_fits(self, batch: list[LiveRequest]) -> bool:
        """As of ``KvCache``, in both pools."""
        needed = self.page_size * sum(live.committed % self.page_size == 0 for live in batch)
        return super().decode_fits(batch) and self.free_window_tokens >= needed

    def take_prefill(self, batch: list[LiveRequest]) -> None:
        """As of ``KvCache``; without radix cache slots behind the windows of computed tokens are freed before."""
        for live in batch if self.tree is None else ():
            if self.config.disable_overlap_schedule:
                self._slide(live, live.prefix)
            elif self._of(live).prefills >= 2:
                # The chunk before runs still, and has a window of its own.
                self._slide(live, live.prefix - (self.config.chunk_tokens or 0))
        super().take_prefill(batch)
        for live in batch:
            self._of(live).prefills += 1

    def take_decode(self, batch: list[LiveRequest], *, mixed: bool = False) -> None:
        """As of ``KvCache``; slots behind windows are freed before, at intervals and not in a first decode step."""
        for live in batch:
            window, computed = self._of(live), live.known - 1
            if window.decodes >= 1 and computed - self.window >= window.freed + DECODE_INTERVAL:
                self._slide(live, computed)
        super().take_decode(batch, mixed=mixed)
        for live in batch:
            self._of(live).decodes += 1

    def keep_unfinished(self, live: LiveRequest, *, chunk: bool = False) -> None:
        """As of ``KvCache``; slots behind the window of what is inserted are freed before.

        A parked chunk (see ``WindowsAdmission.go_on``) has computed nothing. Where full attention's cached prefix was
        longer than what windows allowed, the first insertion ends with that prefix.
        """
        if chunk and live.extend == 0:
            return
        computed = live.prefix + live.extend
        if self.tree:
            tokens, branches = self._insertable(live, computed)
            self._slide(live, tokens - 1)
            node = self._insert_window(live, tokens)
            self.unlock(live)
            live.node = node
            self.lock(live)
            if branches:
                self._of(live).branching = None
                self._slide(live, computed - 1)
        live.prefix = computed

    def keep_finished(self, live: LiveRequest) -> None:
        """As of ``KvCache``."""
        if self.tree:
            self._insert_window(live, self._insertable(live, live.committed)[0])
        self.drop(live)

    def drop(self, live: LiveRequest) -> None:
        """As of ``KvCache``; of the window layers, what is not free yet."""
        window = self._of(live)
        self.free_window_tokens += self.pages_of(live.committed) - max(window.freed, live.protected)
        super().drop(live)
        del self._windows[live]

    def check(self, holders: list[LiveRequest]) -> None:
        """As of ``KvCache``, for both pools."""
        super().check(holders)
        private = sum(self.pages_of(live.committed) - max(self._of(live).freed, live.protected) for live in holders)
        cached = self.tree.window_tokens if self.tree else 0
        assert self.free_window_tokens >= 0
        assert self.free_window_tokens + cached + private == self.config.window_capacity_tokens
        if self.tree:
            self.tree.check()

    def _insertable(self, live: LiveRequest, computed: int) -> tuple[int, bool]:
        """Tokens of ``computed`` ones that an insertion takes, and whether it ends where full attention's did."""
        branching = self._of(live).branching
        if branching is not None and live.protected < branching <= computed:
            return branching, True
        return computed, False

    def _insert_window(self, live: LiveRequest, tokens: int) -> WindowNode:
        """Add whole pages to the tree; what it had already is freed as duplicates."""
        assert self.tree
        content, priority, freed = live.request.content, live.request.priority, self._of(live).freed
        full, windows, node = self.tree.insert_window(
            content, tokens, priority, inserted=live.inserted, protected=live.protected, freed=freed
        )
        self.free_tokens += full
        self.free_window_tokens += windows
        live.protected = tokens // self.page_size * self.page_size
        live.inserted = max(live.inserted, live.protected)
        return node

    def _slide(self, live: LiveRequest, computed: int) -> None:
        """Free a request's own slots of the window layers that no token behind ``computed`` ones reads.

        Under the radix cache at least a page's slots stay, and the window in whole pages.
        """
        window = self._of(live)
        if computed - self.window < window.freed + 1:
            return
        window.freed = max(window.freed, live.protected)
        kept = self.pages_of(max(self.window, self.page_size)) if self.tree else self.window
        free = max(window.freed, computed - kept) // self.page_size * self.page_size
        self.free_window_tokens += max(free - window.freed, 0)
        window.freed = max(window.freed, free)

    def _grow(self, live: LiveRequest, committed: int) -> None:
        self.free_window_tokens -= self.pages_of(committed) - self.pages_of(live.committed)
        if self.free_window_tokens < 0:
            raise OutOfMemoryError(f"no KV slot of windows for request {live.request.id} at {committed} tokens")
        super()._grow(live, committed)


class WindowsAdmission(Admission):
    """The budget of one prefill pass, in both pools.

    Attributes:
        reserved_windows: the window layers' tokens that admitted requests may take.
        is_continued: whether a prompt that was cut in an earlier pass is not at its end in this one.
    """

    config: WindowsConfig
    cache: WindowsCache
    reserved_windows = 0
    is_continued = False

    @property
    def windows_left(self) -> int:
        """The window layers' tokens free or evictable beyond what this pass takes."""
        return self.cache.free_window_tokens + self.cache.evictable_window_tokens - self.reserved_windows

    def window_need(self, extend: int, output: int) -> int:
        """The window layers' tokens that a request may take at most: a chunk's, and its window's."""
        window = self.config.sliding_window_size
        step = extend if self.chunk_left is None else min(extend, self.chunk_left)
        return max(step - window, 0) + min(extend + output, window) + self.cache.page_size

    def go_on(self, live: LiveRequest) -> LiveRequest | None:
        """As of ``Admission``; without room in either pool the prompt is parked: it computes nothing in this pass."""
        assert self.chunk_left is not None
        budget = min(self.chunk_left, int(self.total_left), self.windows_left - self.cache.page_size)
        if budget <= 0:
            live.extend = 0
        rest = live if budget <= 0 else self._go_on_within(live, budget)
        self.is_continued = rest is not None
        return rest

    def _try_locked(self, live: LiveRequest, total: int) -> Verdict:
        if total >= self.total_left:
            return Verdict.NO_TOKEN
        tokens, limit = self.cache.pages_of(live.extend), self.chunk_left
        output = min(max(live.max_new - live.generated, 0), CLIP_OUTPUT_TOKENS)
        need = self.window_need(tokens, output)
        if need >= self.windows_left:
            # Where even an empty pool lacks room, a smaller chunk may go; otherwise the request waits.
            page, room = self.cache.page_size, self.windows_left - self.window_need(0, output)
            limit = min(limit or 0, room // page * page)
            if need < self.config.window_capacity_tokens or limit <= 0:
                return Verdict.NO_TOKEN
        if self._exceeds_input(tokens):
            return Verdict.OTHER
        if limit is None or tokens <= limit:
            self.admitted.append(live)
            self._charge(tokens, min(live.max_new, CLIP_OUTPUT_TOKENS))
        else:
            cut = limit // self.cache.page_size * self.cache.page_size
            if cut <= 0:
                return Verdict.OTHER
            self._add_first_chunk(live, cut)
        return self._budget_verdict()

    def _try_without_radix(self, live: LiveRequest) -> Verdict:
        """Radix cache off and outputs pinned: the ends of requests are not simulated."""
        tokens = self.cache.pages_of(live.extend) + self.cache.page_size
        output = min(max(live.max_new - live.generated, 0), CLIP_OUTPUT_TOKENS)
        if tokens > min(self.now_left, self.total_left) or self.window_need(live.extend, output) > self.windows_left:
            return Verdict.NO_TOKEN
        if self.chunk_left is None or live.extend <= self.chunk_left:
            self.admitted.append(live)
            self._charge(live.extend, min(live.max_new, CLIP_OUTPUT_TOKENS))
        elif self.chunk_left <= 0:
            return Verdict.OTHER
        else:
            self._add_first_chunk(live, self.chunk_left)
        return self._budget_verdict()

    def _add_first_chunk(self, live: LiveRequest, cut: int) -> None:
        if self.partial is not None or self.is_continued:
            raise RuntimeError(f"the engine fails: it has a cut prompt, and cuts that of request {live.request.id} too")
        super()._add_first_chunk(live, cut)

    def _charge(self, extend: int, output: int) -> None:
        self.reserved_windows += self.window_need(self.cache.pages_of(extend), output)
        super()._charge(extend, output)

    def _budget_verdict(self) -> Verdict:
        return Verdict.NO_TOKEN if self.windows_left <= 0 else super()._budget_verdict()


class WindowsWorker(SglangWorker):
    """One engine of a model with sliding windows."""

    config: WindowsConfig
    cache: WindowsCache

    def __init__(self, config: WindowsConfig, cost: Cost) -> None:
        super().__init__(config, cost)
        self.cache = WindowsCache(config)
        self.order = WaitingOrder(config, self.cache)

    def _may_prefill(self) -> bool:
        # Each pass tries: what lacked room may have it in the other pool by now.
        self.running.full = False
        return super()._may_prefill()

    def _places(self, admission: Admission) -> int:
        parked = self.chunked is not None and self.chunked not in admission.admitted
        return super()._places(admission) - parked

    def _admission(self, mixed_tokens: int) -> Admission:
        return WindowsAdmission(self.config, self.cache, self.running.requests, self.ratio, mixed_tokens)

    def _launch(self, batch: Batch) -> Step:
        step = super()._launch(batch)
        step.pool = (*step.pool, self.cache.free_window_tokens, self.cache.evictable_window_tokens)
        return step


def replay(config: WindowsConfig, requests: list[Request], cost: Cost) -> Recording:
    """Drive a worker of these settings over ``requests``.

    Raises:
        ValueError: a request can never be served.
        RuntimeError: the engine fails on these requests, or waits for ever.
    """
    worker = WindowsWorker(config, cost)
    for request in requests:
        reason = worker.rejection(request)
        if reason is not None:
            raise ValueError(f"request {request.id}: {reason}")
    return drive(worker, requests)
