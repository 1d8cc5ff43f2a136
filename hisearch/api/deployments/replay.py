"""A compiled deployment, to be simulated repeatedly: on other seeds, at other loads, with another plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hisearch.hardware.prices import CostBreakdown, mean_cost
from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.slo import SloSpec

if TYPE_CHECKING:
    from hisearch.api.deployments.by_model import ModelShare
    from hisearch.score.evaluate import Score
    from hisearch.simulate.results.result import Result
    from hisearch.traces.compiled import CompiledTrace

#: An instant transfer.
_AT_ONCE = TransferLaw()


@dataclass(frozen=True)
class Replay:
    """A deployment with all inputs of its simulation and its score, except a trace.

    costs: of each pool with its initial replicas.
    """

    deployment: DeploymentSpec
    fleet: FleetPlan
    costs: Sequence[CostBreakdown]
    slo: SloSpec

    @property
    def cost(self) -> CostBreakdown:
        """Its cost with the initial replicas."""
        return mean_cost(self.costs, self.deployment, [pool.replicas for pool in self.deployment.pools])

    @property
    def plan(self) -> WorkerPlan:
        """A worker of the first pool."""
        return self.fleet.pools[0].plan

    def simulate(
        self,
        trace: CompiledTrace,
        *,
        load: float = 1.0,
        seed: int = 0,
        plan: WorkerPlan | None = None,
        log: bool = False,
    ) -> Result:
        """Simulate it; ``plan`` replaces the first pool's. Errors: see ``simulate.engine.simulate_fleet``."""
        from hisearch.simulate.engine import simulate_fleet

        fleet = self.fleet
        if plan is not None:
            first, *others = fleet.pools
            fleet = replace(fleet, pools=(replace(first, plan=plan), *others))
        return simulate_fleet(fleet, trace, seed=seed, load=load, log=log)

    def score(self, trace: CompiledTrace, result: Result, shares: Sequence[ModelShare] | None = None) -> Score:
        """The score of a simulation against the SLO; ``shares`` where already computed."""
        from hisearch.api.deployments.by_model import scored

        return scored(self.deployment, self.fleet, self.costs, self.slo, trace, result, shares)

    def shares(self, trace: CompiledTrace, result: Result) -> list[ModelShare]:
        """The share of each model."""
        from hisearch.api.deployments.by_model import model_shares

        return model_shares(self.deployment, self.fleet, self.costs, self.slo, trace, result)


def moves_kv(fleet: FleetPlan) -> bool:
    """Whether KV is transferred at all: between tiers, or from prefill to decode workers."""
    return any(pool.plan.tiers or pool.role == "decode" for pool in fleet.pools)


def with_instant_transfers(fleet: FleetPlan) -> FleetPlan:
    """The fleet with instant media, links and KV transfers: queueing and computing remain."""
    pools = tuple(replace(pool, plan=_instant_plan(pool.plan)) for pool in fleet.pools)
    transfer = replace(fleet.transfer, base_s=0.0, bytes_per_s=math.inf, forward_s=0.0)
    return replace(fleet, pools=pools, transfer=transfer)


def _instant_plan(plan: WorkerPlan) -> WorkerPlan:
    movement = None if plan.movement is None else _instant_links(plan.movement)
    return replace(plan, tiers=tuple(_instant(tier) for tier in plan.tiers), movement=movement)


def _instant(tier: TierPlan) -> TierPlan:
    return replace(tier, read=_AT_ONCE, write=_AT_ONCE, query_s=0.0)


def _instant_links(movement: MovementPlan) -> MovementPlan:
    return replace(
        movement,
        host_read=_AT_ONCE,
        host_write=_AT_ONCE,
        network_read=None if movement.network_read is None else _AT_ONCE,
        network_write=None if movement.network_write is None else _AT_ONCE,
    )
