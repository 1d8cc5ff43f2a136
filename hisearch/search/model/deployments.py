"""From choices in a search space to deployments, and back to flat parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hisearch.base.policies import ROUTERS
from hisearch.search.model.tier_choices import TierChoice, tier_parameters
from hisearch.specs.base import DTYPE_BYTES, EngineName
from hisearch.specs.deployments.agent_memory import AgentMemorySpec
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.engine_settings import OWN_SETTINGS, SWA_FULL_TOKENS_RATIO
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.deployments.speculation import NO_OVERLAP_WITH_NGRAM, drafts_of_engine
from hisearch.specs.deployments.tiers import KV_CONNECTOR_TITLES
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.machines.parallelism import degrees_of
from hisearch.specs.studies.search_space import CacheSpace, RoutingSpace

#: Share of device memory that the engines' documentation starts with.
USUAL_MEMORY_FRACTION = 0.9

#: Name of the weight format in ``parameters_of`` if the model's own is kept.
OWN_WEIGHT_DTYPE = "model"


def starting_memory_fraction(space: CacheSpace) -> float:
    """The memory fraction of stages 1 and 2: the usual one, moved into the space's bounds."""
    low, high = space.memory_fraction
    return min(max(USUAL_MEMORY_FRACTION, low), high)


def router_configs(space: RoutingSpace) -> list[RouterSpec]:
    """Every policy with every combination of its own parameters, in the space's order."""
    return [router for policy in space.policies for router in space.routers(policy)]


#: Policies from the most to the least promising; others come first. power_of_two is random before all workers but
#: SGLang's, and has loads of up to 30 seconds ago there.
_MOST_PROMISING = ("cache_aware", "round_robin", "power_of_two", "random")


def configs_most_promising_first(space: RoutingSpace) -> list[RouterSpec]:
    """``router_configs``, reordered: the first of every policy, most promising policy first, then the others."""
    routing_configs = router_configs(space)
    firsts = list({routing_config.policy: routing_config for routing_config in reversed(routing_configs)}.values())
    firsts.sort(
        key=lambda routing_config: (
            _MOST_PROMISING.index(routing_config.policy) if routing_config.policy in _MOST_PROMISING else -1
        )
    )
    return firsts + [routing_config for routing_config in routing_configs if routing_config not in firsts]


def deployment_of(model: str, profile: str, pool: PoolSpec, replicas: int, router: RouterSpec) -> DeploymentSpec:
    """``replicas`` workers of a pool behind a router."""
    pools = [pool.model_copy(update={"replicas": replicas})]
    return DeploymentSpec(model=model, pools=pools, router=router, profile=profile)


def with_cache(deployment: DeploymentSpec, *, memory_fraction: float, choice: TierChoice) -> DeploymentSpec:
    """The same deployment with other memory settings of all workers that compute prompts.

    Raises:
        pydantic.ValidationError: the engine does not know them.
    """
    pools = [pool if pool.role == "decode" else _with_cache(pool, memory_fraction, choice) for pool in deployment.pools]
    return deployment.model_copy(update={"pools": pools})


def _with_cache(pool: PoolSpec, memory_fraction: float, choice: TierChoice) -> PoolSpec:
    data = pool.model_dump()
    data["engine"] |= {"memory_fraction": memory_fraction, "eviction": choice.eviction}
    # With drafted tokens tiers are simulated in prefill workers alone: others keep none.
    keeps = pool.engine.speculation is None or pool.role == "prefill"
    data["tiers"] = [tier.model_dump() for tier in choice.tiers] if keeps else []
    data["movement"] = choice.movement.model_dump()
    data["agents"] = choice.agents.model_dump() if choice.agents is not None else None
    return PoolSpec.model_validate(data)


def on_engine(
    deployment: DeploymentSpec, engine: EngineName, page_tokens: int | None = None, version: str = ""
) -> DeploymentSpec:
    """The same deployment on another engine, with its own KV connector, and lru if it knows no other eviction.

    page_tokens: the other engine's page size; its default if None. version: its release.

    Raises:
        pydantic.ValidationError: the engine refuses the other settings.
    """
    pools = []
    for pool in deployment.pools:
        data = pool.model_dump()
        data["engine"] |= {"name": engine, "page_tokens": page_tokens, "version": version}
        if not drafts_of_engine(engine, version, pool.engine.speculation):
            data["engine"]["speculation"] = None
        if pool.engine.speculation is not None and pool.engine.speculation.method == "ngram":
            data["engine"]["overlap"] = engine not in NO_OVERLAP_WITH_NGRAM
        data["movement"] = {}
        for owner, unset in OWN_SETTINGS.items():
            if engine != owner:
                data["engine"] |= unset
        pools.append(PoolSpec.model_validate(data))
    return deployment.model_copy(update={"pools": pools})


def resized(deployment: DeploymentSpec, counts: Sequence[int]) -> DeploymentSpec:
    """The same deployment with other numbers of workers, one for each pool."""
    pools = [pool.model_copy(update={"replicas": count}) for pool, count in zip(deployment.pools, counts, strict=True)]
    return deployment.model_copy(update={"pools": pools})


def one_less(deployment: DeploymentSpec) -> list[DeploymentSpec]:
    """Deployments with one worker less, for each pool with several workers in turn."""
    counts = [pool.replicas for pool in deployment.pools]
    return [
        resized(deployment, [*counts[:index], count - 1, *counts[index + 1 :]])
        for index, count in enumerate(counts)
        if count > 1
    ]


def without_replicas(deployment: DeploymentSpec, down: int) -> DeploymentSpec:
    """What is left of a deployment with ``down`` replicas of each pool away: at least one of each."""
    if down == 0:
        return deployment
    return resized(deployment, [max(pool.replicas - down, 1) for pool in deployment.pools])


#: Names of the pools of unequal workers.
MIXED_NAMES = ("main", "other")


def canonical(deployment: DeploymentSpec) -> DeploymentSpec | None:
    """The deployment in the search's canonical form; None for two pools of equal workers, which are one pool.

    Unequal workers are named in a fixed order, as their order is no choice.
    """
    if shape_of(deployment) != "mixed":
        return deployment
    pools = mixed_order(deployment.pools)
    if worker_key(pools[0]) == worker_key(pools[1]):
        return None
    return deployment if pools == deployment.pools else deployment.model_copy(update={"pools": pools})


def mixed_order(pools: Sequence[PoolSpec]) -> list[PoolSpec]:
    """Pools of unequal workers in their order, with their names."""
    ordered = sorted(pools, key=worker_key)
    return [pool.model_copy(update={"name": name}) for pool, name in zip(ordered, MIXED_NAMES, strict=True)]


def families(deployment: DeploymentSpec) -> tuple[tuple[str, str], ...]:
    """Accelerator and engine of each pool."""
    return tuple((pool.accelerator, pool.engine.name) for pool in deployment.pools)


def accelerators_of(deployment: DeploymentSpec) -> set[str]:
    """Accelerators of all its pools."""
    return {pool.accelerator for pool in deployment.pools}


def engines_of(deployment: DeploymentSpec) -> set[str]:
    """Engines of all its pools."""
    return {pool.engine.name for pool in deployment.pools}


def width_of_formats(deployment: DeploymentSpec) -> tuple[float, float]:
    """Bytes of a weight and of a KV number in the pool with the narrowest ones; infinite for the model's own weights.

    Wider formats change a model less. Deployments of one study either all name their weights' format, or none does.
    """
    weights = (math.inf if pool.weight_dtype is None else DTYPE_BYTES[pool.weight_dtype] for pool in deployment.pools)
    return min(weights), min(DTYPE_BYTES[pool.kv_dtype] for pool in deployment.pools)


def worker_key(pool: PoolSpec) -> str:
    """Key of a pool's worker settings, independent of the pool's name and number of workers."""
    return pool.model_copy(update={"name": "", "replicas": 1}).model_dump_json()


def parameters_of(deployment: DeploymentSpec) -> dict[str, Any]:
    """The searched dimensions of a deployment, flat; those that do not apply are left out.

    With several pools, parameters of all but the first are prefixed with the pool's name, as in ``decode.replicas``.
    """
    router, memory_fraction = deployment.router, deployment.pool.engine.memory_fraction
    parameters = worker_parameters(deployment.pool)
    parameters |= {"router": router.policy, "memory_fraction": memory_fraction} | router.parameters()
    if deployment.pool.devices is not None:
        parameters["devices"] = format_devices(deployment.pool.devices)
    parameters |= tier_parameters(deployment.pool)
    admission = deployment.admission
    if admission.policy != "none":
        parameters |= {"admission": admission.policy, **admission.parameters()}
    return parameters | (_parameters_of_others(deployment) if len(deployment.pools) > 1 else {})


def worker_parameters(pool: PoolSpec) -> dict[str, Any]:
    """Stage 1's choices for a pool, and its number of workers."""
    engine = pool.engine
    optional = [
        ("experts", engine.experts.label, engine.experts.label),
        ("capacity_policy", engine.capacity_policy, engine.name == "trtllm"),
        ("window_pool", engine.swa_full_tokens_ratio, engine.swa_full_tokens_ratio != SWA_FULL_TOKENS_RATIO),
        ("schedule", engine.schedule, engine.schedule != "fcfs"),
        ("speculation", engine.speculation and engine.speculation.label, engine.speculation),
    ]
    return {
        "accelerator": pool.accelerator,
        "engine": engine.name,
        **{key: degree for key, degree in degrees_of(pool.parallelism).items() if degree > 1 or "context" not in key},
        "weight_dtype": pool.weight_dtype or OWN_WEIGHT_DTYPE,
        "kv_dtype": pool.kv_dtype,
        "chunk_tokens": engine.chunk_tokens,
        "max_running_requests": engine.max_running_requests,
        **{name: value for name, value, stated in optional if stated},
        "replicas": pool.replicas,
    }


def _parameters_of_others(deployment: DeploymentSpec) -> dict[str, Any]:
    """Parameters beyond those of the first pool."""
    parameters: dict[str, Any] = {"shape": shape_of(deployment)}
    for pool in deployment.pools[1:]:
        mine = worker_parameters(pool) | {"memory_fraction": pool.engine.memory_fraction}
        parameters |= {f"{pool.name}.{name}": value for name, value in mine.items()}
    if parameters["shape"] == "disaggregated":
        decode_router, transfer = deployment.decode_router, deployment.transfer
        parameters |= {"decode_router": decode_router.policy, "fabric": transfer.fabric}
        parameters |= {f"decode_router.{name}": value for name, value in decode_router.parameters().items()}
        parameters["local_prefill_tokens"] = transfer.local_prefill_tokens
    return parameters


#: Names of the shapes for people.
SHAPES = {"unified": "one pool", "disaggregated": "disaggregated prefill and decode", "mixed": "unequal workers"}


def shape_of(deployment: DeploymentSpec) -> str:
    """``unified``: one pool; ``disaggregated``: prefill and decode pools; ``mixed``: several unified pools."""
    if len(deployment.pools) == 1:
        return "unified"
    return "disaggregated" if any(pool.role == "decode" for pool in deployment.pools) else "mixed"


def format_devices(spec: DevicesSpec) -> str:
    """``1 hbm2-pim (decode_attention, KV), interleaved``; ``2 attention : 1 FFN``."""
    parts = []
    for name, entry in spec.attached.items():
        uses: list[str] = [operator for operator, device in spec.operators.items() if device == name]
        uses += ["others"] if spec.others == name else []
        uses += ["KV"] if spec.kv == name else []
        uses += [f"{streamed.layers} layers' weights" for streamed in spec.streamed if streamed.device == name]
        offload = spec.experts.offload if spec.experts is not None else None
        if offload is not None and offload.device == name:
            uses.append(f"experts, {offload.resident} resident, {offload.run}")
        number = str(entry.count) if entry.shared_by == 1 else f"{entry.count}/{entry.shared_by}"
        parts.append(f"{number} {entry.device}" + (f" ({', '.join(uses)})" if uses else ""))
    if spec.mapping != "by_hand":
        parts.append(spec.mapping)
    parts += [spec.schedule] if spec.schedule != "serial" else []
    parts += ["attention by request"] if spec.attention == "by_request" else []
    if (split := spec.attention_ffn) is not None:
        parts.append(f"{split.attention} attention : {split.ffn} FFN in {split.micro_batches} micro-batches")
    if spec.experts is not None and spec.experts.offload is None:
        parts.append(f"experts {spec.experts.routing.kind}, {spec.experts.placement}, {spec.experts.replicas} replicas")
    return ", ".join(parts) or "no attached devices"


def hardware(deployment: DeploymentSpec) -> str:
    """``hardware_of`` all pools: ``2 × h200 for prefill + 3 × (4 × l40s, TP 4) for decode``."""
    roles = ("" if pool.role == "unified" else f" for {pool.role}" for pool in deployment.pools)
    return " + ".join(f"{hardware_of(pool)}{role}" for pool, role in zip(deployment.pools, roles, strict=True))


def hardware_of(pool: PoolSpec) -> str:
    """``3 × (2 × h200, TP 2)``, or ``2 × h200, TP 2`` for one replica, or ``3 × h200`` without tensor parallelism."""
    if pool.parallelism.ranks == 1:
        return f"{pool.replicas} × {pool.accelerator}"
    worker = f"{pool.parallelism.ranks} × {pool.accelerator}, {pool.parallelism.short}"
    return worker if pool.replicas == 1 else f"{pool.replicas} × ({worker})"


def formats(deployment: DeploymentSpec) -> list[str]:
    """``formats_of`` the first pool."""
    return formats_of(deployment.pool)


def formats_of(pool: PoolSpec) -> list[str]:
    """Number formats that differ from the default: ``["fp8 weights", "fp8 KV"]``."""
    labels = [f"{pool.weight_dtype} weights"] if pool.weight_dtype is not None else []
    return [*labels, f"{pool.kv_dtype} KV"] if pool.kv_dtype != "bf16" else labels


_PER = {None: "", "worker": " per worker", "node": " per node", "cluster": " for the cluster"}


def stores(pool: PoolSpec) -> list[str]:
    """Each tier's store for people: ``["256 GiB ddr5 per worker", "3,500 GiB nvme-gen5 per node"]``."""
    return [f"{tier.gib:,.6g} GiB {tier.medium}{_PER[tier.scope]}" for tier in pool.tiers]


def format_kv_connector(pool: PoolSpec) -> str:
    """``HiCache write-through``, ``native offloading``, ``LMCache``."""
    title = KV_CONNECTOR_TITLES[pool.kv_connector]
    return f"{title} {pool.movement.write_policy.replace('_', '-')}" if pool.kv_connector == "hicache" else title


def format_tiers(pool: PoolSpec) -> str:
    """``256 GiB ddr5 per worker, 3,500 GiB nvme-gen5 per node, HiCache write-through``; "" without tiers."""
    return ", ".join([*stores(pool), format_kv_connector(pool)]) if pool.tiers else ""


def format_agents(agents: AgentMemorySpec) -> str:
    """``agents by distance, 125 slots, 64 GiB of host memory``."""
    host = f", {agents.host_gib:g} GiB of host memory" if agents.host_gib is not None else ""
    return f"agents by {agents.policy}" + (f", {agents.slots} slots" if agents.slots is not None else "") + host


def describe(deployment: DeploymentSpec) -> str:
    """One line that distinguishes deployments of a study: each pool, and the router if it has a choice."""
    several = len(deployment.pools) > 1
    pools = [_format_pool(pool, named=several) for pool in deployment.pools]
    routed = several or deployment.pool.replicas > 1
    if several or not deployment.pool.tiers:
        return " · ".join([" | ".join(pools), *([_format_routers(deployment)] * routed)])
    # A single pool's tiers come after the router, as the two are unrelated.
    plain = _format_pool(deployment.pool.model_copy(update={"tiers": []}), named=False)
    return " · ".join([plain, *([deployment.router.policy] * routed), format_tiers(deployment.pool)])


def describe_each(deployments: Sequence[DeploymentSpec]) -> list[str]:
    """``describe`` of each deployment, followed by the differing settings if two lines would read alike."""
    lines = [describe(deployment) for deployment in deployments]
    settings = differences(deployments, lines)
    return [f"{line} · {differing}" if differing else line for line, differing in zip(lines, settings, strict=True)]


def differences(deployments: Sequence[DeploymentSpec], lines: Sequence[str]) -> list[str]:
    """For each deployment, the settings that differ from others with the same line; "" if its line is unique."""
    texts = [""] * len(lines)
    for line in (line for line, count in Counter(lines).items() if count > 1):
        alike = [place for place, other_line in enumerate(lines) if other_line == line]
        settings = [parameters_of(deployments[place]) for place in alike]
        keys = dict.fromkeys(key for values in settings for key in values)
        differing = [key for key in keys if any(values.get(key) != settings[0].get(key) for values in settings)]
        for place, values in zip(alike, settings, strict=True):
            texts[place] = ", ".join(f"{setting_name(key)} {values.get(key, 'none')}" for key in differing)
    return texts


def setting_name(key: str) -> str:
    """A key of ``parameters_of`` for people: ``chunk tokens``."""
    return key.replace("_", " ")


def format_router(deployment: DeploymentSpec) -> str:
    """The front router with its release and the parameters that are not at their defaults, decode's behind it."""
    routers = [deployment.router]
    routers += [deployment.decode_router] if any(pool.role == "decode" for pool in deployment.pools) else []
    return "; to decode ".join(_format_release(router) for router in routers)


def _format_release(router: RouterSpec) -> str:
    product, defaults = ROUTERS[router.policy].product, ROUTERS.parameters()
    changed = [
        f"{name} {value if isinstance(value, str) else f'{value:g}'}"
        for name, value in router.parameters().items()
        if value != defaults[name].default
    ]
    return ", ".join([f"{router.policy} of {product} {router.version}" if product else router.policy, *changed])


def _format_routers(deployment: DeploymentSpec) -> str:
    """The policy of the front router, or of each model's router if models have their own."""
    if not deployment.routers:
        return deployment.router.policy
    return ", ".join(f"{deployment.router_of(ref).policy} for {ref}" for ref in deployment.model_refs)


def _format_pool(pool: PoolSpec, *, named: bool) -> str:
    parts = [hardware_of(pool), pool.engine.title, *formats_of(pool)]
    if pool.engine.speculation is not None:
        parts.append(pool.engine.speculation.label)
    if pool.devices is not None:
        parts.append(format_devices(pool.devices))
    if pool.tiers:
        parts.append(format_tiers(pool))
    if pool.agents is not None:
        parts.append(format_agents(pool.agents))
    return (f"{pool.name}: " if named else "") + " · ".join(parts)
