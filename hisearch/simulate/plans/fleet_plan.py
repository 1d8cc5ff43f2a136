"""From a deployment's pools to a ``FleetPlan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hisearch.simulate.plans.fleet import (
    FleetPlan,
    Incident,
    IncidentName,
    PoolPlan,
    ServedModel,
    TransferPlan,
)
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.deployments.cluster import IncidentSpec, TransferSpec
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.machines.hardware import FabricSpec
from hisearch.specs.models.model import ModelSpec


def plan_fleet(
    deployment: DeploymentSpec,
    workers: Sequence[WorkerPlan],
    *,
    models: Mapping[str, ModelSpec],
    usd_per_hour: Sequence[float],
    fabric: FabricSpec | None = None,
) -> FleetPlan:
    """Compile all pools of a deployment, with routers, incidents and KV transfer.

    workers: a compiled worker of each pool; usd_per_hour: of one. models: architectures, which determine KV sizes, by
    their names in the deployment. fabric: of KV transfers; None without decode workers.
    """
    back = _back_for(deployment, workers)
    pools = tuple(
        PoolPlan(
            plan,
            pool.replicas,
            pool.name,
            pool.role,
            usd,
            spare=_spare(pool) + len(back[pool.name]),
            back_for=tuple(back[pool.name]),
            scaler=pool.autoscale,
            model=_served(deployment, pool, models),
            kv_bytes_per_token=None if pool.role == "unified" else plan.memory.kv_bytes_per_token_per_rank,
        )
        for pool, plan, usd in zip(deployment.pools, workers, usd_per_hour, strict=True)
    )
    disaggregated = any(pool.role == "decode" for pool in deployment.pools)
    return FleetPlan(
        pools,
        router=deployment.router,
        decode_router=deployment.decode_router,
        admission=deployment.admission,
        transfer=_transfer(deployment, workers, models, fabric)
        if fabric is not None and disaggregated
        else TransferPlan(),
        incidents=tuple(_incidents(deployment, workers)),
        retry_s=deployment.retry.after_s,
        retries=deployment.retry.retries,
        own_routers={ref: (deployment.router_of(ref), deployment.decode_router_of(ref)) for ref in deployment.routers},
    )


def _served(deployment: DeploymentSpec, pool: PoolSpec, models: Mapping[str, ModelSpec]) -> ServedModel:
    """The model that ``pool`` serves, with all its names."""
    ref = deployment.model_ref(pool)
    return ServedModel(ref, (models[ref].huggingface_id, *deployment.served_names.get(ref, ())))


def _changes(pool: PoolSpec) -> list[tuple[float, int]]:
    """(time, change in the number of workers) of a pool's schedule."""
    counts = [pool.replicas, *(step.replicas for step in pool.schedule)]
    return [(step.at_s, after - before) for step, before, after in zip(pool.schedule, counts, counts[1:], strict=False)]


def _spare(pool: PoolSpec) -> int:
    """Workers that may come up later: for an autoscaler its limit, raised as needed during the run."""
    if pool.autoscale is not None:
        return pool.autoscale.max_replicas
    return sum(max(change, 0) for _, change in _changes(pool))


def _struck(deployment: DeploymentSpec, workers: Sequence[WorkerPlan], incident: IncidentSpec) -> tuple[int, list[int]]:
    """(index of the pool that an incident affects, its affected workers)."""
    p = [pool.name for pool in deployment.pools].index(incident.pool)
    if incident.kind != "host_down":
        return p, [incident.worker]
    each = workers[p].workers_per_node
    first = incident.worker - incident.worker % each
    return p, list(range(first, min(first + each, deployment.pools[p].replicas)))


def _back_for(deployment: DeploymentSpec, workers: Sequence[WorkerPlan]) -> dict[str, list[int]]:
    """For each pool, the workers that come back, in the order of the incidents."""
    replaced: dict[str, list[int]] = {pool.name: [] for pool in deployment.pools}
    for incident in deployment.incidents:
        if incident.back_after_s is not None:
            replaced[incident.pool] += _struck(deployment, workers, incident)[1]
    return replaced


def _incidents(deployment: DeploymentSpec, workers: Sequence[WorkerPlan]) -> list[Incident]:
    incidents = [event for p, pool in enumerate(deployment.pools) for event in _scheduled(p, pool)]
    slots = [pool.replicas for pool in deployment.pools]
    for incident in deployment.incidents:
        p, struck = _struck(deployment, workers, incident)
        kind: IncidentName = "drain" if incident.kind == "drain" else "down"
        incidents += [Incident(incident.at_s, p, worker, kind) for worker in struck]
        if incident.kind == "host_down":
            incidents.append(Incident(incident.at_s, p, incident.worker, "host_lost"))
        if incident.back_after_s is None:
            continue
        for _ in struck:
            incidents.append(Incident(incident.at_s + incident.back_after_s, p, slots[p], "up"))
            slots[p] += 1
    return incidents


def _scheduled(p: int, pool: PoolSpec) -> list[Incident]:
    """Incidents of a pool's schedule: new workers take new slots; the newest drain first."""
    up_workers = list(range(pool.replicas))
    next_slot = pool.replicas
    events = []
    for at_s, change in _changes(pool):
        for _ in range(change):
            up_workers.append(next_slot)
            events.append(Incident(at_s, p, next_slot, "up"))
            next_slot += 1
        events += [Incident(at_s, p, up_workers.pop(), "drain") for _ in range(-change)]
    return events


def _transfer(
    deployment: DeploymentSpec, workers: Sequence[WorkerPlan], models: Mapping[str, ModelSpec], fabric: FabricSpec
) -> TransferPlan:
    """KV transfers over ``fabric``.

    NVLink begins at the accelerators' own links, whatever switch is between them: no transfer is faster than the
    slowest of these. Other fabrics begin at their slots (``TransferPlan.over_slots``).
    """
    spec, bandwidth = deployment.transfer, fabric.link.bandwidth_bytes_per_s
    over_slots = fabric.link.kind != "nvlink"
    if not over_slots:
        pairs = zip(deployment.pools, workers, strict=True)
        bandwidth = min(bandwidth, *(worker.peer_bytes_per_s for pool, worker in pairs if pool.role != "unified"))
    engine = next(pool.engine.name for pool in deployment.pools if pool.role == "decode")
    reserve_first = spec.order == "reserve_first" or (spec.order == "auto" and engine == "sglang")
    granularity = _granularity(spec, reserve_first)
    return TransferPlan(
        reserve_first=reserve_first,
        pipelined=granularity != "whole",
        layer_share=1.0 / _layers(deployment, models) if granularity == "layer" else 1.0,
        base_s=fabric.link.latency_s,
        bytes_per_s=bandwidth * spec.efficiency,
        over_slots=over_slots,
        forward_s=spec.forward_s,
        local_tokens=spec.local_prefill_tokens,
        reserved_tokens=spec.reserved_decode_tokens,
    )


def _layers(deployment: DeploymentSpec, models: Mapping[str, ModelSpec]) -> int:
    """Layers of the models with KV transfer.

    Raises:
        ValueError: the models differ in layers.
    """
    refs = dict.fromkeys(deployment.model_ref(pool) for pool in deployment.pools if pool.role == "prefill")
    counts = {ref: models[ref].layers for ref in refs}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{ref} {count}" for ref, count in counts.items())
        raise ValueError(f"transfer.granularity layer: the models differ in layers ({each}); take chunk or whole")
    return next(iter(counts.values()))


def _granularity(spec: TransferSpec, reserve_first: bool) -> str:
    if spec.granularity != "auto":
        return spec.granularity if reserve_first else "whole"
    return "chunk" if reserve_first else "whole"
