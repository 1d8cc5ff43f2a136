"""A fake world without a simulator: a formula gives the speed of workers, so searches take milliseconds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import numpy as np

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.latency.step_cost import law_costs
from hisearch.score.terms import Check, RejectionCheck, TermCheck
from hisearch.search.model.demand import Demand
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.reuse import HitCurve
from hisearch.search.model.trial import Trial
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.studies.search_space import CacheSpace, ExecutionSpace, RoutingSpace, SearchSpaceSpec, TierSpace
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.studies.study import BudgetSpec

#: Requests per second of one accelerator, and its price.
SPEED = {"slow": 1.0, "fast": 4.0, "dear": 5.0}
PRICE = {"slow": 1.0, "fast": 3.0, "dear": 9.0}
TTFT_BOUND_S = 2.0
OBJECTIVES = ("ttft_p99", "goodput", "usd_per_hour")


def tier_gib(pool: PoolSpec) -> float:
    """GiB of all tiers of a worker."""
    return sum(tier.gib for tier in pool.tiers)


class FakePlanner:
    """``tiny`` accelerators hold nothing, the others 100,000 tokens per rank."""

    def can_build(self, pool: PoolSpec) -> bool:
        return True

    def requests_kv_tokens(self, pool: PoolSpec, context_tokens: float) -> int:
        if pool.accelerator == "tiny":
            raise DoesNotFit("the model does not fit: 3.00 GiB short on each rank", 3.0 * 2**30)
        return 100_000 * pool.tensor_parallel

    def costs(self, pool: PoolSpec) -> CompiledCosts:
        speed = SPEED[pool.accelerator] * pool.tensor_parallel**0.8
        seconds = law_costs(0.02 / speed, 4e-4 / speed, 1e-9)
        return CompiledCosts(seconds, law_costs(0.0, 0.0, 0.0), 70.0, "law", "assumed", 0.2)

    def usd_per_hour(self, deployment: DeploymentSpec) -> float:
        pool = deployment.pool
        memory = 0.001 * tier_gib(pool) * pool.replicas
        return PRICE[pool.accelerator] * pool.tensor_parallel * pool.replicas + memory


class FakeEvaluator:
    """TTFT of a queue: it grows with the load per worker and falls with cache. Counts its calls.

    fail: the engine that breaks. rejected: of 1,000 requests, by reason, whatever the deployment.
    """

    def __init__(
        self,
        demand_rps: float = 20.0,
        base_ttft_s: float = 0.2,
        fail: str = "",
        rejected: Mapping[str, int] | None = None,
    ) -> None:
        self.calls: Counter[str] = Counter()
        self._demand_rps, self._base_ttft_s, self._fail = demand_rps, base_ttft_s, fail
        self._rejection = RejectionCheck(0.0, 1000, rejected or {})
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> Evaluation:
        pool = job.deployment.pool
        with self._lock:
            self.calls[job.digest("")] += 1
        if pool.engine.name == self._fail:
            raise ValueError("this engine breaks")
        hit_rate = min(0.5, 0.1 + 0.001 * tier_gib(pool) + 0.2 * (pool.engine.memory_fraction - 0.85))
        if job.deployment.router.policy == "cache_aware":
            hit_rate += 0.1
        speed = SPEED[pool.accelerator] * pool.tensor_parallel**0.8 * pool.replicas / (1 - 0.5 * hit_rate)
        use = self._demand_rps * job.load / speed
        ttft_s = self._base_ttft_s / speed * pool.replicas / max(1 - use, 1e-3)
        tpot_s = 0.01 + 0.02 * min(use, 2.0)
        usd = FakePlanner().usd_per_hour(job.deployment)
        checks: tuple[Check, ...] = (TermCheck("ttft_p99", ttft_s, TTFT_BOUND_S), TermCheck("tpot_p99", tpot_s, 0.05))
        checks += (self._rejection,)
        good = 1.0 if use < 1 else 1 / use
        metrics = {
            "ttft_p99_s": ttft_s,
            "tpot_p99_s": tpot_s,
            "goodput_rps": self._demand_rps * job.load * good,
            "attainment": good,
            "hit_rate": hit_rate,
            "rejected_fraction": self._rejection.value,
            "usd_per_hour": usd,
        }
        return Evaluation(metrics, checks, all(check.holds for check in checks))


def linear_reuse(caches: int) -> HitCurve:
    """Of 1,000 prompt tokens 300 are hit by an unlimited cache; each of 1,000,000 is as likely to be the one."""
    return HitCurve(np.array([0.0, 1e6]), np.array([0.0, 300.0]), 1, 1000)


def make_problem(
    *,
    simulations: int = 200,
    requests: int = 9000,
    seconds: float = 1e6,
    accelerators: tuple[str, ...] = ("slow", "fast", "dear"),
) -> Problem:
    """A problem over the fake world."""
    lengths = np.full(requests, 1000, dtype=np.int64)
    demand = Demand(
        requests=requests,
        mean_rps=20.0,
        peak_rps=25.0,
        least_rps=10.0,
        scales_with_load=True,
        input_tokens=lengths,
        new_tokens=lengths - 300,
        output_tokens=np.full(requests, 100, dtype=np.int64),
        thinking_tokens=np.zeros(requests, dtype=np.int64),
        mean_context_tokens=1050.0,
        mean_reserved_tokens=1100.0,
        unique_tokens=1_000_000,
        reuse=linear_reuse,
        own_tokens=lengths - 400,
        priority=np.arange(requests, dtype=np.int32) % 2,
        tenant=np.zeros(requests, dtype=np.int32),
    )
    space = SearchSpaceSpec(
        execution=ExecutionSpace(
            accelerators=list(accelerators),
            engines=["sglang", "vllm"],
            tensor_parallel=[1, 2],
            chunk_tokens=[128, 2048],
            max_running_requests=[64, 256],
            max_replicas=64,
            max_accelerators=128,
        ),
        routing=RoutingSpace(balance_abs_threshold=[16], extra_replicas=[0, 1]),
        cache=CacheSpace(tiers=[TierSpace(media=["ddr5"], gib=[0.0, 64.0, 256.0])]),
    )
    slo = SloSpec(
        terms=[
            SloTerm(metric="ttft_s", percentile=99, at_most_s=TTFT_BOUND_S),
            SloTerm(metric="tpot_s", percentile=99, at_most_s=0.05),
        ]
    )
    budget = BudgetSpec(simulations=simulations, seconds=seconds)
    return Problem("toy-model", slo, space, OBJECTIVES, budget, 0, demand, FakePlanner())


def make_deployment(accelerator: str = "fast", replicas: int = 2, engine: str = "sglang") -> DeploymentSpec:
    """Some deployment of the fake world."""
    settings = EngineSpec.model_validate({"name": engine})
    pool = PoolSpec(accelerator=accelerator, engine=settings, replicas=replicas)
    return DeploymentSpec(model="toy-model", pools=[pool], router=RouterSpec())


def make_trial(
    number: int,
    ttft_s: float,
    goodput_rps: float,
    usd: float,
    *,
    feasible: bool = True,
    slice_fraction: float = 1.0,
    error: str = "",
    accelerator: str = "fast",
    engine: str = "sglang",
    replicas: int = 2,
    tpot_s: float | None = None,
    rejected: Mapping[str, int] | None = None,
    hit_rate: float = 0.1,
) -> Trial:
    """A trial with given objectives; its SLO has a term for TTFT, with ``tpot_s`` or ``rejected`` one for these too."""
    checks: tuple[Check, ...] = (TermCheck("ttft_p99", ttft_s, TTFT_BOUND_S),)
    if tpot_s is not None:
        checks += (TermCheck("tpot_p99", tpot_s, 0.05),)
    if rejected is not None:
        checks += (RejectionCheck(0.0, 1000, rejected),)
    metrics = {
        "ttft_p99_s": ttft_s,
        "tpot_p99_s": 0.03 if tpot_s is None else tpot_s,
        "goodput_rps": goodput_rps,
        "usd_per_hour": usd,
        "attainment": 0.9,
        "hit_rate": hit_rate,
        "rejected_fraction": 0.0,
    }
    return Trial(
        number=number,
        stage=2,
        deployment=make_deployment(accelerator, replicas, engine),
        parameters={"accelerator": accelerator},
        metrics={} if error else metrics,
        slo=() if error else checks,
        feasible=feasible and not error,
        error=error,
        slice_fraction=slice_fraction,
    )
