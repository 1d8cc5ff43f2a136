"""SGLang's storage tier: a key store with three servers in parallel to the scheduler, for queries, reads and writes.

Each server does one operation after another. Results wait in queues (``released_tokens``, ``revoked``, ``written``)
until the scheduler processes them. The tier does not depend on the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hisearch.validate.hicache_settings import StorageConfig
from tests.reference.restatement import sglang_host_rules as rules
from tests.reference.restatement.content import Content
from tests.reference.restatement.sglang_copies import Clock
from tests.reference.restatement.sglang_tree import RadixNode
from tests.reference.restatement.transfers import Link

Job = TypeVar("Job")

#: Pages that are read or written together.
BATCH_PAGES = 128
#: Delay after a prefetch's deadline at which an idle scheduler checks it again, seconds.
AFTER_DEADLINE_S = 1e-6


@dataclass(eq=False)
class Prefetch:
    """Pages of one request on their way from storage to the host.

    Attributes:
        owner: the request's id.
        above: node that ends where the pages begin; its host copy is locked meanwhile.
        start: token at which they begin.
        keys: identities of all pages with host memory taken for them.
        begun_s: when the request entered the queue.
        hit_pages: leading pages that storage has; 0 until the query is answered.
        read_pages: pages that have arrived.
        stopped: whether the scheduler has taken the arrived pages; no more pages arrive.
        taken, noted_pages, content: of ``sglang_fetches``: whether host memory has been taken, the pages that a pass
            has noted, and what they hold.
    """

    owner: Any
    above: RadixNode
    start: int
    keys: list[Hashable]
    begun_s: float
    hit_pages: int = 0
    read_pages: int = 0
    stopped: bool = False
    taken: bool = False
    noted_pages: int = 0
    content: Content | None = None


@dataclass(eq=False)
class _Write:
    node: RadixNode
    keys: list[Hashable]
    done_pages: int = 0


class _Server(Generic[Job]):
    """Runs jobs in order, each in one or several parts.

    ``begin(job, now)`` returns when the job's next part ends. ``finish(job, now)`` is called at its end, and returns
    whether another part follows.
    """

    def __init__(self, begin: Callable[[Job, float], float], finish: Callable[[Job, float], bool]) -> None:
        self._begin = begin
        self._finish = finish
        self._queue: list[Job] = []
        self.end_s: float | None = None

    @property
    def job(self) -> Job | None:
        """The job under way."""
        return self._queue[0] if self._queue else None

    def add(self, job: Job, now: float) -> None:
        """Queue a job; it begins now if the queue is empty."""
        self._queue.append(job)
        if self.end_s is None:
            self.end_s = self._begin(job, now)

    def step(self) -> None:
        """End the part under way and begin the next one."""
        assert self.end_s is not None
        now = self.end_s
        if not self._finish(self._queue[0], now):
            self._queue.pop(0)
        self.end_s = self._begin(self._queue[0], now) if self._queue else None


class Store:
    """Stored keys, and the links over which all workers that share the store write and read."""

    def __init__(self, config: StorageConfig) -> None:
        self.keys: set[Hashable] = set()
        self.write = Link(config.write)
        self.read = Link(config.read)


class StorageTier:
    """A worker's storage servers, and the store that they write and read.

    Attributes:
        store: private unless replaced by a shared one.
        prefetches: those whose result the scheduler has not taken, by request id.
        held_tokens: host memory of prefetches that is neither in the tree nor in ``released_tokens``.
        released_tokens: host memory that prefetches did not need.
        revoked: ids of requests whose prefetch had too few hits, in order.
        written: nodes whose pages have been stored.
        log: ``(time, request id, "revoked" | "reading" | "read", tokens)``.
    """

    def __init__(self, config: StorageConfig, page_size: int, clock: Clock) -> None:
        self.config = config
        self.page_size = page_size
        self.clock = clock
        #: The engine does not read less than a page.
        self.least_hit_tokens = max(config.prefetch_threshold, page_size)
        self.store = Store(config)
        self.prefetches: dict[Any, Prefetch] = {}
        self.held_tokens = 0
        self.released_tokens = 0
        self.revoked: list[Any] = []
        self.written: list[RadixNode] = []
        self.log: list[tuple[float, Any, str, int]] = []
        self._queries: _Server[Prefetch] = _Server(self._begin_query, self._end_query)
        self._reader: _Server[Prefetch] = _Server(self._begin_read, self._end_read)
        self._writer: _Server[_Write] = _Server(self._begin_write, self._end_write)

    @property
    def prefetching_tokens(self) -> int:
        """Tokens of prefetches under way."""
        return sum(len(prefetch.keys) * self.page_size for prefetch in self.prefetches.values())

    def begin_prefetch(self, prefetch: Prefetch) -> None:
        """Queue the query of a prefetch."""
        self.advance()
        self.prefetches[prefetch.owner] = prefetch
        self.held_tokens += len(prefetch.keys) * self.page_size
        self._queries.add(prefetch, self.clock.now_s)

    def stop_prefetch(self, prefetch: Prefetch) -> int:
        """Stop a prefetch; returns its arrived tokens, whose host memory passes to the caller."""
        prefetch.stopped = True
        del self.prefetches[prefetch.owner]
        tokens = prefetch.read_pages * self.page_size
        self.held_tokens -= tokens
        return tokens

    def begin_write(self, node: RadixNode) -> None:
        """Queue the writing of a node's current pages."""
        self.advance()
        self._writer.add(_Write(node, list(node.pages)), self.clock.now_s)

    def may_stop(self, prefetch: Prefetch) -> bool:
        """Whether the request need not wait any longer for its prefetch."""
        complete = 0 < prefetch.hit_pages == prefetch.read_pages
        wait_s = self._longest_wait_s(prefetch)
        return wait_s is None or complete or self.clock.now_s - prefetch.begun_s > wait_s

    def advance(self) -> None:
        """Advance the servers to now, in order of time."""
        advance([self], self.clock.now_s)

    def next_end_s(self) -> float:
        """When the next part of a server ends; infinity if all are idle."""
        return min((server.end_s for server in self._servers if server.end_s is not None), default=math.inf)

    def step(self) -> None:
        """End the part that ends first."""
        busy = (server for server in self._servers if server.end_s is not None)
        min(busy, key=lambda server: server.end_s or 0.0).step()

    @property
    def _servers(self) -> list[_Server[Any]]:
        return [self._writer, self._queries, self._reader]

    def next_event_s(self) -> float | None:
        """When the next server ends a part, or the next prefetch times out."""
        times = [server.end_s for server in (self._queries, self._reader, self._writer) if server.end_s is not None]
        waits = [(prefetch.begun_s, self._longest_wait_s(prefetch)) for prefetch in self.prefetches.values()]
        checks = (begun_s + wait_s + AFTER_DEADLINE_S for begun_s, wait_s in waits if wait_s is not None)
        times.extend(check for check in checks if self.clock.now_s < check < math.inf)
        return min(times, default=None)

    def _longest_wait_s(self, prefetch: Prefetch) -> float | None:
        return rules.longest_wait_s(self.config, prefetch.hit_pages * self.page_size)

    # ---- the servers -----------------------------------------------------------------------------------------------

    def leading_hits(self, prefetch: Prefetch) -> int:
        """Leading pages that storage has."""
        return next((at for at, key in enumerate(prefetch.keys) if key not in self.store.keys), len(prefetch.keys))

    def _begin_query(self, prefetch: Prefetch, now: float) -> float:
        del prefetch
        return now + self.config.query_s

    def _end_query(self, prefetch: Prefetch, now: float) -> bool:
        """Revoke a prefetch with too few hits; else release memory beyond the hits and queue the read."""
        hits = self.leading_hits(prefetch)
        if hits * self.page_size < self.least_hit_tokens:
            self.revoked.append(prefetch.owner)
            self._release(len(prefetch.keys))
            self.log.append((now, prefetch.owner, "revoked", hits * self.page_size))
            return False
        prefetch.hit_pages = hits
        self._release(len(prefetch.keys) - hits)
        self.log.append((now, prefetch.owner, "reading", hits * self.page_size))
        self._reader.add(prefetch, now)
        return False

    def _release(self, pages: int) -> None:
        self.held_tokens -= pages * self.page_size
        self.released_tokens += pages * self.page_size

    def _begin_read(self, prefetch: Prefetch, now: float) -> float:
        pages = min(prefetch.hit_pages - prefetch.read_pages, BATCH_PAGES)
        return self.store.read.send(now, pages * self.page_size)

    def _end_read(self, prefetch: Prefetch, now: float) -> bool:
        """Count a batch that was read; after a stop it does not count and no other follows."""
        if self._count_read(prefetch):
            return True
        self._release(prefetch.hit_pages - prefetch.read_pages)
        self.log.append((now, prefetch.owner, "read", prefetch.read_pages * self.page_size))
        return False

    def _count_read(self, prefetch: Prefetch) -> bool:
        """Count a batch that was read, unless the prefetch has been stopped; returns whether another follows."""
        if prefetch.stopped:
            return False
        prefetch.read_pages = min(prefetch.read_pages + BATCH_PAGES, prefetch.hit_pages)
        return prefetch.read_pages < prefetch.hit_pages

    def _begin_write(self, write: _Write, now: float) -> float:
        pages = min(len(write.keys) - write.done_pages, BATCH_PAGES)
        return self.store.write.send(now, pages * self.page_size)

    def _end_write(self, write: _Write, now: float) -> bool:
        """Publish a written batch, which can be hit from now on."""
        del now
        self.store.keys.update(write.keys[write.done_pages : write.done_pages + BATCH_PAGES])
        write.done_pages += BATCH_PAGES
        if write.done_pages < len(write.keys):
            return True
        self.written.append(write.node)
        return False


def advance(tiers: Sequence[StorageTier], until_s: float) -> None:
    """Advance all servers of ``tiers`` to ``until_s``, in order of time; ties go to the earlier tier."""
    while tiers:
        first = min(tiers, key=lambda tier: tier.next_end_s())
        if first.next_end_s() > until_s:
            return
        first.step()
