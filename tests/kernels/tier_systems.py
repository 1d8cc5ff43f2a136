"""Small random SGLang deployments with HiCache's tiers below HBM, for the kernels and for the slow reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from hisearch.base.engine_rules import MODELLED
from hisearch.base.policies import PREFETCHES, WRITE_POLICIES
from hisearch.simulate import WorkerPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.specs.deployments.deployment import SCHEDULES, EngineSpec
from hisearch.specs.deployments.tiers import TierEvictionName
from hisearch.validate.hicache_settings import CopyLaw, HostTierConfig, StorageConfig
from tests.kernels.systems import System, engine_of, routers, sglang_config, sglang_evictions
from tests.reference.cluster import requests_of
from tests.reference.random_traces import DEFAULT_SHAPE, TraceShape
from tests.reference.restatement.recording import Request
from tests.reference.restatement.sglang_state import SglangConfig

#: The release whose state ``invariants`` knows.
OLDEST = MODELLED["sglang"][:1]
#: Policies that a store evicts by.
STORE_EVICTIONS = get_args(TierEvictionName)
#: A storage tier that never fills.
UNLIMITED_TOKENS = 2**40
FREE = TransferLaw()


@dataclass(frozen=True)
class TieredSystem(System):
    """A deployment whose workers have a host pool and perhaps a storage tier.

    Attributes:
        ratio: host pool over device pool.
        movement: how KV moves; its links are those of the worker, and of its node's network.
        storage: None where there is no storage tier; its page is the engine's. farther: a second one behind it.
        workers_per_node: who shares a node's store and its network.
        open_loop: every request arrives as if its predecessor took no time.
    """

    ratio: float = 2.0
    movement: MovementPlan = MovementPlan("hicache")  # noqa: RUF009  (frozen)
    storage: TierPlan | None = None
    farther: TierPlan | None = None
    workers_per_node: int = 1
    open_loop: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.open_loop:
            arrays = self.trace.arrays
            arrival_s = np.maximum.accumulate(np.where(arrays.previous < 0, arrays.arrival_s, 0.0))
            arrays = arrays._replace(arrival_s=arrival_s, previous=np.full_like(arrays.previous, -1))
            object.__setattr__(self, "trace", replace(self.trace, arrays=arrays))

    @property
    def plan(self) -> WorkerPlan:
        """One worker."""
        worker, page = super().plan, self.engine.page_size
        # As the engine: in whole pages, one more than the ratio asks for.
        host_tokens = (int(worker.kv_capacity_tokens * self.ratio) // page + 1) * page
        tiers = [TierPlan("host", "worker", host_tokens, page)]
        for storage in (self.storage, self.farther):
            if storage is not None:
                pages = max(storage.capacity_tokens // page, 1)
                tiers.append(replace(storage, capacity_tokens=pages * page, page_tokens=page))
        return replace(worker, tiers=tuple(tiers), movement=self.movement, workers_per_node=self.workers_per_node)

    def reference_config(self, stream: int) -> SglangConfig:
        """The reference's settings; it has one worker with an unlimited store of its own."""
        config = sglang_config(self.engine, self.capacity_tokens, ignore_eos=self.ignore_eos, seed=stream)
        movement, storage = self.movement, None
        if self.storage is not None:
            storage = StorageConfig(
                self.storage.query_s,
                CopyLaw(self.storage.read.base_s, self.storage.read.s_per_token),
                CopyLaw(self.storage.write.base_s, self.storage.write.s_per_token),
                movement.prefetch,
                movement.prefetch_threshold_tokens,
                movement.parameters,
            )
        host = HostTierConfig(
            self.ratio,
            movement.write_policy,
            CopyLaw(movement.host_write.base_s, movement.host_write.s_per_token),
            CopyLaw(movement.host_read.base_s, movement.host_read.s_per_token),
            storage,
            movement.parameters,
        )
        return replace(config, hicache=host)

    def reference_requests(self) -> list[Request]:
        """The trace's requests, as the reference reads them."""
        return requests_of(self.trace.arrays)


def laws() -> st.SearchStrategy[TransferLaw]:
    """From transfers that take no time to such that hardly end before the run does."""
    return st.builds(TransferLaw, st.sampled_from([0.0, 1e-4]), st.sampled_from([0.0, 4e-6, 1e-3]))


def movements(write_policies: tuple[str, ...] = ()) -> st.SearchStrategy[MovementPlan]:
    """HiCache's settings."""
    policies = write_policies or ("write_through", *WRITE_POLICIES)
    bases, rates = st.sampled_from([0.0, 0.01, 1.0]), st.sampled_from([0.0, 0.25, 10.0])
    timeouts = {"prefetch_timeout_base_s": bases, "prefetch_timeout_s_per_ki_token": rates}
    return st.builds(
        MovementPlan,
        st.just("hicache"),
        write_policy=st.sampled_from(policies),
        prefetch=st.sampled_from(tuple(PREFETCHES)),
        prefetch_threshold_tokens=st.sampled_from([1, 8, 30]),
        parameters=st.fixed_dictionaries(timeouts).map(lambda values: tuple(values.items())),
        host_read=laws(),
        host_write=laws(),
        network_read=st.just(TransferLaw(1e-5, 2e-6)),
        network_write=st.just(TransferLaw(1e-5, 2e-6)),
    )


def stores(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[TierPlan]:
    """Storage tiers; ``fields`` in place of unlimited ones of each worker's own."""
    return st.builds(
        TierPlan,
        st.just("storage"),
        fields.pop("scope", st.just("worker")),
        fields.pop("capacity_tokens", st.just(UNLIMITED_TOKENS)),
        st.just(1),
        read=laws(),
        write=laws(),
        query_s=st.sampled_from([0.0, 0.002, 0.03]),
        **fields,
    )


def limited_stores() -> st.SearchStrategy[TierPlan]:
    """Storage tiers of every scope, size, policy and reclaim."""
    return stores(
        scope=st.sampled_from(["worker", "node", "cluster"]),
        capacity_tokens=st.sampled_from([1, 60, 300, 1500, UNLIMITED_TOKENS]),
        eviction=st.sampled_from(STORE_EVICTIONS),
        ttl_s=st.sampled_from([math.inf, math.inf, 0.05, 0.5]),
        reclaim=st.sampled_from(["lazy", "periodic", "pressure"]),
        reclaim_period_s=st.sampled_from([0.03, 0.4]),
        parameters=st.tuples(
            st.tuples(st.just("tail_tokens"), st.sampled_from([1, 40, 200])),
            st.tuples(st.just("turn_tokens"), st.sampled_from([1, 20])),
            st.tuples(st.just("small_share"), st.sampled_from([0.1, 0.5])),
        ),
    )


#: Widest last.
SCOPES = ("worker", "node", "cluster")


@st.composite
def chains(draw: st.DrawFn, **settings: Any) -> TieredSystem:
    """Two storage tiers, inclusive or exclusive, behind little host memory; ``settings`` as of ``tiered``."""
    system = draw(tiered(limited_stores(), **settings))
    near, far = system.storage, draw(limited_stores())
    assert near is not None
    scopes = sorted((near.scope, far.scope), key=SCOPES.index)
    sizes = st.sampled_from([30, 60, 150]), st.sampled_from([150, 600, UNLIMITED_TOKENS])
    return replace(
        system,
        capacity_tokens=draw(st.integers(60, 120)),
        ratio=draw(st.sampled_from([1.3, 2.0])),
        storage=replace(near, scope=scopes[0], capacity_tokens=draw(sizes[0])),
        farther=replace(far, scope=scopes[1], capacity_tokens=draw(sizes[1])),
        movement=replace(
            system.movement,
            hierarchy=draw(st.sampled_from(["inclusive", "exclusive"])),
            prefetch_threshold_tokens=draw(st.sampled_from([1, 8])),
        ),
    )


def engines(*, mixed: bool = True, versions: tuple[str, ...] = OLDEST) -> st.SearchStrategy[EngineSpec]:
    """SGLang's settings in these releases, those under which it may run out of memory included."""
    return st.sampled_from(versions).flatmap(lambda version: _engines_of(version, mixed))


def _engines_of(version: str, mixed: bool) -> st.SearchStrategy[EngineSpec]:
    return st.builds(
        engine_of,
        name=st.just("sglang"),
        version=st.just(version),
        page_tokens=st.sampled_from([1, 2, 4, 16]),
        max_running_requests=st.integers(1, 6),
        chunk_tokens=st.sampled_from([16, 48]),
        chunked_prefill=st.sampled_from([True, True, False]),
        max_prefill_tokens=st.sampled_from([40, 1000]),
        schedule_conservativeness=st.sampled_from([0.1, 1.0]),
        eviction=st.sampled_from(sglang_evictions(version)),
        schedule=st.sampled_from(["fcfs", "fcfs", *(name for name in SCHEDULES["sglang"] if name != "priority")]),
        overlap=st.booleans(),
        mixed_chunk=st.sampled_from([False, False, True]) if mixed else st.just(False),
        receive_interval=st.sampled_from([1, 1, 3, 30]),
    )


def tiered(
    storage: st.SearchStrategy[TierPlan | None],
    *,
    most_workers: int = 1,
    open_loop: bool = False,
    mixed: bool = True,
    movement: st.SearchStrategy[MovementPlan] | None = None,
    shape: TraceShape = DEFAULT_SHAPE,
    versions: tuple[str, ...] = OLDEST,
) -> st.SearchStrategy[TieredSystem]:
    """Deployments in which all tiers are small, or ample."""
    return st.builds(
        TieredSystem,
        seed=st.integers(0, 1 << 20),
        engine=engines(mixed=mixed, versions=versions),
        capacity_tokens=st.integers(60, 400),
        workers=st.integers(1, most_workers),
        router=routers(),
        shape=st.just(shape),
        rugged=st.just(False),
        ignore_eos=st.booleans(),
        ratio=st.sampled_from([0.3, 1.0, 1.3, 2.0, 6.0]),
        movement=movements() if movement is None else movement,
        storage=storage,
        workers_per_node=st.integers(1, 2),
        open_loop=st.just(open_loop),
    )
