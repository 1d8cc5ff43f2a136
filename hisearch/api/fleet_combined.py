"""The deployment that a study of several models recommends: pools of all models behind one router, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hisearch.api.deployments.replay import ModelShare, Replay, pool_prices
from hisearch.api.run_folder import write_text
from hisearch.api.studies.exporting import hosts_of
from hisearch.export.context import DEPLOYMENT, README, document_text
from hisearch.export.engines.launch import ExportError
from hisearch.export.rendering import render
from hisearch.score.evaluate import Score
from hisearch.search.model.deployments import describe, without_replicas
from hisearch.simulate.plans.fleet_plan import plan_fleet
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.routing import ModelRoutersSpec
from hisearch.specs.documents.resolved import Hardware
from hisearch.specs.documents.stand_alone import stand_alone
from hisearch.specs.studies.slo import ModelSloSpec, SloSpec
from hisearch.traces.changes.merging import side_by_side
from hisearch.traces.compiler import scale_load

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.search.model.trial import Trial
    from hisearch.specs.documents.resolve_fleet import ResolvedFleetStudy


@dataclass(frozen=True)
class CombinedDeployment:
    """The recommended deployment, simulated on the traffic of all models.

    deployment: all that is bought. replicas_down: of each pool, away in the simulation. text: the deployment as a
    self-contained document. score: of all requests, each model against its own SLO.
    shares: of each model. warnings: of the simulation.
    """

    deployment: DeploymentSpec
    text: str
    score: Score
    shares: tuple[ModelShare, ...]
    warnings: tuple[str, ...]
    replicas_down: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain values; see docs/json.md."""
        return {
            "deployment": self.deployment.model_dump(mode="json"),
            "feasible": self.score.feasible,
            "metrics": self.score.metrics,
            "models": [share.to_dict(with_slo=True) for share in self.shares],
        }


class ModelChoice(NamedTuple):
    """A model's name in the study of several, the result of its own study, and its chosen deployment."""

    name: str
    result: StudyResult
    trial: Trial

    @property
    def model(self) -> str:
        """Catalogue name of the model."""
        return self.result.resolved.model.name

    @property
    def pools(self) -> list[PoolSpec]:
        """Its pools under names that are unique across models."""
        pools = self.trial.deployment.pools
        names = [self.name if len(pools) == 1 else f"{self.name}-{pool.name}" for pool in pools]
        return [
            pool.model_copy(update={"model": self.model, "name": name}) for pool, name in zip(pools, names, strict=True)
        ]


def deployment_of_all(resolved: ResolvedFleetStudy, parts: Sequence[ModelChoice]) -> DeploymentSpec:
    """The pools of every model's deployment behind one router with a policy per model."""
    deployments = [part.trial.deployment for part in parts]
    first = deployments[0]
    disaggregated = next((spec for spec in deployments if spec.transfer.fabric is not None), first)
    served_names = {}
    for part in parts:  # those that requests use, other than catalogue name and Hugging Face id
        known_names = (part.model, part.result.resolved.model.spec.huggingface_id)
        served_names[part.model] = [name for name in resolved.names_of(part.name) if name not in known_names]
    return DeploymentSpec(
        model=parts[0].model,
        served_names=served_names,
        pools=[pool for part in parts for pool in part.pools],
        routers={
            part.model: ModelRoutersSpec(router=spec.router, decode_router=spec.decode_router)
            for part, spec in zip(parts, deployments, strict=True)
        },
        admission=first.admission,
        transfer=disaggregated.transfer,
        retry=first.retry,
        profile=first.profile,
    )


def simulate_combined(resolved: ResolvedFleetStudy, parts: Sequence[ModelChoice]) -> CombinedDeployment:
    """Simulate the combined deployment on the traffic of all models, with the same seed.

    Each model's requests get the results of its own study, without the replicas that it takes to be away. Policies that
    draw random numbers or place workers on a ring differ: they draw other numbers.
    """
    deployment = deployment_of_all(resolved, parts)
    worlds = {part.model: part.result.simulation.world for part in parts}
    prices = [price for part in parts for price in pool_prices(part.result.resolved.hardware, part.trial.deployment)]
    fabrics = [
        fabric
        for world in worlds.values()
        for name, fabric in world.fabrics.items()
        if name == deployment.transfer.fabric
    ]
    down = resolved.study.availability.replicas_down
    left = without_replicas(deployment, down)
    fleet = plan_fleet(
        left,
        [part.result.simulation.plan(pool) for part in parts for pool in part.trial.deployment.pools],
        models={name: world.model for name, world in worlds.items()},
        usd_per_hour=[price.initial.total / price.pool.replicas for price in prices],
        fabric=fabrics[0] if fabrics else None,
    )
    model_slos: dict[str, ModelSloSpec] = {name: world.slo for name, world in worlds.items()}
    first = parts[0].result.simulation.world.slo
    slo = SloSpec.model_construct(
        terms=first.terms, max_rejected_fraction=first.max_rejected_fraction, models=model_slos
    )
    replay = Replay(left, fleet, prices, slo)  # the price of all, for what is left
    trace = side_by_side([scale_load(world.trace, world.load) for world in worlds.values()], list(worlds))
    simulated = replay.simulate(trace, seed=resolved.study.seed)
    shares = replay.shares(trace, simulated)
    score = replay.score(trace, simulated, shares)
    warnings = (*simulated.warnings, *score.warnings)
    text = _text(resolved.name, deployment, parts)
    return CombinedDeployment(deployment, text, score, tuple(shares), warnings, down)


def export_combined(whole: CombinedDeployment, parts: Sequence[ModelChoice], folder: Path) -> None:
    """Write the combined deployment, launch scripts for each model's part, and which hosts are whose.

    Models share no hosts, as in the simulation: their hosts are numbered one after the other.
    """
    write_text(folder / DEPLOYMENT, whole.text)
    first_host, rows = 0, []
    for name, result, trial in parts:
        try:
            result.export_trial(trial, folder / name, first_host)
        except ExportError as error:
            write_text(folder / f"{name}.txt", f"This part was not exported: {error}\n")
            continue
        hosts = hosts_of(result.resolved, trial.deployment)
        rows.append((name, describe(trial.deployment), range(first_host, first_host + hosts)))
        first_host += hosts
    write_text(folder / README, render("several_models.md.j2", rows=rows, down=whole.replicas_down))


def _text(name: str, deployment: DeploymentSpec, parts: Sequence[ModelChoice]) -> str:
    """The deployment as a document, with definitions of whatever does not ship."""
    studies = [part.result.resolved for part in parts]
    hardware = Hardware({}, {}, {})
    for study in studies:
        for section in ("accelerators", "hosts", "media", "fabrics", "devices"):
            getattr(hardware, section).update(getattr(study.hardware, section))
    models = {study.model.name: study.model for study in studies}
    spec = stand_alone(deployment, models[deployment.model], studies[0].profile, hardware, models)
    data = spec.model_dump(mode="json", exclude_none=True)
    return document_text("Deployment", name, f"Recommended for {name}", data)
