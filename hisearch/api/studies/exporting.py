"""Exports a trial of a study: the deployment, its inputs, and the command that simulates it again.

Also restricts a search to exportable deployments: its space, its planner and its filter.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.export.context import DEPLOYMENT, SLO, WORKLOAD, Benchmark, ExportContext, document_text
from hisearch.export.deployment import export_deployment
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import release_notice
from hisearch.export.engines.weights import weights_notice
from hisearch.export.expressible import check_deployment, check_worker, narrowed
from hisearch.export.servers.placement import hosts_taken
from hisearch.search.model.deployments import without_replicas
from hisearch.simulate.agent_use import separate_bytes
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.resolved import ResolvedDeployment, ResolvedStudy, ships
from hisearch.specs.documents.stand_alone import stand_alone
from hisearch.specs.errors import KeyedError
from hisearch.specs.machines.hardware import HostSpec
from hisearch.specs.studies.search_space import SearchSpaceSpec
from hisearch.traces.changes.replay import USUAL_REQUESTS, mean_rate_rps
from hisearch.traces.changes.replay import replay_of as replay_of_trace
from hisearch.traces.changes.selection import head

if TYPE_CHECKING:
    from hisearch.export.trial_status import TrialStatus
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.model.trial import Trial

#: Requests that are simulated for each of a benchmark's. Assumed: among the first thousand to arrive is hardly one that
#: stands behind 32 times as many.
_SIMULATED_FOR_ONE = 32
#: Accelerator slots of a host, where neither the pool nor its accelerator names a host.
USUAL_SLOTS = 8


def export_trial(
    resolved: ResolvedStudy,
    simulation: Simulation,
    trial: Trial,
    folder: Path,
    status: TrialStatus,
    formats: str,
    first_host: int = 0,
) -> list[Path]:
    """Write a trial's deployment into ``folder``: launch scripts, manifests, benchmarks; see ``export_deployment``.

    Args:
        resolved: the study.
        simulation: the study's.
        trial: what is exported.
        folder: where to.
        status: the trial's in its study.
        formats: a note on its formats, or "".
        first_host: number of its first host.

    Raises:
        ExportError: the deployment cannot be expressed as launch commands, or ``folder`` holds other files where these
            belong.
    """
    launches = [
        launch_of(resolved, pool, simulation.kv_capacity_tokens(pool))._replace(
            objects_bytes=separate_bytes(simulation.plan(pool), simulation.world.trace) if pool.agents else 0.0
        )
        for pool in trial.deployment.pools
    ]
    slots = [slots_of(resolved, pool) for pool in trial.deployment.pools]
    limit = len(simulation.slice(trial.slice_fraction)) if trial.slice_fraction < 1.0 else None
    replay, inputs = replay_of(resolved, trial.deployment, trial.load, limit)
    deployment = stand_alone(trial.deployment, resolved.model, resolved.profile, resolved.hardware)
    # The stand-alone deployment names its own definitions: its pools are used.
    launches = [launch._replace(pool=pool) for launch, pool in zip(launches, deployment.pools, strict=True)]
    benchmark = None
    if not trial.error:
        benchmark = benchmark_of(simulation, trial)
    notices = tuple(text for text in (weights_notice(launches), release_notice(launches), formats) if text)
    context = ExportContext(status, replay, inputs, benchmark, notices, first_host)
    reaches = [reach_of(resolved, pool) for pool in trial.deployment.pools]
    return export_deployment(deployment, launches, folder, slots=slots, reaches=reaches, context=context)


def launch_of(resolved: ResolvedStudy, pool: PoolSpec, kv_capacity_tokens: int) -> Launch:
    """Launch parameters of a pool of a study's deployment; ``kv_capacity_tokens``: of one worker."""
    return Launch(pool, resolved.model.spec, resolved.accelerators[pool.accelerator].spec, kv_capacity_tokens)


def slots_of(resolved: ResolvedStudy | ResolvedDeployment, pool: PoolSpec) -> int:
    """Accelerator slots of a pool's hosts."""
    host = _host_of(resolved, pool)
    return host.accelerators if host is not None else USUAL_SLOTS


def hosts_of(resolved: ResolvedStudy, deployment: DeploymentSpec) -> int:
    """Number of hosts that an exported deployment takes.

    Raises:
        ExportError: a replica fits no host.
    """
    return sum(hosts_taken(pool, slots_of(resolved, pool), reach_of(resolved, pool)) for pool in deployment.pools)


def reach_of(resolved: ResolvedStudy | ResolvedDeployment, pool: PoolSpec) -> int:
    """Number of accelerators joined by peer links of a pool's hosts."""
    host = _host_of(resolved, pool)
    return host.reach if host is not None else USUAL_SLOTS


def _host_of(resolved: ResolvedStudy | ResolvedDeployment, pool: PoolSpec) -> HostSpec | None:
    name = pool.host or resolved.accelerators[pool.accelerator].spec.host
    return resolved.hosts[name].spec if name is not None else None


def benchmark_of(simulation: Simulation, trial: Trial, limit: int = USUAL_REQUESTS) -> Benchmark:
    """The first requests of the study's workload to arrive in a simulation of the trial, at their times in it.

    More requests are simulated than are taken: follow-ups among them come between first turns that are not.

    Args:
        simulation: the study's.
        trial: whose deployment will be measured, at its own load.
        limit: most requests.

    Raises:
        ValueError: the deployment cannot be simulated.
    """
    whole = simulation.slice(1.0)
    trace = head(whole, _SIMULATED_FOR_ONE * limit)
    arrival_s = simulation.replay(trial.deployment, trace, trial.load).requests.arrival_s
    replay = replay_of_trace(trace, arrival_s, limit)
    of = f"workload {whole.name}"
    part = of if trace is whole else f"the first {len(trace):,} requests of {of}"
    return Benchmark(replay, of, part, mean_rate_rps(arrival_s))


def replay_of(
    resolved: ResolvedStudy, deployment: DeploymentSpec, load: float = 1.0, limit: int | None = None
) -> tuple[str, dict[str, str]]:
    """The command that simulates an exported deployment as the study did, and the files that it reads.

    Args:
        resolved: the study.
        deployment: what is exported; simulated without the replicas that the study takes to be away.
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
    # Only loads above the study's own are simulated with a workload that is carried on.
    words += ["--as-it-is"] * (load <= 1.0 < workload.load * load)
    if limit is not None or workload.limit is not None:
        words += ["--limit", limit if limit is not None else workload.limit]
    if down := study.availability.replicas_down:
        left = without_replicas(deployment, down).pools
        words += [
            word for at, pool in enumerate(left) for word in ("--set", f"spec.pools.{at}.replicas={pool.replicas}")
        ]
    return shlex.join(str(word) for word in words), inputs


def _reference(document: Document[Any], file: str, inputs: dict[str, str]) -> str:
    """Name of a document that ships; otherwise of a file next to the deployment, which is added to ``inputs``."""
    if ships(document):
        return document.name
    spec = document.spec.model_dump(mode="json", exclude_none=True)
    inputs[file] = document_text(document.kind, document.name, document.description, spec)
    return file


def space_of(resolved: ResolvedStudy) -> SearchSpaceSpec:
    """The study's space; with ``exportable``, without policies that no exported router has.

    Raises:
        SpecError: nothing is left.
    """
    space = resolved.space.spec
    if not space.exportable:
        return space
    try:
        return narrowed(space)
    except KeyedError as error:
        raise resolved.space.error(("spec", *error.keypath), error.message) from None


class ExportablePlanner:
    """A planner that refuses workers that cannot be exported; see ``hisearch.search.model.problem.Planner``."""

    def __init__(self, resolved: ResolvedStudy, simulation: Simulation) -> None:
        self._resolved, self._simulation = resolved, simulation
        self.requests_kv_tokens = simulation.requests_kv_tokens
        self.costs = simulation.costs
        self.usd_per_hour = simulation.usd_per_hour

    def refuses(self, pool: PoolSpec) -> str:
        """Why a worker cannot be exported; "" where it can, or does not fit."""
        try:
            launch = launch_of(self._resolved, pool, self._simulation.kv_capacity_tokens(pool))
            check_worker(launch, slots_of(self._resolved, pool), reach_of(self._resolved, pool))
        except ExportError as error:
            return f"cannot be exported ({error})"
        except ValueError:
            return ""
        return ""

    def can_build(self, pool: PoolSpec) -> bool:
        """True where the worker can be built and exported."""
        return self._simulation.can_build(pool) and not self.refuses(pool)


def acceptor(resolved: ResolvedStudy, simulation: Simulation) -> Callable[[DeploymentSpec], bool] | None:
    """A filter of the deployments that may be simulated; None where all may."""
    if not resolved.space.spec.exportable:
        return None

    def accepts(deployment: DeploymentSpec) -> bool:
        pools = deployment.pools
        try:
            launches = [launch_of(resolved, pool, simulation.kv_capacity_tokens(pool)) for pool in pools]
            slots, reaches = ([of(resolved, pool) for pool in pools] for of in (slots_of, reach_of))
            check_deployment(deployment, launches, slots, reaches)
        except ExportError:
            return False
        return True

    return accepts
