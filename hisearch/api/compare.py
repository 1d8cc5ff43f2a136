"""Two deployments on one workload, or two runs: ``hisearch.compare_deployments(…)``, ``hisearch.compare_runs(…)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hisearch.api.deployments.replay import Replay, moves_kv, with_instant_transfers
from hisearch.api.studies.closeup import can_log, kv_capacities
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
from hisearch.specs.wording import counted, listed

if TYPE_CHECKING:
    from hisearch.api.deployments.by_model import ModelShare
    from hisearch.api.studies.result import StudyResult
    from hisearch.base.dtypes import F8
    from hisearch.score.evaluate import Score
    from hisearch.search.model.trial import Trial
    from hisearch.simulate.results.result import Result
    from hisearch.specs.deployments.deployment import DeploymentSpec
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.traces.compiled import CompiledTrace

#: Figures that mean nothing without an SLO.
_SLO_FIGURES = ("goodput_rps", "attainment")


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
            the same for both sides.
        limit: keep the first requests only.
        catalogue: where names are looked up.

    Raises:
        SpecError, TraceError: with file, line and key.
        ValueError: ``seeds`` is below 1, or a deployment cannot be simulated.
    """
    from hisearch.api.deployments.workload import load_trace
    from hisearch.specs.documents.catalogue import Catalogue

    if seeds < 1:
        raise ValueError(f"seeds: expected at least 1, got {seeds}")
    names = catalogue or Catalogue()
    replays = tuple(_load(ref, names, slo) for ref in (a, b))
    seed_values = tuple(range(seed, seed + seeds))
    traces = [load_trace(trace, seed=number, limit=limit, catalogue=names) for number in seed_values]
    runs = [
        [_run(replay, compiled, number, load) for compiled, number in zip(traces, seed_values, strict=True)]
        for replay in replays
    ]
    fixed = len({compiled.digest for compiled in traces}) == 1
    notes = [_fixed_trace_note(runs)] if fixed and seeds > 1 else []
    changes = _changes(*(replay.deployment for replay in replays))
    first = traces[0]
    at_load = "" if load == 1.0 else f" at {load:g} times its load"
    return _compare(
        "deployments",
        replays,
        (str(a), str(b)),
        runs,
        [(first, seed_values[0], load)] * 2,
        has_slo=slo is not None,
        workload=f"{first.name}, {counted(len(first), 'request')}{at_load}",
        seeds=seed_values,
        question=(),
        changes=changes,
        fronts=None,
        notes=notes,
    )


def compare_runs(a: str | Path | StudyResult, b: str | Path | StudyResult) -> Comparison:
    """Compare two runs: their studies, what each recommends (or its nearest miss), and why performance differs.

    Args:
        a: a run folder, or what a run returned.
        b: the other one.

    Raises:
        FileNotFoundError, SpecError, ValueError: as of ``hisearch.load_run``; or a run has no deployment at all.
    """
    from hisearch.api.studies.costs import replay_of
    from hisearch.api.studies.stored_run import load_run

    results = [load_run(ref) if isinstance(ref, str | Path) else ref for ref in (a, b)]
    trials = [_highlighted(result) for result in results]
    replays = tuple(replay_of(result, trial) for result, trial in zip(results, trials, strict=True))
    worlds = [result.simulation.world for result in results]
    settings = [(world.trace, world.seed, world.load) for world in worlds]
    same = len({(world.trace.digest, world.seed, world.load) for world in worlds}) == 1
    runs = [[_run(replay, world.trace, world.seed, world.load)] for replay, world in zip(replays, worlds, strict=True)]
    question = changes_between(*(_question(result) for result in results))
    notes = [] if same else ["The runs saw different requests: differences are not of the deployments alone."]
    notes += [
        f"{result.run_dir} is live, or was killed: it is compared as it was when it ended, in {result.kept_in}."
        for result in results
        if result.kept_in is not None
    ]
    workloads = [f"{trace.name}, {counted(len(trace), 'request')}, load {load:g}" for trace, _, load in settings]
    return _compare(
        "runs",
        replays,
        tuple(str(result.run_dir) for result in results),
        runs,
        settings,
        has_slo=True,
        workload=workloads[0] if workloads[0] == workloads[1] else f"A: {workloads[0]}; B: {workloads[1]}",
        seeds=(worlds[0].seed,) if same else tuple(world.seed for world in worlds),
        question=question,
        changes=_changes(*(trial.deployment for trial in trials)),
        fronts=_fronts(results) if same else None,
        notes=notes,
        same_workload=same,
    )


def _load(ref: str | Path, catalogue: Catalogue, slo: str | Path | None) -> Replay:
    from hisearch.api.deployments.deployment import plan_deployment
    from hisearch.api.deployments.simulated import pool_costs
    from hisearch.api.deployments.slos import NO_SLO, slo_for
    from hisearch.specs.documents.resolve import load_deployment

    resolved = load_deployment(ref, (), catalogue)
    fleet = plan_deployment(resolved)
    slo_spec = slo_for(fleet.models, slo, catalogue)
    return Replay(resolved.deployment, fleet, pool_costs(resolved), slo_spec or NO_SLO)


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


@dataclass(frozen=True)
class _ScoredRun:
    """One simulation and its score. shares: of each model, where several are served."""

    result: Result
    score: Score
    shares: Sequence[ModelShare]


def _run(replay: Replay, trace: CompiledTrace, seed: int, load: float) -> _ScoredRun:
    result = replay.simulate(trace, seed=seed, load=load)
    shares = replay.shares(trace, result) if len(replay.fleet.models) > 1 else ()
    return _ScoredRun(result, replay.score(trace, result, shares or None), shares)


def _by_model(runs: Sequence[Sequence[_ScoredRun]], has_slo: bool) -> tuple[ModelFigures, ...]:
    """Figures of each model that both sides serve, where either side serves several."""
    scores = [[_scores_by_model(run) for run in side] for side in runs]
    if not any(run.shares for side in runs for run in side):
        return ()
    both = [model for model in scores[0][0] if model in scores[1][0]]
    return tuple(
        ModelFigures(model, _figures([[by_model[model] for by_model in side] for side in scores], has_slo))
        for model in both
    )


def _scores_by_model(run: _ScoredRun) -> dict[str, Score]:
    """Scores by model."""
    if run.shares:
        return {share.model: share.score for share in run.shares}
    return {run.result.pools[0].model: run.score}


def _figures(scores: Sequence[Sequence[Score]], has_slo: bool) -> tuple[Figure, ...]:
    """Figures of both sides, seed by seed, with the percentiles of their SLOs."""
    slo_metrics = stated(check.label for side in scores for check in side[0].slo) if has_slo else ()
    a, b = ([_shown(score.metrics, has_slo) for score in side] for side in scores)
    return compare_figures(a, b, slo_metrics)


def _fixed_trace_note(runs: Sequence[Sequence[_ScoredRun]]) -> str:
    varies = any(len({repr(run.score.metrics) for run in side}) > 1 for side in runs)
    varying = "only the routers' random choices vary" if varies else "nothing varies, and every interval is a point"
    return (
        f"The trace is a recording, the same for every seed: {varying}. No interval says what another day would bring."
    )


def _compare(
    kind: Any,
    replays: Sequence[Replay],
    sources: Sequence[str],
    runs: Sequence[Sequence[_ScoredRun]],
    settings: Sequence[tuple[CompiledTrace, int, float]],
    *,
    has_slo: bool,
    workload: str,
    seeds: tuple[int, ...],
    question: tuple[Change, ...],
    changes: tuple[Change, ...],
    fronts: Fronts | None,
    notes: Sequence[str],
    same_workload: bool = True,
) -> Comparison:
    """Score both sides and break down their mean times, on the first seed."""
    notes = [*notes, *_unlike_slos(replays), *_unlike_profiles(replays)]
    means = [_means_without_transfers(replay, *setting) for replay, setting in zip(replays, settings, strict=True)]
    times: tuple[TimeRow, ...] = ()
    parts: tuple[Part, ...] = ()
    if means[0] is None or means[1] is None:
        notes.append("The difference is not explained: the trace has too many tokens to keep every step.")
    else:
        (a_times, a_transfers_s), (b_times, b_transfers_s) = means[0], means[1]
        parts = explain(a_times, b_times, a_transfers_s, b_transfers_s)
        times = time_rows(a_times, b_times, a_transfers_s, b_transfers_s)
    sides = [
        _side(replay, source, side[0].score, has_slo)
        for replay, source, side in zip(replays, sources, runs, strict=True)
    ]
    return Comparison(
        kind=kind,
        a=sides[0],
        b=sides[1],
        workload=workload,
        same_workload=same_workload,
        seeds=seeds,
        question=question,
        changes=changes,
        figures=_figures([[run.score for run in side] for side in runs], has_slo),
        models=_by_model(runs, has_slo),
        times=times,
        parts=parts,
        drivers=_drivers(replays, [side[0].result for side in runs]),
        fronts=fronts,
        notes=tuple(notes),
    )


def _shown(metrics: Mapping[str, float], has_slo: bool) -> Mapping[str, float]:
    return metrics if has_slo else {key: value for key, value in metrics.items() if key not in _SLO_FIGURES}


def _unlike_slos(replays: Sequence[Replay]) -> list[str]:
    if replays[0].slo == replays[1].slo:
        return []
    return ["A and B have different SLOs: goodput and attainment are by each side's own SLO."]


def _unlike_profiles(replays: Sequence[Replay]) -> list[str]:
    """A warning where step times come from different profiles."""
    names = [replay.plan.costs.profile for replay in replays]
    if names[0] == names[1]:
        return []
    errors = [f"{replay.plan.costs.profile} ±{replay.plan.costs.relative_error * 100:g} %" for replay in replays]
    return [f"Step times of A and B come from different profiles ({listed(errors)}): part of the difference is theirs."]


def _side(replay: Replay, source: str, score: Score, has_slo: bool) -> Side:
    from hisearch.search.model.deployments import describe

    label = Path(source).name
    verdict = score.feasible if has_slo else None
    return Side(label, source, describe(replay.deployment), score.slo if has_slo else (), verdict)


def _means_without_transfers(
    replay: Replay, trace: CompiledTrace, seed: int, load: float
) -> tuple[MeanTimes, float] | None:
    """Mean times without transfers, and seconds that transfers add to their sum; None where no log can be kept."""
    if not can_log(trace):
        return None
    with_transfers = mean_times(replay.simulate(trace, seed=seed, load=load, log=True))
    if not moves_kv(replay.fleet):
        return with_transfers, 0.0
    instant = replace(replay, fleet=with_instant_transfers(replay.fleet))
    without_transfers = mean_times(instant.simulate(trace, seed=seed, load=load, log=True))
    return without_transfers, with_transfers.total_s - without_transfers.total_s


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


def _drivers(replays: Sequence[Replay], results: Sequence[Result]) -> tuple[Driver, ...]:
    """Metrics that explain the parts."""
    facts = [_facts(replay, result) for replay, result in zip(replays, results, strict=True)]
    return tuple(Driver(name, a, facts[1][name][0], unit) for name, (a, unit) in facts[0].items())


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
        "KV memory held, peak": (float((workers.peak_kv_tokens / kv_capacities(result)).max()), "%"),
        "tokens evicted from HBM": (float(workers.evicted_tokens.sum()), "tokens"),
        "moved between tiers": (moved_bytes / 1e9, "GB"),
        "KV handed over": (float(transferred), "tokens"),
        "busiest link": (busiest / result.makespan_s if result.makespan_s else 0.0, "%"),
        "busiest worker's share of requests": (float(workers.requests.max()) / max(len(requests.finished), 1), "%"),
    }


def _question(result: StudyResult) -> dict[str, Any]:
    """A run's study as plain values: its spec with all that it names."""
    resolved = result.resolved
    question: dict[str, Any] = resolved.study.model_dump(mode="json", exclude_none=True)
    question.pop("pins", None)
    trace = result.provenance["trace"]
    question["workload"] = {"name": trace["name"], "digest": trace["digest"][:16], "load": resolved.study.workload.load}
    question["model"] = resolved.model_name
    question["slo"] = resolved.slo.spec.model_dump(mode="json")
    question["space"] = resolved.space.spec.model_dump(mode="json")
    question["profile"] = resolved.profile.name
    return question


def _fronts(results: Sequence[StudyResult]) -> Fronts | None:
    """Points of each front that the other dominates; None where objectives or SLOs differ."""
    from hisearch.search.select.pareto import minimised

    objectives = [tuple(result.resolved.study.objectives) for result in results]
    slos = [result.resolved.slo.spec for result in results]
    feasible = [result.recommendation is not None for result in results]
    if objectives[0] != objectives[1] or slos[0] != slos[1] or not all(feasible):
        return None
    a, b = (minimised(result.front, objectives[0]) for result in results)
    return Fronts(len(a), len(b), _beaten(a, b), _beaten(b, a))


def _beaten(points: F8, others: F8) -> int:
    """Number of ``points`` (n, d) dominated by one of ``others`` (m, d), all minimised."""
    return sum(bool(((others <= point).all(axis=1) & (others < point).any(axis=1)).any()) for point in points)
