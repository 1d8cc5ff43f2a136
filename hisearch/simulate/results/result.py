"""The result of a simulation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.kernels.core.gap_bins import bin_middle_s
from hisearch.simulate.results.tables import RequestTable, StepLog, WorkerTable
from hisearch.simulate.results.uses import (
    AdapterUse,
    GrammarUse,
    HintQuality,
    KvTransferUse,
    LinkUse,
    ObjectUse,
    PoolUse,
    StoreUse,
)
from hisearch.traces.models import RequestModels

#: Index of the nearest storage tier, behind HBM and the host tier.
STORAGE_TIER = 2


def _mean_workers(begun_s: F8, gone_s: F8, start_s: float, end_s: float) -> float:
    """Mean number of workers between two times; NaN: never begun, or not gone. Zero length: those begun by then."""
    begun = ~np.isnan(begun_s)
    if end_s <= start_s or (np.isnan(gone_s) & (begun_s <= start_s))[begun].all():
        return float((begun_s[begun] <= start_s).sum())
    until = np.fmin(np.where(np.isnan(gone_s), end_s, gone_s), end_s)
    spans = np.maximum(until - np.maximum(begun_s, start_s), 0.0)
    return float(spans[begun].sum() / (end_s - start_s))


def _present(begun_s: F8, gone_s: F8, start_s: float, end_s: float) -> tuple[tuple[int, float], ...]:
    """(workers, share of the time with so many) between two times; arguments as of ``_mean_workers``."""
    begun = ~np.isnan(begun_s)
    if end_s <= start_s or (np.isnan(gone_s) & (begun_s <= start_s))[begun].all():
        return ((int((begun_s[begun] <= start_s).sum()), 1.0),)
    gone = np.where(np.isnan(gone_s), end_s, gone_s)[begun]
    bounds = np.clip(np.concatenate((begun_s[begun], gone, [start_s, end_s])), start_s, end_s)
    changes = np.concatenate((np.ones(len(gone)), -np.ones(len(gone)), [0.0, 0.0])).astype(int)
    order = np.argsort(bounds, kind="stable")
    counts, lengths = np.cumsum(changes[order])[:-1], np.diff(bounds[order]) / (end_s - start_s)
    return tuple((int(n), float(lengths[counts == n].sum())) for n in np.unique(counts[lengths > 0]))


@dataclass(frozen=True)
class Result:
    """A finished simulation.

    kv_capacity_tokens, idle_w: of a worker of the first pool; for all pools see ``pools``. kv_transfers: KV transfers
        of each worker under prefill/decode disaggregation.

    front_end_busy: share of time for which the processes in front of the busiest pool's workers have work.
    events: arrivals, passes and ends that the event loop handled; a fast-forward counts as two.
    gap_counts: inter-token latencies in bins (see ``itl_s``); pool_gap_counts: those of each pool's workers. log: every
        step, if requested.
    far_hit_tokens: hits in the far one of two storage tiers; tokens fetched from there count as the last ones of a
        request's fetch.
    observed_s: from the first arrival to the end of the run: the horizon if it was reached, else the last event.
    stores, links: usage of the tiers and the links between them in that time. fetches_ahead: whether storage is read
        for waiting requests.
    objects: usage of agents' objects, adapters: of LoRA adapters, grammars: by worker; empty without. hints: what
        predictions of agents' calls were worth; None without any.
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
    front_end_busy: float = 0.0
    events: int = 0
    gap_counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    pool_gap_counts: tuple[np.ndarray, ...] = ()
    observed_s: float = 0.0
    stores: tuple[StoreUse, ...] = ()
    links: tuple[LinkUse, ...] = ()
    far_hit_tokens: int = 0
    fetches_ahead: bool = False
    objects: tuple[ObjectUse, ...] = ()
    adapters: tuple[AdapterUse, ...] = ()
    grammars: tuple[GrammarUse, ...] = ()
    hints: HintQuality | None = None
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
        return tuple(_mean_workers(*span) for span in self._spans())

    @property
    def present_workers(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Paid workers of each pool over the makespan: numbers of them, and the share of the time with so many."""
        if not np.isfinite(self.requests.arrival_s).any():
            return tuple(((pool.workers, 1.0),) for pool in self.pools)
        return tuple(_present(*span) for span in self._spans())

    def _spans(self) -> Iterator[tuple[F8, F8, float, float]]:
        """For each pool, when its workers began and went, and the makespan's bounds, seconds."""
        start_s = float(np.nanmin(self.requests.arrival_s))
        for pool in self.pools:
            mine = slice(pool.first_worker, pool.first_worker + pool.workers)
            yield self.workers.begun_s[mine], self.workers.gone_s[mine], start_s, start_s + self.makespan_s

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
        last = self._last_tier
        if last <= STORAGE_TIER:
            return hbm, host, storage
        if self.fetches_ahead:
            return hbm, host, storage - self.far_hit_tokens, self.far_hit_tokens
        behind = range(STORAGE_TIER, last + 1)
        return hbm, host, *(sum(store.hit_tokens for store in self.stores if store.tier == k) for k in behind)

    @property
    def _last_tier(self) -> int:
        return max((store.tier for store in self.stores), default=0)

    @property
    def counts_hits_by_store(self) -> bool:
        """Whether hits in some tier are known of the whole run alone, not by request."""
        return self._last_tier > STORAGE_TIER

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
