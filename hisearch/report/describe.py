"""Deployments in words: a sentence, and their settings one by one."""

from __future__ import annotations

from hisearch.report.quantities import HOURS_PER_MONTH, usd
from hisearch.search.deployments import devices_in_words, formats, mover_in_words, stores
from hisearch.search.trial import Trial
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.tiers import MOVER_TITLES, MOVERS
from hisearch.specs.wording import counted, listed

NOT_USED = "not used"
NO_ROUTER = "none needed"
NO_TTL = "none"
#: Settings that are sizes of a cache tier, nearest first.
TIER_SIZES = ("tier 1 (GiB)", "tier 2 (GiB)", "tier 3 (GiB)")
#: Values of a setting that has no effect in a deployment.
UNUSED: frozenset[str | int | float] = frozenset({NOT_USED, NO_ROUTER})
STAGES = {1: "execution", 2: "routing", 3: "cache tiers", 4: "front and comparisons"}


def replicas(deployment: DeploymentSpec) -> str:
    """``3 replicas`` or ``1 replica``."""
    return counted(deployment.pool.replicas, "replica")


def sentence(trial: Trial, model_id: str) -> str:
    """What, how many, which settings, and what it costs: one sentence without its verb."""
    deployment = trial.deployment
    pool = deployment.pool
    text = f"{replicas(deployment)} of {model_id} on {ENGINE_TITLES[pool.engine.name]}, "
    text += f"{pool.accelerators} × {pool.accelerator}{' in all' if pool.replicas > 1 else ''}"
    if pool.parallelism.ranks > 1:
        text += f" (tensor parallel {pool.tensor_parallel}{_beyond_tensor(pool)})"
    if pool.devices is not None:
        text += f", each with {devices_in_words(pool.devices)}"
    if formats(deployment):
        text += f", {' and '.join(formats(deployment))}"
    if pool.replicas > 1:
        text += f", behind a {deployment.router.policy} router"
    engine = pool.engine
    text += (
        f", with chunks of {counted(engine.chunk_tokens, 'token')} and up to "
        f"{counted(engine.max_running_requests, 'running request')}"
    )
    text += " per replica" if pool.replicas > 1 else ""
    if pool.tiers:
        text += f", and cache tiers of {listed(stores(pool))} ({mover_in_words(pool)})"
    return f"{text}: {cost(trial)}"


def _beyond_tensor(pool: PoolSpec) -> str:
    """The other degrees of parallelism, where there are any."""
    others = {
        "pipeline parallel": pool.pipeline_parallel,
        "attention data parallel": pool.attention_data_parallel,
        "expert parallel": pool.expert_parallel,
    }
    return "".join(f", {name} {degree}" for name, degree in others.items() if degree > 1)


def cost(trial: Trial) -> str:
    """``$14.94 per hour, $10,906 per month (730 hours)``."""
    hourly = trial.metrics["usd_per_hour"]
    return f"{usd(hourly)} per hour, {usd(hourly * HOURS_PER_MONTH)} per month ({HOURS_PER_MONTH:g} hours)"


def settings(deployment: DeploymentSpec) -> dict[str, str | int | float]:
    """Every setting that a study may search, by its name; the same keys for every deployment."""
    pool, engine, router = deployment.pool, deployment.pool.engine, deployment.router
    cache_aware = router.policy == "cache_aware"
    return {
        "accelerator": pool.accelerator,
        "devices": NOT_USED if pool.devices is None else devices_in_words(pool.devices),
        "replicas": pool.replicas,
        "tensor parallel": pool.tensor_parallel,
        "pipeline parallel": pool.pipeline_parallel,
        "attention data parallel": pool.attention_data_parallel,
        "expert parallel": pool.expert_parallel,
        "engine": ENGINE_TITLES[engine.name],
        "weight format": pool.weight_dtype or "model's own",
        "KV format": pool.kv_dtype,
        "chunk (tokens)": engine.chunk_tokens,
        "running requests": engine.max_running_requests,
        "KV page (tokens)": engine.page_size,
        "prefix caching": "on" if engine.prefix_caching else "off",
        "eviction": engine.eviction,
        "memory fraction": engine.memory_fraction,
        "conservativeness": engine.schedule_conservativeness if engine.name == "sglang" else NOT_USED,
        "router": router.policy if pool.replicas > 1 else NO_ROUTER,
        "cache threshold": router.cache_threshold if cache_aware else NOT_USED,
        "balance, absolute": router.balance_abs_threshold if cache_aware else NOT_USED,
        "balance, relative": router.balance_rel_threshold if cache_aware else NOT_USED,
        **_tier_settings(pool),
    }


def used_settings(deployment: DeploymentSpec) -> dict[str, str | int | float]:
    """``settings`` without those that have no effect in this deployment, sizes of tiers that it has not among them."""
    found = settings(deployment)
    return {name: v for name, v in found.items() if v not in UNUSED and (name not in TIER_SIZES or v != 0)}


def _tier_settings(pool: PoolSpec) -> dict[str, str | int | float]:
    """Settings of the cache tiers and their movement; sizes are 0 where there is no such tier."""
    found: dict[str, str | int | float] = {}
    for number, size in enumerate(TIER_SIZES, 1):
        tier = pool.tiers[number - 1] if number <= len(pool.tiers) else None
        found |= {
            size: tier.gib if tier is not None else 0.0,
            f"tier {number} medium": tier.medium if tier is not None else NOT_USED,
            f"tier {number} scope": (tier.scope or NOT_USED) if tier is not None else NOT_USED,
            f"tier {number} eviction": tier.eviction if tier is not None else NOT_USED,
            f"tier {number} TTL (s)": (tier.ttl_s or NO_TTL) if tier is not None else NOT_USED,
        }
    hicache, movement = bool(pool.tiers) and pool.mover == "hicache", pool.movement
    storage = hicache and len(pool.tiers) > 1
    usual = pool.mover == MOVERS[pool.engine.name][0]
    return found | {
        "mover": ("engine's own" if usual else MOVER_TITLES[pool.mover]) if pool.tiers else NOT_USED,
        "write policy": movement.write_policy if hicache else NOT_USED,
        "prefetch": movement.prefetch if storage else NOT_USED,
        "prefetch threshold (tokens)": movement.prefetch_threshold_tokens if storage else NOT_USED,
        "hierarchy": movement.hierarchy if storage and len(pool.tiers) > 2 else NOT_USED,
    }
