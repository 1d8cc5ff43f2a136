"""SGLang's fetches from storage from release 0.5.20 on, restated: host memory is taken for what storage has.

A request that enters the queue is looked up in storage. The pass that notes the answer takes host memory for it, and
begins the read; passes note what has been read, and put a complete fetch into the tree. A request whose turn comes
takes what has been noted, or waits. A miss is looked up again some passes later, and so is a request of whose cached
prefix some was evicted since.

Source: SGLang's ``UnifiedRadixCache`` and ``StoragePrefetchRetries`` (0.5.23), and the recordings with storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hisearch.validate.hicache_settings import StorageConfig
from tests.reference.restatement import sglang_host_rules as rules
from tests.reference.restatement.sglang_copies import Clock
from tests.reference.restatement.sglang_host_tree import HostTree
from tests.reference.restatement.sglang_state import LiveRequest
from tests.reference.restatement.sglang_storage import AFTER_DEADLINE_S, Prefetch, StorageTier

#: Passes until a miss is looked up again, and how often a request is at most.
RETRY_PASSES, MOST_RETRIES = 8, 8


class Matches(Protocol):
    """What a look-up needs of the cache."""

    host: HostTree
    clock: Clock

    def find_prefix(self, live: LiveRequest) -> None:
        """Match a waiting request in both tiers."""


@dataclass
class LookUp:
    """What is known of a request's look-ups.

    Attributes:
        matched: tokens cached at the last one.
        attempts: repetitions.
        retry: whether it is to be repeated. due: in which pass; None until a pass sees it.
        late: whether it waits for no fetch any more (policy ``timeout``).
        wait_s, timeout_s: since when it waits, and for how long at most; None before its first turn.
    """

    matched: int = 0
    attempts: int = 0
    retry: bool = False
    due: int | None = None
    late: bool = False
    wait_s: float | None = None
    timeout_s: float = 0.0


class StorageByHits(StorageTier):
    """Storage servers whose answers and reads the scheduler notes.

    Attributes:
        answered: queries that have ended, in order. done: reads that have ended.
    """

    def __init__(self, config: StorageConfig, page_size: int, clock: Clock) -> None:
        super().__init__(config, page_size, clock)
        self.answered: list[Prefetch] = []
        self.done: list[Prefetch] = []
        self.look_ups: dict[Any, LookUp] = {}

    def begin_prefetch(self, prefetch: Prefetch) -> None:
        """Queue the query of a prefetch, for which no memory is taken yet."""
        self.advance()
        self.prefetches[prefetch.owner] = prefetch
        self._queries.add(prefetch, self.clock.now_s)

    def begin_read(self, prefetch: Prefetch) -> None:
        """Queue the read of a prefetch's hits, for which memory has been taken."""
        self.held_tokens += prefetch.hit_pages * self.page_size
        self._reader.add(prefetch, self.clock.now_s)

    def end_read(self, prefetch: Prefetch) -> None:
        """Give memory that a read has not used back."""
        self._release(prefetch.hit_pages - prefetch.noted_pages)

    @property
    def reading(self) -> Prefetch | None:
        """The prefetch that is being read."""
        return self._reader.job

    def next_event_s(self) -> float | None:
        """When the next server ends a part, or a request has waited long enough."""
        end_s = self.next_end_s()
        times = [end_s] if end_s < float("inf") else []
        waits = [self.look_ups[owner] for owner in self.prefetches]
        checks = [wait.wait_s + wait.timeout_s + AFTER_DEADLINE_S for wait in waits if wait.wait_s is not None]
        times.extend(check for check in checks if self.clock.now_s < check < float("inf"))
        return min(times, default=None)

    def _begin_query(self, prefetch: Prefetch, now: float) -> float:
        return now if prefetch.stopped else super()._begin_query(prefetch, now)

    def _end_query(self, prefetch: Prefetch, now: float) -> bool:
        prefetch.hit_pages = 0 if prefetch.stopped else self.leading_hits(prefetch)
        self.log.append((now, prefetch.owner, "reading", prefetch.hit_pages * self.page_size))
        self.answered.append(prefetch)
        return False

    def _begin_read(self, prefetch: Prefetch, now: float) -> float:
        return now if prefetch.stopped else super()._begin_read(prefetch, now)

    def _end_read(self, prefetch: Prefetch, now: float) -> bool:
        if self._count_read(prefetch):
            return True
        self.log.append((now, prefetch.owner, "read", prefetch.read_pages * self.page_size))
        self.done.append(prefetch)
        return False


class FetchesByHits:
    """The scheduler's side of the fetches of one worker.

    Attributes:
        passes: so far.
    """

    def __init__(self, cache: Matches, storage: StorageByHits, limit_tokens: int) -> None:
        self.cache = cache
        self.storage = storage
        self.limit_tokens = limit_tokens
        self.passes = 0

    def enter(self, live: LiveRequest) -> None:
        """A request enters the queue: look it up."""
        look_up = self.storage.look_ups.setdefault(live.request.id, LookUp())
        look_up.retry, look_up.matched, look_up.attempts = False, 0, 0
        self._look_up(live)

    def admit(self, live: LiveRequest) -> None:
        """A request is admitted: it is not looked up again, and its wait is over (a retracted one waits anew)."""
        look_up = self.storage.look_ups[live.request.id]
        look_up.retry, look_up.late, look_up.wait_s = False, False, None

    def _look_up(self, live: LiveRequest) -> None:
        """Match a request in both tiers, and query storage for the rest, unless it is too little or too much."""
        storage, page = self.storage, self.storage.page_size
        look_up = storage.look_ups[live.request.id]
        self.cache.find_prefix(live)
        live.missing = live.extend
        start = look_up.matched = live.prefix + live.host_hit
        above = live.host_node if live.host_hit else live.node
        assert above
        if not above.on_host:
            return
        look_up.retry = False
        pages = (live.known - 1 - start) // page
        if look_up.late or live.request.id in storage.prefetches or pages * page < storage.least_hit_tokens:
            return
        if storage.prefetching_tokens >= self.limit_tokens:
            self._retry_later(live.request.id)
            return
        above.host_locks += 1
        keys = self.cache.host.page_keys(live.request.content, start, start + pages * page)
        prefetch = Prefetch(live.request.id, above, start, keys, self.cache.clock.now_s, content=live.request.content)
        storage.begin_prefetch(prefetch)

    def _retry_later(self, owner: Any) -> None:
        look_up = self.storage.look_ups[owner]
        look_up.retry, look_up.due = True, None

    def look_up_again(self, waiting: Sequence[LiveRequest]) -> None:
        """Look up the waiting requests whose time has come; the head does not wait for it."""
        self.passes += 1
        for position, live in enumerate(waiting):
            look_up = self.storage.look_ups[live.request.id]
            if position == 0 or look_up.attempts >= MOST_RETRIES:
                look_up.retry = False
            elif look_up.retry and look_up.due is None:
                look_up.due = self.passes + RETRY_PASSES
            elif look_up.retry and look_up.due is not None and look_up.due <= self.passes:
                look_up.retry = False
                look_up.attempts += 1
                self._look_up(live)

    def lost_prefix(self, live: LiveRequest) -> bool:
        """Whether a request that has just been matched had more in the cache before; it is then looked up again."""
        look_up, matched = self.storage.look_ups[live.request.id], live.prefix + live.host_hit
        if matched >= look_up.matched:
            return False
        if look_up.attempts >= MOST_RETRIES:
            look_up.matched = matched
            return False
        look_up.attempts += 1
        self._look_up(live)
        return True

    # ---- noting results, and taking them ---------------------------------------------------------------------------

    def take_note(self) -> None:
        """Note queries and reads that have ended; memory released before this pass is free from now on."""
        storage, released = self.storage, self.storage.released_tokens
        answered, storage.answered = storage.answered, []
        for prefetch in answered:
            if not prefetch.stopped:
                self._take_hits(prefetch)
        if storage.reading and not storage.reading.stopped:
            storage.reading.noted_pages = storage.reading.read_pages
        done, storage.done = storage.done, []
        for prefetch in done:
            if not prefetch.stopped:
                prefetch.noted_pages = prefetch.read_pages
                self._keep(prefetch)
            storage.end_read(prefetch)
        for node in storage.written:
            node.host_locks -= 1
        storage.written = []
        self.cache.host.host_free_tokens += released
        storage.released_tokens -= released

    def _take_hits(self, prefetch: Prefetch) -> None:
        """Take host memory for what storage has, as far as there is room, and begin to read it."""
        host, page = self.cache.host, self.storage.page_size
        tokens = prefetch.hit_pages * page
        if tokens >= self.storage.least_hit_tokens:
            if host.host_free_tokens < tokens:
                host.evict_host(tokens)
            tokens = min(tokens, host.host_free_tokens)
        if tokens < self.storage.least_hit_tokens:
            self._give_up(prefetch)
            return
        host.host_free_tokens -= tokens
        prefetch.hit_pages, prefetch.taken = tokens // page, True
        self.storage.begin_read(prefetch)

    def _give_up(self, prefetch: Prefetch) -> None:
        self._retry_later(prefetch.owner)
        self._detach(prefetch)

    def _detach(self, prefetch: Prefetch) -> None:
        del self.storage.prefetches[prefetch.owner]
        prefetch.stopped = True
        prefetch.above.host_locks -= 1

    def _keep(self, prefetch: Prefetch) -> None:
        """Put what has been noted into the tree."""
        tokens = prefetch.noted_pages * self.storage.page_size
        assert prefetch.content
        present = self.cache.host.insert_host(prefetch.above, prefetch.content, prefetch.start, tokens)
        self.storage.held_tokens -= tokens
        self.cache.host.host_free_tokens += present
        self._detach(prefetch)

    def take(self, live: LiveRequest) -> bool:
        """Take what has been noted of a request's fetch; False if it has to wait for more."""
        prefetch = self.storage.prefetches.get(live.request.id)
        if prefetch is None:
            return True
        wait_s = rules.longest_wait_s(self.storage.config, len(prefetch.keys) * self.storage.page_size)
        if wait_s is not None and not self._is_late(prefetch, wait_s):
            return False
        if wait_s is not None:
            look_up = self.storage.look_ups[prefetch.owner]
            look_up.late, look_up.retry = True, False
        if prefetch.taken:
            self._keep(prefetch)
        elif wait_s is not None:
            self._detach(prefetch)
        else:
            self._give_up(prefetch)
        return True

    def _is_late(self, prefetch: Prefetch, wait_s: float) -> bool:
        look_up, now = self.storage.look_ups[prefetch.owner], self.cache.clock.now_s
        complete = prefetch.taken and prefetch.noted_pages >= prefetch.hit_pages
        waited = look_up.wait_s is not None and now - look_up.wait_s > look_up.timeout_s
        if not complete and (look_up.late or waited):
            return True
        if look_up.wait_s is None:
            look_up.wait_s = now
            look_up.timeout_s = wait_s
        return False
