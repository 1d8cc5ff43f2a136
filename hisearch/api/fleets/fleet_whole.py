"""The deployment that a study of several models comes to: pools of all models behind one router, simulated together."""

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
class Whole:
    """What came of it.

    text: the deployment as a document that stands alone. score: of all requests, each model held to its own promise.
    shares: of each model. warnings: what to know of the simulation.
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
    """The pools of every model's deployment behind one router, which asks each model's own policy."""
    parts = list(zip(result.results.items(), chosen.trials, strict=True))
    pools: list[PoolSpec] = []
    for (name, own), trial in parts:
        pools += _pools(name, own.resolved.model.name, trial)
    first = parts[0][1].deployment
    disaggregated = next(
        (trial.deployment for _, trial in parts if trial.deployment.transfer.fabric is not None), first
    )
    return DeploymentSpec(
        model=parts[0][0][1].resolved.model.name,
        served_names={own.resolved.model.name: _asked(result, name, own) for (name, own), _ in parts},
        pools=pools,
        routers={
            own.resolved.model.name: ModelRoutersSpec(
                router=trial.deployment.router, decode_router=trial.deployment.decode_router
            )
            for (_, own), trial in parts
        },
        admission=first.admission,
        transfer=disaggregated.transfer,
        retry=first.retry,
        profile=first.profile,
    )


def _asked(result: FleetOutcome, name: str, own: StudyOutcome) -> list[str]:
    """Names by which requests ask for a model, beside what pools and its publisher call it."""
    known = (own.resolved.model.name, own.resolved.model.spec.huggingface_id)
    return [one for one in result.resolved.names_of(name) if one not in known]


def _pools(name: str, model: str, trial: Trial) -> list[PoolSpec]:
    """A model's pools under names that tell them from others'."""
    alone = len(trial.deployment.pools) == 1
    return [
        pool.model_copy(update={"model": model, "name": name if alone else f"{name}-{pool.name}"})
        for pool in trial.deployment.pools
    ]


def simulate_whole(result: FleetOutcome, chosen: Combination) -> Whole:
    """The whole on the traffic of all models, with the same seed.

    What each model's requests get is what its own study says, but for policies that draw random numbers or place
    workers on a ring: the draws are other ones.
    """
    deployment = deployment_of_all(result, chosen)
    parts = list(zip(result.results.values(), chosen.trials, strict=True))
    worlds = [own.simulation.world for own, _ in parts]
    names = [own.resolved.model.name for own, _ in parts]
    costs = [cost for own, trial in parts for cost in pool_costs_of(own, trial)]
    fabrics = [
        fabric for world in worlds for name, fabric in world.fabrics.items() if name == deployment.transfer.fabric
    ]
    fleet = plan_fleet(
        deployment,
        [own.simulation.plan(pool) for own, trial in parts for pool in trial.deployment.pools],
        models={name: world.model for name, world in zip(names, worlds, strict=True)},
        usd_per_hour=[cost.total / pool.replicas for cost, pool in zip(costs, deployment.pools, strict=True)],
        fabric=fabrics[0] if fabrics else None,
    )
    promises: dict[str, ModelSloSpec] = {name: world.slo for name, world in zip(names, worlds, strict=True)}
    first = worlds[0].slo
    slo = SloSpec.model_construct(terms=first.terms, max_rejected_fraction=first.max_rejected_fraction, models=promises)
    replay = Replay(deployment, fleet, costs, slo)
    trace = side_by_side([scale_load(world.trace, world.load) for world in worlds], names)
    simulated = replay.simulate(trace, seed=result.resolved.study.seed)
    shares = replay.shares(trace, simulated)
    score = replay.score(trace, simulated, shares)
    return Whole(deployment, _text(result, deployment), score, tuple(shares), (*simulated.warnings, *score.warnings))


def _text(result: FleetOutcome, deployment: DeploymentSpec) -> str:
    """The deployment as a document, with what does not ship among its definitions."""
    owns = [own.resolved for own in result.results.values()]
    hardware = Hardware({}, {}, {})
    for own in owns:
        for section in ("accelerators", "hosts", "media", "fabrics", "devices"):
            getattr(hardware, section).update(getattr(own.hardware, section))
    models = {own.model.name: own.model for own in owns}
    spec = stand_alone(deployment, models[deployment.model], owns[0].profile, hardware, models)
    data = spec.model_dump(mode="json", exclude_none=True)
    return document_text("Deployment", result.resolved.name, f"Recommended for {result.resolved.name}", data)
