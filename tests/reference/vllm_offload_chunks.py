"""vLLM 0.33 with its native ``OffloadingConnector``, restated on top of the scheduler.

Recorded, with the engine's own scheduler and both sides of its connector. ``sched`` is ``v1/core/sched/scheduler.py``,
``conn`` is ``distributed/kv_transfer/kv_connector/v1/offloading/``.

Admission
- Requests that hold blocks for a load wait in a queue of their own. It is served before the waiting queue, under
  priority too. Skipped ones without blocks go back to the front of the waiting queue. [sched: schedule]
- A preempted request whose copies have not been noted is skipped. So is one of whose hit blocks one is pending, or is
  being loaded for another request (with prefix caching). [conn scheduler.py: get_num_new_matched_tokens, _lookup]
- A load leaves free what prompts that have begun still need, and what others that load do.
  [sched: _inflight_prefill_reserved_blocks]

Stores
- Each request of the step offers its new blocks, in the order of the batch. They are whole blocks among the tokens of
  its prompt that are computed by the end of the step, from the first that was not offered or loaded since its last
  look-up; device hits too.
  Without space they are offered again with its next step. Requests that finished since the last pass offer what is left
  of their prompts. [conn scheduler.py: _build_store_jobs]
- What a request stores in a step is one transfer. The next pass begins it once the steps launched by then have ended,
  a load begins once the step of its own pass has. [conn worker.py; kv_offload/cpu/gpu_worker.py]
- A pass waits, before it launches its step, for the transfers of requests that it preempted. It also waits for those of
  finished requests where it gave away, or hit, a block that they read. [conn scheduler.py: build_connector_meta]
- Finished requests free their blocks at once (but see ``defers_frees``). [same: request_finished]

Completion
- The engine asks for ended transfers when it launched a step, and acts on them with that step's results. A pass without
  a batch takes its turn in the queue of two steps. [v1/engine/core.py: step_with_batch_queue]
- Without a batch the engine passes again and again; here it does at the events that change something.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from tests.reference.restatement.content import page
from tests.reference.restatement.recording import Cost, Recording, Request, Step
from tests.reference.restatement.transfers import Link
from tests.reference.restatement.vllm import VllmConfig, VllmWorker, drive
from tests.reference.restatement.vllm_state import LiveRequest
from tests.reference.vllm_offload_chunks_store import ChunkStore, Uses
from tests.reference.vllm_offload_store import OffloadConfig


@dataclass(eq=False)
class _Transfer:
    """A transfer for a request.

    Attributes:
        blocks: of the device, which a store reads.
        end_s: set when it begins.
    """

    live: LiveRequest
    keys: list[Hashable]
    tokens: int
    blocks: list[int] = field(default_factory=list)
    end_s: float = math.inf


@dataclass
class _Offload:
    """The connector's state of a request.

    Attributes:
        offered: leading offloaded blocks that need not be offered any more.
        blocks: of the device, as the connector knows them.
        stores: transfers to the host that have not been noted.
        load: the transfer that it waits for. load_noted: whether that has ended.
        loaded: whether it has waited for a load, and has not run since.
    """

    offered: int = 0
    blocks: list[int] = field(default_factory=list)
    stores: list[_Transfer] = field(default_factory=list)
    load: _Transfer | None = None
    load_noted: bool = False
    loaded: bool = False
    uses: Uses = field(default_factory=Uses)


@dataclass
class _Notes:
    """Transfers that a pass found ended; ``has_batch``: it launched a step."""

    has_batch: bool
    stores: list[_Transfer]
    loads: list[_Transfer]


class ChunkOffloadWorker(VllmWorker):
    """One engine with host memory.

    Attributes:
        holding: requests that hold blocks and do not run: they load, or have loaded.
        loaded_tokens: by request id, how many of its ``reused_tokens`` came from the host.
    """

    def __init__(self, config: VllmConfig, offload: OffloadConfig, cost: Cost, store: ChunkStore | None = None) -> None:
        super().__init__(config, cost)
        self.defers_frees = config.async_scheduling and "defers_frees" in config.rules
        self.block_tokens = offload.block_tokens(config.block_size)
        self.store = ChunkStore(offload, config.block_size) if store is None else store
        self.to_host = Link(offload.to_host)
        self.to_device = Link(offload.to_device)
        self.holding: list[LiveRequest] = []
        self.loaded_tokens: dict[Any, int] = {}
        self._offloads: dict[LiveRequest, _Offload] = {}
        self._prefilling: set[LiveRequest] = set()
        self._prepared: list[_Transfer] = []
        self._stores: list[_Transfer] = []
        self._new_loads: list[_Transfer] = []
        self._loads: list[_Transfer] = []
        self._unnoted_loads: list[_Transfer] = []
        self._fenced: list[_Transfer] = []
        self._finished: list[LiveRequest] = []
        self._queue: list[_Notes] = []
        self._taken_by: dict[LiveRequest, set[int]] = {}
        self._taken: set[int] = set()

    @property
    def queued(self) -> int:
        """Number of requests that do not run, including those being loaded."""
        return len(self.waiting) + len(self.holding)

    @property
    def has_work(self) -> bool:
        """Whether requests are unfinished, or a pass has something to do for those that finished."""
        unnoted = any(notes.stores for notes in self._queue)
        return bool(self._has_unfinished or self._finished or self._prepared or self._stores or unnoted)

    @property
    def _has_unfinished(self) -> bool:
        return bool(self.waiting or self.holding or self.running)

    def form(self, now: float) -> Step | None:
        """One pass: a batch, or None; ``look_again_s`` is then when to try again if none is outstanding."""
        self.look_again_s = None
        self._taken_by = {}
        self._schedule(now)
        self._taken = set[int]().union(*self._taken_by.values())
        for live in self._shares:
            self._offload(live).blocks = list(live.blocks)
        flushed = [transfer for live in self._preempted for transfer in self._offload(live).stores]
        flushed += [transfer for transfer in self._fenced if not self._taken.isdisjoint(transfer.blocks)]
        new, flushed_new = self._offer()
        for transfer in self._prepared + flushed_new:
            transfer.end_s = self.to_host.send(max(now, self.device_free_s), transfer.tokens)
        self._stores += self._prepared + flushed_new
        self._prepared = new
        self.launch_s = self.held_s = max([now, *(transfer.end_s for transfer in flushed + flushed_new)])
        step = self._launch(now) if self._shares else None
        if step is not None:
            self._prefilling -= set(self.outstanding[-1].sampled)
        for transfer in self._new_loads:
            transfer.end_s = self.to_device.send(max(self.launch_s, self.device_free_s), transfer.tokens)
        self._loads += self._new_loads
        self._new_loads = []
        notes = self._collect_ended(self.launch_s, step is not None)
        self._queue.append(notes)
        if len(self._queue) == self.most_outstanding and not self._queue[0].has_batch:
            self._take(self._queue.pop(0))
        if step is None:
            self._look_again(self.launch_s)
        return step

    def process(self) -> list[Request]:
        """Take in a batch's results, then the transfers that had ended when it was launched."""
        finished = super().process()
        self._take(self._queue.pop(0))
        return finished

    def _span(self, now: float, seconds: float) -> tuple[float, float]:
        return super()._span(self.launch_s, seconds)

    def _look_again(self, now: float) -> None:
        """Set the time of the pass behind one without a batch."""
        noted = any(notes.stores or notes.loads for notes in self._queue) or self._acted
        if self._preempted or self._prepared or noted:
            self.look_again_s = now
        else:
            self.look_again_s = min((transfer.end_s for transfer in self._stores + self._loads), default=None)

    def _offload(self, live: LiveRequest) -> _Offload:
        return self._offloads.setdefault(live, _Offload())

    def _keys(self, live: LiveRequest, first: int, end: int) -> list[Hashable]:
        """The request's offloaded blocks from the ``first`` on."""
        return [page(live.request.content, index, self.block_tokens) for index in range(first, end)]

    # ---- admission -------------------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        self._acted = False
        super()._schedule(now)

    def _compute(self, live: LiveRequest, share: int) -> None:
        before = len(live.blocks)
        super()._compute(live, share)
        self._taken_by.setdefault(live, set()).update(live.blocks[before:])

    def _admit(self, now: float) -> None:
        """Admit requests that hold blocks, then waiting ones, until one does not fit."""
        still_holding: list[LiveRequest] = []
        skipped: list[LiveRequest] = []
        while self._may_admit(self.holding + self.waiting):
            queue = self.holding or self.waiting
            live = queue[0]
            fits, runs = self._consider(live, now)
            if not fits:
                break
            queue.pop(0)
            if runs:
                self._taken_by[live] = set(live.blocks)
                if live.computed + self._shares[live] < live.known:
                    self._prefilling.add(live)
            else:
                (still_holding if live.blocks else skipped).append(live)
        self.holding = still_holding + self.holding
        self.waiting = skipped + self.waiting
        if self.config.policy == "priority":
            self.holding.sort(key=lambda live: live.urgency)
            self.waiting.sort(key=lambda live: live.urgency)

    def _consider(self, live: LiveRequest, now: float) -> tuple[bool, bool]:
        """Whether the request may leave its queue's head, and whether it runs."""
        offload = self._offload(live)
        if offload.load is not None:
            if not offload.load_noted:
                return True, False
            offload.load = None
            offload.loaded = True
            self._publish(live, live.computed)
            live.computed = min(live.computed, live.known - 1)
        hits: list[int] = []
        if not offload.loaded:
            hits = self._lookup(live)
            offload.blocks, offload.offered = [], 0
            host_tokens = None if offload.stores else self._find(live, len(hits) * self.config.block_size)
            if host_tokens is None:
                return True, False
            if host_tokens > 0:
                return self._load(live, hits, host_tokens), False
            self.loaded_tokens.setdefault(live.request.id, 0)
        if not self._start(live, hits, 0, now):
            return False, False
        offload.loaded = False
        return True, True

    def _find(self, live: LiveRequest, on_device: int) -> int | None:
        """Host hits behind the tokens ``on_device``; None if the request has to wait."""
        size = self.block_tokens
        count = live.known // size
        if count * size - on_device < size:
            return 0
        first = on_device // size
        keys = self._keys(live, first, count)
        hit_blocks = self.store.lookup(keys)
        if hit_blocks is None:
            return None
        tokens = (first + hit_blocks) * size - on_device
        if hit_blocks == 0 or tokens < size:
            return 0
        loading = {key for transfer in self._unnoted_loads for key in transfer.keys}
        if self.config.prefix and loading.intersection(keys[:hit_blocks]):
            return None
        return tokens

    def _load(self, live: LiveRequest, hits: list[int], tokens: int) -> bool:
        """Give the request device blocks for its host hits, and load them; False if they do not fit."""
        on_device = len(hits) * self.config.block_size
        cached = on_device + tokens
        if self.config.scheduler_reserve_full_isl and not self._fits(live, hits, live.known):
            return False
        size = self.config.block_size
        reserved = sum(max(-(-other.known // size) - len(other.blocks), 0) for other in self._prefilling)
        if not self._fits(live, hits, cached + reserved * size):
            return False
        self._hold(live, hits, cached)
        for _ in range(cached // size - len(hits)):
            live.blocks.append(self.pool.take())
        self._taken_by[live] = set(live.blocks)
        self._prefilling.add(live)
        offload = self._offload(live)
        first, offload.offered = on_device // self.block_tokens, cached // self.block_tokens
        keys = self._keys(live, first, offload.offered)
        self.store.begin_load(keys, first, offload.uses)
        offload.load = _Transfer(live, keys, tokens)
        offload.load_noted = False
        self._new_loads.append(offload.load)
        self._unnoted_loads.append(offload.load)
        self.loaded_tokens.setdefault(live.request.id, min(cached, live.known - 1) - on_device)
        return True

    # ---- transfers -------------------------------------------------------------------------------------------------

    def _offer(self) -> tuple[list[_Transfer], list[_Transfer]]:
        """Stores of this pass: those that the next pass begins, and those that this one has to wait for."""
        new, flushed = [], []
        for live, share in self._shares.items():
            transfer = self._store(live, min(live.computed + share, live.known))
            new += [] if transfer is None else [transfer]
        for live in self._finished:
            transfer = self._store(live, live.request.input_tokens)
            if transfer is not None:
                self._fenced.append(transfer)
                (new if self._taken.isdisjoint(transfer.blocks) else flushed).append(transfer)
        for live in self._finished:
            self.store.finish(self._offload(live).uses)
        self._finished = []
        return new, flushed

    def _store(self, live: LiveRequest, tokens: int) -> _Transfer | None:
        """Offer the request's blocks among its first ``tokens`` tokens; the transfer, if there is one."""
        offload = self._offload(live)
        factor = self.block_tokens // self.config.block_size
        count = min(min(tokens, live.request.input_tokens) // self.block_tokens, len(offload.blocks) // factor)
        first = offload.offered
        if count <= first:
            return None
        keys = self._keys(live, first, count)
        stored = self.store.begin_store(keys, first, offload.uses)
        if stored is None:
            return None
        offload.offered = count
        if not stored:
            return None
        wanted = set(stored)
        blocks = [
            block
            for index, key in enumerate(keys, first)
            if key in wanted
            for block in offload.blocks[index * factor : (index + 1) * factor]
        ]
        transfer = _Transfer(live, stored, len(stored) * self.block_tokens, blocks)
        offload.stores.append(transfer)
        return transfer

    def _collect_ended(self, now: float, has_batch: bool) -> _Notes:
        notes = _Notes(has_batch, [], [])
        for begun, ended in ((self._stores, notes.stores), (self._loads, notes.loads)):
            ended += [transfer for transfer in begun if transfer.end_s <= now]
            begun[:] = [transfer for transfer in begun if transfer.end_s > now]
        return notes

    def _take(self, notes: _Notes) -> None:
        """Act on ended transfers."""
        self._acted = self._acted or bool(notes.stores or notes.loads)
        for transfer in notes.stores:
            self.store.end_store(transfer.keys)
            self._offload(transfer.live).stores.remove(transfer)
            if transfer in self._fenced:
                self._fenced.remove(transfer)
        for transfer in notes.loads:
            self.store.end_load(transfer.keys)
            self._unnoted_loads.remove(transfer)
            self._offload(transfer.live).load_noted = True

    # ---- leaving ---------------------------------------------------------------------------------------------------

    def _preempt(self, victim: LiveRequest) -> None:
        self._prefilling.discard(victim)
        self._taken_by.pop(victim, None)
        super()._preempt(victim)

    def _finish(self, live: LiveRequest, now: float) -> None:
        super()._finish(live, now)
        self._fenced += self._offload(live).stores
        self._finished.append(live)


def replay(config: VllmConfig, offload: OffloadConfig, requests: list[Request], cost: Cost) -> Recording:
    """Run one worker over ``requests`` until all have finished.

    Raises:
        ValueError: a request can never be served.
        StuckError: loaded requests hold blocks that others need, for ever.
    """
    return drive(ChunkOffloadWorker(config, offload, cost), requests)
