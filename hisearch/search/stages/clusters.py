"""Stage 1 for deployments of several pools: each side's capability by step costs, and matching sides.

Notation
    P        seconds of prefill that a mean request costs, net of cache hits
    D(b)     seconds of a decode step of b sequences at the trace's mean context
    O        mean output tokens per request

A prefill worker completes ``1 / P`` requests a second and must compute the prompt at the SLO's TTFT percentile in time.
A decode worker with b sequences completes ``b / (O * D(b))`` a second; TPOT, its KV memory and its batch limit bound b.
M of one and N of the other are balanced if both carry the trace's busiest minute.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.step_cost import decode_step_seconds
from hisearch.search.model.candidates import Candidate, Cluster
from hisearch.search.model.deployments import MIXED_NAMES, worker_key
from hisearch.search.model.estimates import (
    Estimate,
    expected_hit_rate,
    largest,
    least_class_tpot,
    least_class_ttft,
    least_tpot_s,
    lone_seconds,
    prefill_seconds,
    tpot_bound_s,
    ttft_bound,
    ttft_s,
)
from hisearch.search.model.problem import Problem
from hisearch.search.model.sizing import Counts
from hisearch.search.stages.execution import (
    LEAST_MARGIN,
    LEAST_PRICE,
    alone_of,
    beaten,
    groups,
    least_ttft_of,
    priced,
    replicas_for,
    replicas_needed,
    select,
    size_group,
)
from hisearch.search.stages.execution_report import ExecutionReport, Refusals, Shortfall
from hisearch.specs.deployments.cluster import RoleName
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.speculation import head_of
from hisearch.specs.studies.pool_space import SideSpace

#: Workers of one side, per engine and KV format, to pair with those of the other.
KEPT_OF_A_SIDE = 6

_ROLES: tuple[RoleName, RoleName] = ("prefill", "decode")


def side_problem(problem: Problem, side: SideSpace, *, tiers: bool) -> Problem:
    """The question for workers of one side, with its own lists in place of those of section execution.

    ``tiers``: whether they compute prompts, and may have cache tiers.
    """
    space = problem.space
    lists = side.lists() | {"pipeline_parallel": [1], "devices": [None], "decode_context_parallel": [1]}
    lists |= {} if tiers else {"prefill_context_parallel": [1]}
    execution = space.execution.model_copy(update=lists)
    cache = space.cache if tiers else space.cache.model_copy(update={"tiers": []})
    return replace(problem, space=space.model_copy(update={"execution": execution, "cache": cache}))


def role_problem(problem: Problem, role: RoleName) -> Problem:
    """The question for workers of a role."""
    disaggregated = problem.space.pools.disaggregated
    if disaggregated is None or role == "unified":
        return problem
    return side_problem(
        problem, disaggregated.prefill if role == "prefill" else disaggregated.decode, tiers=role == "prefill"
    )


def search_clusters(
    problem: Problem,
    unified: ExecutionReport | None,
    keep: int,
    advanced: Callable[[int], None] = lambda _: None,
) -> ExecutionReport:
    """Stage 1 for the shapes of several pools that the space allows.

    unified: stage 1's report on unified workers, the basis of mixes; None if not run. keep, advanced: as in ``screen``.
    """
    pools, refusals = problem.space.pools, Refusals()
    sides: list[Candidate] = []
    kept: list[Cluster] = []
    combinations = 0
    if pools.disaggregated is not None:
        by_role = [_side(problem, role, refusals, advanced) for role in _ROLES]
        combinations += sum(count for _, count in by_role)
        (prefills, _), (decodes, _) = by_role
        sides += [*prefills, *decodes]
        kept += _select_clusters(list(_disaggregated_pairs(problem, prefills, decodes)), keep)
    if pools.mixed is not None and unified is not None:
        pairs = list(_mixes(problem, unified.sized, pools.mixed.workers_of_each))
        combinations += len(pairs)
        kept += _select_clusters(pairs, keep)
    for candidate in sides:
        refusals.count(candidate.shortfall, 1 if candidate.shortfall else 0)
    return ExecutionReport(combinations, dict(refusals.reasons), [], kept, refusals.nearest_fit, sides)


def _select_clusters(clusters: Sequence[Cluster], keep: int) -> list[Cluster]:
    """Clusters to simulate, best first; if none is hopeful, the nearest ones."""
    hopeful = [cluster for cluster in clusters if not cluster.shortfall]
    return select(hopeful, keep) if hopeful else sorted(clusters, key=lambda c: (c.miss, c.usd_per_hour))[:keep]


def _side(
    problem: Problem, role: RoleName, refusals: Refusals, advanced: Callable[[int], None]
) -> tuple[list[Candidate], int]:
    """Sized workers of a role that can be built, and the number of combinations checked."""
    role_question = role_problem(problem, role)
    size = _size_prefill if role == "prefill" else _size_decode
    sized: list[Candidate] = []
    combinations = 0
    for pools, contradicting in groups(role_question):
        combinations += len(pools) + contradicting
        refusals.count("engine limits contradict", contradicting)
        named = [pool.model_copy(update={"name": role, "role": role}) for pool in pools]
        sized += size_group(role_question, named, refusals, size)
        advanced(len(pools) + contradicting)
    return sized, combinations


def _size_prefill(problem: Problem, pool: PoolSpec, kv_tokens: int, costs: CompiledCosts) -> Candidate:
    """Size a prefill worker by the TTFT bound and the rate of prompts."""
    demand, slo, engine = problem.demand, problem.slo, pool.engine
    margin, most = max(costs.relative_error, LEAST_MARGIN), problem.max_replicas(pool)
    groups, lone = pool.attention_data_parallel, lone_seconds(costs, pool.attention_data_parallel)

    def at(hit_rate: float) -> Estimate:
        mean = float(demand.input_tokens.mean())
        busy_s = prefill_seconds(
            costs.prompt_seconds, engine.chunk_tokens, round(mean * (1 - hit_rate)), round(mean * hit_rate)
        )
        first_s = ttft_s(lone, engine, demand, slo, hit_rate, 0)
        return Estimate(0, "prefill", 0.0, first_s, groups / max(busy_s, 1e-9), hit_rate)

    cold = at(0.0)
    workers = replicas_for(demand.peak_rps, cold.capacity_rps, most)
    expected = at(expected_hit_rate(demand, pool, kv_tokens, workers))
    kindest = at(demand.ideal_hit_rate)
    shortfalls = {
        Shortfall.TTFT: max(kindest.ttft_s / ttft_bound(slo)[0], least_class_ttft(lone, engine, demand, slo)),
        Shortfall.LOAD: demand.least_rps / (most * kindest.capacity_rps),
    }
    usd = problem.planner.usd_per_hour(alone_of(problem, pool))
    return priced(problem, pool, expected, margin, shortfalls, usd, least_ttft_of(problem, pool, lone))


def _size_decode(problem: Problem, pool: PoolSpec, kv_tokens: int, costs: CompiledCosts) -> Candidate:
    """Size a decode worker by the TPOT bound and its KV memory; the first token is the prefill worker's matter."""
    demand, slo, engine = problem.demand, problem.slo, pool.engine
    margin, most = max(costs.relative_error, LEAST_MARGIN), problem.max_replicas(pool)
    context, outputs = demand.mean_context_tokens, float(demand.output_tokens.mean())
    bound_s, lone = tpot_bound_s(slo, demand), lone_seconds(costs, pool.attention_data_parallel)
    transfer = problem.space.pools.disaggregated.transfer if problem.space.pools.disaggregated is not None else None
    kept = transfer.reserved_decode_tokens if transfer is not None and engine.name == "sglang" else 0
    kv_batch = max(int(kv_tokens / (context + kept)), 1)

    def step_s(batch: int) -> float:
        return decode_step_seconds(costs.seconds, batch, round(batch * context))

    limit = min(kv_batch, engine.max_running_requests)
    batch = largest(lambda b: step_s(b) <= bound_s, limit)
    running = max(batch, 1)
    bounded_by = "tpot" if batch < limit else ("kv" if kv_batch < engine.max_running_requests else "max_running")
    rate = pool.attention_data_parallel * running / (outputs * step_s(running))
    expected = Estimate(batch, bounded_by, step_s(running), 0.0, rate, 0.0)
    shortfalls = {
        Shortfall.TPOT: max(least_tpot_s(lone, demand) / bound_s, least_class_tpot(lone, demand, slo)),
        Shortfall.LOAD: demand.least_rps / (most * rate),
    }
    usd = problem.planner.usd_per_hour(alone_of(problem, pool))
    return priced(problem, pool, expected, margin, shortfalls, usd)


def _disaggregated_pairs(
    problem: Problem, prefills: Sequence[Candidate], decodes: Sequence[Candidate]
) -> Iterator[Cluster]:
    """Pairs of the best prefill and decode workers between which KV can be transferred."""
    kinds = dict.fromkeys(_transfer_key(side.pool) for side in (*prefills, *decodes))
    for kind in kinds:
        senders, receivers = (
            _best_of_side([side for side in sides if _transfer_key(side.pool) == kind]) for sides in (prefills, decodes)
        )
        for sender, receiver in itertools.product(senders, receivers):
            if within_limits(problem, (sender.pool, receiver.pool), (1, 1)):
                estimate = replace(
                    sender.estimate,
                    batch=receiver.estimate.batch,
                    limit=receiver.estimate.limit,
                    tpot_s=receiver.estimate.tpot_s,
                )
                yield _cluster("disaggregated", (sender, receiver), estimate)


def _transfer_key(pool: PoolSpec) -> tuple[object, ...]:
    """Settings that both sides of a KV transfer share, as KV is transferred unchanged, a drafting head's too."""
    return pool.engine.name, pool.kv_dtype, pool.engine.page_size, head_of(pool.engine.speculation)


def _best_of_side(sides: Sequence[Candidate]) -> list[Candidate]:
    """Workers that no other beats in both latency and capacity per dollar, cheapest capacity first, one of each group.

    Among equal ones of a group, the widest batch limit wins. A limit that suffices on average does not in a burst, and
    a waiting request holds its KV on the other side meanwhile.
    """
    hopeful = [side for side in sides if not side.shortfall] or sorted(sides, key=lambda side: side.miss)[:1]
    if not hopeful:
        return []
    points = np.array([[c.estimate.ttft_s + c.estimate.tpot_s, -c.rps_per_usd, c.usd_per_hour] for c in hopeful])
    order = sorted(
        range(len(hopeful)),
        key=lambda i: (
            -hopeful[i].rps_per_usd,
            hopeful[i].usd_per_hour,
            -hopeful[i].pool.engine.max_running_requests,
            i,
        ),
    )
    chosen: list[Candidate] = []
    for i in order:
        taken = sum(candidate.group == hopeful[i].group for candidate in chosen)
        if taken < 1 and not beaten(points, i, hopeful[i].margin):
            chosen.append(hopeful[i])
    return chosen[:KEPT_OF_A_SIDE]


def _mixes(problem: Problem, unified: Sequence[Candidate], of_each: int) -> Iterator[Cluster]:
    """Pairs of unequal workers of one engine: the best of each accelerator, with others and with its own."""
    hopeful = [candidate for candidate in unified if not candidate.shortfall]
    best: list[Candidate] = []
    for kind in dict.fromkeys((c.pool.accelerator, c.pool.engine.name) for c in hopeful):
        mine = [c for c in hopeful if (c.pool.accelerator, c.pool.engine.name) == kind]
        firsts: dict[object, Candidate] = {}
        for candidate in sorted(mine, key=lambda c: (-c.rps_per_usd, c.usd_per_hour)):
            firsts.setdefault(candidate.group, candidate)
        best += list(firsts.values())[:of_each]
    for left, right in itertools.combinations(best, 2):
        if left.pool.engine.name != right.pool.engine.name:
            continue
        ordered = sorted((left, right), key=lambda c: worker_key(c.pool))
        sides = tuple(_share(problem, side, name) for side, name in zip(ordered, MIXED_NAMES, strict=True))
        if within_limits(problem, tuple(side.pool for side in sides), (1, 1)):
            slower = max(sides, key=lambda side: side.estimate.ttft_s)
            estimate = replace(slower.estimate, tpot_s=max(side.estimate.tpot_s for side in sides))
            yield _cluster("mixed", sides, estimate)


def _share(problem: Problem, side: Candidate, name: str) -> Candidate:
    """A unified worker as one of two pools, each of which carries half of the load."""
    replicas = replicas_needed(problem, side.estimate.capacity_rps, side.max_replicas, 0.5)
    pool = side.pool.model_copy(update={"name": name})
    return replace(side, pool=pool, replicas=replicas, usd_per_hour=side.usd_per_hour / side.replicas * replicas)


def _cluster(shape: str, sides: tuple[Candidate, ...], estimate: Estimate) -> Cluster:
    usd = sum(side.usd_per_hour for side in sides)
    rates = [side.estimate.capacity_rps * side.replicas for side in sides]
    rate = min(rates) if shape == "disaggregated" else sum(rates)
    worst = max(sides, key=lambda side: side.miss)
    return Cluster(
        shape,
        sides,
        replace(estimate, capacity_rps=rate),
        usd,
        rate / max(usd, LEAST_PRICE),
        max(side.margin for side in sides),
        worst.shortfall,
        worst.miss,
    )


def within_limits(problem: Problem, pools: Sequence[PoolSpec], counts: Counts) -> bool:
    """True if ``counts`` workers of the pools are within the space's limits on workers and accelerators."""
    ranks = sum(pool.parallelism.ranks * count for pool, count in zip(pools, counts, strict=True))
    fits = all(
        count <= role_problem(problem, pool.role).max_replicas(pool) for pool, count in zip(pools, counts, strict=True)
    )
    return fits and ranks <= problem.max_accelerators
