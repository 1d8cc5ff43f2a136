"""vLLM 0.19 with LMCache's connector, restated on top of the scheduler.

There is no recording of it. Every rule below was looked up in LMCache (of spring 2026; ``integration/vllm/
vllm_v1_adapter.py``, ``v1/cache_engine.py``, ``v1/gpu_connector``) unless it is marked *assumed*; those of the tiers
are in ``lmcache_store``.

- Chunks are 256 tokens; what is less at the end of a sequence is not kept. (``save_unfull_chunk`` off)
- A waiting request is looked up when a pass first gets to it, with all its known tokens; what was found stands, pinned,
  until it is admitted. (adapter: get_num_new_matched_tokens)
- Found tokens beyond those on the device are loaded; where all known tokens were found, the last is computed again.
  Device blocks for them are taken at admission and can be found at once, as if they were computed in the step.
- The step that admits it waits for the load: request by request, chunks from the one on in which the device's hits end
  are read from the stores behind host memory where that does not have them, then copied to the device.
  (start_load_kv, retrieve)
- Behind the step's computation, request by request (new ones, running ones, then resumed ones), what was pinned is
  released and full chunks among its tokens so far are copied to the host; the step lasts until then. (wait_for_save;
  the copy is waited for)
- Chunks count as saved up to those that the look-up found, and up to those that were saved. Nothing is saved before the
  next boundary, nor once the request decodes (a step with one new token; it stays so when preempted) unless
  ``save_decode`` is set. A resumed request begins again with its new look-up. (RequestTracker, ReqMeta)
- With asynchronous scheduling a token just being made is not yet among a request's tokens. (build_connector_meta)
- *Assumed*: loads begin when the device is free. What a step does to the tiers is decided when it is formed; what it
  saves can be found from the end of its copy on.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

from hisearch.validate.restatement.content import page
from hisearch.validate.restatement.lmcache_store import ChunkStore, Eviction, Find, LmcacheStore, Ways
from hisearch.validate.restatement.recording import Cost, Recording, Request
from hisearch.validate.restatement.transfers import CopyLaw, Link, send_over
from hisearch.validate.restatement.vllm import VllmConfig, VllmWorker, drive
from hisearch.validate.restatement.vllm_state import LiveRequest

Scope = Literal["worker", "node", "cluster"]
_AT_ONCE = CopyLaw(0.0, 0.0)


@dataclass(frozen=True)
class LmcacheTier:
    """One tier.

    Attributes:
        tokens: size of a store; what is less than a chunk has no use.
        write, read: laws of a store itself, one transfer per chunk; for host memory one per request. Host memory of a
            worker's own is as fast as the worker's copies are.
        eviction: what goes first.
        scope: who shares a store: "worker" (nobody), "node" or "cluster".
        networked: it lies behind the nodes' networks.
    """

    tokens: int
    write: CopyLaw = _AT_ONCE
    read: CopyLaw = _AT_ONCE
    eviction: Eviction = "lru"
    scope: Scope = "worker"
    networked: bool = False


@dataclass(frozen=True)
class LmcacheConfig:
    """Settings of LMCache.

    Attributes:
        to_host, to_device: laws of a worker's copies, one per request.
        tiers: host memory, then those behind it, none of which is shared by fewer workers than the one before it.
        chunk_tokens: tokens per chunk, whole device blocks.
        save_decode: keep outputs as well.
        network: law of a node's network, out and in.
        workers_per_node: workers of a node.
    """

    to_host: CopyLaw
    to_device: CopyLaw
    tiers: tuple[LmcacheTier, ...]
    chunk_tokens: int = 256
    save_decode: bool = False
    network: CopyLaw = _AT_ONCE
    workers_per_node: int = 1

    def sharing(self, tier: LmcacheTier, workers: int) -> int:
        """Workers to a store."""
        return {"worker": 1, "node": self.workers_per_node, "cluster": workers}[tier.scope]

    def new_stores(self, workers: int = 1) -> list[LmcacheStore]:
        """Empty tiers, as each worker sees them."""
        size = self.chunk_tokens
        networks = [Ways((Link(self.network),), (Link(self.network),)) for _ in range(workers)]
        views: list[list[tuple[ChunkStore, Ways]]] = [[] for _ in range(workers)]
        for index, tier in enumerate(self.tiers):
            sharing = self.sharing(tier, workers)
            own = index > 0 or tier.scope != "worker"
            for w, view in enumerate(views):
                if w % sharing == 0:
                    store = ChunkStore(tier.tokens // size, tier.eviction)
                    medium = Ways((Link(tier.write),), (Link(tier.read),)) if own else Ways()
                network = networks[w // self.workers_per_node] if tier.networked else Ways()
                view.append((store, Ways(medium.write + network.write, medium.read + network.read)))
        return [LmcacheStore(view, size) for view in views]


@dataclass
class _Tracker:
    """What the connector knows of a request.

    Attributes:
        tokens: leading tokens that count as its own so far.
        saved: tokens that need not be saved any more.
        decodes: it has been in a step with one new token.
    """

    tokens: int = 0
    saved: int = 0
    decodes: bool = False


@dataclass
class _Load:
    """An admitted request's load: what its look-up found, tokens found on the device, and tokens to load."""

    find: Find
    on_device: int
    tokens: int


class LmcacheWorker(VllmWorker):
    """One engine with LMCache.

    Args:
        config: the scheduler's settings.
        lmcache: LMCache's.
        cost: step costs.
        store: tiers to share with other workers; by default its own.

    Attributes:
        loaded_tokens: by request id, how many of its ``reused_tokens`` were loaded.
    """

    def __init__(
        self, config: VllmConfig, lmcache: LmcacheConfig, cost: Cost, store: LmcacheStore | None = None
    ) -> None:
        super().__init__(config, cost)
        if lmcache.chunk_tokens % config.block_size:
            raise ValueError(f"chunk_tokens {lmcache.chunk_tokens}: expected whole blocks of {config.block_size}")
        self.lmcache = lmcache
        self.store = lmcache.new_stores()[0] if store is None else store
        self.to_host = Link(lmcache.to_host)
        self.to_device = Link(lmcache.to_device)
        self.loaded_tokens: dict[Any, int] = {}
        self._finds: dict[LiveRequest, Find] = {}
        self._trackers: dict[LiveRequest, _Tracker] = {}
        self._admitted: dict[LiveRequest, _Load] = {}

    # ---- admission -------------------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        self._admitted = {}
        super()._schedule(now)

    def _admit(self, now: float) -> None:
        """Waiting requests from the head; the first that fails ends it."""
        while self._may_admit(self.waiting):
            live = self.waiting[0]
            hits = self._lookup(live)
            on_device = len(hits) * self.config.block_size
            if live not in self._finds:
                self._finds[live] = self.store.lookup(self._keys(live, 0, live.known // self.lmcache.chunk_tokens), now)
            find = self._finds[live]
            tokens = find.chunks * self.lmcache.chunk_tokens
            loaded = max(min(tokens, live.known - 1) - on_device, 0)
            if not self._start(live, hits, loaded, now):
                return
            self.waiting.pop(0)
            self.loaded_tokens.setdefault(live.request.id, loaded)
            del self._finds[live]
            self._admitted[live] = _Load(find, on_device, loaded)

    def _keys(self, live: LiveRequest, first: int, end: int) -> list[Hashable]:
        """The request's chunks from the ``first`` on."""
        return [page(live.request.content, index, self.lmcache.chunk_tokens) for index in range(first, end)]

    # ---- a step ----------------------------------------------------------------------------------------------------

    def _span(self, now: float, seconds: float) -> tuple[float, float]:
        """Loads, computation, saves."""
        start_s = max(now, self.device_free_s)
        order = self._order()
        at_s = start_s
        for live in order:
            if live in self._admitted:
                at_s = self._load(live, self._admitted[live], at_s)
        at_s += seconds
        for live in order:
            if live in self._admitted:
                self.store.unpin(self._admitted[live].find)
            due = self._keys(live, *self._due(live))
            taken = self.store.reserve(due, at_s) if due else []
            if taken:
                at_s = send_over(
                    (self.to_host, *self.store.ways[0].write), at_s, len(taken) * self.lmcache.chunk_tokens
                )
                self.store.save(taken, at_s)
        return start_s, at_s

    def _order(self) -> list[LiveRequest]:
        """New requests, running ones, resumed ones."""
        running = [live for live in self._shares if live not in self._admitted]
        new = [live for live in self._admitted if live.preemptions == 0]
        resumed = [live for live in self._admitted if live.preemptions > 0]
        return [*new, *running, *resumed]

    def _load(self, live: LiveRequest, load: _Load, at_s: float) -> float:
        """Bring what the request was promised to the device; returns when it is there."""
        if load.tokens == 0:
            return at_s
        first = load.on_device // self.lmcache.chunk_tokens
        keys = self._keys(live, first, load.find.chunks)
        at_s = self.store.read(keys, at_s)
        return send_over((self.to_device, *self.store.ways[0].read), at_s, len(keys) * self.lmcache.chunk_tokens)

    def _due(self, live: LiveRequest) -> tuple[int, int]:
        """First and last chunk (excluded) to be saved behind this step."""
        size = self.lmcache.chunk_tokens
        share = self._shares[live]
        load = self._admitted.get(live)
        if load is not None and live.preemptions == 0:
            self._trackers[live] = _Tracker(live.computed + share, load.find.chunks * size)
        else:
            self._track(live, share, load)
        tracker = self._trackers[live]
        boundary = (tracker.saved // size + 1) * size
        if (tracker.saved > 0 and tracker.tokens < boundary) or (tracker.decodes and not self.lmcache.save_decode):
            return 0, 0
        first, end = tracker.saved // size, tracker.tokens // size
        tracker.saved = end * size
        return first, end

    def _track(self, live: LiveRequest, share: int, load: _Load | None) -> None:
        """A running or resumed request's tokens grow."""
        tracker = self._trackers[live]
        known = live.known
        begin = min(live.computed, tracker.tokens)
        new = min(begin + share, known) - begin
        if load is not None:
            found = load.find.chunks * self.lmcache.chunk_tokens
            tracker.tokens = min(max(found, load.on_device) + new, known)
            tracker.saved = found
        else:
            tracker.tokens = begin + new
        if new == 1:
            tracker.decodes = True


def replay(config: VllmConfig, lmcache: LmcacheConfig, requests: list[Request], cost: Cost) -> Recording:
    """Run one worker over ``requests`` until all have finished.

    Raises:
        ValueError: a request can never be served.
    """
    return drive(LmcacheWorker(config, lmcache, cost), requests)
