"""What requests for each of several models behind one router got, and what it costs to serve them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hisearch.hardware.prices import CostBreakdown, mean_cost
from hisearch.score.evaluate import Score, evaluate
from hisearch.score.terms import check_to_dict
from hisearch.simulate.models import over_windows
from hisearch.simulate.parts import of_model
from hisearch.simulate.result import Outcome, Result

if TYPE_CHECKING:
    from hisearch.api.deployment import SimulatedDeployment


@dataclass(frozen=True)
class ModelShare:
    """One model of a simulated deployment.

    Attributes:
        model: as the deployment calls it. pools: names of those that serve it.
        result: of its requests and its pools, over the whole deployment's time.
        cost: of its pools, on average where workers come and go.
        score: against the SLO that the deployment is held against.
    """

    model: str
    pools: tuple[str, ...]
    result: Result
    cost: CostBreakdown
    score: Score

    def outcomes(self) -> dict[str, int]:
        """How many of its requests ended how."""
        counts = np.bincount(self.result.requests.outcome, minlength=len(Outcome))
        return {outcome.name.lower(): int(counts[outcome]) for outcome in Outcome}

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


def model_shares(simulated: SimulatedDeployment) -> list[ModelShare]:
    """A share for each model that the deployment serves, in the order of its pools."""
    from hisearch.api.deployment import NO_SLO, pool_costs

    spec, costs = simulated.resolved.deployment, pool_costs(simulated.resolved)
    shares = []
    for number, model in enumerate(simulated.fleet.models):
        mine = [p for p, pool in enumerate(spec.pools) if spec.model_ref(pool) == model.name]
        part = of_model(simulated.result, number)
        own = spec.model_copy(update={"pools": [spec.pools[p] for p in mine]})
        cost = mean_cost([costs[p] for p in mine], own, part.mean_workers)
        score = evaluate(
            part,
            simulated.slo or NO_SLO,
            usd_per_hour=cost.total,
            accelerators=cost.accelerators,
            over_window=over_windows(simulated.fleet, simulated.trace)[simulated.asked == number],
        )
        shares.append(ModelShare(model.name, tuple(spec.pools[p].name for p in mine), part, cost, score))
    return shares
