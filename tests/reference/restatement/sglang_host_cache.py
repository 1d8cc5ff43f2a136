"""SGLang's KV pool with the host tier behind it and, if configured, the storage tier behind that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hisearch.validate.hicache_settings import HostTierConfig
from tests.reference.restatement import sglang_host_rules as rules
from tests.reference.restatement.sglang_cache import KvCache
from tests.reference.restatement.sglang_copies import Clock, Copy, CopyStream
from tests.reference.restatement.sglang_fetches import FetchesByHits, StorageByHits
from tests.reference.restatement.sglang_host_tree import HostTree
from tests.reference.restatement.sglang_state import LiveRequest, SglangConfig
from tests.reference.restatement.sglang_storage import Prefetch, StorageTier
from tests.reference.restatement.sglang_tree import RadixNode

#: Fewer tokens are computed again rather than loaded back.
LOAD_BACK_TOKENS = 10


class HostCache(KvCache):
    """Device pool, host pool and the copies between them.

    Attributes:
        host: the tree, which has both tiers (``tree`` is the same object).
        to_device: stream of the load-backs.
        storage: None without a storage tier.
        fetches: from it, by the rules from release 0.5.20 on; None by those before, or without storage.
    """

    def __init__(self, config: SglangConfig, host_config: HostTierConfig, clock: Clock) -> None:
        super().__init__(config)
        host_tokens = host_config.host_tokens(config.capacity_tokens, config.page_size)
        self.clock = clock
        self.host = HostTree(
            config.page_size, config.radix_eviction_policy, host_config, host_tokens, clock, config.holds
        )
        self.tree = self.host
        self.to_device = CopyStream(host_config.to_device, clock)
        self.storage: StorageTier | None = None
        self.fetches: FetchesByHits | None = None
        by_hits = config.holds("fetches_by_hits")
        limit_tokens = rules.prefetch_limit_tokens(host_config, config.capacity_tokens, config.page_size, by_hits)
        if host_config.storage and by_hits:
            self.storage = storage = StorageByHits(host_config.storage, config.page_size, clock)
            self.fetches = FetchesByHits(self, storage, limit_tokens)
        elif host_config.storage:
            self.storage = StorageTier(host_config.storage, config.page_size, clock)
        self._prefetch_limit_tokens = limit_tokens
        self._to_load: list[tuple[RadixNode, int]] = []

    def find_prefix(self, live: LiveRequest) -> None:
        """Match a waiting request in both tiers."""
        match = self.host.match_tiers(live.request.content, live.known - 1)
        live.prefix, live.node = match.device_tokens, match.device_node
        live.host_hit, live.host_node = match.host_tokens, match.host_node
        live.protected = live.prefix
        live.extend = live.known - live.prefix

    def match_all(self, live: LiveRequest) -> tuple[int, int, RadixNode]:
        """As ``KvCache.match_all``."""
        match = self.host.match_tiers(live.request.content, live.known)
        return match.device_tokens, match.host_tokens, match.device_node

    # ---- processing finished operations ----------------------------------------------------------------------------

    def take_note(self, waiting: Sequence[LiveRequest]) -> None:
        """Process finished copies and storage operations.

        Called by every pass, before release 0.5.20 by those that try to prefill.
        """
        self.begin_writing()
        written = self.host.take_written()
        for copy in self.to_device.take_finished():
            for node in copy.nodes:
                self.host.lock(node, -1)
        if self.storage:
            self._take_storage_note(self.storage, written)
        if self.fetches:
            self.fetches.take_note()
            self.fetches.look_up_again(waiting)

    def _take_storage_note(self, storage: StorageTier, written: list[RadixNode]) -> None:
        for copied in written:
            for node in self.host.copied_parts(copied):
                node.host_locks += 1
                storage.begin_write(node)
        storage.advance()
        if self.fetches:
            return
        for owner in storage.revoked:
            prefetch = storage.prefetches.pop(owner, None)
            if prefetch:
                prefetch.above.host_locks -= 1
        for node in storage.written:
            node.host_locks -= 1
        self.host.host_free_tokens += storage.released_tokens
        storage.revoked, storage.written, storage.released_tokens = [], [], 0

    def begin_writing(self) -> None:
        """Begin one copy of all nodes that wait for theirs."""
        self.host.begin_writing()

    @property
    def under_way(self) -> bool:
        """Whether a copy has not been noted or a storage server is busy."""
        copies = self.host.unwritten or self.host.to_host.pending or self.to_device.pending
        return bool(copies) or (self.storage is not None and self.storage.next_end_s() < math.inf)

    def next_event_s(self) -> float | None:
        """When the next operation that a pass would process ends; None if nothing is under way."""
        times = [self.host.to_host.next_end_s(), self.to_device.next_end_s()]
        if self.storage:
            self.storage.advance()
            times.append(self.storage.next_event_s())
        return min((time for time in times if time is not None), default=None)

    # ---- loading back ----------------------------------------------------------------------------------------------

    def load_back(self, live: LiveRequest) -> None:
        """Take device pages for all host-only hits of the request, or for none of them.

        The request's lock and prefix move to the end of the loaded tokens. The copy begins with the batch.
        """
        assert live.host_node
        if live.host_hit < LOAD_BACK_TOKENS:
            return
        # Only write_back with a full host pool could evict it meanwhile; the engine fails in that case.
        live.host_node.host_locks += 1
        self.ensure_free_pages(live.host_hit)
        live.host_node.host_locks -= 1
        if self.free_tokens < live.host_hit:
            return
        self.free_tokens -= live.host_hit
        node: RadixNode | None = live.host_node
        while node is not None and not node.on_device:
            node.on_device = True
            node = node.parent
        self._to_load.append((live.host_node, live.host_hit))
        self.host.lock(live.host_node, 1)
        self.host.lock(live.host_node, 1)
        self.unlock(live)
        live.node = live.host_node
        live.prefix += live.host_hit
        live.protected = live.prefix
        live.extend = live.known - live.prefix

    @property
    def waits_to_load(self) -> bool:
        """Whether pages are locked for a load-back that only a batch will start."""
        return bool(self._to_load)

    def begin_loading(self) -> Copy | None:
        """One copy of all that the batch's requests load back."""
        if not self._to_load:
            return None
        nodes, tokens = zip(*self._to_load, strict=True)
        self._to_load = []
        return self.to_device.issue(sum(tokens), nodes)

    # ---- prefetching from storage ----------------------------------------------------------------------------------

    def begin_prefetch(self, live: LiveRequest) -> None:
        """Try to fetch missing pages of a request that enters the queue."""
        storage = self.storage
        if self.fetches:
            self.fetches.enter(live)
            return
        if storage is None:
            return
        self.find_prefix(live)
        live.missing = live.extend
        assert live.node
        assert live.host_node
        start = live.prefix + live.host_hit
        pages = (live.known - start) // self.page_size
        if (
            not live.node.on_host
            or pages * self.page_size < storage.config.prefetch_threshold
            or storage.prefetching_tokens >= self._prefetch_limit_tokens
        ):
            return
        live.host_node.host_locks += 1
        if not self.host.take_host(pages * self.page_size):
            live.host_node.host_locks -= 1
            return
        keys = self.host.page_keys(live.request.content, start, start + pages * self.page_size)
        storage.begin_prefetch(Prefetch(live.request.id, live.host_node, start, keys, self.clock.now_s))

    def end_prefetch(self, live: LiveRequest) -> bool:
        """Insert the pages that the request's prefetch has read; False if the request has to wait for more."""
        if self.fetches:
            return self.fetches.take(live)
        prefetch = self.storage.prefetches.get(live.request.id) if self.storage else None
        if self.storage is None or prefetch is None:
            return True
        if not self.storage.may_stop(prefetch):
            return False
        tokens = self.storage.stop_prefetch(prefetch)
        present = self.host.insert_host(prefetch.above, live.request.content, prefetch.start, tokens)
        self.host.host_free_tokens += present
        prefetch.above.host_locks -= 1
        return True

    def lost_prefix(self, live: LiveRequest) -> bool:
        """Whether the request, just matched, had more in the cache when it was looked up, which is then repeated."""
        return self.fetches is not None and self.fetches.lost_prefix(live)

    def note_admitted(self, live: LiveRequest) -> None:
        """A request has been admitted."""
        if self.fetches:
            self.fetches.admit(live)

    def check(self, holders: list[LiveRequest]) -> None:
        """As ``KvCache.check``, and the same for host memory: free + copies of nodes + prefetches = capacity."""
        super().check(holders)
        assert self.host.host_free_tokens >= 0
        under_way = self.storage.held_tokens + self.storage.released_tokens if self.storage else 0
        assert self.host.host_free_tokens + self.host.host_held_tokens + under_way == self.host.host_tokens
        for node in self.host.nodes():
            assert node.on_device or node.on_host
            assert node.locks >= 0
            assert node.host_locks >= 0
            assert node.on_device or not (node.locks or any(child.on_device for child in node.children.values()))

    def storage_log(self) -> list[tuple[float, Any, str, int]]:
        """Results of prefetches until now."""
        if self.storage is None:
            return []
        self.storage.advance()
        return self.storage.log
