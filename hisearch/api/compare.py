"""Two deployments on one workload, or two runs: ``hisearch.compare_deployments(…)``, ``hisearch.compare_runs(…)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hisearch.api.deployments.replay import NO_SLO, ModelShare, Replay, pool_prices, slo_for, stated_metrics
from hisearch.api.fronts import compare_fronts, question_of
from hisearch.api.studies.closeup import can_log
from hisearch.report.data.comparison import (
    Change,
    Comparison,
    Driver,
    Figure,
    Fronts,
    MeanTimes,
    ModelFigures,
    Part,
    Side,
    TimeRow,
    changes_between,
    compare_figures,
    explain,
    time_rows,
)
from hisearch.score.stated import stated
from hisearch.score.steady_state import keeps_up
from hisearch.specs.wording import counted, listed
from hisearch.traces.changes.continuation import continuation_of, period_s

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.score.evaluate import Score
    from hisearch.search.model.trial import Trial
    from hisearch.simulate.results.result import Result
    from hisearch.specs.deployments.deployment import DeploymentSpec
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.traces.compiled import CompiledTrace


def compare_deployments(
    a: str | Path,
    b: str | Path,
    trace: str | Path,
    *,
    slo: str | Path | None = None,
    load: float = 1.0,
    seed: int = 0,
    seeds: int = 5,
    limit: int | None = None,
    catalogue: Catalogue | None = None,
) -> Comparison:
    """Simulate two deployments on the same requests, seed by seed.

    Args:
        a: a deployment, by name or path.
        b: the other one.
        trace: a workload's name or path, or a trace file.
        slo: the SLO for both, by name or path.
        load: factor on the arrival rate.
        seed: the first seed.
        seeds: number of seeds, from ``seed`` on. Each seed draws a generated workload and the routers' random stream,
            the same for both sides. Of a trace file the first seed has the trace as it is, further ones draw its
            sessions anew; figures are then of the first, intervals of the others' deviations from it.
        limit: keep the first requests only.
        catalogue: where names are looked up.

    Raises:
        SpecError, TraceError: with file, line and key.
        ValueError: ``seeds`` is below 1, or a deployment cannot be simulated.
    """
    from hisearch.api.deployments.workload import load_traces
    from hisearch.specs.documents.catalogue import Catalogue

    if seeds < 1:
        raise ValueError(f"seeds: expected at least 1, got {seeds}")
    names = catalogue or Catalogue()
    replays = [_load(ref, names, slo) for ref in (a, b)]
    seed_values = tuple(range(seed, seed + seeds))
    traces, draws = load_traces(trace, seed_values, limit=limit, catalogue=names)
    conditions = [_Conditions(*seeded, load) for seeded in zip(traces, seed_values, strict=True)]
    sides = [_Simulated(replay, str(ref), conditions) for replay, ref in zip(replays, (a, b), strict=True)]
    fixed = len({compiled.digest for compiled in traces}) == 1
    at_load = "" if load == 1.0 else f" at {load:g} times its load"
    return _compare(
        "deployments",
        sides,
        has_slo=slo is not None,
        workload=f"{traces[0].name}, {counted(len(traces[0]), 'request')}{at_load}",
        seeds=seed_values,
        draws=draws,
        notes=[_fixed_trace_note(sides)] if fixed and seeds > 1 else [],
    )


def compare_runs(a: str | Path | StudyResult, b: str | Path | StudyResult) -> Comparison:
    """Compare two runs: their studies, what each recommends (or its nearest miss), and why performance differs.

    Args:
        a: a run folder, or what a run returned.
        b: the other one.

    Raises:
        FileNotFoundError, SpecError, ValueError: as of ``hisearch.load_run``; or a run has no deployment at all.
    """
    from hisearch.api.studies.stored_run import load_run

    results = [load_run(ref) if isinstance(ref, str | Path) else ref for ref in (a, b)]
    trials = [_highlighted(result) for result in results]
    worlds = [result.simulation.world for result in results]
    sides = [
        _Simulated(
            result.replay_of(trial),
            str(result.run_dir),
            [_Conditions(world.trace, world.seed, world.load)],
            None if result.recommendation is None or result.confidence is None else result.confidence.chance,
        )
        for result, trial, world in zip(results, trials, worlds, strict=True)
    ]
    same = len({(world.trace.digest, world.seed, world.load) for world in worlds}) == 1
    notes = [] if same else ["The runs saw different requests: differences are not of the deployments alone."]
    notes += [
        f"{result.run_dir} is live, or was killed: it is compared as it was when it ended, in {result.kept_in}."
        for result in results
        if result.kept_in is not None
    ]
    notes += [f"{result.run_dir}: {note}" for result in results for note in result.drift]
    workloads = [f"{world.trace.name}, {counted(len(world.trace), 'request')}, load {world.load:g}" for world in worlds]
    return _compare(
        "runs",
        sides,
        has_slo=True,
        workload=workloads[0] if workloads[0] == workloads[1] else f"A: {workloads[0]}; B: {workloads[1]}",
        seeds=(worlds[0].seed,) if same else tuple(world.seed for world in worlds),
        notes=notes,
        question=changes_between(*(question_of(result) for result in results)),
        fronts=compare_fronts(results) if same else None,
        same_workload=same,
    )


def _load(ref: str | Path, catalogue: Catalogue, slo: str | Path | None) -> Replay:
    from hisearch.api.deployments.deployment import plan_deployment
    from hisearch.specs.documents.resolve import load_deployment

    resolved = load_deployment(ref, (), catalogue)
    fleet, spec = plan_deployment(resolved), resolved.deployment
    return Replay(spec, fleet, pool_prices(resolved.hardware, spec), slo_for(fleet.models, slo, catalogue) or NO_SLO)


def _changes(a: DeploymentSpec, b: DeploymentSpec) -> tuple[Change, ...]:
    """Differences between two deployments; a pool that only one has is listed by its non-default settings."""
    common = min(len(a.pools), len(b.pools))
    plain = [spec.model_dump(mode="json") for spec in (a, b)]
    for spec, data in zip((a, b), plain, strict=True):
        extra_pools = [pool.model_dump(mode="json", exclude_defaults=True) for pool in spec.pools[common:]]
        data["pools"] = [*data["pools"][:common], *extra_pools]
    return changes_between(*plain)


def _highlighted(result: StudyResult) -> Trial:
    if result.highlighted is None:
        raise ValueError(f"{result.run_dir}: no deployment was simulated on the whole trace, there is none to compare")
    return result.highlighted


class _Conditions(NamedTuple):
    """What a deployment is simulated under. load: factor on the arrival rate."""

    trace: CompiledTrace
    seed: int
    load: float


@dataclass(frozen=True)
class _ScoredRun:
    """One simulation and its score. shares: of each model, where several are served."""

    result: Result
    score: Score
    shares: Sequence[ModelShare]

    @property
    def by_model(self) -> dict[str, Score]:
        """Scores by model."""
        if self.shares:
            return {share.model: share.score for share in self.shares}
        return {self.result.pools[0].model: self.score}


@dataclass(frozen=True)
class _Simulated:
    """One side: a deployment, and a simulation under each of the conditions.

    source: what it was loaded from. chance: as of ``Side``.
    """

    replay: Replay
    source: str
    conditions: Sequence[_Conditions]
    chance: float | None = None

    @cached_property
    def runs(self) -> list[_ScoredRun]:
        """Its simulations."""
        return [self._run(*conditions) for conditions in self.conditions]

    def _run(self, trace: CompiledTrace, seed: int, load: float) -> _ScoredRun:
        result = self.replay.simulate(trace, seed=seed, load=load)
        shares = self.replay.shares(trace, result) if len(self.replay.fleet.models) > 1 else ()
        return _ScoredRun(result, self.replay.score(trace, result, shares or None), shares)

    @property
    def kept_up(self) -> bool:
        """Whether every run kept up with arrivals that do not wait for answers."""
        return all(
            continuation_of(given.trace) is not None
            and keeps_up(run.result.requests, period_s(given.trace) / given.load)
            for given, run in zip(self.conditions, self.runs, strict=True)
        )

    def to_side(self, has_slo: bool) -> Side:
        """Its description, with the verdict under the first conditions."""
        from hisearch.search.model.deployments import describe

        score, name = self.runs[0].score, Path(self.source).name
        slo, verdict = (score.slo, score.feasible) if has_slo else ((), None)
        return Side(name, self.source, describe(self.replay.deployment), slo, verdict, self.chance)

    def means_without_transfers(self) -> tuple[MeanTimes, float] | None:
        """Mean times without transfers, and seconds that transfers add to their sum; None where no log can be kept."""
        trace, seed, load = self.conditions[0]
        if not can_log(trace):
            return None
        with_transfers = mean_times(self.replay.simulate(trace, seed=seed, load=load, log=True))
        if not self.replay.moves_kv:
            return with_transfers, 0.0
        instant = self.replay.with_instant_transfers().simulate(trace, seed=seed, load=load, log=True)
        without_transfers = mean_times(instant)
        return without_transfers, with_transfers.total_s - without_transfers.total_s


def _by_model(sides: Sequence[_Simulated], has_slo: bool, kept_up: bool, recorded: bool) -> tuple[ModelFigures, ...]:
    """Figures of each model that both sides serve, where either side serves several."""
    if not any(run.shares for side in sides for run in side.runs):
        return ()
    a, b = ([run.by_model for run in side.runs] for side in sides)
    return tuple(
        ModelFigures(
            model, _figures([[scores[model] for scores in side] for side in (a, b)], has_slo, kept_up, recorded)
        )
        for model in a[0]
        if model in b[0]
    )


def _figures(scores: Sequence[Sequence[Score]], has_slo: bool, kept_up: bool, recorded: bool) -> tuple[Figure, ...]:
    """Figures of both sides, seed by seed, with the percentiles of their SLOs."""
    slo_metrics = stated(check.label for side in scores for check in side[0].slo) if has_slo else ()
    a, b = ([stated_metrics(score, with_slo=has_slo) for score in side] for side in scores)
    return compare_figures(a, b, slo_metrics, kept_up=kept_up, recorded=recorded)


def _fixed_trace_note(sides: Sequence[_Simulated]) -> str:
    varies = any(len({repr(run.score.metrics) for run in side.runs}) > 1 for side in sides)
    varying = "only the routers' random choices vary" if varies else "nothing varies, and no figure has an interval"
    return (
        f"Every seed has the same requests, which cannot be drawn anew: {varying}. No interval says what another day "
        "would bring."
    )


def _compare(
    kind: Literal["deployments", "runs"],
    sides: Sequence[_Simulated],
    *,
    has_slo: bool,
    workload: str,
    seeds: tuple[int, ...],
    notes: Sequence[str],
    draws: int = 0,
    question: tuple[Change, ...] = (),
    fronts: Fronts | None = None,
    same_workload: bool = True,
) -> Comparison:
    """Score both sides and break down their mean times, on the first seed."""
    replays = [side.replay for side in sides]
    notes = [*notes, *_unlike_slos(replays), *_unlike_profiles(replays)]
    means = [side.means_without_transfers() for side in sides]
    times: tuple[TimeRow, ...] = ()
    parts: tuple[Part, ...] = ()
    if means[0] is None or means[1] is None:
        notes.append("The difference is not explained: the trace has too many tokens to keep every step.")
    else:
        (a_times, a_transfers_s), (b_times, b_transfers_s) = means[0], means[1]
        parts = explain(a_times, b_times, a_transfers_s, b_transfers_s)
        times = time_rows(a_times, b_times, a_transfers_s, b_transfers_s)
    a, b = sides
    kept_up = all(side.kept_up for side in sides)
    if kept_up:
        notes.append(
            "Both sides kept up with the load, which decides their rates: throughput, and goodput at equal attainment, "
            "differ by how long the trace's last requests take."
        )
    return Comparison(
        kind=kind,
        a=a.to_side(has_slo),
        b=b.to_side(has_slo),
        workload=workload,
        same_workload=same_workload,
        seeds=seeds,
        draws=draws,
        question=question,
        changes=_changes(a.replay.deployment, b.replay.deployment),
        figures=_figures([[run.score for run in side.runs] for side in sides], has_slo, kept_up, draws > 0),
        models=_by_model(sides, has_slo, kept_up, draws > 0),
        times=times,
        parts=parts,
        drivers=_drivers(sides),
        fronts=fronts,
        notes=tuple(notes),
    )


def _unlike_slos(replays: Sequence[Replay]) -> list[str]:
    if replays[0].slo == replays[1].slo:
        return []
    return ["A and B have different SLOs: goodput and attainment are by each side's own SLO."]


def _unlike_profiles(replays: Sequence[Replay]) -> list[str]:
    """A warning where step times come from different profiles."""
    costs = [replay.plan.costs for replay in replays]
    if costs[0].profile == costs[1].profile:
        return []
    errors = [f"{cost.profile} ±{cost.relative_error * 100:g} %" for cost in costs]
    return [f"Step times of A and B come from different profiles ({listed(errors)}): part of the difference is theirs."]


def mean_times(result: Result) -> MeanTimes:
    """Means of a simulation's finished requests, from its log; their sum is the mean E2E.

    Raises:
        LogMissing: there is no log.
    """
    from hisearch.report.figures.phases import PHASES, request_phases
    from hisearch.simulate.results.residence import residences
    from hisearch.simulate.results.series import end_of_log_s

    finished = result.requests.finished
    count = max(int(finished.sum()), 1)
    phases = request_phases(result, residences(result), end_of_log_s(result)).of_requests(finished)
    seconds = np.bincount(phases.phase, weights=phases.end_s - phases.start_s, minlength=len(PHASES)) / count
    by_name = dict(zip(PHASES, (float(value) for value in seconds), strict=True))
    computed = float(result.workers.prefill_tokens.sum()) / count
    requests = result.requests
    outside_s = float((requests.e2e_s - requests.engine_e2e_s)[finished].sum()) / count
    return MeanTimes(
        by_name["queued"] + by_name["preempted"], by_name["prefill"], by_name["decode"], computed, outside_s
    )


def _drivers(sides: Sequence[_Simulated]) -> tuple[Driver, ...]:
    """Metrics that explain the parts."""
    a, b = (_facts(side.replay, side.runs[0].result) for side in sides)
    return tuple(Driver(name, value, b[name][0], unit) for name, (value, unit) in a.items())


def _facts(replay: Replay, result: Result) -> dict[str, tuple[float, str]]:
    workers, requests = result.workers, result.requests
    finished, steps = max(int(requests.finished.sum()), 1), max(int(workers.steps.sum()), 1)
    moved_bytes = sum(
        (store.stored_tokens + store.read_tokens) * result.pools[store.pool].tier_energy[store.tier - 1].bytes
        for store in result.stores
        if store.tier > 0
    )
    transferred = sum(use.tokens for use in result.kv_transfers) / 2
    used_s = [*(link.busy_s for link in result.links), *(use.busy_s for use in result.kv_transfers)]
    busiest = max(used_s, default=0.0)
    return {
        "prompt tokens computed per request": (float(workers.prefill_tokens.sum()) / finished, ""),
        "tokens per step": (float((workers.prefill_tokens + workers.decode_tokens).sum()) / steps, ""),
        "time per step": (float(workers.busy_s.sum()) / steps, "s"),
        "KV memory of a worker": (float(replay.plan.kv_capacity_tokens), "tokens"),
        "KV memory held, peak": (float((workers.peak_kv_tokens / result.worker_kv_tokens).max()), "%"),
        "tokens evicted from HBM": (float(workers.evicted_tokens.sum()), "tokens"),
        "moved between tiers": (moved_bytes / 1e9, "GB"),
        "KV handed over": (float(transferred), "tokens"),
        "busiest link": (busiest / result.makespan_s if result.makespan_s else 0.0, "%"),
        "busiest worker's share of requests": (float(workers.requests.max()) / max(len(requests.finished), 1), "%"),
    }
