"""vLLM 0.19 with its native ``OffloadingConnector``, restated on top of the scheduler.

Recorded with synchronous scheduling. Every rule below was looked up in vLLM as of 0.19 unless it is marked *assumed*.
File in brackets, ``conn`` being ``distributed/kv_transfer/kv_connector/v1/offloading/``.

Look-ups
- A waiting request without computed tokens is looked up in host memory behind its hits on the device, at every pass
  that reaches it. All its blocks are touched. Then, unless less than an offloaded block is missing, blocks are looked
  up from the one in which the device's hits end. A hit of less than one offloaded block is ignored.
  [conn scheduler.py: get_num_new_matched_tokens]
- An offloaded block is ``block_size_factor`` device blocks; only whole ones are stored. [kv_offload/spec.py]
- With prefix caching, a request whose hit blocks are being loaded by another one is skipped. [same]
- *Assumed*: the blocks looked up are those of all tokens known now. A block just completed by a sampled token, which
  cannot be stored yet, is not treated differently. A prompt of one token in a block of one is computed once it has been
  loaded (the engine, which checks its computed tokens, would load it again and again).

Loads
- A request with a hit gets its device blocks (the test for the whole prompt comes first) and waits for its load. It
  takes part in no step and no budget, and does not count as running; others are scheduled meanwhile.
  [v1/core/sched/scheduler.py: schedule]
- Loaded blocks can be hit on the device when a pass reaches the request after its load, not before. If all its known
  tokens were loaded, the last one is computed again. [same: _update_waiting_for_remote_kv]
- Skipped and loading requests wait in a separate queue, in order, which goes before the waiting queue. By priority, the
  more urgent head of the two goes first. [same: _select_waiting_queue_for_scheduling]

Stores
- After every pass, each scheduled request (new ones, running ones, then resumed ones; each in order) offers blocks to
  the manager. These are the whole blocks among its known tokens computed by the end of this step, from the first block
  not offered before: prompts and outputs alike; also device hits. Without space they are
  tried again with its next step. A store touches all its blocks so far.
  [conn scheduler.py: _get_reqs_to_store; yield_req_data]
- A load counts all blocks up to its end as offered; preemption does not reset this. [same]
- A request's stores of a step are one transfer. The next pass begins it, with or without a batch, after the batches
  then on the device have run. A load begins in its own pass. [conn worker.py; kv_offload/worker/cpu_gpu.py]
- Each direction carries one transfer after another. [cpu_gpu.py]
- Blocks being stored can be hit when their request has finished *and* all its transfers are noted, or once it is
  preempted. [conn scheduler.py: update_connector_output, build_connector_meta]
- A finished request that has ever stored keeps its device blocks until then. [same: request_finished]
- A preempted request's transfers are waited for before the step begins. [conn worker.py: handle_preemptions]

Completion
- The engine checks for ended transfers when it launches a step, and acts on them with that step's results, after its
  tokens; a pass without a batch acts at once. [worker/kv_connector_model_runner_mixin.py; scheduler.py:
  update_from_output] *Assumed*: launching takes no time.
- With unfinished requests, an engine without a batch makes another pass whenever a transfer ends. Without requests it
  makes one more pass for those that finished, then sleeps until the next arrival. [v1/engine/core.py] *Assumed*: passes
  without a preceding event do not count (the real ones, thousands a second, would touch and count blocks each time).
- *Assumed*: a pass without a batch checks nothing while another batch is outstanding.
- Of requests released together, those whose transfers ended first are first, as in recordings: the engine keeps them in
  a set, whose order changes from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from tests.reference.restatement.content import page
from tests.reference.restatement.recording import Cost, Recording, Request, Step
from tests.reference.restatement.transfers import Link
from tests.reference.restatement.vllm import VllmConfig, VllmWorker, drive
from tests.reference.restatement.vllm_state import LiveRequest
from tests.reference.vllm_offload_store import OffloadConfig, OffloadStore


class _Verdict(Enum):
    """Result of an attempt to run a request."""

    RUNS = auto()
    SKIPPED = auto()
    NO_BLOCKS = auto()


@dataclass(eq=False)
class _Transfer:
    """A transfer of offloaded blocks for a request; ``end_s`` is set when it begins."""

    live: LiveRequest
    keys: list[Hashable]
    tokens: int
    end_s: float = math.inf


@dataclass
class _Offload:
    """The connector's state of a request.

    Attributes:
        offered: leading offloaded blocks that need not be offered to the manager any more.
        ever_stored: whether it has had a transfer to the host.
        storing: blocks that the manager counts as on their way to the host.
        stores: its transfers to the host that have not been noted.
        load: the transfer that it waits for.
        load_noted: whether that transfer has been noted.
        loaded: whether it has waited for a load, and has not run since.
    """

    offered: int = 0
    ever_stored: bool = False
    storing: list[Hashable] = field(default_factory=list)
    stores: list[_Transfer] = field(default_factory=list)
    load: _Transfer | None = None
    load_noted: bool = False
    loaded: bool = False


@dataclass
class _Notes:
    """Ended transfers: finished requests whose stores are all done, and finished loads."""

    stored: list[LiveRequest] = field(default_factory=list)
    loaded: list[_Transfer] = field(default_factory=list)


class OffloadWorker(VllmWorker):
    """One engine with host memory.

    Args:
        config: the scheduler's settings.
        offload: the connector's.
        cost: step costs.
        store: host memory to share with other workers; by default its own.

    Attributes:
        skipped: requests that load or were skipped, in order.
        holding: finished requests whose blocks are being stored.
        loaded_tokens: by request id, how many of its ``reused_tokens`` came from the host.
    """

    def __init__(
        self, config: VllmConfig, offload: OffloadConfig, cost: Cost, store: OffloadStore | None = None
    ) -> None:
        super().__init__(config, cost)
        self.block_tokens = offload.block_tokens(config.block_size)
        self.store = offload.new_store(config.block_size) if store is None else store
        self.to_host = Link(offload.to_host)
        self.to_device = Link(offload.to_device)
        self.skipped: list[LiveRequest] = []
        self.holding: list[LiveRequest] = []
        self.loaded_tokens: dict[Any, int] = {}
        self._offloads: dict[LiveRequest, _Offload] = {}
        self._prepared: list[_Transfer] = []
        self._stores: list[_Transfer] = []
        self._new_loads: list[_Transfer] = []
        self._loads: list[_Transfer] = []
        self._unnoted_loads: list[_Transfer] = []
        self._finished: list[LiveRequest] = []
        self._awaited: list[LiveRequest] = []
        self._notes: list[_Notes] = []
        self._admitted: list[LiveRequest] = []

    @property
    def queued(self) -> int:
        """Number of requests that do not run, including those being loaded."""
        return len(self.waiting) + len(self.skipped)

    @property
    def has_work(self) -> bool:
        """Whether requests are unfinished, or finished since the engine last checked its transfers."""
        return self._has_unfinished or bool(self._finished)

    @property
    def _has_unfinished(self) -> bool:
        return bool(self.waiting or self.skipped or self.running)

    def form(self, now: float) -> Step | None:
        """One pass: a batch, or None; ``look_again_s`` is then when to try again if none is outstanding."""
        self.look_again_s = None
        self._admitted = []
        self._schedule(now)
        self.launch_s = self._begin_transfers(now)
        self._prepare_stores()
        for live in self._preempted:
            self.store.end_store(self._offload(live).storing)
            self._offload(live).storing = []
        if self._shares:
            self._notes.append(self._collect_ended(self.launch_s))
            return self._launch(now)
        if not self.outstanding:
            self._pass_without_batch(self.launch_s)
        return None

    def process(self) -> list[Request]:
        """Take in a batch's results, then the transfers that had ended when it was launched."""
        finished = super().process()
        self._take(self._notes.pop(0))
        return finished

    def _span(self, now: float, seconds: float) -> tuple[float, float]:
        return super()._span(self.launch_s, seconds)

    def _pass_without_batch(self, now: float) -> None:
        """Without a batch: process ended transfers at once, and set the time of the next pass."""
        notes = self._collect_ended(now)
        self._take(notes)
        if not self._has_unfinished:
            return
        if notes.stored or notes.loaded or self._preempted:
            self.look_again_s = now
        else:
            self.look_again_s = min((transfer.end_s for transfer in self._stores + self._loads), default=None)

    def _offload(self, live: LiveRequest) -> _Offload:
        return self._offloads.setdefault(live, _Offload())

    def _keys(self, live: LiveRequest, count: int) -> list[Hashable]:
        """The request's first ``count`` offloaded blocks."""
        return [page(live.request.content, index, self.block_tokens) for index in range(count)]

    # ---- admission -------------------------------------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        """Admit skipped requests and waiting ones, until one does not fit."""
        newly_skipped: list[LiveRequest] = []
        while self._may_admit(self.skipped + self.waiting):
            queue = self._next_queue()
            live = queue[0]
            verdict = self._consider(live, now)
            if verdict is _Verdict.NO_BLOCKS:
                break
            queue.pop(0)
            (self._admitted if verdict is _Verdict.RUNS else newly_skipped).append(live)
        self.skipped = newly_skipped + self.skipped
        if self.config.policy == "priority":
            self.skipped.sort(key=lambda live: live.urgency)

    def _next_queue(self) -> list[LiveRequest]:
        if self.config.policy == "priority" and self.skipped and self.waiting:
            return self.waiting if self.waiting[0].urgency < self.skipped[0].urgency else self.skipped
        return self.skipped or self.waiting

    def _consider(self, live: LiveRequest, now: float) -> _Verdict:
        offload = self._offload(live)
        if offload.load is not None:
            if not offload.load_noted:
                return _Verdict.SKIPPED
            self._end_wait(live)
        hits: list[int] = []
        if not offload.loaded:
            hits = self._lookup(live)
            host_tokens = self._find(live, len(hits) * self.config.block_size)
            if host_tokens is None:
                return _Verdict.SKIPPED
            if host_tokens > 0:
                return self._load(live, hits, host_tokens)
            self.loaded_tokens.setdefault(live.request.id, 0)
        if not self._start(live, hits, 0, now):
            return _Verdict.NO_BLOCKS
        offload.loaded = False
        return _Verdict.RUNS

    def _find(self, live: LiveRequest, on_device: int) -> int | None:
        """Host hits behind the tokens ``on_device``; None if the request has to wait for another's load."""
        size = self.block_tokens
        keys = self._keys(live, live.known // size)
        self.store.touch(keys)
        if len(keys) * size - on_device < size:
            return 0
        first = on_device // size
        hit_blocks = self.store.lookup(keys[first:])
        tokens = (first + hit_blocks) * size - on_device
        if hit_blocks == 0 or tokens < size:
            return 0
        loading = {key for transfer in self._unnoted_loads for key in transfer.keys}
        if self.config.prefix and loading.intersection(keys[first : first + hit_blocks]):
            return None
        return tokens

    def _load(self, live: LiveRequest, hits: list[int], tokens: int) -> _Verdict:
        """Give the request device blocks for its host hits, and load them."""
        on_device = len(hits) * self.config.block_size
        cached = on_device + tokens
        if self.config.scheduler_reserve_full_isl and not self._fits(live, hits, live.known):
            return _Verdict.NO_BLOCKS
        if not self._fits(live, hits, cached):
            return _Verdict.NO_BLOCKS
        self._hold(live, hits, cached)
        for _ in range(cached // self.config.block_size - len(hits)):
            live.blocks.append(self.pool.take())
        offload = self._offload(live)
        offload.offered = cached // self.block_tokens
        keys = self._keys(live, offload.offered)[on_device // self.block_tokens :]
        self.store.begin_load(keys)
        offload.load = _Transfer(live, keys, tokens)
        offload.load_noted = False
        self._new_loads.append(offload.load)
        self._unnoted_loads.append(offload.load)
        self.loaded_tokens.setdefault(live.request.id, min(cached, live.known - 1) - on_device)
        return _Verdict.SKIPPED

    def _end_wait(self, live: LiveRequest) -> None:
        """End the wait of a request whose load is done."""
        offload = self._offload(live)
        offload.load = None
        offload.loaded = True
        self._publish(live, live.computed)
        live.computed = min(live.computed, live.known - 1)

    # ---- transfers -------------------------------------------------------------------------------------------------

    def _begin_transfers(self, now: float) -> float:
        """Begin the previous pass's stores and this one's loads; returns when a batch may be launched."""
        for transfer in self._prepared:
            transfer.end_s = self.to_host.send(max(now, self.device_free_s), transfer.tokens)
        self._stores += self._prepared
        self._prepared = []
        flushed = [transfer.end_s for live in self._preempted for transfer in self._offload(live).stores]
        launch_s = max([now, *flushed])
        for transfer in self._new_loads:
            transfer.end_s = self.to_device.send(launch_s, transfer.tokens)
        self._loads += self._new_loads
        self._new_loads = []
        return launch_s

    def _prepare_stores(self) -> None:
        """Offer the blocks that this step completes to the manager."""
        running = [live for live in self._shares if live not in self._admitted]
        new = [live for live in self._admitted if live.preemptions == 0]
        resumed = [live for live in self._admitted if live.preemptions > 0]
        for live in [*new, *running, *resumed]:
            offload = self._offload(live)
            tokens = min(live.computed + self._shares[live], live.known)
            count = tokens // self.block_tokens
            if count <= offload.offered:
                continue
            keys = self._keys(live, count)
            stored = self.store.begin_store(keys[offload.offered :])
            if stored is None:
                continue
            offload.offered = count
            if stored:
                self.store.touch(keys)
                transfer = _Transfer(live, stored, len(stored) * self.block_tokens)
                offload.ever_stored = True
                offload.storing += stored
                offload.stores.append(transfer)
                self._prepared.append(transfer)

    def _collect_ended(self, now: float) -> _Notes:
        """Collect ended transfers, also of requests that have finished since the last check."""
        notes = _Notes()
        for transfer in [transfer for transfer in self._stores if transfer.end_s <= now]:
            self._stores.remove(transfer)
            stores = self._offload(transfer.live).stores
            stores.remove(transfer)
            if not stores and transfer.live in self._awaited:
                self._awaited.remove(transfer.live)
                notes.stored.append(transfer.live)
        for transfer in [transfer for transfer in self._loads if transfer.end_s <= now]:
            self._loads.remove(transfer)
            notes.loaded.append(transfer)
        for live in self._finished:
            if self._offload(live).stores:
                self._awaited.append(live)
            elif self._offload(live).ever_stored:
                notes.stored.append(live)
        self._finished = []
        return notes

    def _take(self, notes: _Notes) -> None:
        """Process ended transfers: publish stored blocks, end loads, release finished requests."""
        for live in notes.stored:
            self.store.end_store(self._offloads.pop(live).storing)
        for transfer in notes.loaded:
            self.store.end_load(transfer.keys)
            self._unnoted_loads.remove(transfer)
            self._offload(transfer.live).load_noted = True
        for live in notes.stored:
            self.holding.remove(live)
            super()._release(live)

    # ---- leaving ---------------------------------------------------------------------------------------------------

    def _finish(self, live: LiveRequest, now: float) -> None:
        super()._finish(live, now)
        self._finished.append(live)

    def _release(self, live: LiveRequest) -> None:
        """Release blocks; a finished request that has ever stored keeps them."""
        if live.generated == live.request.output_tokens and self._offload(live).ever_stored:
            self.holding.append(live)
        else:
            super()._release(live)


def replay(config: VllmConfig, offload: OffloadConfig, requests: list[Request], cost: Cost) -> Recording:
    """Run one worker over ``requests`` until all have finished.

    Raises:
        ValueError: a request can never be served.
        StuckError: loaded requests hold blocks that others need, for ever.
    """
    return drive(OffloadWorker(config, offload, cost), requests)
