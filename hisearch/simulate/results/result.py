"""The result of a simulation."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from hisearch.base.dtypes import F8, I4, I8
from hisearch.hardware.power import PowerPlan
from hisearch.kernels.core.gap_bins import bin_middle_s
from hisearch.traces.models import RequestModels


class Outcome(enum.IntEnum):
    """How a request ended (law L1)."""

    IN_FLIGHT = 0  #: still queued or running at the horizon
    FINISHED = 1
    TOO_LARGE = 2  #: rejected: prompt and output exceed the model's window, or a worker's entire KV memory
    UNREACHED = 3  #: had not arrived by the horizon (its predecessor never finished, or it arrives later)
    SHED = 4  #: rejected by the router's admission control
    LOST = 5  #: rejected: its worker died, or none was up, once too often


#: Power plan of a worker with no known draw besides its steps.
NO_POWER = PowerPlan()

#: Index of the nearest storage tier, behind HBM and the host tier.
STORAGE_TIER = 2


@dataclass(frozen=True)
class RequestTable:
    """Per request, arrays of length N in the trace's order; NaN or -1 for events that did not happen.

    arrival_s: when it reached the router (for follow-ups: predecessor's finish + think time + front end delay).
    scheduled_s: when it was first put into a batch.
    first_token_s, finish_s: end of the step that made its first, its last token.
    worker: index of the worker that served it; prefill_worker: of the worker that computed its prompt, the same unless
        prefill and decode are disaggregated.
    hit_tokens: prompt tokens found in HBM at first admission; host_hit_tokens: loaded back from the host tier;
        storage_hit_tokens: likewise, after a fetch for the request from a tier behind the host tier.
    preemptions: times it lost its KV (vLLM preemption, SGLang retraction).
    outcome: an ``Outcome``.
    kv_arrived_s: when its KV had arrived at its decode worker; None without KV transfers.
    front_end_s: from the client's send until ``arrival_s``. first_delivery_s, last_delivery_s: from ``first_token_s``
        and ``finish_s`` until the client has the token. None if the latency profile has no front end.

    TTFT, TPOT and E2E are measured at the client; names with the prefix ``engine_`` are measured at the scheduler.
    """

    arrival_s: F8
    scheduled_s: F8
    first_token_s: F8
    finish_s: F8
    worker: I4
    prefill_worker: I4
    hit_tokens: I8
    host_hit_tokens: I8
    storage_hit_tokens: I8
    preemptions: I4
    outcome: I4
    input_tokens: I8
    output_tokens: I8
    kv_arrived_s: F8 | None = None
    front_end_s: F8 | None = None
    first_delivery_s: F8 | None = None
    last_delivery_s: F8 | None = None

    @property
    def finished(self) -> np.ndarray:
        """Boolean mask of finished requests."""
        return np.asarray(self.outcome == Outcome.FINISHED)

    @property
    def sent_s(self) -> F8:
        """When the client sends it; a follow-up: its think time after the predecessor's finish."""
        return np.asarray(self.arrival_s if self.front_end_s is None else self.arrival_s - self.front_end_s)

    @property
    def delivered_s(self) -> F8:
        """When the client has its last token."""
        return _later(self.finish_s, self.last_delivery_s)

    @property
    def ttft_s(self) -> F8:
        """Time to first token, seconds."""
        return _later(self.engine_ttft_s, self.front_end_s, self.first_delivery_s)

    @property
    def engine_ttft_s(self) -> F8:
        """From the scheduler's first sight of a request to the end of the step with its first token, seconds."""
        return np.asarray(self.first_token_s - self.arrival_s)

    @property
    def tpot_s(self) -> F8:
        """Mean time per output token after the first, seconds; 0 for one-token outputs."""
        gaps = np.maximum(self.output_tokens - 1, 1)
        first_s = _later(self.first_token_s, self.first_delivery_s)
        return np.asarray((self.delivered_s - first_s) / gaps * (self.output_tokens > 1))

    @property
    def e2e_s(self) -> F8:
        """The client's send to its last token, seconds."""
        return _later(self.engine_e2e_s, self.front_end_s, self.last_delivery_s)

    @property
    def engine_e2e_s(self) -> F8:
        """From the scheduler's first sight of a request to the end of the step with its last token, seconds."""
        return np.asarray(self.finish_s - self.arrival_s)

    def columns(self) -> dict[str, np.ndarray]:
        """The arrays that are not None, by name."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: values for name, values in columns.items() if values is not None}

    def to_pandas(self) -> pd.DataFrame:
        """One row per request, with the derived latencies."""
        frame = pd.DataFrame(self.columns())
        frame["outcome"] = [Outcome(code).name.lower() for code in self.outcome]
        return frame.assign(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)


def _later(seconds: F8, *delays: F8 | None) -> F8:
    """``seconds`` plus the known ``delays``."""
    for delay in delays:
        if delay is not None:
            seconds = seconds + delay
    return np.asarray(seconds)


@dataclass(frozen=True)
class WorkerTable:
    """Per worker, arrays of length W.

    steps, preemptions, requests: counts. busy_s: device time. energy_j: joules above idle.
    prefill_tokens, decode_tokens: tokens computed. peak_kv_tokens: most KV tokens held at once.
    host_hit_tokens: tokens loaded back. evicted_tokens: cached tokens dropped from HBM.
    begun_s, gone_s: when it started, and had gone; NaN if it never started, or stayed to the end.
    standby_s: seconds that accelerators spent in standby.

    For a worker with several schedulers (``kernels.engine.schedulers``) counts are summed, busy_s is their mean and
    peak_kv_tokens the highest of a scheduler's memory.
    """

    steps: I8
    requests: I8
    preemptions: I8
    busy_s: F8
    energy_j: F8
    prefill_tokens: I8
    decode_tokens: I8
    peak_kv_tokens: I8
    evicted_tokens: I8
    host_hit_tokens: I8
    begun_s: F8
    gone_s: F8
    standby_s: F8 = field(default_factory=lambda: np.zeros(1))


@dataclass(frozen=True)
class StepLog:
    """Every step of a run, in launch order; structured arrays as in ``kernels.layout.sim``.

    steps (STEP_LOG): times, worker, kind, memory; ``first_entry``, ``entries`` and ``first_lost``, ``lost`` are ranges
        of the other two.
    entries (ENTRY_LOG): request index, tokens computed before and in the step, in batch order.
    lost: indices of requests that were preempted (vLLM) or retracted (SGLang), in order.
    fetches (FETCH_LOG): events of each fetch from storage, in order.
    """

    steps: np.ndarray
    entries: np.ndarray
    lost: np.ndarray
    fetches: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int) -> np.ndarray:
        """Entries of a step."""
        first = self.steps["first_entry"][step]
        return self.entries[first : first + self.steps["entries"][step]]

    def lost_in(self, step: int) -> np.ndarray:
        """Requests lost while a step was formed."""
        first = self.steps["first_lost"][step]
        return self.lost[first : first + self.steps["lost"][step]]


@dataclass(frozen=True)
class StoreUse:
    """One store of a tier, or one worker's HBM.

    Attributes:
        tier: 0 for HBM, then as ``WorkerPlan.tiers`` from 1 on.
        first_worker, workers: the workers that share it.
        capacity_tokens: its size.
        peak_tokens: most in use at once. HBM: held by requests; the rest may all be cached. Host memory: including
            copies under way to it. Stores behind it: findable tokens. With DP ranks, like all fields, the sum over
            them.
        stored_tokens: written into it by the end of the run; LMCache rewrites and counts tokens already stored.
            read_tokens: read out of it, towards HBM. LMCache and HiCache read from behind host memory through host
            memory, which counts once in each tier. Both are 0 for HBM, which the steps read and write.
        evicted_tokens, expired_tokens: dropped for want of space, and after their time to live. For a decode worker's
            host pool, which passes everything on to storage (``read_tokens``): not accepted for want of space.
        demoted_tokens: also read out of it, and moved to the tier behind it (an exclusive hierarchy).
        hit_tokens: LMCache: tokens that hit in it at the first admission of their requests.
        pool: index of its pool.
    """

    tier: int
    first_worker: int
    workers: int
    capacity_tokens: int
    peak_tokens: int
    stored_tokens: int
    read_tokens: int
    evicted_tokens: int
    expired_tokens: int
    demoted_tokens: int = 0
    hit_tokens: int = 0
    pool: int = 0


@dataclass(frozen=True)
class LinkUse:
    """One direction of a link, or of a store itself.

    Attributes:
        tier: that it leads to, as in ``StoreUse``. path: "medium" for a store's own bandwidth, including the worker's
            link to private host memory; "host" for a worker's link to shared host memory; "network" for a node's
            network, which leads to all tiers of the cluster; "memory" for host memory bandwidth that DP ranks of a
            worker share, in addition to their own links.
        index: of the worker (for "medium" and "host", of its DP rank), store or node. write: towards the tier.
        busy_s: seconds in use, by the end of the run. tokens, transfers: sent, including those waiting or under way at
            the end. pool: index of its pool.
    """

    tier: int
    path: str
    index: int
    write: bool
    busy_s: float
    tokens: int
    transfers: int
    pool: int = 0


@dataclass(frozen=True)
class KvTransferUse:
    """KV transfers that a worker sent to decode workers, or received as a decode worker.

    Attributes:
        worker: its number. busy_s: seconds of use of its network. tokens, transfers: totals.
    """

    worker: int
    busy_s: float
    tokens: int
    transfers: int


class TierEnergy(NamedTuple):
    """Moving a token's KV in a tier: the medium's joules, the bytes on links, the medium's kind."""

    joules: float
    bytes: float
    kind: str = "dram"


@dataclass(frozen=True)
class ObjectUse:
    """Usage of agents' objects at one worker.

    Attributes:
        calls: that reached it. found: calls with all their objects resident.
        loads: completed. loads_ahead: of these, begun before their call. used_ahead: of these, used by a call
            afterwards. preempted: preempted loads. evicted: objects dropped for want of space.
        load_s: link time of the completed loads. stall_s: of it, time that steps waited. wasted_s: link time of the
            preempted loads.
        peak_tokens: most that the objects' pool held at once, in KV tokens.
        kv_tokens_ahead: tokens whose KV was loaded from host memory ahead of a call. kv_tokens_used: of these, still
            resident at the call. kv_load_s: link time of these loads.
        kv_tokens_fetched: tokens whose KV was fetched from storage into host memory ahead of a call.
        loaded_bytes: of objects, by completed loads. lost_bytes: of objects and KV, by preempted loads. Both over the
            host links of all ranks.
        host_bytes: of agents' objects in the worker's host memory, wherever they call: all of them, outside or inside
            the first tier; or their limit there, if the second tier holds all: on_disk_bytes.
        disk_reads: completed reads of objects from the second tier into host memory. disk_reads_ahead: of these, begun
            before their call. disk_preempted: preempted reads. host_evicted: host copies dropped for want of space.
        disk_s: unloaded time of the completed reads over the store's link. disk_wasted_s: likewise of the preempted.
        disk_bytes: of objects, by completed reads. disk_lost_bytes: by preempted reads.
    """

    calls: int
    found: int
    loads: int
    loads_ahead: int
    used_ahead: int
    preempted: int
    evicted: int
    load_s: float
    stall_s: float
    wasted_s: float
    peak_tokens: int
    kv_tokens_ahead: int = 0
    kv_tokens_used: int = 0
    kv_load_s: float = 0.0
    kv_tokens_fetched: int = 0
    loaded_bytes: float = 0.0
    lost_bytes: float = 0.0
    host_bytes: float = 0.0
    on_disk_bytes: float = 0.0
    disk_reads: int = 0
    disk_reads_ahead: int = 0
    disk_preempted: int = 0
    host_evicted: int = 0
    disk_s: float = 0.0
    disk_wasted_s: float = 0.0
    disk_bytes: float = 0.0
    disk_lost_bytes: float = 0.0


@dataclass(frozen=True)
class PoolUse:
    """A pool's workers among those of the fleet.

    Attributes:
        name, role: as in the deployment.
        first_worker, workers: index of the first one, and their number.
        kv_capacity_tokens: of a worker, or of each of its DP ranks. idle_w: idle power of a worker's accelerators,
            watts. power: its other draw. model: that it serves. tier_energy: of moving a token's KV, by tier, nearest
            first. far_hit_tokens, fetches_ahead: of its workers, as in ``Result``.
    """

    name: str
    role: str
    first_worker: int
    workers: int
    kv_capacity_tokens: int
    idle_w: float
    power: PowerPlan = NO_POWER
    model: str = ""
    tier_energy: tuple[TierEnergy, ...] = ()
    far_hit_tokens: int = 0
    fetches_ahead: bool = False


def _mean_workers(begun_s: F8, gone_s: F8, start_s: float, end_s: float) -> float:
    """Mean number of workers between two times; NaN: never begun, or not gone. Zero length: those begun by then."""
    begun = ~np.isnan(begun_s)
    if end_s <= start_s or (np.isnan(gone_s) & (begun_s <= start_s))[begun].all():
        return float((begun_s[begun] <= start_s).sum())
    until = np.fmin(np.where(np.isnan(gone_s), end_s, gone_s), end_s)
    spans = np.maximum(until - np.maximum(begun_s, start_s), 0.0)
    return float(spans[begun].sum() / (end_s - start_s))


@dataclass(frozen=True)
class Result:
    """A finished simulation.

    kv_capacity_tokens, idle_w: of a worker of the first pool; for all pools see ``pools``. kv_transfers: KV transfers
        of
        each worker under prefill/decode disaggregation.

    events: arrivals, passes and ends that the event loop handled; a fast-forward counts as two.
    gap_counts: inter-token latencies in bins (see ``itl_s``); pool_gap_counts: those of each pool's workers. log: every
        step, if requested.
    far_hit_tokens: hits in the far one of two storage tiers; tokens fetched from there count as the last ones of a
        request's fetch.
    observed_s: from the first arrival to the end of the run: the horizon if it was reached, else the last event.
    stores, links: usage of the tiers and the links between them in that time. fetches_ahead: whether storage is read
        for waiting requests.
    objects: usage of agents' objects, by worker; empty without objects.
    asked: the served models, and the model that each request asks for.
    """

    requests: RequestTable
    workers: WorkerTable
    makespan_s: float
    kv_capacity_tokens: int
    idle_w: float
    horizon_reached: bool = False
    warnings: tuple[str, ...] = field(default=())
    log: StepLog | None = None
    events: int = 0
    gap_counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    pool_gap_counts: tuple[np.ndarray, ...] = ()
    observed_s: float = 0.0
    stores: tuple[StoreUse, ...] = ()
    links: tuple[LinkUse, ...] = ()
    far_hit_tokens: int = 0
    fetches_ahead: bool = False
    objects: tuple[ObjectUse, ...] = ()
    pools: tuple[PoolUse, ...] = ()
    kv_transfers: tuple[KvTransferUse, ...] = ()
    asked: RequestModels | None = None

    def itl_s(self, quantile: float) -> float:
        """A quantile of the inter-token latencies, seconds; NaN if no request made a second token.

        Every gap between two consecutive output tokens counts once. The true value is within 0.4 %, or half a
        nanosecond: gaps are counted in bins, and the middle of a bin is returned.

        Args:
            quantile: in [0, 1]; returns the smallest gap that at least this share does not exceed.
        """
        total = int(self.gap_counts.sum())
        if total == 0:
            return math.nan
        rank = max(math.ceil(quantile * total), 1)
        k = int(np.searchsorted(np.cumsum(self.gap_counts), rank))
        return bin_middle_s(k)

    @property
    def mean_workers(self) -> tuple[float, ...]:
        """Paid workers of each pool, on average over the makespan."""
        if not np.isfinite(self.requests.arrival_s).any():
            return tuple(float(pool.workers) for pool in self.pools)
        start_s = float(np.nanmin(self.requests.arrival_s))
        means = []
        for pool in self.pools:
            mine = slice(pool.first_worker, pool.first_worker + pool.workers)
            begun, gone = self.workers.begun_s[mine], self.workers.gone_s[mine]
            means.append(_mean_workers(begun, gone, start_s, start_s + self.makespan_s))
        return tuple(means)

    @property
    def worker_kv_tokens(self) -> I8:
        """(workers,) KV capacity in tokens of each worker, or of each of its DP ranks."""
        held = np.full(len(self.workers.begun_s), self.kv_capacity_tokens, np.int64)
        for pool in self.pools:
            held[pool.first_worker : pool.first_worker + pool.workers] = pool.kv_capacity_tokens
        return held

    @property
    def present_s(self) -> F8:
        """(workers,) seconds of the makespan in which each worker was present, and is paid for."""
        makespans = np.full(len(self.workers.begun_s), self.makespan_s)
        if not np.isfinite(self.requests.arrival_s).any():
            return makespans
        start_s = float(np.nanmin(self.requests.arrival_s))
        end_s = start_s + self.makespan_s
        begun, gone = self.workers.begun_s, self.workers.gone_s
        spans = np.fmin(np.where(np.isnan(gone), end_s, gone), end_s) - np.fmax(begun, start_s)
        present = np.where((begun <= start_s) & np.isnan(gone), makespans, np.maximum(spans, 0.0))
        return np.where(np.isnan(begun), 0.0, present)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all admitted requests."""
        admitted = np.isfinite(self.requests.scheduled_s)
        return int(self.requests.input_tokens[admitted].sum())

    @property
    def hit_rate(self) -> float:
        """Hit tokens (all tiers) / prompt tokens of admitted requests."""
        return sum(self.tier_hit_tokens) / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def tier_hit_tokens(self) -> tuple[int, ...]:
        """Prompt tokens found in HBM, in the host tier and in each tier of storage, at the first admission."""
        requests = self.requests
        hbm, host, storage = (
            int(column.sum()) for column in (requests.hit_tokens, requests.host_hit_tokens, requests.storage_hit_tokens)
        )
        last = max((store.tier for store in self.stores), default=0)
        if last <= STORAGE_TIER:
            return hbm, host, storage
        if self.fetches_ahead:
            return hbm, host, storage - self.far_hit_tokens, self.far_hit_tokens
        behind = range(STORAGE_TIER, last + 1)
        return hbm, host, *(sum(store.hit_tokens for store in self.stores if store.tier == k) for k in behind)

    @property
    def wasted_fetch_tokens(self) -> int:
        """``wasted_tokens`` of all storage tiers."""
        return sum(self.wasted_tokens(tier) for tier in {store.tier for store in self.stores})

    def wasted_tokens(self, tier: int) -> int:
        """Tokens read from a storage tier that no request was admitted with: late or unused fetches.

        Only for HiCache, which prefetches. vLLM's connectors load at admission, and wait for the load.
        """
        if tier < STORAGE_TIER or not self.fetches_ahead:
            return 0
        read = sum(store.read_tokens for store in self.stores if store.tier == tier)
        return max(read - self.tier_hit_tokens[tier], 0)
