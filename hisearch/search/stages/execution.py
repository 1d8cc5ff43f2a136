"""Stage 1: accelerators, engines, parallelism, formats and batch limits, by step costs alone.

Every combination of the space is tested for memory, sized with ``hisearch.search.model.estimates``, and priced for the
trace's busiest window. A combination is dropped if another beats it in expected TTFT, capacity per dollar and dollars
per hour by more than the latency profile's stated error. At least one of every accelerator and engine is kept.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal, TypeVar

import numpy as np

from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.search.model.candidates import Candidate, Cluster
from hisearch.search.model.deployments import deployment_of, starting_memory_fraction
from hisearch.search.model.estimates import (
    Estimate,
    estimate,
    expected_hit_rate,
    least_class_tpot,
    least_class_ttft,
    least_tpot_s,
    least_ttft_s,
    lone_seconds,
    of_worker,
    tpot_bound_s,
    ttft_bound,
)
from hisearch.search.model.problem import Problem
from hisearch.search.stages.execution_report import ExecutionReport, Refusals, Shortfall
from hisearch.specs.base import DType, EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.machines.parallelism import degrees_of
from hisearch.specs.studies.search_space import ExecutionSpace

#: Smallest margin for the estimates' error, whatever the profile claims: estimates ignore queueing and bursts.
LEAST_MARGIN = 0.2

#: Owned hardware counts as this many dollars per hour in capacity per dollar.
LEAST_PRICE = 1e-6


#: Sizes and prices a worker: the question, the worker, KV tokens that it holds, its step costs.
Size = Callable[["Problem", PoolSpec, int, CompiledCosts], "Candidate"]

#: Chunk and batch-limit variants kept per accelerator, engine, parallelism and formats.
VARIANTS_KEPT = 2


#: What stage 1 sorts: workers, or sets of workers of several pools.
_Screened = TypeVar("_Screened", Candidate, Cluster)


def search_execution(problem: Problem, keep: int, advanced: Callable[[int], None] = lambda _: None) -> ExecutionReport:
    """Run stage 1.

    keep, advanced: as in ``stages.screening.screen``.
    """
    refusals = Refusals()
    sized: list[Candidate] = []
    combinations = 0
    for pools, contradicting in groups(problem):
        count = len(pools) + contradicting
        combinations += count
        refusals.count("engine limits contradict", contradicting)
        sized.extend(size_group(problem, pools, refusals))
        advanced(count)
    for candidate in sized:
        refusals.count(candidate.shortfall, 1 if candidate.shortfall else 0)
    hopeful = [candidate for candidate in sized if not candidate.shortfall]
    kept = select(hopeful, keep) if hopeful else sorted(sized, key=lambda c: (c.miss, c.usd_per_hour))[:keep]
    return ExecutionReport(combinations, dict(refusals.reasons), sized, kept, refusals.nearest_fit)


def alone_of(problem: Problem, pool: PoolSpec) -> DeploymentSpec:
    """A single worker, for pricing; neither its role nor its drafts matter for that."""
    engine = pool.engine.model_copy(update={"speculation": None})
    alone = pool.model_copy(update={"role": "unified", "engine": engine})
    return deployment_of(problem.model, problem.profile, alone, 1, RouterSpec())


def choices_of(pool: PoolSpec) -> dict[str, object]:
    """Stage 1's choices for a worker."""
    return {
        "accelerator": pool.accelerator,
        "engine": pool.engine.name,
        "ranks": pool.parallelism,
        "devices": pool.devices,
        "formats": (pool.weight_dtype, pool.kv_dtype),
        "speculation": pool.engine.speculation,
        "experts": pool.engine.experts,
        "limits": (pool.engine.chunk_tokens, pool.engine.max_running_requests, pool.engine.capacity_policy),
        "schedule": pool.engine.schedule,
        "window_pool": pool.engine.swa_full_tokens_ratio,
    }


def weight_dtypes(space: ExecutionSpace) -> list[DType | None]:
    """Formats of weights to try; None is the model's own."""
    return list(space.weight_dtypes) or [None]


def group_count(problem: Problem) -> int:
    """Number of combinations that ``search_execution`` checks."""
    space = problem.space.execution
    sizes = (space.accelerators, space.splits, weight_dtypes(space), space.kv_dtypes, space.devices)
    of_engines = (len(space.speculations(engine)) * len(problem.engine_settings(engine)) for engine in space.engines)
    return math.prod(len(size) for size in sizes) * sum(of_engines)


def groups(problem: Problem) -> Iterable[tuple[list[PoolSpec], int]]:
    """(variants of chunk and batch limit, number of variants that the engine refuses) for each other choice."""
    space = problem.space.execution
    variants = {
        engine: [_engine_variants(problem, engine, speculation) for speculation in space.speculations(engine)]
        for engine in space.engines
    }
    for accelerator, engine, split, weight_dtype, kv_dtype, devices in itertools.product(
        space.accelerators, space.engines, space.splits, weight_dtypes(space), space.kv_dtypes, space.devices
    ):
        for engines, contradicting in variants[engine]:
            pools, refused = [], contradicting
            for settings in engines:
                try:
                    pool = PoolSpec(
                        accelerator=accelerator,
                        engine=settings,
                        **degrees_of(split),
                        weight_dtype=weight_dtype,
                        kv_dtype=kv_dtype,
                        devices=devices,
                        agents=problem.tier_choices(engine).starting_agents,
                    )
                except ValueError:
                    refused += 1
                    continue
                pools.append(pool)
            yield pools, refused


def _engine_variants(
    problem: Problem, engine: EngineName, speculation: SpeculationSpec | None
) -> tuple[list[EngineSpec], int]:
    """An engine's variants of chunk and batch limit, and how many of them it refuses."""
    variants, refused = [], 0
    for limits in problem.engine_settings(engine):
        try:
            settings = EngineSpec(
                **limits,
                speculation=speculation,
                page_tokens=problem.page_tokens(engine),
                memory_fraction=starting_memory_fraction(problem.space.cache),
                eviction=problem.tier_choices(engine).starting_eviction,
            )
        except ValueError:
            refused += 1
            continue
        variants.append(settings)
    return variants, refused


def size_group(
    problem: Problem, pools: Sequence[PoolSpec], refusals: Refusals, size: Size | None = None
) -> list[Candidate]:
    """Size the variants of a group, which share their compiled step costs; ``size`` defaults to unified workers."""
    fitting: list[tuple[PoolSpec, int]] = []
    for pool in pools:
        if problem.max_replicas(pool) < 1:
            refusals.count("above max_accelerators")
            continue
        if problem.refuses is not None and (reason := problem.refuses(pool)):
            refusals.count(reason)
            continue
        try:
            tokens = problem.planner.requests_kv_tokens(pool, problem.demand.mean_context_tokens)
            problem.planner.usd_per_hour(alone_of(problem, pool))
        except ValueError as error:
            refusals.refused(error)
            continue
        with_tiers = _with_starting_tiers(problem, pool)
        if with_tiers is None:
            refusals.count("no cache tiers suit")
            continue
        fitting.append((with_tiers, tokens))
    if not fitting:
        return []
    largest_pool = max(
        (pool for pool, _ in fitting), key=lambda p: (p.engine.max_running_requests, p.engine.chunk_tokens)
    )
    # Step costs do not depend on the tiers, which need not suit the largest pool's memory.
    try:
        costs = problem.planner.costs(largest_pool.model_copy(update={"tiers": []}))
    except ValueError as error:
        # The profile cannot price it: a law of other workers, tables of other widths.
        for _ in fitting:
            refusals.refused(error)
        return []
    return [(size or _size)(problem, pool, tokens, costs) for pool, tokens in fitting]


def _with_starting_tiers(problem: Problem, pool: PoolSpec) -> PoolSpec | None:
    """A worker with the tiers of stages 1 and 2: the smallest of the space that suit it; None if none do.

    With drafted tokens tiers are simulated in prefill workers alone.
    """
    for choice in problem.tier_choices(pool.engine.name).smallest_first():
        if choice.tiers and pool.engine.speculation is not None and pool.role != "prefill":
            continue
        update = {"tiers": list(choice.tiers), "movement": choice.movement, "agents": choice.agents}
        with_tiers = pool.model_copy(update=update)
        if not choice.tiers or problem.planner.can_build(with_tiers):
            return with_tiers
    return None


def _size(problem: Problem, pool: PoolSpec, kv_tokens: int, costs: CompiledCosts) -> Candidate:
    """Size and price one worker."""
    margin = max(costs.relative_error, LEAST_MARGIN)
    expected = _expected(costs, pool, kv_tokens, problem, problem.max_replicas(pool))
    group = replicas_of_group(pool)
    together = deployment_of(problem.model, problem.profile, pool, group, RouterSpec())
    price = problem.planner.usd_per_hour(together) / group
    misses = _misses(problem, pool, kv_tokens, costs)
    lone = lone_seconds(costs, pool.attention_data_parallel)
    return priced(problem, pool, expected, margin, misses, price, least_ttft_of(problem, pool, lone))


def least_ttft_of(problem: Problem, pool: PoolSpec, lone: StepCosts) -> float:
    """TTFT that no worker can beat, as a share of its bound: of all requests, or of a class."""
    demand, slo = problem.demand, problem.slo
    of_all = least_ttft_s(lone, pool.engine, demand, slo) / ttft_bound(slo)[0]
    return max(of_all, least_class_ttft(lone, pool.engine, demand, slo))


def priced(
    problem: Problem,
    pool: PoolSpec,
    expected: Estimate,
    margin: float,
    misses: Mapping[Shortfall, float],
    usd: float,
    least_ttft: float = 0.0,
) -> Candidate:
    """A worker with the replicas for the busiest minute; a shortfall if it misses a bound beyond the margin.

    expected: estimate of one replica; margin: its relative error. misses: most favourable estimate of each bounded
    figure, as a share of its bound. usd: dollars per hour of one replica. least_ttft: TTFT at zero load, likewise.
    """
    most = problem.max_replicas(pool)
    replicas = replicas_needed(problem, expected.capacity_rps, most)
    reason, excess = _worst(misses, margin)
    certain = dict(misses)
    if Shortfall.TTFT in certain:
        certain[Shortfall.TTFT] = min(certain[Shortfall.TTFT], least_ttft)
    certain_reason, certain_excess = _worst(certain, margin)
    return Candidate(
        pool=pool,
        estimate=expected,
        replicas=replicas,
        max_replicas=most,
        usd_per_hour=usd * replicas,
        rps_per_usd=expected.capacity_rps / max(usd, LEAST_PRICE),
        margin=margin,
        shortfall=reason,
        miss=excess,
        ruled_out=certain_reason,
        ruled_out_by=certain_excess,
    )


def _worst(misses: Mapping[Shortfall, float], margin: float) -> tuple[Shortfall | Literal[""], float]:
    """(the figure that misses its bound by most beyond the margin, share of the bound); ("", 0.0) if none does."""
    reason = max(misses, key=lambda name: misses[name])
    excess = misses[reason] / (1 + margin) - 1
    return (reason, excess) if excess > 0 else ("", 0.0)


def _misses(problem: Problem, pool: PoolSpec, kv_tokens: int, costs: CompiledCosts) -> dict[Shortfall, float]:
    """The most favourable estimate of each bounded figure, as a share of its bound."""
    demand, slo, engine = problem.demand, problem.slo, pool.engine
    groups, lone = pool.attention_data_parallel, lone_seconds(costs, pool.attention_data_parallel)
    kindest = estimate(
        costs.seconds, engine, kv_tokens, demand, slo, demand.ideal_hit_rate, prompts=costs.prompt_seconds
    )
    best = of_worker(kindest, groups)
    single = engine.model_copy(update={"max_running_requests": 1})
    alone = estimate(lone, single, kv_tokens, demand, slo, demand.ideal_hit_rate)
    most_rps = max(problem.max_replicas(pool) - problem.replicas_down, 1) * best.capacity_rps
    return {
        Shortfall.TPOT: max(
            least_tpot_s(lone, demand) / tpot_bound_s(slo, demand), least_class_tpot(lone, demand, slo)
        ),
        Shortfall.TTFT: max(alone.ttft_s / ttft_bound(slo)[0], least_class_ttft(lone, engine, demand, slo)),
        Shortfall.LOAD: demand.least_rps / most_rps,
    }


def replicas_for(rps: float, capacity_rps: float, most: int) -> int:
    """Replicas with ``capacity_rps`` that the rate ``rps`` needs, between 1 and ``most``."""
    return min(max(math.ceil(rps / capacity_rps), 1), most)


def replicas_needed(problem: Problem, capacity_rps: float, most: int, share: float = 1.0) -> int:
    """Replicas for a share of the busiest minute with those away that may be, between 1 and ``most``."""
    serving = replicas_for(problem.demand.peak_rps * share, capacity_rps, most)
    return min(serving + problem.replicas_down, most)


def replicas_of_group(pool: PoolSpec) -> int:
    """Replicas that share accelerators: attention workers of one FFN; 1 if none do."""
    attention_ffn = pool.devices.attention_ffn if pool.devices is not None else None
    return attention_ffn.attention if attention_ffn is not None else 1


def _expected(costs: CompiledCosts, pool: PoolSpec, kv_tokens: int, problem: Problem, most: int) -> Estimate:
    """Estimate at the hit rate of as many workers as an estimate without hits needs."""
    demand, slo, groups = problem.demand, problem.slo, pool.attention_data_parallel

    def at(hit_rate: float) -> Estimate:
        of_group = estimate(costs.seconds, pool.engine, kv_tokens, demand, slo, hit_rate, prompts=costs.prompt_seconds)
        return of_worker(of_group, groups)

    workers = replicas_for(demand.peak_rps, at(0.0).capacity_rps, most)
    return at(expected_hit_rate(demand, pool, kv_tokens, workers))


def select(sized: Sequence[_Screened], keep: int) -> list[_Screened]:
    """The candidates for stage 2, best first.

    At most ``VARIANTS_KEPT`` of each group. First the cheapest of every accelerator and engine, whatever ``keep`` says.
    Then those that none beats by more than the margin, by Pareto rank and price, up to ``keep``.
    """
    import moocore

    if not sized:
        return []
    points = np.array([[c.estimate.ttft_s, -c.rps_per_usd, c.usd_per_hour] for c in sized])
    ranks = moocore.pareto_rank(points)
    order = sorted(range(len(sized)), key=lambda i: (int(ranks[i]), sized[i].usd_per_hour, -sized[i].rps_per_usd, i))
    by_price = sorted(range(len(sized)), key=lambda i: (sized[i].usd_per_hour, -sized[i].rps_per_usd, i))
    chosen: list[int] = []
    for name_of in (attrgetter("pool.accelerator"), attrgetter("pool.engine.name")):
        seen = {name_of(sized[i]) for i in chosen}
        for i in by_price:
            if name_of(sized[i]) not in seen:
                seen.add(name_of(sized[i]))
                chosen.append(i)
    variants = Counter(sized[i].group for i in chosen)
    for i in order:
        if len(chosen) >= keep:
            break
        if i in chosen or variants[sized[i].group] >= VARIANTS_KEPT or beaten(points, i, sized[i].margin):
            continue
        chosen.append(i)
        variants[sized[i].group] += 1
    return [sized[i] for i in chosen]


def beaten(points: np.ndarray, index: int, margin: float) -> bool:
    """True if another point, shape (3,) to be minimised, is better in everything by more than ``margin``."""
    slack = np.abs(points) * margin
    better = points + slack <= points[index]
    return bool(better.all(axis=1).any())
