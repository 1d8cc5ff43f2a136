"""Small random deployments of workers with attention groups and cache tiers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import strategies as st

from hisearch.latency.costs import LockstepCosts
from hisearch.latency.sharding import Parallelism
from hisearch.simulate import WorkerPlan
from hisearch.simulate.plans.tier_plan import TierPlan, TransferLaw
from tests.kernels.systems import LAW, System, offload_systems
from tests.kernels.test_lockstep_steps import GRAPHS, SHARED_S
from tests.kernels.tier_systems import FREE, OLDEST, TieredSystem, stores, tiered
from tests.reference.random_traces import DEFAULT_SHAPE, TraceShape


@dataclass(frozen=True)
class GroupedSystem(TieredSystem):
    """Workers of several attention groups.

    Attributes:
        groups: how many; 1: lockstep steps of a single DP rank, in which nothing is shared.
        memory: law of host memory itself, in each direction.
        tiers: whether there are any.
    """

    groups: int = 2
    memory: TransferLaw = FREE
    tiers: bool = True

    @property
    def plan(self) -> WorkerPlan:
        """One worker."""
        worker = super().plan
        if self.tiers:
            host = replace(worker.tiers[0], read=self.memory, write=self.memory)
            worker = replace(worker, tiers=(host, *worker.tiers[1:]))
        else:
            worker = replace(worker, tiers=(), movement=None)
        costs = replace(worker.costs, lockstep=LockstepCosts(LAW.token_s, SHARED_S * (self.groups > 1), GRAPHS))
        split = Parallelism(1, attention_data=self.groups)
        plan = replace(worker, costs=costs, split=split)
        return plan if self.groups > 1 else _OneScheduler(**vars(plan))


class _OneScheduler(WorkerPlan):
    """A worker whose steps are lockstep steps of one DP rank."""

    @property
    def scheduler_kind(self) -> Literal["alone", "lockstep", "pipe"]:
        """Steps end with those of all DP ranks."""
        return "lockstep"


@st.composite
def grouped(
    draw: st.DrawFn,
    storage: st.SearchStrategy[TierPlan | None] | None = None,
    *,
    most_workers: int = 1,
    open_loop: bool = True,
    shape: TraceShape = DEFAULT_SHAPE,
    versions: tuple[str, ...] = OLDEST,
) -> GroupedSystem:
    """Deployments of HiCache; ``storage``: behind host memory, by default nothing or a store of the worker's own."""
    behind = st.none() | stores() if storage is None else storage
    system = draw(tiered(behind, open_loop=open_loop, most_workers=most_workers, shape=shape, versions=versions))
    fields = {name: getattr(system, name) for name in TieredSystem.__dataclass_fields__ if name != "trace"}
    fields["engine"] = system.engine.model_copy(update={"receive_interval": 1})
    memory = draw(st.sampled_from([FREE, TransferLaw(0.0, 2e-6), TransferLaw(1e-5, 1e-3)]))
    return GroupedSystem(**fields, groups=draw(st.integers(2, 4)), memory=memory)


@dataclass(frozen=True)
class OffloadGroups(System):
    """One worker of several engines, each with host memory of its own."""

    groups: int = 2

    @property
    def plan(self) -> WorkerPlan:
        """The worker."""
        worker = super().plan
        costs = replace(worker.costs, lockstep=LockstepCosts(LAW.token_s, SHARED_S, GRAPHS))
        return replace(worker, costs=costs, split=Parallelism(1, attention_data=self.groups))


@st.composite
def offloading_groups(draw: st.DrawFn, *, follow_up: float = 0.0) -> OffloadGroups:
    """Deployments of vLLM with its offloading connector as before 0.23, in several engines that step together."""
    system = draw(offload_systems())
    fields = {name: getattr(system, name) for name in System.__dataclass_fields__ if name != "trace"}
    fields |= {"sharing": 1, "workers": 1, "rugged": False}
    fields["engine"] = system.engine.model_copy(update={"version": draw(st.sampled_from(["0.19.1", "0.22.0"]))})
    fields["shape"] = replace(system.shape, follow_up=follow_up, slack=1.0)
    return OffloadGroups(**fields, groups=draw(st.integers(2, 3)))
