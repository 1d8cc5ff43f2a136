"""What is simulated: pools of workers behind routers, and when a run ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hisearch.latency.step_cost import step_seconds
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.deployments.routing import AdmissionSpec, RouterSpec

RoleName = Literal["unified", "prefill", "decode"]
IncidentName = Literal["up", "drain", "down", "host_lost"]
MetricName = Literal["requests_in_flight", "wait_s"]


@dataclass(frozen=True)
class GiveUp:
    """When a run is no longer worth finishing: once more than ``requests`` have waited over ``ttft_s`` for a token."""

    ttft_s: float = math.inf
    requests: int = 2**62


NEVER = GiveUp()


@dataclass(frozen=True)
class Incident:
    """Something that befalls a worker at ``at_s``: it comes up, its caches cold; takes no more requests; dies.

    host_lost: its host, whose workers have died, loses what they shared.

    A worker that comes up again after it had gone is another one of its pool's ``slots``.
    """

    at_s: float
    pool: int
    worker: int
    kind: IncidentName


@dataclass(frozen=True)
class ScalerPlan:
    """An autoscaler: every ``period_s`` it brings a pool to ``target`` of ``metric`` for each worker.

    It starts workers at once, which take requests ``startup_s`` later, and drains the newest where they have been too
    many for ``calm_s``. least, most: workers.
    """

    metric: MetricName
    target: float
    least: int
    most: int
    period_s: float = 15.0
    startup_s: float = 120.0
    calm_s: float = 300.0


@dataclass(frozen=True)
class ServedModel:
    """A model that requests ask for. name: how results call it; aliases: other names by which requests may."""

    name: str = ""
    aliases: tuple[str, ...] = ()

    def goes_by(self, name: str) -> bool:
        """Whether requests that name ``name`` mean it."""
        return name in self.names

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which requests may ask for it."""
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class PoolPlan:
    """Identical workers.

    plan: one of them, compiled. replicas: how many there are when the run begins. spare: that may come up later,
    behind them. scaler: who decides about them, beside incidents. name: how messages call the pool. usd_per_hour: of
    one worker, for routers that look at prices. model: what requests must ask for to be served by it.
    kv_bytes_per_token: that each of its accelerators keeps, where it hands prompts over or takes them over; None: as
    the transfer's. back_for: of the last ``spare`` workers, those that they come back for, on whose node they are then;
    empty: none.
    """

    plan: WorkerPlan
    replicas: int = 1
    name: str = "main"
    role: RoleName = "unified"
    usd_per_hour: float = 1.0
    spare: int = 0
    scaler: ScalerPlan | None = None
    model: ServedModel = ServedModel()
    kv_bytes_per_token: float | None = None
    back_for: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """Of each worker that there may ever be, that in whose place it stands on its node."""
        return (*range(self.slots - len(self.back_for)), *self.back_for)

    @property
    def slots(self) -> int:
        """Workers that there may ever be."""
        return self.replicas + self.spare

    @property
    def ranks(self) -> int:
        """Accelerators of one worker."""
        return self.plan.ranks

    @property
    def networks(self) -> int:
        """Sets of accelerators of one worker over which KV is handed over independently: its attention groups."""
        return self.plan.split.attention_data

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens that a worker computes in a second, in steps of its whole budget."""
        tokens = self.plan.engine.chunk_tokens
        return tokens / step_seconds(self.plan.costs.seconds, [(tokens, 0)], [])


@dataclass(frozen=True)
class TransferPlan:
    """How prefill workers hand requests over to decode workers; rules and sources: ``kernels.traffic.kv_transfer``.

    reserve_first: a prompt is computed once its decode worker has room for it. pipelined: KV is sent while the rest is
    computed; ``layer_share`` of what the last step computes is left to send when it ends. base_s: of a transfer.
    bytes_per_token: that an accelerator keeps, of pools that say nothing else. bytes_per_s: of each accelerator's
    network, one direction. forward_s: between the end of the prompt and the decode worker's queue. local_tokens:
    prompts with fewer tokens to compute are computed by the decode worker. reserved_tokens: that SGLang keeps free on a
    decode worker for each request.
    """

    reserve_first: bool = False
    pipelined: bool = False
    layer_share: float = 1.0
    base_s: float = 0.0
    bytes_per_token: float = 0.0
    bytes_per_s: float = math.inf
    forward_s: float = 0.0
    local_tokens: int = 0
    reserved_tokens: int = 512


@dataclass(frozen=True)
class FleetPlan:
    """Pools behind routers.

    pools: at least one; those of decode workers need one of prefill workers, and the other way round. router: in front
    of workers that take arriving requests. decode_router: in front of decode workers. own_routers: both of models that
    have routers of their own, by name. admission: what is let in.
    transfer: how prefill workers hand over. incidents: what befalls workers. retry_s, retries: a request whose worker
    has died, or that finds none, is tried again after so long, so many times.
    """

    pools: tuple[PoolPlan, ...]
    router: RouterSpec = field(default_factory=RouterSpec)
    decode_router: RouterSpec = field(default_factory=RouterSpec)
    admission: AdmissionSpec = field(default_factory=AdmissionSpec)
    transfer: TransferPlan = TransferPlan()
    incidents: tuple[Incident, ...] = ()
    retry_s: float = 1.0
    retries: int = 3
    own_routers: Mapping[str, tuple[RouterSpec, RouterSpec]] = field(default_factory=dict)

    def routers_of(self, model: ServedModel) -> tuple[RouterSpec, RouterSpec]:
        """In front of the workers of ``model`` that take arriving requests, and of its decode workers."""
        return self.own_routers.get(model.name, (self.router, self.decode_router))

    @property
    def routers(self) -> tuple[tuple[RouterSpec, RouterSpec], ...]:
        """The same of every model, in the order of ``models``."""
        return tuple(self.routers_of(model) for model in self.models)

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """What its pools serve, each model once, in the order of the pools."""
        return tuple(dict.fromkeys(pool.model for pool in self.pools))

    def model_of(self, pool: PoolPlan) -> int:
        """Number of the model that ``pool`` serves among ``models``."""
        return self.models.index(pool.model)

    def output_storage(self, pool: PoolPlan) -> tuple[int, int]:
        """Where the decode workers of ``pool`` write what they have made: index of a pool, and of its storage tier.

        Raises:
            ValueError: its model has not one prefill pool alone, or that has no storage that all its workers share, or
                none that is reached from here.
        """
        found = [p for p, other in enumerate(self.pools) if other.role == "prefill" and other.model == pool.model]
        tiers = self.pools[found[0]].plan.tiers if len(found) == 1 else ()
        if len(tiers) < 2 or tiers[-1].scope != "cluster":
            raise ValueError(f"pool {pool.name}: its model has not one prefill pool with storage of scope cluster")
        theirs, own = self.pools[found[0]].plan.movement, pool.plan.movement
        if tiers[-1].networked and theirs and theirs.network_write and not (own and own.network_write):
            raise ValueError(f"pool {pool.name}: no network leads to the storage of pool {self.pools[found[0]].name}")
        return found[0], len(tiers) - 2

    @property
    def writes_back_output(self) -> bool:
        """Whether decode workers write what they have made to the storage of prefill workers."""
        return any(pool.plan.writes_back_output for pool in self.pools)

    @property
    def may_lack_workers(self) -> bool:
        """Whether requests may find no worker, or lose theirs."""
        return bool(self.incidents) or any(pool.scaler is not None for pool in self.pools)

    @property
    def hands_over(self) -> bool:
        """Whether prompts and outputs are made by different workers."""
        return any(pool.role == "decode" for pool in self.pools)
