"""Restricts a search to exportable deployments: its space, its planner and its filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hisearch.api.studies.exporting import launch_of, reach_of, slots_of
from hisearch.export.engines.flags import ExportError
from hisearch.export.expressible import check_deployment, check_worker, narrowed
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.documents.resolved import ResolvedStudy
from hisearch.specs.errors import KeyedError
from hisearch.specs.studies.search_space import SearchSpaceSpec

if TYPE_CHECKING:
    from hisearch.latency.costs import CompiledCosts
    from hisearch.search.evaluate.simulation import Simulation


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

    def kv_capacity_tokens(self, pool: PoolSpec) -> int:
        """KV tokens that one worker holds; errors as of a simulation's."""
        return self._simulation.kv_capacity_tokens(pool)

    def can_build(self, pool: PoolSpec) -> bool:
        """True where the worker can be built and exported."""
        return self._simulation.can_build(pool) and not self.refuses(pool)

    def costs(self, pool: PoolSpec) -> CompiledCosts:
        """Step costs of one worker."""
        return self._simulation.costs(pool)

    def usd_per_hour(self, deployment: DeploymentSpec) -> float:
        """Dollars per hour of a deployment."""
        return self._simulation.usd_per_hour(deployment)


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
