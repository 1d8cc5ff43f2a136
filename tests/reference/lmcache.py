"""vLLM with LMCache's connector, restated on top of the scheduler.

Held against recordings of LMCache 0.4.4 (``hisearch.record.vllm_lmcache``) for one rank with host memory alone. Every
rule below is LMCache's (``integration/vllm/vllm_v1_adapter.py``, ``v1/cache_engine.py``, ``v1/gpu_connector``) unless
it is marked *assumed*. Rules of the tiers are in ``lmcache_store``.

- Chunks are 256 tokens; a partial chunk at the end of a sequence is not stored. (``save_unfull_chunk`` off)
- A waiting request is looked up when a pass first reaches it, with all its known tokens. The hits stay pinned until it
  is admitted. (adapter: get_num_new_matched_tokens)
- Hits beyond those on the device are loaded; if all known tokens hit, the last is computed again. Device blocks for
  them are taken at admission and can be hit at once, as if they were computed in the step.
- The step that admits a request waits for its load. Request by request, chunks are loaded from the one in which the
  device's hits end. Chunks that host memory lacks are read from the stores behind it. All tokens behind those on the
  device are then copied to it. (start_load_kv, retrieve; gpu_connectors.to_gpu: skip_prefix_n_tokens)
- A copy is waited for. A single rank runs in the scheduler's process, which passes again, and takes in results of the
  step before, when its loads have ended and, if anything was saved, its saves. (vLLM: v1/executor/uniproc_executor.py;
  gpu_connectors: load_stream.synchronize, store_stream.synchronize)
- After the step's computation, request by request (new ones, running ones, then resumed ones), pinned chunks are
  released and full chunks among its tokens so far are copied to the host. The step lasts until then. (wait_for_save;
  the copy is waited for)
- Chunks count as saved if the look-up hit them or if they were saved. Nothing is saved before the next chunk boundary.
  Nothing is saved either once the request decodes (a step with one new token, also after a preemption), unless
  ``save_decode`` is set. A resumed request starts again with its new look-up. (RequestTracker, ReqMeta)
- With asynchronous scheduling a token in flight is not yet among a request's tokens. An extra decode behind an
  end-of-sequence token counts as any other. (build_connector_meta)
- Loads begin when the device is free: before each, slots are copied to the device behind what it computes.
  (start_load_kv: slot_mapping.to)
- *Assumed*, of ranks in processes of their own (``own_processes``): the scheduler does not wait. A step's effect on the
  tiers is decided when it is formed; chunks that it saves can be hit from the end of their copy on.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

from tests.reference.lmcache_store import ChunkStore, Eviction, Find, LmcacheStore, Ways
from tests.reference.restatement.content import page
from tests.reference.restatement.recording import Cost, Recording, Request
from tests.reference.restatement.transfers import CopyLaw, Link, send_over
from tests.reference.restatement.vllm import VllmConfig, VllmWorker, drive
from tests.reference.restatement.vllm_state import LiveRequest

Scope = Literal["worker", "node", "cluster"]
_AT_ONCE = CopyLaw(0.0, 0.0)


@dataclass(frozen=True)
class LmcacheTier:
    """One tier.

    Attributes:
        tokens: size of a store; a remainder of less than a chunk is unused.
        write, read: laws of a store itself, one transfer per chunk; for host memory one per request. A worker's own
            host memory is as fast as the worker's copies.
        eviction: policy.
        scope: the workers that share a store: "worker" (one), "node" or "cluster".
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
        tiers: host memory, then those behind it, each shared by at least as many workers as the one before it.
        chunk_tokens: tokens per chunk, whole device blocks.
        save_decode: save outputs as well.
        network: law of a node's network, out and in.
        workers_per_node: workers of a node.
        own_processes: the worker runs in a process of its own, and does not hold the scheduler.
    """

    to_host: CopyLaw
    to_device: CopyLaw
    tiers: tuple[LmcacheTier, ...]
    chunk_tokens: int = 256
    save_decode: bool = False
    network: CopyLaw = _AT_ONCE
    workers_per_node: int = 1
    own_processes: bool = False

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
            has_medium = index > 0 or tier.scope != "worker"
            for w, view in enumerate(views):
                if w % sharing == 0:
                    store = ChunkStore(tier.tokens // size, tier.eviction)
                    medium = Ways((Link(tier.write),), (Link(tier.read),)) if has_medium else Ways()
                network = networks[w // self.workers_per_node] if tier.networked else Ways()
                view.append((store, Ways(medium.write + network.write, medium.read + network.read)))
        return [LmcacheStore(view, size) for view in views]


@dataclass
class _Tracker:
    """The connector's state of a request.

    Attributes:
        tokens: leading tokens tracked so far.
        saved: tokens that need not be saved any more.
        decodes: it has been in a step with one new token.
    """

    tokens: int = 0
    saved: int = 0
    decodes: bool = False


@dataclass
class _Load:
    """An admitted request's load: its look-up, its tokens on the device, and tokens to load."""

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
        self.defers_frees = config.async_scheduling and "defers_frees" in config.rules
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
        """Start and end of a step: loads, computation, saves."""
        start_s = max(now, self.device_free_s)
        order = self._order()
        at_s, held_s = start_s, now
        unpins_loaded = "unpins_loaded" in self.config.rules
        for live in order:
            if live in self._admitted and self._admitted[live].tokens > 0:
                first, end = self._chunks_to_load(live, self._admitted[live])
                if end > first:
                    held_s = at_s = self._load(live, self._admitted[live].on_device, first, end, at_s)
                if unpins_loaded:
                    self.store.unpin(self._admitted[live].find)
        at_s += seconds
        for live in order:
            load = self._admitted.get(live)
            if load is not None and not (load.tokens > 0 and unpins_loaded):
                self.store.unpin(load.find)
            keys = self._keys(live, *self._chunks_to_save(live))
            reserved = self.store.reserve(keys, at_s) if keys else []
            if reserved:
                at_s = send_over(
                    (self.to_host, *self.store.ways[0].write), at_s, len(reserved) * self.lmcache.chunk_tokens
                )
                self.store.save(reserved, at_s)
                held_s = at_s
        if not self.lmcache.own_processes:
            self.held_s = held_s
        return start_s, at_s

    def _order(self) -> list[LiveRequest]:
        """New requests, running ones, resumed ones; or the resumed ones next to the new ones."""
        running = [live for live in self._shares if live not in self._admitted]
        new = [live for live in self._admitted if live.preemptions == 0]
        resumed = [live for live in self._admitted if live.preemptions > 0]
        return [*new, *resumed, *running] if "resumes_as_new" in self.config.rules else [*new, *running, *resumed]

    def _chunks_to_load(self, live: LiveRequest, load: _Load) -> tuple[int, int]:
        """First and last chunk (excluded) to be loaded."""
        size = self.lmcache.chunk_tokens
        end = load.find.chunks
        if "resumes_as_new" in self.config.rules:
            end = min(end, self._handed_tokens(live) // size)
        return load.on_device // size, end

    def _load(self, live: LiveRequest, on_device: int, first: int, end: int, at_s: float) -> float:
        """Copy the request's hits to the device; returns when they are there."""
        tokens = end * self.lmcache.chunk_tokens - on_device
        at_s = self.store.read(self._keys(live, first, end), at_s)
        return send_over((self.to_device, *self.store.ways[0].read), at_s, tokens)

    def _handed_tokens(self, live: LiveRequest) -> int:
        """Tokens of an admitted request that are handed over as those of a new one: none of its output."""
        return min(live.computed + self._shares[live], live.request.input_tokens)

    def _chunks_to_save(self, live: LiveRequest) -> tuple[int, int]:
        """First and last chunk (excluded) to be saved after this step."""
        size = self.lmcache.chunk_tokens
        share = self._shares[live]
        load = self._admitted.get(live)
        if load is not None and (live.preemptions == 0 or "resumes_as_new" in self.config.rules):
            self._trackers[live] = _Tracker(self._handed_tokens(live), load.find.chunks * size)
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
        """Update the tracker of a running or resumed request."""
        tracker = self._trackers[live]
        known_tokens = live.known
        begin = min(live.computed, tracker.tokens)
        new = min(begin + share, known_tokens) - begin
        if load is not None:
            hit_tokens = load.find.chunks * self.lmcache.chunk_tokens
            tracker.tokens = min(max(hit_tokens, load.on_device) + new, known_tokens)
            tracker.saved = hit_tokens
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
