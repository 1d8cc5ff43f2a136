"""The settings of deployments one by one, as text."""

from __future__ import annotations

from hisearch.search.model.deployments import SHAPES, format_devices, shape_of
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.deployments.agent_memory import AgentMemorySpec
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.engine_settings import SWA_FULL_TOKENS_RATIO
from hisearch.specs.deployments.tiers import KV_CONNECTOR_TITLES, KV_CONNECTORS

NOT_USED = "not used"
NO_ROUTER = "none needed"
NO_TTL = "none"
#: Settings that are sizes of a cache tier, nearest first.
TIER_SIZES = ("tier 1 (GiB)", "tier 2 (GiB)", "tier 3 (GiB)")
#: Of a setting.
Value = str | int | float

#: Values of a setting that has no effect in a deployment.
UNUSED: frozenset[Value] = frozenset({NOT_USED, NO_ROUTER})
STAGES = {1: "execution", 2: "routing", 3: "cache tiers", 4: "front and comparisons"}


def settings(deployment: DeploymentSpec) -> dict[str, Value]:
    """Every setting that a study may search, by its name; the same keys for every deployment.

    Where pools differ in one, their values are joined, as in ``2 + 6`` replicas.
    """
    values = _together_by_name([_pool_settings(pool) for pool in deployment.pools])
    router, decode_router, transfer = deployment.router, deployment.decode_router, deployment.transfer
    cache_aware, shape = router.policy == "cache_aware", shape_of(deployment)
    return values | {
        "router": router.policy if in_front(deployment) > 1 else NO_ROUTER,
        "cache threshold": router.cache_threshold if cache_aware else NOT_USED,
        "balance, absolute": router.balance_abs_threshold if cache_aware else NOT_USED,
        "balance, relative": router.balance_rel_threshold if cache_aware else NOT_USED,
        **_together_by_name([_tier_settings(pool) for pool in deployment.pools]),
        "pools": SHAPES[shape] if shape != "unified" else NOT_USED,
        "decode router": decode_router.policy if shape == "disaggregated" else NOT_USED,
        "fabric": transfer.fabric or NOT_USED,
        "local prefill (tokens)": transfer.local_prefill_tokens if shape == "disaggregated" else NOT_USED,
    }


def in_front(deployment: DeploymentSpec) -> int:
    """Workers among which the router in front chooses."""
    return sum(pool.replicas for pool in deployment.pools if pool.role != "decode")


def _pool_settings(pool: PoolSpec) -> dict[str, Value]:
    """Settings of a pool's workers, without those of its cache tiers."""
    engine = pool.engine
    ratio = engine.swa_full_tokens_ratio
    return {
        "accelerator": pool.accelerator,
        "devices": NOT_USED if pool.devices is None else format_devices(pool.devices),
        "replicas": pool.replicas,
        "tensor parallel": pool.tensor_parallel,
        "pipeline parallel": pool.pipeline_parallel,
        "attention data parallel": pool.attention_data_parallel,
        "expert parallel": pool.expert_parallel,
        "decode context parallel": pool.decode_context_parallel if pool.decode_context_parallel > 1 else NOT_USED,
        "prefill context parallel": pool.prefill_context_parallel if pool.prefill_context_parallel > 1 else NOT_USED,
        "engine": ENGINE_TITLES[engine.name],
        "weight format": pool.weight_dtype or "model's own",
        "KV format": pool.kv_dtype,
        "chunk (tokens)": engine.chunk_tokens,
        "running requests": engine.max_running_requests,
        "capacity policy": engine.capacity_policy if engine.name == "trtllm" else NOT_USED,
        "queue order": engine.schedule if engine.schedule != "fcfs" else NOT_USED,
        "experts": engine.experts.label or NOT_USED,
        "drafted tokens": engine.speculation.label if engine.speculation is not None else NOT_USED,
        "KV page (tokens)": engine.page_size,
        "prefix caching": "on" if engine.prefix_caching else "off",
        "eviction": engine.eviction,
        "memory fraction": engine.memory_fraction,
        "window pool / full": ratio if ratio != SWA_FULL_TOKENS_RATIO else NOT_USED,
        "conservativeness": engine.schedule_conservativeness if engine.name == "sglang" else NOT_USED,
        **_agent_settings(pool.agents),
    }


def _agent_settings(agents: AgentMemorySpec | None) -> dict[str, Value]:
    """Objects that agents' calls need besides KV, and their policy."""
    adapters = agents.adapters if agents is not None else None
    return {
        "agents' policy": agents.policy if agents is not None else NOT_USED,
        "agents' slots": (agents.slots if agents is not None else None) or NOT_USED,
        "agents' host memory (GiB)": (agents.host_gib if agents is not None else None) or NOT_USED,
        "loaded ahead (s)": agents.ahead_s if agents is not None and agents.policy == "distance" else NOT_USED,
        "adapters": f"rank {adapters.rank}" if adapters is not None else NOT_USED,
    }


def _together_by_name(of_pools: list[dict[str, Value]]) -> dict[str, Value]:
    return {name: _together([values[name] for values in of_pools]) for name in of_pools[0]}


def _together(values: list[Value]) -> Value:
    """One value where all are equal, else all of them as text."""
    if len(set(values)) == 1:
        return values[0]
    return " + ".join(map(format_setting, values))


def format_setting(value: Value) -> str:
    """A setting's value as text."""
    return value if isinstance(value, str) else f"{value:,.6g}"


def used_settings(deployment: DeploymentSpec) -> dict[str, Value]:
    """``settings`` without those that have no effect in this deployment, such as sizes of missing tiers."""
    values = settings(deployment)
    return {name: v for name, v in values.items() if v not in UNUSED and (name not in TIER_SIZES or v != 0)}


def _tier_settings(pool: PoolSpec) -> dict[str, Value]:
    """Settings of the cache tiers and their movement; sizes of missing tiers are 0."""
    values: dict[str, Value] = {}
    for number, size in enumerate(TIER_SIZES, 1):
        tier = pool.tiers[number - 1] if number <= len(pool.tiers) else None
        values |= {
            size: tier.gib if tier is not None else 0.0,
            f"tier {number} medium": tier.medium if tier is not None else NOT_USED,
            f"tier {number} scope": (tier.scope or NOT_USED) if tier is not None else NOT_USED,
            f"tier {number} eviction": tier.eviction if tier is not None else NOT_USED,
            f"tier {number} TTL (s)": (tier.ttl_s or NO_TTL) if tier is not None else NOT_USED,
        }
    hicache, movement = bool(pool.tiers) and pool.kv_connector == "hicache", pool.movement
    storage = hicache and len(pool.tiers) > 1
    usual = pool.kv_connector == KV_CONNECTORS[pool.engine.name][0]
    return values | {
        "kv_connector": ("engine's own" if usual else KV_CONNECTOR_TITLES[pool.kv_connector])
        if pool.tiers
        else NOT_USED,
        "write policy": movement.write_policy if hicache else NOT_USED,
        "prefetch": movement.prefetch if storage else NOT_USED,
        "prefetch threshold (tokens)": movement.prefetch_threshold_tokens if storage else NOT_USED,
        "hierarchy": movement.hierarchy if storage and len(pool.tiers) > 2 else NOT_USED,
    }
