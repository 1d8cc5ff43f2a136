"""Simulations for the report's details of the recommended deployment: other loads, other tier sizes, every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hisearch.api.deployments.replay import Replay
from hisearch.api.deployments.tiers import rows_of, series_of
from hisearch.api.studies.steadiness import too_short
from hisearch.report.data.closeup import (
    SHARES,
    CacheMark,
    ClassFigures,
    Closeup,
    IdealCache,
    LatencyCurve,
    LoadPoint,
    TierCurve,
    TierPoint,
    TierTimeline,
    TierUse,
    WorkerSeries,
    WorkerTimeline,
)
from hisearch.report.figures.tiers import tier_timeline, tier_uses
from hisearch.score.classes import ClassShare, shares_of_classes
from hisearch.score.fairness import ServiceDifference, largest_service_difference
from hisearch.score.stated import percentile_of, spoken_of, stated
from hisearch.search.model.demand import Rates, rates_of, scales_with_load
from hisearch.search.model.job import TRIAL_ERRORS
from hisearch.search.model.trial import Trial
from hisearch.specs.studies.slo import CLASSES

if TYPE_CHECKING:
    from hisearch.score.capacity import Capacity
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.evaluate.world import World
    from hisearch.search.records.progress import Progress
    from hisearch.simulate.plans.plan import WorkerPlan
    from hisearch.simulate.plans.tier_plan import TierPlan
    from hisearch.simulate.results.result import Result
    from hisearch.traces.compiled import CompiledTrace

_GIB = float(2**30)

#: Loads to simulate where the deployment's capacity is unknown.
LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)

#: Loads to simulate around the smallest load that misses the SLO, as shares of it; it, the largest that holds and 1 are
#: added, and none between these two is tried: the search's figure stays the one figure.
AROUND = (0.5, 0.75, 0.9, 1.1, 1.25, 1.6)

#: Sizes of a tier, as shares of the deployment's.
TIER_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)

#: Most intervals of the timeline, and most workers in it.
MOST_INTERVALS = 240
MOST_WORKERS = 64

#: Most priorities, and most tenants, that are told apart.
MOST_CLASSES = 12

#: Most tokens (prompts by the chunk, and outputs) for which every step is kept: 16 bytes each.
MOST_LOGGED = 40_000_000


@dataclass(frozen=True)
class Subject:
    """A deployment in its study's world. headroom: the search's; None where it tried no other load."""

    trial: Trial
    simulation: Simulation
    replay: Replay
    headroom: Capacity | None = None

    @property
    def world(self) -> World:
        """The world that it is simulated in."""
        return self.simulation.world

    @property
    def tiers(self) -> tuple[TierPlan, ...]:
        """Tiers below device memory whose size is varied: the first pool's, where it alone has any."""
        first, *others = self.replay.fleet.pools
        return () if any(pool.plan.tiers for pool in others) else first.plan.tiers

    def resized(self, index: int, share: float) -> WorkerPlan | None:
        """A worker with a tier of ``share`` times its size; None where engine or host refuses it."""
        pool = self.trial.deployment.pool
        tier = pool.tiers[index]
        tiers = [*pool.tiers[:index], tier.model_copy(update={"gib": tier.gib * share}), *pool.tiers[index + 1 :]]
        resized_pool = pool.model_copy(update={"tiers": tiers})
        return self.simulation.plan(resized_pool) if self.simulation.can_build(resized_pool) else None

    def at_load(self, load: float) -> LoadPoint:
        """The deployment at a load, judged as the search judges it: over the same span, by the same terms."""
        trial = self.trial
        own = load == 1.0
        seen = trial if own else self.simulation.evaluate_at(trial.deployment, load, to_the_end=True)
        return LoadPoint(load, seen.metrics["attainment"], seen.metrics["goodput_rps"], seen.slo)

    def simulate(self, *, plan: WorkerPlan | None = None, log: bool = False) -> Result:
        """Simulate it on the study's trace, at the study's load. plan: replaces the first pool's."""
        world = self.world
        return self.replay.simulate(world.trace, load=world.load, seed=world.seed, plan=plan, log=log)


def close_up(subject: Subject, workers: int, progress: Progress) -> Closeup:
    """Run all simulations behind the report's details of a deployment.

    Args:
        subject: the deployment.
        workers: threads.
        progress: notified of each simulation.
    """
    notes: list[str] = []
    open_loop = scales_with_load(subject.world.trace.arrays)
    loads = _loads(subject) if open_loop else []
    plans = {
        (index, share): plan
        for index in range(len(subject.tiers))
        for share in TIER_SHARES
        if share != 1.0 and (plan := subject.resized(index, share)) is not None
    }
    jobs: list[_Job] = [("the steps", partial(_over_time, subject))]
    jobs += [
        (f"tier {index + 1} at {share:g} of its size", partial(_observe, subject, plan))
        for (index, share), plan in plans.items()
    ]
    jobs += [(f"load {load:g}", partial(subject.at_load, load)) for load in loads]
    progress.started("closer look", len(jobs))
    seen = _run_all(jobs, workers, notes, progress)
    progress.finished()
    own, *at_sizes = [look if isinstance(look, _Observation) else None for look in seen[: 1 + len(plans)]]
    if own is None:
        return Closeup(subject.trial.number, (), (), None, (), None, tuple(notes))
    base, workers_over_time, tiers_over_time = own
    results = [look.result if look is not None else None for look in at_sizes]
    if not can_log(subject.world.trace):
        notes.append("the workers over time: the trace has too many tokens to keep every step")
    return Closeup(
        subject.trial.number,
        tuple(look for look in seen if isinstance(look, LoadPoint)),
        tuple(_latency_curves(base)),
        workers_over_time,
        tuple(_tier_curves(subject, base, dict(zip(plans, results, strict=True)))),
        _ideal(subject, base),
        tuple(notes),
        _tier_uses(subject, base),
        tiers_over_time,
        too_short(subject.simulation, subject.trial),
        _rates(base) if open_loop else None,
        *_classes(subject, base),
    )


class _Observation(NamedTuple):
    """A simulation, and time series from its log where it kept one. The log itself may be large, and is dropped."""

    result: Result
    workers: WorkerTimeline | None = None
    tiers: TierTimeline | None = None


_Job = tuple[str, Callable[[], _Observation | LoadPoint]]


def _observe(subject: Subject, plan: WorkerPlan) -> _Observation:
    return _Observation(subject.simulate(plan=plan))


def _over_time(subject: Subject) -> _Observation:
    """The deployment at its own load and sizes; with time series where its steps can be kept."""
    result = subject.simulate(log=can_log(subject.world.trace))
    if result.log is None:
        return _Observation(result)
    plans = [pool.plan for pool in subject.replay.fleet.pools]
    series = series_of(plans, result, _interval_s(result)) if subject.replay.plan.tiers else None
    tiers = None if series is None else tier_timeline(series)
    return _Observation(replace(result, log=None), _timeline(result), tiers)


def _run_all(
    jobs: Sequence[_Job], workers: int, notes: list[str], progress: Progress
) -> list[_Observation | LoadPoint | None]:
    """Results in order; None and a note where the engine itself would fail."""
    from joblib import Parallel, delayed

    def attempt(name: str, make: Callable[[], _Observation | LoadPoint]) -> tuple[_Observation | LoadPoint | None, str]:
        try:
            return make(), ""
        except TRIAL_ERRORS as error:
            return None, f"{name}: {error}"

    pool = Parallel(n_jobs=workers, backend="threading", return_as="generator")
    results: list[_Observation | LoadPoint | None] = []
    for result, note in pool(delayed(attempt)(name, make) for name, make in jobs):
        results.append(result)
        notes += [note] if note else []
        progress.advanced(1)
    return results


def _loads(subject: Subject) -> list[float]:
    known = subject.headroom
    if known is None or not math.isfinite(known.infeasible_load):
        return sorted({*LOADS, *([known.load] if known is not None else [])})
    low, high = known.load, known.infeasible_load
    around = {1.0, *(float(f"{share * high:.3g}") for share in AROUND)}
    return sorted({load for load in around if not low < load < high} | {low, high} - {0.0})


def _latency_curves(result: Result) -> list[LatencyCurve]:
    """TTFT, TTFO where requests think, TPOT, ITL and E2E of finished requests; empty ones are left out."""
    requests, finished = result.requests, result.requests.finished
    several = finished & (requests.output_tokens >= 2)
    ttfo_s = requests.ttfo_s[finished & (requests.thinking_tokens is not None)]
    values: dict[str, Any] = {
        "ttft": requests.ttft_s[finished],
        "ttfo": ttfo_s[~np.isnan(ttfo_s)],
        "tpot": requests.tpot_s[several],
        "e2e": requests.e2e_s[finished],
    }
    curves = [
        LatencyCurve(name, _short(np.quantile(seconds, SHARES)), len(seconds))
        for name, seconds in values.items()
        if len(seconds)
    ]
    gaps = int(result.gap_counts.sum())
    if gaps:
        curves.insert(-1, LatencyCurve("itl", _short([result.itl_s(share) for share in SHARES]), gaps))
    return curves


def _classes(subject: Subject, base: Result) -> tuple[tuple[ClassFigures, ...], ServiceDifference | None]:
    """Figures of each priority and each tenant where there are several, of those with the most requests; fairness."""
    everyone = np.ones(len(base.requests.outcome), np.bool_)
    slo, usd_per_hour = subject.replay.slo, subject.trial.metrics["usd_per_hour"]
    classes: list[ClassFigures] = []
    for by in CLASSES:
        shares = shares_of_classes(base, by, [(everyone, slo)], usd_per_hour)
        most = sorted(shares, key=lambda share: -share.arrived)[:MOST_CLASSES]
        if len(shares) > 1:
            classes += [_class_figures(by, share) for share in sorted(most, key=lambda share: share.number)]
    return tuple(classes), largest_service_difference(base)


def _class_figures(by: str, share: ClassShare) -> ClassFigures:
    ttft_s, tpot_s = (_short([share.latencies[name]])[0] for name in ("ttft_p95_s", "tpot_p95_s"))
    return ClassFigures(
        f"{by} {share.number}",
        share.arrived,
        None if math.isnan(ttft_s) else ttft_s,
        None if math.isnan(tpot_s) else tpot_s,
        share.attainment,
        share.goodput_rps,
        0.0 if math.isnan(share.usd_per_hour) else share.usd_per_hour,
    )


def _rates(result: Result) -> Rates | None:
    """Arrivals of every request that came."""
    arrivals_s = result.requests.arrival_s[np.isfinite(result.requests.arrival_s)]
    return rates_of(np.sort(arrivals_s)) if len(arrivals_s) else None


def can_log(trace: CompiledTrace) -> bool:
    """Whether every step of a trace's simulation can be kept in memory."""
    return int(trace.arrays.output_tokens.sum()) + 8 * len(trace) <= MOST_LOGGED


def _timeline(result: Result) -> WorkerTimeline:
    """Each worker's busy share, share of KV memory in use and waiting requests, by interval."""
    interval_s = _interval_s(result)
    from hisearch.simulate.results.series import regular_series

    frame = regular_series(result, interval_s)
    count, capacities = len(result.workers.steps), result.worker_kv_tokens
    rows = []
    for worker in range(min(count, MOST_WORKERS)):
        intervals = frame[frame["worker"] == worker].iloc[1:]
        rows.append(
            WorkerSeries(
                _short(intervals["busy_s"].to_numpy() / interval_s),
                _short(intervals["kv_tokens_used"].to_numpy() / capacities[worker]),
                tuple(int(value) for value in intervals["waiting"]),
            )
        )
    return WorkerTimeline(interval_s, tuple(rows), count - len(rows))


def _interval_s(result: Result) -> float:
    """Interval of the time series, seconds."""
    from hisearch.simulate.results.series import end_of_log_s

    return _round_interval(max(end_of_log_s(result), 1e-3) / MOST_INTERVALS)


def _round_interval(least_s: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below ``least_s``, seconds."""
    power = 10.0 ** math.floor(math.log10(least_s))
    return float(f"{next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= least_s):.3g}")


def _tier_curves(subject: Subject, base: Result, results: dict[tuple[int, float], Result | None]) -> list[TierCurve]:
    """A curve for each tier below HBM with more than one simulated size."""
    cost = subject.replay.cost
    percent = percentile_of(spoken_of("ttft", stated(term.label for term in subject.replay.slo.terms))[-1])
    curves = []
    for index, (tier, price) in enumerate(zip(subject.tiers, cost.tiers, strict=bool(subject.tiers))):
        by_share = {share: results.get((index, share)) for share in TIER_SHARES} | {1.0: base}
        points = [
            _tier_point(price.gib * price.stores * share, price.usd_per_hour * share, index, result, percent)
            for share, result in by_share.items()
            if result is not None
        ]
        if len(points) < 2:
            continue
        curves.append(
            TierCurve(
                f"{tier.medium}, per {tier.scope}",
                price.gib * price.stores,
                tuple(sorted(points, key=lambda point: point.gib)),
                base.makespan_s * len(base.workers.steps),
                cost.accelerator_usd_per_hour + cost.host_usd_per_hour,
                percent,
            )
        )
    return curves


def _tier_uses(subject: Subject, base: Result) -> tuple[TierUse, ...]:
    """Use of each tier; empty with HBM alone."""
    ranks = subject.trial.deployment.pool.parallelism.group_ranks
    return tier_uses(rows_of(subject.replay.plan, base, subject.replay.cost, ranks))


def _tier_point(gib: float, usd_per_hour: float, index: int, result: Result, percent: float) -> TierPoint:
    finished = result.requests.finished
    ttft_s = float(np.percentile(result.requests.ttft_s[finished], percent)) if finished.any() else math.inf
    tier_hit_rate = result.tier_hit_tokens[index + 1] / result.prompt_tokens if result.prompt_tokens else 0.0
    return TierPoint(gib, result.hit_rate, tier_hit_rate, ttft_s, float(result.workers.busy_s.sum()), usd_per_hour)


def _ideal(subject: Subject, base: Result) -> IdealCache | None:
    """The trace's LRU hit curve, with agents' adapters separate; None without prompt tokens."""
    from hisearch.simulate.arrays.agents import arrays_of
    from hisearch.traces.stats import curve_capacities, default_block_tokens, lru_hit_curve

    plan = subject.replay.plan
    trace = replace(subject.world.trace, arrays=arrays_of(subject.world.trace, [plan]))
    if not trace.prompt_tokens:
        return None
    block = default_block_tokens(trace)
    pools = subject.replay.fleet.pools
    held = sum(pool.plan.kv_capacity_tokens * pool.replicas for pool in pools if pool.role != "decode")
    marks = [CacheMark("HBM", held)]
    tiers = [tier for pool in pools for tier in pool.plan.tiers]
    for tier, price in zip(tiers, subject.replay.cost.tiers, strict=True):
        held += tier.capacity_tokens * price.stores
        marks.append(CacheMark(f"with {tier.medium}", held))
    capacities = sorted({*curve_capacities(trace, block_tokens=block), *(mark.tokens for mark in marks)})
    points = lru_hit_curve(trace, capacities, block_tokens=block, include_outputs=True)
    return IdealCache(
        tuple(point.capacity_tokens for point in points),
        _short([point.hit_rate for point in points]),
        plan.memory.kv_bytes_per_token_per_rank * subject.trial.deployment.pool.tensor_parallel,
        tuple(marks),
        base.hit_rate,
    )


def _short(values: Any) -> tuple[float, ...]:
    """Round to four significant digits, enough for a figure."""
    return tuple(float(f"{value:.4g}") for value in values)
