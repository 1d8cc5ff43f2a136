"""Results, cost and score of each model behind one router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hisearch.hardware.prices import CostBreakdown, mean_cost
from hisearch.score.evaluate import Score, evaluate
from hisearch.score.terms import RejectionCheck, check_to_dict, of_model
from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.simulate.plans.models import models_of_requests, over_windows
from hisearch.simulate.results.parts import of_model as part_of_model
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.traces.compiled import CompiledTrace


@dataclass(frozen=True)
class ModelShare:
    """One model of a simulated deployment.

    Attributes:
        model: its name in the deployment. pools: names of the pools that serve it.
        result: of its requests and its pools, over the deployment's simulated time.
        cost: of its pools, on average where they autoscale.
        score: against the SLO of its requests.
    """

    model: str
    pools: tuple[str, ...]
    result: Result
    cost: CostBreakdown
    score: Score

    def outcomes(self) -> dict[str, int]:
        """Number of its requests by outcome."""
        counts = np.bincount(self.result.requests.outcome, minlength=len(Outcome))
        return {outcome.name.lower(): int(counts[outcome]) for outcome in Outcome}

    @property
    def arrived(self) -> int:
        """Number of its requests that had arrived when the simulation stopped."""
        return sum(check.arrived for check in self.score.slo if isinstance(check, RejectionCheck))

    def to_dict(self, *, with_slo: bool) -> dict[str, Any]:
        """As plain values; see docs/cli.md."""
        hidden = () if with_slo else ("goodput_rps", "attainment")
        slo = {"feasible": self.score.feasible, "terms": [check_to_dict(check) for check in self.score.slo]}
        return {
            "model": self.model,
            "pools": list(self.pools),
            "requests": self.outcomes(),
            "metrics": {name: value for name, value in self.score.metrics.items() if name not in hidden},
            "slo": slo if with_slo else None,
            "usd_per_hour": self.cost.total,
            "accelerators": self.cost.accelerators,
        }


def model_shares(
    deployment: DeploymentSpec,
    fleet: FleetPlan,
    costs: Sequence[CostBreakdown],
    slo: SloSpec,
    trace: CompiledTrace,
    result: Result,
) -> list[ModelShare]:
    """A share for each model that the deployment serves, in the order of its pools.

    Args:
        deployment: as it was written.
        fleet: the same, compiled.
        costs: of each pool with its initial replicas.
        slo: of the deployment's requests.
        trace: the replayed trace.
        result: of the simulation.
    """
    model_of_request, over_window = models_of_requests(fleet, trace).model, over_windows(fleet, trace)
    shares = []
    for number, model in enumerate(fleet.models):
        pool_indices = [p for p, pool in enumerate(deployment.pools) if deployment.model_ref(pool) == model.name]
        model_result = part_of_model(result, number)
        model_deployment = deployment.model_copy(update={"pools": [deployment.pools[p] for p in pool_indices]})
        cost = mean_cost([costs[p] for p in pool_indices], model_deployment, model_result.mean_workers)
        score = evaluate(
            model_result,
            slo.of(model.names),
            usd_per_hour=cost.total,
            accelerators=cost.accelerators,
            over_window=over_window[model_of_request == number],
        )
        shares.append(
            ModelShare(model.name, tuple(deployment.pools[p].name for p in pool_indices), model_result, cost, score)
        )
    return shares


def scored(
    deployment: DeploymentSpec,
    fleet: FleetPlan,
    costs: Sequence[CostBreakdown],
    slo: SloSpec,
    trace: CompiledTrace,
    result: Result,
    shares: Sequence[ModelShare] | None = None,
) -> Score:
    """A simulated deployment's score; arguments as of ``model_shares``, whose result may be passed as ``shares``.

    With several models each is scored against its own SLO. All of them have to be feasible, and a request counts as
    good by its own model's terms.
    """
    cost = mean_cost(costs, deployment, result.mean_workers)
    overall = evaluate(
        result,
        slo.of(fleet.models[0].names),
        usd_per_hour=cost.total,
        accelerators=cost.accelerators,
        over_window=over_windows(fleet, trace),
    )
    if len(fleet.models) == 1:
        return overall
    if shares is None:
        shares = model_shares(deployment, fleet, costs, slo, trace, result)
    arrived = sum(share.arrived for share in shares)
    good = sum(round(share.score.metrics["attainment"] * share.arrived) for share in shares)
    rates = {
        "goodput_rps": sum(share.score.metrics["goodput_rps"] for share in shares),
        "attainment": good / arrived if arrived else 0.0,
    }
    checks = tuple(of_model(check, share.model) for share in shares for check in share.score.slo)
    return replace(overall, metrics=overall.metrics | rates, slo=checks, feasible=all(check.holds for check in checks))
