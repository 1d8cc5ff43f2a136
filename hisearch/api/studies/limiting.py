"""What holds a deployment back: its tightest SLO term, and the resource that would widen it most.

The deployment is simulated again with a fifth less time for one kind of work, or a quarter more KV memory, at a time.
The resource whose change lowers the tightest term most is the one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hisearch.score.terms import TermCheck
from hisearch.search.confidence.uncertainty import with_factors
from hisearch.search.model.job import TRIAL_ERRORS

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.simulate.plans.plan import WorkerPlan

#: Times of one kind of work are multiplied by this, KV memory is divided by it.
RELIEF = 0.8

#: Smallest share by which the tightest term must fall for a resource to hold it back.
LEAST_EFFECT = 0.02

#: Resource -> regimes of steps (``search.confidence.uncertainty``) that take less time with more of it.
_FASTER: Mapping[str, tuple[str, ...]] = {"prefill compute": ("prefill",), "decode bandwidth": ("decode", "mixed")}


@dataclass(frozen=True)
class Limiting:
    """The tightest term of a deployment, and the resources that it depends on.

    check: the term. relieved_s: its value with a quarter more of each resource alone, by resource. resource: the one
    that lowers it most; "" if none does by ``LEAST_EFFECT``.
    """

    check: TermCheck
    relieved_s: Mapping[str, float]

    @property
    def resource(self) -> str:
        """See the class."""
        value_s = self.check.value_s
        if value_s is None or not math.isfinite(value_s) or not self.relieved_s:
            return ""
        best = min(self.relieved_s, key=lambda name: self.relieved_s[name])
        return best if self.relieved_s[best] <= value_s * (1.0 - LEAST_EFFECT) else ""


def limiting(result: StudyResult) -> Limiting | None:
    """What holds the recommended deployment back, or the nearest miss; by four simulations.

    None if nothing was simulated, or no latency term has a value.
    """
    trial = result.highlighted
    if trial is None:
        return None
    terms = [check for check in trial.slo if isinstance(check, TermCheck) and check.value_s is not None]
    if not terms:
        return None
    tightest = max(terms, key=lambda check: check.violation)
    replay, world = result.replay_of(trial), result.simulation.world
    relieved = {}
    for name, relieve in reliefs().items():
        try:
            plan = relieve(replay.plan)
            simulated = replay.simulate(world.trace, load=world.load, seed=world.seed, plan=plan)
        except TRIAL_ERRORS:  # the engine itself would fail
            continue
        checks = replay.score(world.trace, simulated).slo
        value_s = next(check.value_s for check in checks if isinstance(check, TermCheck) and _same(check, tightest))
        if value_s is not None:
            relieved[name] = value_s
    return Limiting(tightest, relieved)


def _same(check: TermCheck, other: TermCheck) -> bool:
    return (check.label, check.model) == (other.label, other.model)


def reliefs() -> dict[str, Callable[[WorkerPlan], WorkerPlan]]:
    """A change of a worker for each resource."""

    def faster(regimes: tuple[str, ...]) -> Callable[[WorkerPlan], WorkerPlan]:
        factors = dict.fromkeys(regimes, RELIEF)
        return lambda plan: replace(plan, costs=with_factors(plan.costs, factors))

    def faster_host(plan: WorkerPlan) -> WorkerPlan:
        """Steps wait for less host work, and requests pass the engine's server in less time."""
        costs = with_factors(plan.costs, {"host": RELIEF})
        return replace(plan, costs=replace(costs, front_end=costs.front_end.taking(RELIEF)))

    def roomier(plan: WorkerPlan) -> WorkerPlan:
        pages = int(plan.kv_capacity_tokens / RELIEF) // plan.engine.page_size
        return replace(plan, kv_capacity_tokens=pages * plan.engine.page_size)

    bound = {name: faster(regimes) for name, regimes in _FASTER.items()}
    return {**bound, "host speed": faster_host, "KV memory": roomier}
