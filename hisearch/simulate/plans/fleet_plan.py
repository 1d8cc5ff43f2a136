"""From a deployment's pools to what is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hisearch.simulate.plans.fleet import (
    FleetPlan,
    Incident,
    IncidentName,
    PoolPlan,
    ScalerPlan,
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
    """All pools of a deployment and what happens between them.

    Args:
        deployment: its spec.
        workers: a compiled worker of each pool.
        models: architectures, which say what KV a token has, by what the deployment calls them.
        usd_per_hour: of one worker of each pool.
        fabric: what KV is handed over on; None where there are no decode workers.
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
            scaler=_scaler(pool),
            model=_served(deployment, pool, models),
            kv_bytes_per_token=None if pool.role == "unified" else plan.memory.kv_bytes_per_token_per_rank,
        )
        for pool, plan, usd in zip(deployment.pools, workers, usd_per_hour, strict=True)
    )
    return FleetPlan(
        pools,
        router=deployment.router,
        decode_router=deployment.decode_router,
        admission=deployment.admission,
        transfer=_transfer(deployment, models, fabric) if fabric is not None else TransferPlan(),
        incidents=tuple(_incidents(deployment, workers)),
        retry_s=deployment.retry.after_s,
        retries=deployment.retry.retries,
        own_routers={ref: (deployment.router_of(ref), deployment.decode_router_of(ref)) for ref in deployment.routers},
    )


def _served(deployment: DeploymentSpec, pool: PoolSpec, models: Mapping[str, ModelSpec]) -> ServedModel:
    """By what names requests may ask for what ``pool`` serves."""
    ref = deployment.model_ref(pool)
    return ServedModel(ref, (models[ref].huggingface_id, *deployment.served_names.get(ref, ())))


def _scaler(pool: PoolSpec) -> ScalerPlan | None:
    scale = pool.autoscale
    if scale is None:
        return None
    return ScalerPlan(
        scale.metric,
        scale.target,
        scale.min_replicas,
        scale.max_replicas,
        scale.period_s,
        scale.startup_s,
        scale.calm_s,
    )


def _changes(pool: PoolSpec) -> list[tuple[float, int]]:
    """(time, workers more or less) of a pool's schedule."""
    counts = [pool.replicas, *(step.replicas for step in pool.schedule)]
    return [(step.at_s, after - before) for step, before, after in zip(pool.schedule, counts, counts[1:], strict=False)]


def _spare(pool: PoolSpec) -> int:
    """Workers that come up later: an autoscaler's at least to its limit, and more as they are needed."""
    if pool.autoscale is not None:
        return pool.autoscale.max_replicas
    return sum(max(change, 0) for _, change in _changes(pool))


def _struck(deployment: DeploymentSpec, workers: Sequence[WorkerPlan], incident: IncidentSpec) -> tuple[int, list[int]]:
    """Index of the pool that an incident befalls, and those of its workers whom it does."""
    p = [pool.name for pool in deployment.pools].index(incident.pool)
    if incident.kind != "host_down":
        return p, [incident.worker]
    each = workers[p].workers_per_node
    first = incident.worker - incident.worker % each
    return p, list(range(first, min(first + each, deployment.pools[p].replicas)))


def _back_for(deployment: DeploymentSpec, workers: Sequence[WorkerPlan]) -> dict[str, list[int]]:
    """Of each pool, the workers that come back, in the order of the incidents."""
    found: dict[str, list[int]] = {pool.name: [] for pool in deployment.pools}
    for incident in deployment.incidents:
        if incident.back_after_s is not None:
            found[incident.pool] += _struck(deployment, workers, incident)[1]
    return found


def _incidents(deployment: DeploymentSpec, workers: Sequence[WorkerPlan]) -> list[Incident]:
    found = [event for p, pool in enumerate(deployment.pools) for event in _scheduled(p, pool)]
    slots = [pool.replicas for pool in deployment.pools]
    for incident in deployment.incidents:
        p, struck = _struck(deployment, workers, incident)
        kind: IncidentName = "drain" if incident.kind == "drain" else "down"
        found += [Incident(incident.at_s, p, worker, kind) for worker in struck]
        if incident.kind == "host_down":
            found.append(Incident(incident.at_s, p, incident.worker, "host_lost"))
        if incident.back_after_s is None:
            continue
        for _ in struck:
            found.append(Incident(incident.at_s + incident.back_after_s, p, slots[p], "up"))
            slots[p] += 1
    return found


def _scheduled(p: int, pool: PoolSpec) -> list[Incident]:
    """Workers come up behind all that there ever were; the newest go first."""
    there = list(range(pool.replicas))
    next_slot = pool.replicas
    events = []
    for at_s, change in _changes(pool):
        for _ in range(change):
            there.append(next_slot)
            events.append(Incident(at_s, p, next_slot, "up"))
            next_slot += 1
        events += [Incident(at_s, p, there.pop(), "drain") for _ in range(-change)]
    return events


def _transfer(deployment: DeploymentSpec, models: Mapping[str, ModelSpec], fabric: FabricSpec) -> TransferPlan:
    spec = deployment.transfer
    engine = next(pool.engine.name for pool in deployment.pools if pool.role == "decode")
    reserve_first = spec.order == "reserve_first" or (spec.order == "auto" and engine == "sglang")
    granularity = _granularity(spec, reserve_first)
    return TransferPlan(
        reserve_first=reserve_first,
        pipelined=granularity != "whole",
        layer_share=1.0 / _layers(deployment, models) if granularity == "layer" else 1.0,
        base_s=fabric.link.latency_s,
        bytes_per_s=fabric.link.bandwidth_bytes_per_s * spec.efficiency,
        forward_s=spec.forward_s,
        local_tokens=spec.local_prefill_tokens,
        reserved_tokens=spec.reserved_decode_tokens,
    )


def _layers(deployment: DeploymentSpec, models: Mapping[str, ModelSpec]) -> int:
    """Layers of the models that are handed over.

    Raises:
        ValueError: they have not all as many.
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
