"""What the stated errors of step times may change: a deployment once more, its steps slower or faster by as much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hisearch.api.deployments.simulated import SimulatedRun
from hisearch.latency.costs import CompiledCosts
from hisearch.score.terms import Check, check_to_dict
from hisearch.search.confidence.uncertainty import REGIMES, factors_of, normal_draws, with_factors
from hisearch.simulate.engine import EngineOutOfMemory, EngineStuck, simulate_fleet
from hisearch.specs.studies.study import ConfidenceSpec


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
    slower = simulated.feasible

    def factors(costs: CompiledCosts) -> dict[str, float]:
        factor = 1.0 + costs.relative_error if slower else 1.0 / (1.0 + costs.relative_error)
        return dict.fromkeys(REGIMES, factor)

    off = with_step_times(simulated, factors)
    if off is None:
        return StepsOff(max(errors), slower, False, ())
    return StepsOff(max(errors), slower, bool(off.feasible), tuple(off.score.slo))


def with_step_times(
    simulated: SimulatedRun, factors: Callable[[CompiledCosts], dict[str, float]]
) -> SimulatedRun | None:
    """Simulate it once more with ``factors`` on the steps of each pool, by regime; None where an engine would halt."""
    pools = [
        replace(pool, plan=replace(pool.plan, costs=with_factors(pool.plan.costs, factors(pool.plan.costs))))
        for pool in simulated.fleet.pools
    ]
    fleet = replace(simulated.fleet, pools=tuple(pools))
    try:
        result = simulate_fleet(
            fleet, simulated.trace, seed=simulated.seed, horizon_s=simulated.horizon_s, load=simulated.load
        )
    except (EngineStuck, EngineOutOfMemory):
        return None
    return replace(simulated, fleet=fleet, result=result)


def chance_to_hold(simulated: SimulatedRun, seed: int) -> float:
    """Share of draws of the step times, by the errors that profiles state, under which the SLO is met.

    As many draws, correlated as much, as a study makes that says nothing else. The traffic is as it was.
    """
    usual = ConfidenceSpec()
    drawn = [partial(factors_of, normal=z, correlation=usual.correlation) for z in normal_draws(usual.draws, seed)]
    runs = [with_step_times(simulated, factors) for factors in drawn]
    return sum(run is not None and bool(run.feasible) for run in runs) / len(runs)
