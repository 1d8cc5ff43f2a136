"""The deployment that a study of several models recommends: pools of all models behind one router, simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hisearch.api.deployments.by_model import ModelShare
from hisearch.api.deployments.replay import Replay
from hisearch.api.studies.costs import pool_costs_of
from hisearch.export.context import document_text
from hisearch.score.evaluate import Score
from hisearch.search.select.fleet_front import Combination
from hisearch.simulate.plans.fleet_plan import plan_fleet
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.routing import ModelRoutersSpec
from hisearch.specs.documents.resolved import Hardware
from hisearch.specs.documents.stand_alone import stand_alone
from hisearch.specs.studies.slo import ModelSloSpec, SloSpec
from hisearch.traces.changes.merging import side_by_side
from hisearch.traces.compiler import scale_load

if TYPE_CHECKING:
    from hisearch.api.fleets.fleet_outcome import FleetOutcome
    from hisearch.api.studies.study_outcome import StudyOutcome
    from hisearch.search.model.trial import Trial


@dataclass(frozen=True)
class CombinedDeployment:
    """The recommended deployment, simulated on the traffic of all models.

    text: the deployment as a self-contained document. score: of all requests, each model against its own SLO.
    shares: of each model. warnings: of the simulation.
    """

    deployment: DeploymentSpec
    text: str
    score: Score
    shares: tuple[ModelShare, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values; see docs/cli.md."""
        return {
            "deployment": self.deployment.model_dump(mode="json"),
            "feasible": self.score.feasible,
            "metrics": self.score.metrics,
            "models": [share.to_dict(with_slo=True) for share in self.shares],
        }


def deployment_of_all(result: FleetOutcome, chosen: Combination) -> DeploymentSpec:
    """The pools of every model's deployment behind one router with a policy per model."""
    parts = list(zip(result.results.items(), chosen.trials, strict=True))
    pools: list[PoolSpec] = []
    for (name, outcome), trial in parts:
        pools += _pools(name, outcome.resolved.model.name, trial)
    first = parts[0][1].deployment
    disaggregated = next(
        (trial.deployment for _, trial in parts if trial.deployment.transfer.fabric is not None), first
    )
    return DeploymentSpec(
        model=parts[0][0][1].resolved.model.name,
        served_names={outcome.resolved.model.name: _aliases(result, name, outcome) for (name, outcome), _ in parts},
        pools=pools,
        routers={
            outcome.resolved.model.name: ModelRoutersSpec(
                router=trial.deployment.router, decode_router=trial.deployment.decode_router
            )
            for (_, outcome), trial in parts
        },
        admission=first.admission,
        transfer=disaggregated.transfer,
        retry=first.retry,
        profile=first.profile,
    )


def _aliases(result: FleetOutcome, name: str, outcome: StudyOutcome) -> list[str]:
    """Names that requests use for a model, other than its catalogue name and Hugging Face id."""
    known_names = (outcome.resolved.model.name, outcome.resolved.model.spec.huggingface_id)
    return [served_name for served_name in result.resolved.names_of(name) if served_name not in known_names]


def _pools(name: str, model: str, trial: Trial) -> list[PoolSpec]:
    """A model's pools under names that are unique across models."""
    alone = len(trial.deployment.pools) == 1
    return [
        pool.model_copy(update={"model": model, "name": name if alone else f"{name}-{pool.name}"})
        for pool in trial.deployment.pools
    ]


def simulate_combined(result: FleetOutcome, chosen: Combination) -> CombinedDeployment:
    """Simulate the combined deployment on the traffic of all models, with the same seed.

    Each model's requests get the results of its own study. Policies that draw random numbers or place workers on a
    ring differ: they draw other numbers.
    """
    deployment = deployment_of_all(result, chosen)
    parts = list(zip(result.results.values(), chosen.trials, strict=True))
    worlds = [outcome.simulation.world for outcome, _ in parts]
    names = [outcome.resolved.model.name for outcome, _ in parts]
    costs = [cost for outcome, trial in parts for cost in pool_costs_of(outcome, trial)]
    fabrics = [
        fabric for world in worlds for name, fabric in world.fabrics.items() if name == deployment.transfer.fabric
    ]
    fleet = plan_fleet(
        deployment,
        [outcome.simulation.plan(pool) for outcome, trial in parts for pool in trial.deployment.pools],
        models={name: world.model for name, world in zip(names, worlds, strict=True)},
        usd_per_hour=[cost.total / pool.replicas for cost, pool in zip(costs, deployment.pools, strict=True)],
        fabric=fabrics[0] if fabrics else None,
    )
    model_slos: dict[str, ModelSloSpec] = {name: world.slo for name, world in zip(names, worlds, strict=True)}
    first = worlds[0].slo
    slo = SloSpec.model_construct(
        terms=first.terms, max_rejected_fraction=first.max_rejected_fraction, models=model_slos
    )
    replay = Replay(deployment, fleet, costs, slo)
    trace = side_by_side([scale_load(world.trace, world.load) for world in worlds], names)
    simulated = replay.simulate(trace, seed=result.resolved.study.seed)
    shares = replay.shares(trace, simulated)
    score = replay.score(trace, simulated, shares)
    return CombinedDeployment(
        deployment, _text(result, deployment), score, tuple(shares), (*simulated.warnings, *score.warnings)
    )


def _text(result: FleetOutcome, deployment: DeploymentSpec) -> str:
    """The deployment as a document, with definitions of whatever does not ship."""
    studies = [outcome.resolved for outcome in result.results.values()]
    hardware = Hardware({}, {}, {})
    for study in studies:
        for section in ("accelerators", "hosts", "media", "fabrics", "devices"):
            getattr(hardware, section).update(getattr(study.hardware, section))
    models = {study.model.name: study.model for study in studies}
    spec = stand_alone(deployment, models[deployment.model], studies[0].profile, hardware, models)
    data = spec.model_dump(mode="json", exclude_none=True)
    return document_text("Deployment", result.resolved.name, f"Recommended for {result.resolved.name}", data)
