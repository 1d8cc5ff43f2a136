"""SGLang's KV pool with (or without) the radix cache: the owners of tokens, in whole pages.

Every page is free, in the tree, or private to one request. A request's first ``protected`` tokens are in the tree, the
rest of its ``committed`` ones are private.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.restatement.sglang_copies import Copy
from tests.reference.restatement.sglang_state import LiveRequest, SglangConfig
from tests.reference.restatement.sglang_tree import RadixNode, RadixTree


class OutOfMemoryError(RuntimeError):
    """The pool cannot hold a formed batch; the engine would fail too."""


class KvCache:
    """Pool and tree of one worker.

    Attributes:
        free_tokens: tokens of free pages.
        tree: None where the radix cache is disabled.
    """

    def __init__(self, config: SglangConfig) -> None:
        self.config = config
        self.page_size = config.page_size
        self.capacity_tokens = config.capacity_tokens
        self.free_tokens = config.capacity_tokens
        self.tree: RadixTree | None = None
        if not config.disable_radix_cache:
            rules = {rule: config.holds(rule) for rule in ("keeps_creation", "counts_hits")}
            self.tree = RadixTree(config.page_size, config.radix_eviction_policy, **rules)

    @property
    def evictable_tokens(self) -> int:
        """Cached tokens that no request holds."""
        return self.tree.evictable_tokens if self.tree else 0

    @property
    def evicted_tokens(self) -> int:
        """Cached tokens dropped so far."""
        return self.tree.evicted_tokens if self.tree else 0

    def pages_of(self, tokens: int) -> int:
        """Tokens rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def find_prefix(self, live: LiveRequest) -> None:
        """Match a waiting request before its admission test; one token is always left to compute."""
        live.prefix = 0
        if self.tree:
            live.prefix, live.node = self.tree.match(live.request.content, live.known - 1)
        live.protected = live.prefix
        live.extend = live.known - live.prefix

    def lock(self, live: LiveRequest) -> None:
        """Protect the request's cached prefix from eviction."""
        if self.tree and live.node:
            self.tree.lock(live.node, 1)

    def unlock(self, live: LiveRequest) -> None:
        """Undo ``lock``."""
        if self.tree and live.node:
            self.tree.lock(live.node, -1)

    def load_back(self, live: LiveRequest) -> None:
        """Load the request's host-only hits to the device: nothing without a host tier."""

    def take_note(self, waiting: Sequence[LiveRequest]) -> None:
        """Process finished copies and storage operations: nothing without a host tier."""

    def begin_writing(self) -> None:
        """Begin the copy of what waits for it: nothing without a host tier."""

    @property
    def under_way(self) -> bool:
        """Whether a copy or a storage operation is under way: never without a host tier."""
        return False

    def match_all(self, live: LiveRequest) -> tuple[int, int, RadixNode]:
        """Look up all known tokens: those on the device, those behind them on the host, the former's last node."""
        assert self.tree
        matched, node = self.tree.match(live.request.content, live.known)
        return matched, 0, node

    def begin_loading(self) -> Copy | None:
        """Begin the copy that the batch waits for: none without a host tier."""
        return None

    def begin_prefetch(self, live: LiveRequest) -> None:
        """Fetch missing pages of a request that enters the queue from storage: nothing without a host tier."""

    def end_prefetch(self, live: LiveRequest) -> bool:
        """Whether the request need not wait for a prefetch: always without a host tier."""
        del live
        return True

    def lost_prefix(self, live: LiveRequest) -> bool:
        """Whether a look-up in storage has to be repeated: never without a host tier."""
        del live
        return False

    def note_admitted(self, live: LiveRequest) -> None:
        """A request has been admitted: nothing to do without a host tier."""

    def next_event_s(self) -> float | None:
        """When the next copy or storage operation ends: never without a host tier."""
        return None

    def ensure_free_pages(self, tokens: int) -> None:
        """If fewer than ``tokens`` are free, evict what is missing; before 0.5.17 *all* of ``tokens``."""
        if self.free_tokens < tokens and self.tree:
            missing = tokens - self.free_tokens
            self.free_tokens += self.tree.evict(missing if self.config.holds("evicts_shortfall") else tokens)

    def take_prefill(self, batch: list[LiveRequest]) -> None:
        """Take slots for the chunks of a prefill batch; with pages, one more page per request is freed."""
        spare = self.page_size * len(batch) if self.page_size > 1 else 0
        self.ensure_free_pages(sum(live.extend for live in batch) + spare)
        for live in batch:
            self._grow(live, live.prefix + live.extend)

    def take_decode(self, batch: list[LiveRequest], *, mixed: bool = False) -> None:
        """Take a slot for one more token of each request; a page each is freed. ``mixed``: in a mixed step."""
        del mixed
        self.ensure_free_pages(self.page_size * len(batch))
        for live in batch:
            self._grow(live, live.committed + 1)

    def decode_fits(self, batch: list[LiveRequest]) -> bool:
        """Whether (after evicting) there is a page for each request whose pages are full."""
        needed = self.page_size * sum(live.committed % self.page_size == 0 for live in batch)
        self.ensure_free_pages(needed)
        return self.free_tokens >= needed

    def keep_unfinished(self, live: LiveRequest, *, chunk: bool = False) -> None:
        """After a prefill or a chunk: insert its whole pages into the tree, and lock them for the request."""
        computed = live.prefix + live.extend
        if self.tree:
            self._insert(live, computed, chunk=chunk)
            live.protected, node = self.tree.match(live.request.content, computed)
            self.unlock(live)
            live.node = node
            self.lock(live)
        live.prefix = computed

    def keep_finished(self, live: LiveRequest) -> None:
        """At the end: insert whole pages into the tree, and free the rest."""
        if self.tree:
            self._insert(live, live.committed)
            live.protected = live.committed // self.page_size * self.page_size
        self.drop(live)

    def drop(self, live: LiveRequest) -> None:
        """Free the request's private pages and release its lock."""
        self.free_tokens += self.pages_of(live.committed) - live.protected
        self.unlock(live)
        live.node = None
        live.committed = live.protected = live.prefix = live.inserted = 0

    def check(self, holders: list[LiveRequest]) -> None:
        """Raise AssertionError unless free + tree + private = capacity (law L3) for these holders of KV."""
        private = sum(self.pages_of(live.committed) - live.protected for live in holders)
        cached = self.tree.total_tokens if self.tree else 0
        assert self.free_tokens >= 0
        assert self.free_tokens + cached + private == self.capacity_tokens

    def _insert(self, live: LiveRequest, tokens: int, *, chunk: bool = False) -> None:
        """Add whole pages to the tree; pages that it had already are freed as duplicates."""
        assert self.tree is not None
        content, priority = live.request.content, live.request.priority
        counted_from = None if chunk else 0
        if self.config.holds("counts_hits_once"):
            counted_from = live.inserted
            live.inserted = max(live.inserted, tokens // self.page_size * self.page_size)
        present = self.tree.insert(content, tokens, priority, counted_from=counted_from)
        prompt = live.request.input_tokens // self.page_size
        if self.config.holds("splits_at_prompt") and 0 < prompt < tokens // self.page_size:
            self.tree.insert(content, prompt * self.page_size, priority + 1, counted_from=None)
        assert present >= live.protected
        self.free_tokens += present - live.protected

    def _grow(self, live: LiveRequest, committed: int) -> None:
        self.free_tokens -= self.pages_of(committed) - self.pages_of(live.committed)
        if self.free_tokens < 0:
            raise OutOfMemoryError(f"no KV slot for request {live.request.id} at {committed} tokens")
        live.committed = committed
