"""The simulated fleet: pools of workers behind routers, incidents, and the end of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hisearch.latency.step_cost import step_seconds
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.deployments.cluster import AutoscaleSpec, RoleName
from hisearch.specs.deployments.routing import AdmissionSpec, RouterSpec

IncidentName = Literal["up", "drain", "down", "host_lost"]


@dataclass(frozen=True)
class GiveUp:
    """Stop criterion of a hopeless run: more than ``requests`` have waited over ``ttft_s`` for a token."""

    ttft_s: float = math.inf
    requests: int = 2**62


NEVER = GiveUp()


@dataclass(frozen=True)
class Incident:
    """An event of a worker at ``at_s``: it comes up with cold caches, drains or dies.

    host_lost: its host, whose workers have died, loses the stores that they shared.

    A worker that comes up again takes a new one of its pool's ``slots``.
    """

    at_s: float
    pool: int
    worker: int
    kind: IncidentName


@dataclass(frozen=True)
class ServedModel:
    """A model that requests ask for. name: in results; aliases: other names that requests may use."""

    name: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use for it."""
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class PoolPlan:
    """Identical workers.

    plan: a worker, compiled. replicas: workers at the start of the run. spare: workers that may come up later, with
    indices after those. scaler: autoscaler, in addition to incidents. name: in messages. usd_per_hour: of one worker,
    for price-aware routers. model: the model that it serves. kv_bytes_per_token: on each accelerator, if the pool sends
    or receives KV transfers; None: as in ``TransferPlan``. back_for: the workers that the last spare workers replace,
    on the same nodes; empty: none.
    """

    plan: WorkerPlan
    replicas: int = 1
    name: str = "main"
    role: RoleName = "unified"
    usd_per_hour: float = 1.0
    spare: int = 0
    scaler: AutoscaleSpec | None = None
    model: ServedModel = ServedModel()
    kv_bytes_per_token: float | None = None
    back_for: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """For each slot, the worker whose place on the node it takes: itself or the one that it replaces."""
        return (*range(self.slots - len(self.back_for)), *self.back_for)

    @property
    def slots(self) -> int:
        """Upper limit on workers over the run."""
        return self.replicas + self.spare

    @property
    def ranks(self) -> int:
        """Accelerators of one worker."""
        return self.plan.ranks

    @property
    def networks(self) -> int:
        """DP ranks of one worker, each of which transfers KV independently."""
        return self.plan.split.attention_data

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens that a worker computes per second, in steps that fill its token budget."""
        tokens = self.plan.engine.chunk_tokens
        return tokens / step_seconds(self.plan.costs.seconds, [(tokens, 0)], [])


@dataclass(frozen=True)
class TransferPlan:
    """KV transfer from prefill to decode workers; rules and sources: ``kernels.traffic.kv_transfer``.

    reserve_first: a prompt is computed only after its decode worker has reserved memory for it. pipelined: KV is sent
    while the rest of the prompt is computed; ``layer_share`` of the last step's KV remains to send at its end. base_s:
    of a transfer. bytes_per_token: on an accelerator, for pools without their own value. bytes_per_s: of each
    accelerator's network, one direction. over_slots: it begins at the accelerators' own slots, which copies to host
    memory use too. forward_s: from the end of the prompt to the decode worker's queue.
    local_tokens: prompts with fewer uncached tokens are computed by the decode worker. reserved_tokens: kept free by
    SGLang on a decode worker for each request.
    """

    reserve_first: bool = False
    pipelined: bool = False
    layer_share: float = 1.0
    base_s: float = 0.0
    bytes_per_token: float = 0.0
    bytes_per_s: float = math.inf
    over_slots: bool = False
    forward_s: float = 0.0
    local_tokens: int = 0
    reserved_tokens: int = 512


@dataclass(frozen=True)
class FleetPlan:
    """Pools behind routers.

    pools: at least one; decode pools need a prefill pool, and vice versa. router: of workers that take arriving
    requests. decode_router: of decode workers. own_routers: (router, decode router) of models that do not use these,
    by name. admission: the admission control. transfer: KV transfer between prefill and decode workers. incidents: of
    workers. retry_s, retries: interval and number of retries of a request without a worker.
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

    @property
    def routers(self) -> tuple[tuple[RouterSpec, RouterSpec], ...]:
        """(router, decode router) of every model, in the order of ``models``."""
        return tuple(self.own_routers.get(model.name, (self.router, self.decode_router)) for model in self.models)

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The served models, each once, in the order of the pools."""
        return tuple(dict.fromkeys(pool.model for pool in self.pools))

    def model_of(self, pool: PoolPlan) -> int:
        """Index in ``models`` of the model that ``pool`` serves."""
        return self.models.index(pool.model)

    def output_storage(self, pool: PoolPlan) -> tuple[int, int]:
        """Target of the output write-back of ``pool``: (index of the prefill pool, index of its storage tier).

        Raises:
            ValueError: its model does not have exactly one prefill pool; that pool has no storage of scope cluster; or
                the network of ``pool`` does not reach it.
        """
        prefill_pools = [
            p for p, candidate in enumerate(self.pools) if candidate.role == "prefill" and candidate.model == pool.model
        ]
        tiers = self.pools[prefill_pools[0]].plan.tiers if len(prefill_pools) == 1 else ()
        if len(tiers) < 2 or tiers[-1].scope != "cluster":
            raise ValueError(f"pool {pool.name}: its model has not one prefill pool with storage of scope cluster")
        storage_movement, movement = self.pools[prefill_pools[0]].plan.movement, pool.plan.movement
        if (
            tiers[-1].networked
            and storage_movement
            and storage_movement.network_write
            and not (movement and movement.network_write)
        ):
            raise ValueError(
                f"pool {pool.name}: no network leads to the storage of pool {self.pools[prefill_pools[0]].name}"
            )
        return prefill_pools[0], len(tiers) - 2

    @property
    def writes_back_output(self) -> bool:
        """Whether decode workers write their output to the storage of prefill workers."""
        return any(pool.plan.writes_back_output for pool in self.pools)

    @property
    def may_lack_workers(self) -> bool:
        """Whether requests may find no worker, or lose theirs."""
        return bool(self.incidents) or any(pool.scaler is not None for pool in self.pools)

    @property
    def transfers_kv(self) -> bool:
        """Whether prefill and decode are disaggregated."""
        return any(pool.role == "decode" for pool in self.pools)
