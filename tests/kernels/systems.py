"""Small random deployments, run by the kernels and by the slow reference."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, get_args

import numpy as np
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from hisearch.base.dtypes import F8
from hisearch.base.engine_rules import MODELLED
from hisearch.base.policies import ADMISSIONS, QUEUE_ORDERS, ROUTERS, Parameter
from hisearch.latency.costs import CompiledCosts, DraftCosts, LateCosts, StepCosts
from hisearch.latency.knots import knots_up_to
from hisearch.latency.step_cost import law_costs, step_seconds
from hisearch.simulate import Result, WorkerPlan, simulate
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.simulate.plans.speculation_plan import SpeculationPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import SCHEDULES, EngineSpec, EvictionName
from hisearch.specs.deployments.engine_rules import rules_of
from hisearch.specs.deployments.engine_settings import EVICTIONS_SINCE, PRIORITY_SINCE
from hisearch.specs.deployments.routing import AdmissionSpec, RouterName, RouterSpec
from hisearch.specs.deployments.tiers import KV_CONNECTORS
from hisearch.specs.policies import effective
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from tests.reference import lmcache, vllm_offload, vllm_offload_chunks
from tests.reference.cluster import Cluster, ClusterOutcome, Worker
from tests.reference.random_traces import TraceShape, random_trace
from tests.reference.restatement import sglang, vllm
from tests.reference.restatement.recording import Request
from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference.restatement.splitmix import SplitMix64
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.router import RouterConfig
from tests.reference.trtllm import TrtllmWorker
from tests.reference.trtllm_drafts import DraftsConfig, DraftsWorker
from tests.reference.trtllm_state import AT_ONCE, TrtllmConfig
from tests.reference.vllm_offload_chunks_store import ChunkStore
from tests.reference.vllm_offload_store import OffloadConfig

#: Every router policy and engine there is: a new one is tested from the day it has a name.
POLICIES: tuple[str, ...] = get_args(RouterName)
ENGINES: tuple[str, ...] = get_args(EngineName)

#: Separates the shuffle streams from the router's; see ``simulate.engine``.
SHUFFLE_STREAMS = 0x6A09E667F3BCC908


def pages(name: str, page_tokens: int) -> int:
    """A page size that the engine has: TensorRT-LLM's blocks have two tokens at least."""
    return max(page_tokens, 2) if name == "trtllm" else page_tokens


#: 5 ms a step, 20 us a token, 1 ns per unit of attention; in joules 300 times as much.
LAW = law_costs(0.005, 2e-5, 1e-9)
LAW_JOULES = law_costs(1.5, 6e-3, 3e-7)

#: What the kernels' property tests replay: a few thousand tokens, outputs that span several pages.
KERNEL_SHAPE = TraceShape(requests=30, rate_rps=20.0, prompt_tokens=150, output_tokens=60, shared_prefixes=3)


def examples(count: int, *, always: bool = False) -> Any:
    """Hypothesis settings: a twentieth of ``count`` examples.

    Half of them with ``$HISEARCH_FULL`` set, all with it set to ``all``. ``$HISEARCH_EXAMPLES``: as many as it says,
    fresh ones.

    ``always``: all of them at least, where a test counts what its examples come across.
    """
    fresh = os.environ.get("HISEARCH_EXAMPLES")
    full = os.environ.get("HISEARCH_FULL", "")
    share = 1 if always or full == "all" else 2 if full else 20
    few = count if always else 1
    return settings(
        max_examples=max(int(fresh), few) if fresh else -(-count // share),
        derandomize=fresh is None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def compiled_costs(seconds: StepCosts = LAW, joules: StepCosts = LAW_JOULES) -> CompiledCosts:
    """Costs as a plan carries them."""
    return CompiledCosts(seconds, joules, 0.0, "law", "assumed", 0.0)


def draft_costs(model: StepCosts, tokens: int, share: float, shared_s: F8 | None = None) -> DraftCosts:
    """Of a head that takes ``share`` of the model's token-wise work, and has its LM head.

    ``shared_s``: that of the model, with attention groups.
    """
    own_s = share * model.token_s
    return DraftCosts(tokens, share, own_s, model.sequence_s, own_s, None if shared_s is None else share * shared_s)


@cache
def rugged_costs(seed: int) -> StepCosts:
    """Tables without any law in them, small enough that look-ups leave them at times."""
    rng = np.random.default_rng(seed)
    new, context, sequences = (len(knots_up_to(limit)) for limit in (64, 2000, 6))
    token_s, sequence_s = (np.cumsum(rng.uniform(0, scale, length)) for scale, length in ((5e-5, 200), (1e-4, 12)))
    decode_s = np.cumsum(np.cumsum(rng.uniform(0, 1e-5, (sequences, context)), axis=0), axis=1)
    token_s[0], sequence_s[0], decode_s[0] = 0.0, 0.0, 0.0
    costs = StepCosts(0.003, 1e-4, token_s, sequence_s, rng.uniform(0, 1e-8, (new, context)), decode_s)
    if seed % 3 == 0:
        return costs
    mixed_decode_s = rng.uniform(0, 1e-5, (3, 4, 1 + seed % 4, 5))
    for axis in range(4):
        mixed_decode_s = np.cumsum(mixed_decode_s, axis=axis)
    shares = rng.uniform(0, 1.0, (1 + seed % 4, 1 + 3 * (seed % 5), 1 + 2 * (seed % 7)))
    late = LateCosts(shares, rng.uniform(1.5, 9.0))
    mixed = costs._replace(mixed_decode_s=mixed_decode_s, late=late, prompt_s=np.cumsum(rng.uniform(0, 1e-5, 40)))
    if seed % 6 == 4:
        mixed = mixed._replace(late=None)
    return mixed if seed % 3 == 1 else mixed._replace(skew_s=rng.uniform(0, 1e-5, 7))


#: Of a copy between HBM and the host, in either direction.
HOST_LAW = TransferLaw(1e-5, 1e-7)


def plan(
    engine: EngineSpec,
    capacity_tokens: int,
    host_tokens: int = 0,
    costs: CompiledCosts | None = None,
    host_read: TransferLaw = HOST_LAW,
    host_write: TransferLaw = HOST_LAW,
    ignore_eos: bool = False,
) -> WorkerPlan:
    """A worker with the given capacity, in whole pages, and its engine's own KV connector if it has a host tier.

    HiCache is built on the radix cache: without prefix caching SGLang has no host tier. SGLang's rules are those of the
    release that is restated.
    """
    page = engine.page_size
    if engine.name == "sglang" and not engine.version:
        engine = engine.model_copy(update={"version": "0.5.9"})
    bare = WorkerPlan(
        engine,
        compiled_costs() if costs is None else costs,
        None,  # type: ignore[arg-type]  # how its memory was planned is not looked at by the simulation
        capacity_tokens // page * page,
        ignore_eos=ignore_eos,
    )
    kv_connector = KV_CONNECTORS[engine.name][0]
    if host_tokens < page or (kv_connector == "hicache" and not engine.prefix_caching):
        return bare
    tier = TierPlan("host", "worker", host_tokens // page * page, page)
    return replace(bare, tiers=(tier,), movement=MovementPlan(kv_connector, host_read=host_read, host_write=host_write))


def compiled(arrays: TraceArrays, name: str = "random") -> CompiledTrace:
    """Arrays as a trace."""
    return CompiledTrace(name, arrays, [str(k) for k in range(len(arrays.arrival_s))], name)


_ROUND_ROBIN = RouterSpec()


@dataclass(frozen=True)
class System:
    """A deployment, its trace and everything else that a run depends on."""

    seed: int
    engine: EngineSpec
    capacity_tokens: int
    workers: int = 1
    router: RouterSpec = _ROUND_ROBIN
    shape: TraceShape = KERNEL_SHAPE
    host_tokens: int = 0
    rugged: bool = False
    ignore_eos: bool = False
    offload: OffloadConfig | None = None
    lmcache: lmcache.LmcacheConfig | None = None
    host_laws: tuple[CopyLaw, CopyLaw] | None = None
    sharing: int = 1
    pooled: bool = False
    kernel_compile_s: float = 0.0
    drafts: SpeculationPlan | None = None
    draft_share: float = 0.0
    trace: CompiledTrace = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trace", compiled(random_trace(self.seed, self.shape)))

    @property
    def costs(self) -> CompiledCosts:
        """Linear costs, or rugged ones by seed; with those of the drafter."""
        costs = compiled_costs(rugged_costs(self.seed)) if self.rugged else compiled_costs()
        if self.drafts is None or not self.draft_share:
            return costs
        tokens = self.drafts.draft_tokens
        seconds, joules = (
            law._replace(draft=draft_costs(law, tokens, self.draft_share)) for law in (costs.seconds, costs.joules)
        )
        return replace(costs, seconds=seconds, joules=joules)

    @property
    def plan(self) -> WorkerPlan:
        """One worker."""
        write, read = (HOST_LAW, HOST_LAW) if self.host_laws is None else map(transfer_law, self.host_laws)
        bare = plan(self.engine, self.capacity_tokens, self.host_tokens, self.costs, read, write, self.ignore_eos)
        bare = replace(bare, kernel_compile_s=self.kernel_compile_s)
        if self.drafts is not None:
            return replace(bare, speculation=self.drafts)
        if self.lmcache is not None:
            return with_lmcache(bare, self.lmcache)
        return bare if self.offload is None else offloading(bare, self.offload, self.sharing)

    def simulate(self, **options: Any) -> Result:
        """Run the kernels."""
        options = {"replicas": self.workers, "router": self.router, "seed": self.seed, "pooled": self.pooled} | options
        return simulate(self.plan, self.trace, **options)

    def reference(self) -> ClusterOutcome:
        """Run the slow reference; with ``host_tokens``, TensorRT-LLM's alone."""
        assert self.host_tokens == 0 or self.host_laws is not None
        parameters = {name: getattr(self.router, name) for name in ROUTERS.parameters()}
        router = RouterConfig(self.router.policy, self.seed, self.router.version, **parameters)
        # Workers are made in order, each with a stream of its own for random schedules.
        streams = SplitMix64(self.seed ^ SHUFFLE_STREAMS)
        stores = self._reference_stores()
        made = (self._reference_worker(streams.next(), store) for store in stores)
        return Cluster(self.trace.arrays, lambda: next(made), self.workers, router, pooled=self.pooled).run()

    def _drafting_trtllm(self, config: TrtllmConfig, drafts: SpeculationPlan) -> DraftsWorker:
        seconds = self.costs.seconds

        def cost(chunks: Any, decodes: Any, sampling: int, drafted: int) -> float:
            return step_seconds(seconds, chunks, decodes, sampling, drafted)

        settings = DraftsConfig(
            **vars(config),
            draft_tokens=drafts.draft_tokens,
            extra_kv_tokens=drafts.lookahead_tokens,
            accepted=drafts.accepted,
            draft_seed=drafts.seed,
        )
        return DraftsWorker(settings, cost, {row: row for row in range(len(self.trace))})

    def _reference_stores(self) -> list[Any]:
        """Each worker's host memory."""
        if self.lmcache is not None:
            return list(self.lmcache.new_stores(self.workers))
        if self.offload is None:
            return [None] * self.workers
        by_chunk = "offloads_by_chunk" in rules_of("vllm", self.engine.version)
        page = self.engine.page_size
        shared = [
            ChunkStore(self.offload, page) if by_chunk else self.offload.new_store(page) for _ in range(self.workers)
        ]
        return [shared[w // self.sharing] for w in range(self.workers)]

    def _reference_worker(self, stream: int, store: Any) -> Worker:
        seconds = self.costs.seconds
        compiled_lengths: set[int] = set()

        def cost(chunks: Any, decodes: Any, sampling: int) -> float:
            # A recorded decode's context leaves the token itself out.
            step_s = step_seconds(seconds, chunks, [context + 1 for context in decodes], sampling)
            tokens = sum(new for new, _ in chunks) + len(decodes)
            if not chunks or tokens in compiled_lengths:
                return step_s
            compiled_lengths.add(tokens)
            return step_s + self.kernel_compile_s

        if self.engine.name == "vllm":
            config = vllm_config(self.engine, self.capacity_tokens)
            if self.offload is not None and "offloads_by_chunk" in config.rules:
                return _DeclaredChunkOffload(config, self.offload, cost, store)
            if self.offload is not None:
                return _DeclaredOffload(config, self.offload, cost, store)
            if self.lmcache is not None:
                return _DeclaredLmcache(config, self.lmcache, cost, store)
            return _DeclaredVllm(config, cost)
        if self.engine.name == "trtllm":
            config = trtllm_config(self.engine, self.capacity_tokens, self.host_tokens, self.host_laws)
            return TrtllmWorker(config, cost) if self.drafts is None else self._drafting_trtllm(config, self.drafts)
        return sglang.SglangWorker(
            sglang_config(self.engine, self.capacity_tokens, ignore_eos=self.ignore_eos, seed=stream), cost
        )


def trtllm_drafts_systems() -> st.SearchStrategy[System]:
    """Deployments of TensorRT-LLM with drafted tokens, whose scheduler pauses nobody."""

    def drafting(system: System, counts: tuple[int, int], share: float, chance: float) -> System:
        engine = system.engine
        policy = "guaranteed_no_evict" if engine.capacity_policy == "max_utilization" else engine.capacity_policy
        drafted = min(counts[0], engine.chunk_tokens - 1)
        accepted = tuple(chance ** (place + 1) for place in range(drafted))
        drafts = SpeculationPlan(drafted, min(counts[1], drafted - 1), False, accepted, system.seed)
        engine = engine.model_copy(update={"capacity_policy": policy})
        return replace(system, engine=engine, drafts=drafts, draft_share=share)

    return st.builds(
        drafting,
        systems(trtllm_engines() | trtllm_engines(by_priority=True), repeats=True),
        st.sampled_from([(1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (7, 6), (16, 0)]),
        st.sampled_from([0.0, 0.02, 0.3]),
        st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    )


def settled(system: System, **options: Any) -> Result:
    """Run the kernels, inside a property test: deployments that come to a halt are not looked at."""
    try:
        return system.simulate(**options)
    except EngineOutOfMemory:
        assume(False)
        raise


def offloading(bare: WorkerPlan, offload: OffloadConfig, sharing: int) -> WorkerPlan:
    """The plan with host memory that vLLM's connector uses, shared by the given number of workers."""
    size = offload.block_tokens(bare.engine.page_size)
    scope = "worker" if sharing == 1 else "node"
    tier = TierPlan("host", scope, offload.capacity_tokens // size * size, size, offload.eviction)
    movement = MovementPlan(
        "offload",
        store_threshold=offload.store_threshold,
        host_read=transfer_law(offload.to_device),
        host_write=transfer_law(offload.to_host),
    )
    return replace(bare, tiers=(tier,), movement=movement, workers_per_node=sharing)


def with_lmcache(bare: WorkerPlan, settings: lmcache.LmcacheConfig) -> WorkerPlan:
    """The plan with LMCache's tiers."""
    size = settings.chunk_tokens
    tiers = tuple(
        TierPlan(
            f"tier {k}",
            tier.scope,
            tier.tokens // size * size,
            size,
            tier.eviction,
            write=transfer_law(tier.write),
            read=transfer_law(tier.read),
            networked=tier.networked,
        )
        for k, tier in enumerate(settings.tiers)
    )
    movement = MovementPlan(
        "lmcache",
        chunk_tokens=size,
        save_decode=settings.save_decode,
        host_read=transfer_law(settings.to_device),
        host_write=transfer_law(settings.to_host),
        network_read=transfer_law(settings.network),
        network_write=transfer_law(settings.network),
        own_processes=settings.own_processes,
    )
    return replace(bare, tiers=tiers, movement=movement, workers_per_node=settings.workers_per_node)


def transfer_law(law: CopyLaw) -> TransferLaw:
    """The same law, as a plan has it."""
    return TransferLaw(law.base_s, law.per_token_s)


def vllm_config(engine: EngineSpec, capacity_tokens: int) -> vllm.VllmConfig:
    """The reference's settings; its pool has a null block in addition to the usable ones."""
    return vllm.VllmConfig(
        max_num_seqs=engine.max_running_requests,
        max_tokens=engine.chunk_tokens,
        num_blocks=capacity_tokens // engine.page_size + 1,
        block_size=engine.page_size,
        prefix=engine.prefix_caching,
        chunked_prefill=engine.chunked_prefill,
        long_prefill_token_threshold=engine.long_prefill_tokens,
        long_prefill_token_threshold_adaptive=engine.long_prefill_adaptive,
        scheduler_reserve_full_isl=engine.reserve_full_prompt,
        policy="priority" if engine.schedule in ("priority", "edf") else "fcfs",
        fair=engine.schedule if QUEUE_ORDERS[engine.schedule].counts_service else "",
        ttft_targets_s=tuple(engine.ttft_targets_s),
        async_scheduling=engine.overlap,
        watermark=engine.watermark,
        rules=rules_of("vllm", engine.version),
    )


def sglang_config(engine: EngineSpec, capacity_tokens: int, *, ignore_eos: bool = False, seed: int = 0) -> SglangConfig:
    """The reference's settings."""
    by_priority = engine.schedule == "priority"
    return SglangConfig(
        max_running_requests=engine.max_running_requests,
        max_total_tokens=capacity_tokens,
        page_size=engine.page_size,
        chunked_prefill_size=engine.chunk_tokens if engine.chunked_prefill else -1,
        max_prefill_tokens=engine.max_prefill_tokens,
        schedule_policy="fcfs" if by_priority else engine.schedule,  # type: ignore[arg-type]
        enable_priority_scheduling=by_priority,
        schedule_conservativeness=engine.schedule_conservativeness,
        radix_eviction_policy=engine.eviction,
        disable_radix_cache=not engine.prefix_caching,
        enable_mixed_chunk=engine.mixed_chunk,
        scheduler_recv_interval=engine.receive_interval,
        disable_overlap_schedule=not engine.overlap,
        ignore_eos=ignore_eos,
        seed=seed,
        version=engine.version or "0.5.9",
        ttft_targets_s=tuple(engine.ttft_targets_s),
        quantum=engine.chunk_tokens,
    )


def trtllm_config(
    engine: EngineSpec, capacity_tokens: int, host_tokens: int, host_laws: tuple[CopyLaw, CopyLaw] | None
) -> TrtllmConfig:
    """The reference's settings; ``host_laws``: to the host and back."""
    write, read = (AT_ONCE, AT_ONCE) if host_laws is None else host_laws
    return TrtllmConfig(
        max_batch_size=engine.max_running_requests,
        max_num_tokens=engine.chunk_tokens,
        num_blocks=capacity_tokens // engine.page_size,
        tokens_per_block=engine.page_size,
        policy=engine.capacity_policy,
        chunking_policy=engine.chunking_policy,
        waiting_queue_policy="priority" if engine.schedule == "priority" else "fcfs",
        batch_wait_timeout_ms=engine.batch_wait_timeout_ms,
        batch_wait_timeout_iters=engine.batch_wait_timeout_iters,
        batch_wait_max_tokens_ratio=engine.batch_wait_max_tokens_ratio,
        enable_balance=engine.attention_dp_balance,
        timeout_iters=engine.attention_dp_timeout_iters,
        batching_wait_iters=engine.attention_dp_batching_wait_iters,
        enable_block_reuse=engine.prefix_caching,
        enable_chunked_prefill=engine.chunked_prefill,
        overlap_scheduler=engine.overlap,
        host_blocks=host_tokens // engine.page_size,
        to_host=write,
        to_device=read,
        rules=rules_of("trtllm", engine.version),
    )


class _DeclaredVllm(vllm.VllmWorker):
    """Rejects by the declared output limit, all that a simulation may know (L5); recordings are never rejected."""

    def rejection(self, request: Request) -> str | None:
        return super().rejection(replace(request, output_tokens=request.max_output_tokens))


class _DeclaredOffload(vllm_offload.OffloadWorker):
    """Likewise, with host memory."""

    def rejection(self, request: Request) -> str | None:
        return super().rejection(replace(request, output_tokens=request.max_output_tokens))


class _DeclaredChunkOffload(vllm_offload_chunks.ChunkOffloadWorker):
    """Likewise, as of 0.33."""

    def rejection(self, request: Request) -> str | None:
        return super().rejection(replace(request, output_tokens=request.max_output_tokens))


class _DeclaredLmcache(lmcache.LmcacheWorker):
    """Likewise, with LMCache."""

    def rejection(self, request: Request) -> str | None:
        return super().rejection(replace(request, output_tokens=request.max_output_tokens))


#: Values of router parameters that make a difference among a few dozen requests.
ROUTER_VALUES: dict[str, list[Any]] = {
    "cache_threshold": [0.0, 0.3, 0.8],
    "balance_abs_threshold": [1, 8],
    "balance_rel_threshold": [1.0, 1.5],
    "max_tree_characters": [None, 40, 200],
    "characters_per_token": [1.0, 2.5],
    "load_poll_s": [0.0, 0.3],
    "max_idle_s": [0.1, 1.0],
    "eviction_interval_s": [0.2, 1.0],
    "bucket_window_s": [0.3, 2.0],
    "load_factor": [1.0, 1.25, 4.0],
    "fill_requests": [1, 3],
    "prefix_tokens": [8, 24],
    "overlap_weight": [0.5, 1.0, 4.0],
    "staleness_s": [0.0, 0.1, 1.0],
    "router_temperature": [0.0, 0.0, 0.5],
    "router_ttl_s": [0.2, 2.0],
    "block_tokens": [None, 1, 8, 16],
    "max_prefix_blocks": [4, 256],
    "lru_capacity_blocks": [None, 4, 12, 40],
    "chunk_characters": [4, 25, 64],
    "imbalance_requests": [0, 2, 8],
    "deviation_factor": [0, 1],
    "block_characters": [4, 16],
    "index_blocks_in_all": [20, 60, 400, 200000],
    "index_ttl_s": [1.0, 3.5, 1200.0],
    "metrics_refresh_s": [0.0, 0.05, 0.5],
    "no_hit_weight": [0.0, 1.0],
    "running_weight": [0.0, 1.0],
}


def _values(parameter: Parameter) -> list[Any]:
    """Values to draw: those above, or else all choices, the default, what the search tries, and the lower bound."""
    if parameter.name in ROUTER_VALUES:
        return ROUTER_VALUES[parameter.name]
    kind = int if parameter.is_integer else float
    least = () if parameter.at_least is None else (kind(parameter.at_least),)
    return list(dict.fromkeys((*parameter.choices, parameter.default, *parameter.search, *least)))


def routers(policies: Sequence[str] = POLICIES) -> st.SearchStrategy[RouterSpec]:
    """Every policy, or any of ``policies``, with parameters that matter at this size."""
    drawn = {name: st.sampled_from(_values(parameter)) for name, parameter in ROUTERS.parameters().items()}
    return st.builds(router_with, st.sampled_from(policies), **drawn)


def router_with(policy: str, **values: Any) -> RouterSpec:
    """A router with those of ``values`` that its policy reads."""
    return RouterSpec.model_validate({"policy": policy} | effective(ROUTERS[policy], values))


def admission_with(policy: str, **values: Any) -> AdmissionSpec:
    """An admission policy with those of ``values`` that it reads."""
    return AdmissionSpec.model_validate({"policy": policy} | effective(ADMISSIONS[policy], values))


def routed(systems: st.SearchStrategy[System], policies: Sequence[str]) -> st.SearchStrategy[System]:
    """The same with several workers behind a router of any of ``policies``."""
    return st.builds(
        lambda system, router, workers: replace(system, router=router, workers=workers),
        systems, routers(policies), st.integers(2, 4),
    )  # fmt: skip


#: TTFT targets of deadlines: near, far, none.
TARGETS_S = (0.05, 0.6, None)


def engine_of(**stated: Any) -> EngineSpec:
    """Settings of an engine, with targets where its queue goes by deadlines."""
    return EngineSpec(**stated, ttft_targets_s=list(TARGETS_S) if stated["schedule"] == "edf" else [])


#: Of vLLM with every connector.
ANYWHERE = ("fcfs", "fcfs", "priority", "edf")


def vllm_engines(schedules: Sequence[str] = ANYWHERE) -> st.SearchStrategy[EngineSpec]:
    """vLLM's settings."""
    return st.builds(
        engine_of,
        name=st.just("vllm"),
        page_tokens=st.sampled_from([1, 4, 16]),
        max_running_requests=st.sampled_from([1, 2, 4, 16]),
        chunk_tokens=st.sampled_from([16, 64, 256]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        overlap=st.booleans(),
        schedule=st.sampled_from(schedules),
        chunked_prefill=st.sampled_from([True, True, True, False]),
        long_prefill_tokens=st.sampled_from([0, 0, 5, 24]),
        long_prefill_adaptive=st.booleans(),
        reserve_full_prompt=st.sampled_from([True, True, False]),
        watermark=st.sampled_from([0.0, 0.0, 0.1]),
    )


def sglang_evictions(version: str) -> list[str]:
    """Eviction policies of a release of SGLang."""
    return [name for name in get_args(EvictionName) if version != "0.5.9" or name not in EVICTIONS_SINCE]


def sglang_engines(*, mixed: bool = False, version: str | None = "0.5.9") -> st.SearchStrategy[EngineSpec]:
    """SGLang's settings in a release, or (None) in any; the engine wants chunks of whole pages.

    ``mixed``: with mixed chunks too, for which the engine retracts nobody, so that it may run out of memory.
    """
    if version is None:
        return st.sampled_from(MODELLED["sglang"]).flatmap(lambda any_: sglang_engines(mixed=mixed, version=any_))
    return st.builds(
        engine_of,
        name=st.just("sglang"),
        version=st.just(version),
        page_tokens=st.sampled_from([1, 4, 16]),
        max_running_requests=st.sampled_from([1, 2, 4, 16]),
        chunk_tokens=st.sampled_from([16, 64, 256]),
        chunked_prefill=st.sampled_from([True, True, True, False]),
        max_prefill_tokens=st.sampled_from([64, 16384]),
        schedule_conservativeness=st.sampled_from([1.0, 0.2, 0.02]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        eviction=st.sampled_from(sglang_evictions(version)),
        schedule=st.sampled_from(SCHEDULES["sglang"]),
        overlap=st.booleans(),
        mixed_chunk=st.sampled_from([False, False, True]) if mixed else st.just(False),
        receive_interval=st.sampled_from([1, 1, 2, 5, 30]),
    )


#: A release from before each of its rules, and the newest.
TRTLLM_RELEASES = ("1.1.0", "1.2.1", "1.3.0rc8", "1.3.0rc12", "")


def trtllm_engines(*, gathers: bool = False, by_priority: bool = False) -> st.SearchStrategy[EngineSpec]:
    """TensorRT-LLM's settings; ``gathers``: passes wait for requests; ``by_priority``: of their priorities."""
    return st.builds(
        EngineSpec,
        name=st.just("trtllm"),
        version=st.sampled_from([PRIORITY_SINCE, "1.3.0rc12", ""] if by_priority else TRTLLM_RELEASES),
        schedule=st.just("priority" if by_priority else "fcfs"),
        page_tokens=st.sampled_from([2, 4, 16]),
        max_running_requests=st.sampled_from([1, 2, 4, 16]),
        chunk_tokens=st.sampled_from([16, 50, 64, 256]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        overlap=st.booleans(),
        chunked_prefill=st.sampled_from([True, True, True, False]),
        capacity_policy=st.sampled_from(2 * ["guaranteed_no_evict", "max_utilization"] + ["static_batch"]),
        chunking_policy=st.sampled_from(["first_come_first_served", "first_come_first_served", "equal_progress"]),
        batch_wait_timeout_ms=st.sampled_from([0.5, 5.0, 12.5, 100.0, 2000.0] if gathers else [0.0]),
        batch_wait_timeout_iters=st.sampled_from([0, 0, 3]),
        batch_wait_max_tokens_ratio=st.sampled_from([0.0, 0.0, 0.5]),
    )


#: From the narrowest to the widest.
SCOPES = ("worker", "node", "cluster")
#: From transfers that take no time to such that hardly end before the run does.
COPY_LAWS = st.builds(CopyLaw, st.sampled_from([0.0, 1e-4, 0.003]), st.sampled_from([0.0, 4e-6, 1e-4, 1e-3]))


@st.composite
def chunk_tiers(draw: st.DrawFn) -> tuple[lmcache.LmcacheTier, ...]:
    """One to three tiers of LMCache, of one worker or shared, none by fewer than the one before it."""
    scopes = sorted(draw(st.lists(st.sampled_from(SCOPES), min_size=1, max_size=3)), key=SCOPES.index)
    tiers = []
    for index, scope in enumerate(scopes):
        private = index == 0 and scope == "worker"
        tokens = st.sampled_from([64, 300, 1000, 4000, 100_000] if index == 0 else [10, 100, 300, 1000, 100_000])
        law = st.just(CopyLaw(0.0, 0.0)) if private else COPY_LAWS
        eviction = st.sampled_from(["lru", "lru", "lfu", "fifo", "mru"])
        networked = st.booleans() if scope == "cluster" else st.just(False)
        tier = st.builds(lmcache.LmcacheTier, tokens, law, law, eviction, st.just(scope), networked)
        tiers.append(draw(tier))
    return tuple(tiers)


def lmcache_systems() -> st.SearchStrategy[System]:
    """Deployments of vLLM with LMCache."""
    settings = st.builds(
        lmcache.LmcacheConfig,
        to_host=COPY_LAWS,
        to_device=COPY_LAWS,
        tiers=chunk_tiers(),
        chunk_tokens=st.sampled_from([16, 32]),
        save_decode=st.booleans(),
        network=COPY_LAWS,
        workers_per_node=st.sampled_from([1, 2, 2, 3]),
        own_processes=st.booleans(),
    )
    return st.builds(replace, systems(vllm_engines(), repeats=True), lmcache=settings)


def offload_systems() -> st.SearchStrategy[System]:
    """Deployments of vLLM with its offloading connector."""
    offload = st.builds(
        OffloadConfig,
        capacity_tokens=st.sampled_from([64, 300, 1000, 4000, 100_000]),
        to_host=COPY_LAWS,
        to_device=COPY_LAWS,
        block_size_factor=st.sampled_from([1, 1, 1, 2, 4]),
        eviction=st.sampled_from(["lru", "lru", "arc"]),
        store_threshold=st.sampled_from([0, 0, 2, 3]),
    )
    drawn = st.builds(
        replace,
        systems(vllm_engines(), repeats=True),
        offload=offload,
        sharing=st.sampled_from([1, 1, 1, 2]),
    )
    return st.builds(_of_release, drawn, st.sampled_from(MODELLED["vllm"]))


def _of_release(system: System, version: str) -> System:
    return replace(system, engine=system.engine.model_copy(update={"version": version}))


def trtllm_host_systems(*, gathers: bool = False) -> st.SearchStrategy[System]:
    """Deployments of TensorRT-LLM with its host cache; ``gathers``: passes wait for requests."""
    return st.builds(
        replace,
        systems(trtllm_engines(gathers=gathers), repeats=True),
        host_tokens=st.sampled_from([16, 64, 300, 1000, 4000, 100_000]),
        host_laws=st.tuples(COPY_LAWS, COPY_LAWS),
    )


def any_engines() -> st.SearchStrategy[EngineSpec]:
    """Settings of every engine."""
    return vllm_engines() | sglang_engines() | trtllm_engines()


def shapes(repeats: bool) -> st.SearchStrategy[TraceShape]:
    """Traces of one request to a few dozen, from calm to crowded."""
    return st.builds(
        TraceShape,
        requests=st.sampled_from([1, 5, 20, 30, 40]),
        rate_rps=st.sampled_from([5.0, 20.0, 100.0]),
        prompt_tokens=st.sampled_from([20, 150]),
        output_tokens=st.sampled_from([8, 60]),
        shared_prefixes=st.just(3),
        follow_up=st.sampled_from([0.3, 0.6]),
        same_time=st.sampled_from([0.1, 0.5]),
        repeat=st.sampled_from([0.0, 0.1, 0.3]) if repeats else st.just(0.0),
        slack=st.sampled_from([1.0, 3.0]),
    )


def crowded(name: str) -> st.SearchStrategy[System]:
    """Deployments in which requests lose their KV again and again."""
    return st.builds(
        System,
        seed=st.integers(0, 1 << 20),
        engine=st.builds(
            lambda **values: engine_of(name=name, max_running_requests=16, **values),
            page_tokens=st.sampled_from([pages(name, 1), 4, 16]),
            chunk_tokens=st.sampled_from([16, 64]),
            schedule_conservativeness=st.just(0.02),
            overlap=st.booleans(),
            **({"eviction": st.sampled_from(get_args(EvictionName))} if name == "sglang" else {}),
            schedule=st.sampled_from(SCHEDULES[name]),
            long_prefill_tokens=st.sampled_from([0, 0, 7]),
            reserve_full_prompt=st.booleans(),
            capacity_policy=st.just("max_utilization" if name == "trtllm" else "guaranteed_no_evict"),
        ),
        ignore_eos=st.booleans(),
        capacity_tokens=st.sampled_from([160, 240]),
        workers=st.integers(1, 2),
        shape=st.just(
            TraceShape(requests=40, rate_rps=200.0, prompt_tokens=20, output_tokens=60, repeat=0.0, follow_up=0.2)
        ),
        rugged=st.booleans(),
    )


def systems(engines: st.SearchStrategy[EngineSpec], *, repeats: bool, host: bool = False) -> st.SearchStrategy[System]:
    """Deployments from starved to ample; ``repeats``: with prompts that repeat exactly; ``host``: with a host tier."""
    return st.builds(
        System,
        seed=st.integers(0, 1 << 20),
        engine=engines,
        capacity_tokens=st.sampled_from([150, 300, 600, 1300, 4000]),
        workers=st.integers(1, 3),
        router=routers(),
        shape=shapes(repeats),
        host_tokens=st.sampled_from([64, 500, 3000, 100_000]) if host else st.just(0),
        rugged=st.booleans(),
        ignore_eos=st.booleans(),
    )
