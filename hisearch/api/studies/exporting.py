"""Exports a trial of a study: the deployment, its inputs, and the command that simulates it again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.export.benchmark import Benchmark
from hisearch.export.context import ExportContext, document_text
from hisearch.export.deployment import export_deployment
from hisearch.export.engines.flags import Launch, weights_notice
from hisearch.export.files import DEPLOYMENT, SLO, WORKLOAD
from hisearch.export.several import export_several
from hisearch.export.trial_status import Ground, TrialStatus, trial_status
from hisearch.export.wide import export_wide
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.resolved import ResolvedStudy, ships
from hisearch.specs.documents.stand_alone import stand_alone
from hisearch.specs.machines.hardware import HostSpec
from hisearch.traces.changes.replay import USUAL_REQUESTS, Replay
from hisearch.traces.changes.replay import replay_of as replay_of_trace
from hisearch.traces.changes.selection import head

if TYPE_CHECKING:
    from hisearch.api.studies.study_outcome import StudyOutcome
    from hisearch.search.model.trial import Trial

#: Accelerator slots of a host, where neither the pool nor its accelerator names a host.
USUAL_SLOTS = 8


def export_trial(result: StudyOutcome, trial: Trial, folder: Path) -> list[Path]:
    """Write a trial's deployment into ``folder``: launch scripts, manifests, benchmarks; see ``export_deployment``.

    Raises:
        ExportError: the deployment cannot be expressed as launch commands, or ``folder`` holds other files where these
            belong.
    """
    resolved, simulation = result.resolved, result.simulation
    launches = [launch_of(resolved, pool, simulation.kv_capacity_tokens(pool)) for pool in trial.deployment.pools]
    slots = [slots_of(resolved, pool) for pool in trial.deployment.pools]
    limit = len(simulation.slice(trial.slice_fraction)) if trial.slice_fraction < 1.0 else None
    replay, inputs = replay_of(resolved, trial.load, limit)
    deployment = stand_alone(trial.deployment, resolved.model, resolved.profile, resolved.hardware)
    # The stand-alone deployment names its own definitions: its pools are used.
    launches = [launch._replace(pool=pool) for launch, pool in zip(launches, deployment.pools, strict=True)]
    benchmark = None
    if not trial.error:
        benchmark = Benchmark(benchmark_of(result, trial), f"workload {simulation.slice(1.0).name}")
    notices = (weights_notice(launches), result.formats_of(trial))
    context = ExportContext(
        status_of(result, trial), replay, inputs, benchmark, tuple(text for text in notices if text)
    )
    if len(launches) > 1:
        return export_several(deployment, launches, folder, accelerators_per_host=slots, context=context)
    first = launches[0]
    if first.pool.parallelism.ranks > slots[0]:
        reach = reach_of(resolved, trial.deployment.pool)
        return export_wide(deployment, first, folder, accelerators_per_host=slots[0], reach=reach, context=context)
    return export_deployment(
        deployment,
        first.model,
        first.accelerator,
        first.kv_capacity_tokens,
        folder,
        accelerators_per_host=slots[0],
        context=context,
    )


def launch_of(resolved: ResolvedStudy, pool: PoolSpec, kv_capacity_tokens: int) -> Launch:
    """Launch parameters of a pool of a study's deployment; ``kv_capacity_tokens``: of one worker."""
    return Launch(pool, resolved.model.spec, resolved.accelerators[pool.accelerator].spec, kv_capacity_tokens)


def slots_of(resolved: ResolvedStudy, pool: PoolSpec) -> int:
    """Accelerator slots of a pool's hosts."""
    host = _host_of(resolved, pool)
    return host.accelerators if host is not None else USUAL_SLOTS


def reach_of(resolved: ResolvedStudy, pool: PoolSpec) -> int:
    """Number of accelerators joined by peer links of a pool's hosts."""
    host = _host_of(resolved, pool)
    return host.reach if host is not None else USUAL_SLOTS


def _host_of(resolved: ResolvedStudy, pool: PoolSpec) -> HostSpec | None:
    name = pool.host or resolved.accelerators[pool.accelerator].spec.host
    return resolved.hosts[name].spec if name is not None else None


def benchmark_of(result: StudyOutcome, trial: Trial, limit: int = USUAL_REQUESTS) -> Replay:
    """The first requests of the study's workload, at their arrival times in a simulation of the trial.

    Args:
        result: the study's.
        trial: whose deployment will be measured, at its own load.
        limit: most requests.

    Raises:
        ValueError: the deployment cannot be simulated.
    """
    trace = head(result.simulation.slice(1.0), limit)
    return replay_of_trace(
        trace, result.simulation.replay(trial.deployment, trace, trial.load).requests.arrival_s, limit
    )


def status_of(result: StudyOutcome, trial: Trial) -> TrialStatus:
    """The trial's status in its study, its predicted figures and their confidence."""
    from hisearch.api.runs.provenance import profile_note

    profile = profile_note(result.resolved, trial)
    ground = Ground(profile.name, profile.evidence, profile.relative_error)
    best = result.recommendation.trial if result.recommendation is not None else None
    return trial_status(trial, best, ground, result.confidence)


def replay_of(resolved: ResolvedStudy, load: float = 1.0, limit: int | None = None) -> tuple[str, dict[str, str]]:
    """The command that simulates an exported deployment as the study did, and the files that it reads.

    Args:
        resolved: the study.
        load: factor on the study's own load.
        limit: number of requests, for a trial on a slice of the trace; None for the whole trace.

    Returns:
        A shell command for the export folder; name -> text of workload and SLO where they do not ship.
    """
    study = resolved.study
    inputs: dict[str, str] = {}
    if isinstance(resolved.workload, Path):
        trace = str(resolved.workload)
    else:
        trace = _reference(resolved.workload, WORKLOAD, inputs)
    words: list[object] = ["hisearch", "simulate", DEPLOYMENT, "--trace", trace]
    words += [word for name in study.workload.models for word in ("--model", name)]
    words += ["--slo", _reference(resolved.slo, SLO, inputs)]
    workload = study.workload
    options = {"--load": workload.load * load, "--seed": study.seed, "--skip-bad": workload.skip_bad}
    usual = {"--load": 1.0, "--seed": 0, "--skip-bad": 0}
    words += [word for name, value in options.items() if value != usual[name] for word in (name, value)]
    if limit is not None or workload.limit is not None:
        words += ["--limit", limit if limit is not None else workload.limit]
    return shlex.join(str(word) for word in words), inputs


def _reference(document: Document[Any], file: str, inputs: dict[str, str]) -> str:
    """Name of a document that ships; otherwise of a file next to the deployment, which is added to ``inputs``."""
    if ships(document):
        return document.name
    spec = document.spec.model_dump(mode="json", exclude_none=True)
    inputs[file] = document_text(document.kind, document.name, document.description, spec)
    return file
