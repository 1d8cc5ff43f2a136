"""One measured run in the simulator: the catalogue's model on the catalogue's GPU, under the run's own conditions.

Attention groups, prompts that are held back and drafted tokens are simulated by the engine's own rules. The front end
(HTTP, tokenisation, the way to the scheduler) is the profile's, by engine and version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hisearch.latency.corrections import corrected
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory.plan import DoesNotFit, plan_memory
from hisearch.latency.drafting.drafter import with_drafter, with_graphs_of_drafts
from hisearch.latency.drafting.kept_states import kept_state_s, with_kept_states
from hisearch.latency.estimator import ProfileEstimator, build_estimator
from hisearch.latency.host import Launches, front_end_of, kernel_compile_s, launches_of, with_host_times
from hisearch.latency.priced import AcrossHosts, PricedWorker
from hisearch.latency.served_errors import plain_name
from hisearch.latency.sharding import InvalidParallelism, Parallelism
from hisearch.simulate.engine import EngineOutOfMemory, simulate, simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.speculation_plan import plan_speculation
from hisearch.simulate.results.tables import RequestTable
from hisearch.specs.base import DType
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec, FabricSpec
from hisearch.specs.machines.host import HostTimes
from hisearch.specs.machines.profile import CorrectionSpec, LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.versions import nearest_version
from hisearch.traces.compiled import CompiledTrace
from hisearch.validate.silicon import disaggregated
from hisearch.validate.silicon.campaigns import Conditions, kernels_version
from hisearch.validate.silicon.closed_loop import Loop, closed_loop
from hisearch.validate.silicon.conditions import conditions_of, host_version
from hisearch.validate.silicon.inferencemax import as_it_ran
from hisearch.validate.silicon.rows import SiliconRow

#: Catalogue names of the systems that measurements name.
SYSTEMS = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb200_sxm": "gb200",
    "gb300": "gb300",
    "gb300_sxm": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000": "rtx-pro-6000",
    "rtx4090": "rtx4090",
}
#: Latency of a step between two hosts inside a collective, by NCCL's own model for a network tree of protocol
#: LL, used for small messages (``hwLat``, github NVIDIA/nccl ``src/graph/tuning.cc``).
EXCHANGE_S = 5e-6
#: Formats of weights by the columns' values; other values are refused.
WEIGHT_DTYPES: dict[str, DType] = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "int4_wo": "int4", "": "bf16"}
#: Profile of rows whose engine and GPU have none.
FALLBACK_PROFILE = "roofline"
BACKENDS = ("vllm", "sglang", "trtllm")
#: By how much longer prompts take to find their share of a request's latency.
MORE = 0.1


class NotPriced(ValueError):  # noqa: N818
    """A row that is skipped; the message is the reason, the same for rows of a kind."""


@dataclass(frozen=True)
class Price:
    """Mean times of a simulated run, seconds."""

    ttft_s: float
    tpot_s: float

    def latency_s(self, output_tokens: int) -> float:
        """Of a request with so many output tokens."""
        return self.ttft_s + self.tpot_s * (output_tokens - 1)


@dataclass(frozen=True)
class EngineTimes:
    """Host work of an engine, and of versions of it that differ."""

    own: HostTimes
    versions: Mapping[str, HostTimes]

    def of_version(self, version: str) -> HostTimes:
        """Host work of ``version``, else of a version of the same release, else the engine's default."""
        name = nearest_version(version, self.versions)
        return self.own if name is None else self.versions[name]


class Pricer:
    """Simulates rows: with one latency profile, or each with that of its engine and GPU (``vllm-b200``).

    Args:
        profile: catalogue name or path of one profile; None, or an automatic one, for each row's own.
        catalogue: where models, GPUs and profiles are found.
        engines: host work in place of the profiles'.
    """

    def __init__(
        self,
        profile: str | None = None,
        catalogue: Catalogue | None = None,
        engines: Mapping[str, EngineTimes] | None = None,
    ) -> None:
        self.catalogue = catalogue or Catalogue()
        if profile is not None and self.catalogue.get("LatencyProfile", profile).spec.estimator == "auto":
            profile = None
        self.profile_name = profile or f"ENGINE-GPU, else {FALLBACK_PROFILE}"
        self._profile = profile
        self._engines = engines or {}
        self._shipped = frozenset(self.catalogue.names("LatencyProfile"))
        self._plans: dict[tuple[object, ...], WorkerPlan] = {}
        self._spec = functools.cache(lambda kind, name: self.catalogue.get(kind, name).spec)
        self._models = {plain_name(name): name for name in self.catalogue.names("Model")}

    def price(self, row: SiliconRow) -> Price:
        """Mean TTFT and TPOT of ``row``, simulated.

        Raises:
            NotPriced: with the reason.
        """
        return self.with_times(row, None)

    def with_times(self, row: SiliconRow, times: HostTimes | None, *, prompts: float = 1.0) -> Price:
        """``price`` with ``times`` as the engine's host work; the profile's, for its version, if None.

        prompts: factor on the time of prompts in steps of an aggregated row.
        """
        if row.backend not in BACKENDS:
            raise NotPriced(f"engine {row.backend} is not simulated")
        row = as_it_ran(row)
        times = self.times_of(row) if times is None else times
        overhead = self._profile_of(row)[1].engines.get(row.backend)
        times = times if overhead is None else times.on_processor(overhead.host_scale)
        if row.mode == "disagg":
            return self._disaggregated(row, times)
        if row.mode != "agg":
            raise NotPriced(f"mode {row.mode} is not known")
        conditions = conditions_of(row)
        plan = self._timed(row, conditions, times)
        plan = replace(plan, costs=corrected(plan.costs, CorrectionSpec(prefill=prompts)))
        return _means(lambda trace: simulate(plan, trace, pooled=True).requests, Loop.of(row, conditions))

    def prompt_share(self, row: SiliconRow) -> float:
        """Share of a request's mean latency that goes by the time of prompts in steps, in an aggregated ``row``.

        By how much the latency grows where prompts take a tenth longer, over a tenth.

        Raises:
            NotPriced: with the reason.
        """
        times = self.times_of(row)
        alone, slower = (self.with_times(row, times, prompts=factor) for factor in (1.0, 1.0 + MORE))
        return (slower.latency_s(row.output_tokens) / alone.latency_s(row.output_tokens) - 1.0) / MORE

    def _disaggregated(self, row: SiliconRow, times: HostTimes) -> Price:
        """Price of a run with prefill/decode disaggregation."""
        try:
            sides = disaggregated.sides_of(row)
        except disaggregated.UnknownDeployment as reason:
            raise NotPriced(str(reason)) from reason
        pools = []
        for side in sides:
            limits = disaggregated.conditions_of_side(side)
            pools.append(PoolPlan(self._timed(side.row, limits, times), side.workers, side.role, side.role))
        conditions = conditions_of(sides[1].row)
        fabric: FabricSpec = self._spec("Fabric", disaggregated.FABRIC)
        kv_bytes_per_token = pools[1].plan.memory.kv_bytes_per_token_per_rank
        fleet = FleetPlan(
            tuple(pools),
            disaggregated.ROUTER,
            disaggregated.ROUTER,
            transfer=disaggregated.transfer_of(row.backend, fabric, kv_bytes_per_token),
        )
        return _means(lambda trace: simulate_fleet(fleet, trace, pooled=True).requests, Loop.of(row, conditions))

    def _timed(self, row: SiliconRow, conditions: Conditions, times: HostTimes) -> WorkerPlan:
        """The row's worker with the host work and the front end of ``times``."""
        device, engine = self._device(row, conditions), conditions.engine
        launches = self._launches(row, conditions)
        seconds = with_host_times(device.costs.seconds, times, launches, overlap=engine.overlap)
        if conditions.draft_tokens:
            seconds = with_graphs_of_drafts(seconds, engine.name, conditions.draft_tokens)
        front = conditions.client.before(front_end_of(times))
        costs = replace(device.costs, seconds=seconds, joules=seconds, front_end=front)
        return replace(device, costs=costs)

    def _launches(self, row: SiliconRow, conditions: Conditions) -> Launches:
        """Kernels that the host of the row's engine launches."""
        priced, estimator = self.worker(row, conditions), ProfileEstimator(*self._profile_of(row))
        graphs = estimator.overhead(priced).graph_batches
        capability = priced.accelerator.compute_capability
        return launches_of(priced.model, row.parallelism, priced.weight_dtype, priced.engine, graphs, capability)

    def times_of(self, row: SiliconRow) -> HostTimes:
        """Host work of the row's engine in its version.

        Raises:
            NotPriced: the profile has no such engine.
        """
        if row.backend in self._engines:
            return self._engines[row.backend].of_version(host_version(row))
        name, profile = self._profile_of(row)
        if row.backend not in profile.engines:
            raise NotPriced(f"profile {name} has no overhead for engine {row.backend}")
        return profile.engines[row.backend].of_version(host_version(row))

    def _profile_of(self, row: SiliconRow) -> tuple[str, LatencyProfileSpec]:
        """The selected profile, else that of the row's engine and GPU, else the fallback."""
        name_of_row = f"{row.backend}-{SYSTEMS.get(row.system, '')}"
        name = self._profile or (name_of_row if name_of_row in self._shipped else FALLBACK_PROFILE)
        spec: LatencyProfileSpec = self._spec("LatencyProfile", name)
        return name, spec

    def worker(self, row: SiliconRow, conditions: Conditions | None = None) -> PricedWorker:
        """The simulated attention group of ``row``, with the limits of its steps under ``conditions``.

        Raises:
            NotPriced: with the reason.
        """
        row = as_it_ran(row)
        conditions = conditions or conditions_of(row)
        model, engine = self._model(row, conditions), conditions.engine
        return PricedWorker(
            model,
            self._accelerator(row),
            self._split(row, model),
            _weight_dtype(row, model),
            conditions.kv_dtype,
            engine,
            max_tokens=max(engine.chunk_tokens, engine.max_running_requests),
            max_sequences=engine.max_running_requests,
            max_context_tokens=engine.max_running_requests * (conditions.prompt_tokens(row) + row.output_tokens),
            hosts=self._hosts(row),
        )

    def _split(self, row: SiliconRow, model: ModelSpec) -> Parallelism:
        """The row's split as its engine has it, with TensorRT-LLM's choice of all-to-all for experts.

        If peer links join hosts (``MnnvlMemory.supports_mnnvl``) and experts lie on more ranks than a token uses, it
        sends each token to the ranks of its experts. Else it sends every token to all ranks (``fused_moe_wide_ep.py``,
        ``select_alltoall_method_type``).
        """
        split, host = row.parallelism.under(row.backend), self._accelerator(row).host
        if row.backend != "trtllm" or split.attention_data == 1 or model.moe is None or host is None:
            return split
        spec = self._spec("Host", host)
        chosen = spec.reach > spec.accelerators and split.expert > model.moe.experts_per_token
        return split._replace(all_to_all=chosen)

    def _hosts(self, row: SiliconRow) -> AcrossHosts | None:
        """Hosts of the row's workers, of the accelerator's usual kind, as many as their ranks need.

        Hosts joined by peer links count as one.
        """
        host = self._accelerator(row).host
        slots = self._spec("Host", host).reach if host is not None else row.parallelism.stage_ranks
        if row.parallelism.stage_ranks <= slots:
            return None
        link = self._spec("Fabric", disaggregated.FABRIC).link
        return AcrossHosts(slots, link.bandwidth_bytes_per_s, EXCHANGE_S)

    def _device(self, row: SiliconRow, conditions: Conditions) -> WorkerPlan:
        """The row's worker without host work, cached because rows differ in few settings."""
        dtype = _weight_dtype(row, self._model(row, conditions))
        name = self._profile_of(row)[0]
        engine = conditions.engine.model_dump_json()
        version = kernels_version(row)
        checkpoint = (row.model, _in_blocks(row), dtype)
        limits = (conditions.kv_dtype, conditions.state_dtype, engine, conditions.pool_tokens)
        longest = conditions.prompt_tokens(row) + row.output_tokens
        key = (name, version, checkpoint, row.system, row.parallelism, *limits, longest)
        if key not in self._plans:
            self._plans[key] = self._compile(row, conditions)
        return self._plans[key]

    def _compile(self, row: SiliconRow, conditions: Conditions) -> WorkerPlan:
        priced, (name, profile) = self.worker(row, conditions), self._profile_of(row)
        try:
            memory = plan_memory(
                priced.model,
                priced.accelerator,
                tensor_parallel=priced.split.tensor,
                weight_dtype=priced.weight_dtype,
                kv_dtype=priced.kv_dtype,
                engine=priced.engine,
                parallelism=priced.split,
            )
            device = _device_alone(profile, row.backend, kernels_version(row))
            estimator = build_estimator(name, device)
            costs = estimator.compile(priced)
            if conditions.draft_tokens:

                def price(*, model: ModelSpec, weight_dtype: DType) -> CompiledCosts:
                    return estimator.compile(replace(priced, model=model, weight_dtype=weight_dtype))

                costs = with_drafter(costs, priced.model, priced.loaded_dtype, priced.engine, price)
                multiprocessors = None if profile.laws is None else profile.laws.multiprocessors
                kept_s = kept_state_s(priced.model, priced.split, priced.accelerator, priced.engine, multiprocessors)
                costs = replace(costs, seconds=with_kept_states(costs.seconds, kept_s))
        except InvalidParallelism as error:
            raise NotPriced(f"split: {error}") from error
        except DoesNotFit as error:
            raise NotPriced("the model does not fit as we plan memory") from error
        # Energy is not needed; its tables would double the cache.
        costs = replace(costs, joules=costs.seconds)
        capacity_tokens = min(memory.kv_capacity_tokens, conditions.pool_tokens or memory.kv_capacity_tokens)
        wait_s, engine = kernel_compile_s(priced.model, priced.engine), priced.engine
        speculation = plan_speculation(engine, priced.model)
        if speculation is not None and engine.name == "sglang":
            # Drafts are simulated by the newest release's rules.
            engine = engine.model_copy(update={"version": ""})
        split = Parallelism(tensor=row.parallelism.group_ranks, attention_data=row.parallelism.attention_data)
        return WorkerPlan(
            engine, costs, memory, capacity_tokens, ignore_eos=True, split=split, speculation=speculation,
            kernel_compile_s=wait_s,
        )  # fmt: skip

    def _model(self, row: SiliconRow, conditions: Conditions) -> ModelSpec:
        name = self._models.get(plain_name(row.model))
        if name is None:
            raise NotPriced(f"model {row.model} is not in the catalogue")
        spec: ModelSpec = self._spec("Model", name)
        if spec.linear_attention is not None and conditions.state_dtype is not None:
            states = spec.linear_attention.model_copy(update={"state_dtype": conditions.state_dtype})
            spec = spec.model_copy(update={"linear_attention": states})
        return spec.model_copy(update={"weight_dtype": "fp8"}) if _in_blocks(row) else spec

    def _accelerator(self, row: SiliconRow) -> AcceleratorSpec:
        if row.system not in SYSTEMS:
            raise NotPriced(f"GPU {row.system} is not in the catalogue")
        spec: AcceleratorSpec = self._spec("Accelerator", SYSTEMS[row.system])
        return spec


def _means(serve: Callable[[CompiledTrace], RequestTable], loop: Loop) -> Price:
    """Mean times of the requests of ``loop``, which ``serve`` simulates."""
    try:
        table = serve(closed_loop(loop))
    except EngineOutOfMemory as error:
        raise NotPriced("the simulated engine runs out of KV memory") from error
    counted = table.finished
    if not counted.any():
        raise NotPriced("no request finishes in the simulated engine")
    longer = counted & (table.output_tokens > 1)
    tpot_s = float(table.tpot_s[longer].mean()) if longer.any() else 0.0
    return Price(float(table.ttft_s[counted].mean()), tpot_s)


def _device_alone(profile: LatencyProfileSpec, engine: str, version: str) -> LatencyProfileSpec:
    """``profile`` with no host work of ``engine``, and the kernels of its ``version``."""
    without = profile.engines[engine].with_times(HostTimes(step_s=0.0)).model_copy(update={"versions": {}})
    alone = {"engines": {engine: without}}
    laws = None if profile.laws is None else profile.laws.of_version(version)
    return profile.model_copy(update={**alone, "laws": laws})


def _in_blocks(row: SiliconRow) -> bool:
    """Whether the checkpoint was published in fp8, with a scale per block of 128 x 128, as one of its columns states.

    If both exist, the catalogue's model names the 16-bit checkpoint.
    """
    return "fp8_block" in (row.gemm_dtype, row.moe_dtype)


def _weight_dtype(row: SiliconRow, model: ModelSpec) -> DType:
    """Format of the weights; a model published in fp4 (MXFP4) runs in it for rows of fp4 or fp8."""
    if model.weight_dtype == "fp4":
        return "fp4"
    word = row.gemm_dtype
    if word not in WEIGHT_DTYPES:
        raise NotPriced(f"format {word} of weights is not known")
    return WEIGHT_DTYPES[word]
