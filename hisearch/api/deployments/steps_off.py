"""What the stated error of step times may change: a deployment once more, with all steps as much slower, or faster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hisearch.api.deployments.simulated import SimulatedRun
from hisearch.score.terms import Check, check_to_dict
from hisearch.search.confidence.uncertainty import REGIMES, with_factors
from hisearch.simulate.engine import EngineOutOfMemory, EngineStuck, simulate_fleet


@dataclass(frozen=True)
class StepsOff:
    """The SLO with all steps off by the error that their profiles state.

    relative_error: the largest of the pools', as their profiles state it. slower: by so much slower, of a deployment
    that meets the SLO; else faster. feasible: whether the SLO is met then. slo: its terms; empty where the engine would
    come to a halt.
    """

    relative_error: float
    slower: bool
    feasible: bool
    slo: tuple[Check, ...]

    def to_dict(self) -> dict[str, Any]:
        """See docs/json.md."""
        return {
            "relative_error": self.relative_error,
            "slower": self.slower,
            "feasible": self.feasible,
            "terms": [check_to_dict(check) for check in self.slo],
        }


def with_steps_off(simulated: SimulatedRun) -> StepsOff | None:
    """Simulate it once more; None without an SLO, or where no profile states an error."""
    errors = [pool.plan.costs.relative_error for pool in simulated.fleet.pools]
    if simulated.feasible is None or not max(errors) > 0:
        return None
    slower, pools = simulated.feasible, []
    for pool, error in zip(simulated.fleet.pools, errors, strict=True):
        factor = 1.0 + error if slower else 1.0 / (1.0 + error)
        costs = with_factors(pool.plan.costs, dict.fromkeys(REGIMES, factor))
        pools.append(replace(pool, plan=replace(pool.plan, costs=costs)))
    fleet = replace(simulated.fleet, pools=tuple(pools))
    try:
        result = simulate_fleet(
            fleet, simulated.trace, seed=simulated.seed, horizon_s=simulated.horizon_s, load=simulated.load
        )
    except (EngineStuck, EngineOutOfMemory):
        return StepsOff(max(errors), slower, False, ())
    off = replace(simulated, fleet=fleet, result=result)
    return StepsOff(max(errors), slower, bool(off.feasible), tuple(off.score.slo))
