"""Engine settings for cache tiers: flags, environment, and notes on settings that engines lack.

Names and values were read in the sources of SGLang 0.5.9 and 0.5.23 (``server_args.py``, ``hiradix_cache.py``,
``hicache_storage.py``, and the READMEs of Mooncake and LMCache there), vLLM 0.19.1 and 0.33.0 (``config/vllm.py``,
``v1/kv_offload``) and LMCache (``v1/config.py``, whose keys are environment variables ``LMCACHE_…``; for its server,
``docs/source/mp``).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hisearch.export.engines.releases import is_changed
from hisearch.export.rendering import render_notes
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.tiers import (
    MovementSpec,
    TierSpec,
    kv_connector_title,
)
from hisearch.specs.models.model import ModelSpec

_BYTES_PER_GIB = 2**30
_BYTES_PER_GB = 10**9


class Variable(NamedTuple):
    """A variable of the launch script's environment; value: None where the user has to set it."""

    name: str
    meaning: str
    value: str | None = None


def has_tiers(pool: PoolSpec) -> bool:
    """True where tiers are in use, by a prefix cache or by output write-back."""
    return bool(pool.tiers) and (pool.engine.prefix_caching or pool.writes_back_output)


def is_moved_by(pool: PoolSpec, kv_connector: str) -> bool:
    """True where there are tiers, filled by ``kv_connector``; decode workers have HiCache without its tree."""
    return has_tiers(pool) and pool.kv_connector == kv_connector


def has_hicache_tree(pool: PoolSpec) -> bool:
    """True where HiCache's tiers are a prefix cache: ``--enable-hierarchical-cache``, which decode workers lack."""
    return is_moved_by(pool, "hicache") and pool.role != "decode"


def hicache_gb_per_rank(pool: PoolSpec) -> int:
    """SGLang's ``--hicache-size``: whole gigabytes (10^9 bytes) for each rank of each attention group, rounded down."""
    return max(1, int(pool.tiers[0].gib * _BYTES_PER_GIB / _BYTES_PER_GB / pool.parallelism.stage_ranks))


def storage_tier(pool: PoolSpec) -> TierSpec | None:
    """HiCache's tier below host memory."""
    return pool.tiers[1] if is_moved_by(pool, "hicache") and len(pool.tiers) > 1 else None


def storage_backend(pool: PoolSpec) -> str | None:
    """SGLang's ``--hicache-storage-backend``: files on a disk of the node, Mooncake's store for the cluster."""
    tier = storage_tier(pool)
    if pool.writes_back_output:
        return "mooncake"
    return None if tier is None else "mooncake" if tier.scope == "cluster" else "file"


def storage_settings(pool: PoolSpec) -> dict[str, float] | None:
    """SGLang's ``--hicache-storage-backend-extra-config``."""
    if storage_tier(pool) is None:
        return None
    movement = pool.movement
    return {
        "prefetch_threshold": movement.prefetch_threshold_tokens,
        "prefetch_timeout_base": movement.prefetch_timeout_base_s,
        "prefetch_timeout_per_ki_token": movement.prefetch_timeout_s_per_ki_token,
    }


def offloading_backend(pool: PoolSpec) -> str | None:
    """VLLM's ``--kv-offloading-backend``; None where ``--kv-transfer-config`` names the connector."""
    if not has_tiers(pool) or has_server(pool) or pool.role != "unified":
        return None
    if pool.kv_connector != "lmcache":
        return "native"
    return None if is_changed(pool.engine, "lmcache_is_a_server") else "lmcache"


def offloading_gib(pool: PoolSpec) -> float | None:
    """VLLM's ``--kv-offloading-size``, per data-parallel engine (``VllmConfig`` covers one engine's world)."""
    return pool.tiers[0].gib / pool.attention_data_parallel if offloading_backend(pool) is not None else None


def has_server(pool: PoolSpec) -> bool:
    """True where workers share LMCache's host memory, which then belongs to a server."""
    return is_moved_by(pool, "lmcache") and pool.tiers[0].scope not in (None, "worker")


def transfer_settings(pool: PoolSpec) -> dict[str, Any] | None:
    """VLLM's ``--kv-transfer-config``: what moves KV between workers, and tiers that need more settings than a size."""
    tiers = _tier_connector(pool)
    if pool.role == "unified":
        return tiers
    between_workers = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    if tiers is None:
        return between_workers
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [between_workers, tiers]},
    }


def _tier_connector(pool: PoolSpec) -> dict[str, Any] | None:
    """VLLM's connector of the tiers; None where there is none, or ``--kv-offloading-backend`` says enough."""
    if has_server(pool):
        return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
    if is_moved_by(pool, "lmcache") and offloading_backend(pool) is None:
        return {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    settings: dict[str, Any] = {}
    if is_moved_by(pool, "offload"):
        if offloading_backend(pool) is None:
            settings["cpu_bytes_to_use"] = int(pool.tiers[0].gib * _BYTES_PER_GIB / pool.attention_data_parallel)
        if pool.tiers[0].eviction != "lru":
            settings["eviction_policy"] = pool.tiers[0].eviction
        if pool.movement.store_threshold > 0:
            settings["store_threshold"] = pool.movement.store_threshold
    if not settings:
        return None
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": settings}


def vllm_connectors(pool: PoolSpec) -> tuple[str, ...]:
    """VLLM's connectors of a worker, by their names in ``--kv-transfer-config``, however they are stated."""
    backend, settings = offloading_backend(pool), transfer_settings(pool)
    if backend is not None:
        return ("OffloadingConnector" if backend == "native" else "LMCacheConnectorV1",)
    if settings is None:
        return ()
    joined = settings.get("kv_connector_extra_config", {}).get("connectors", [settings])
    return tuple(connector["kv_connector"] for connector in joined)


def variables(pool: PoolSpec, model: ModelSpec) -> list[Variable]:
    """Environment variables of the launch script, with values where known."""
    if has_server(pool):
        return []
    if is_moved_by(pool, "lmcache"):
        return _lmcache_variables(pool, model)
    tier, backend = storage_tier(pool), storage_backend(pool)
    if backend is None:
        return []
    if tier is not None and backend == "file":
        return [Variable("KV_DIR", f"folder on {tier.medium} for KV")]
    return [
        Variable("MOONCAKE_MASTER", "address of the Mooncake master, host:port"),
        Variable("MOONCAKE_PROTOCOL", "rdma or tcp", "rdma"),
        Variable("MOONCAKE_GLOBAL_SEGMENT_SIZE", "what each replica adds to the store; 0: stores run separately", "0"),
    ]


def of_replica(pool: PoolSpec, replica: int) -> list[tuple[str, str]]:
    """Variables of one replica, as text for a double-quoted shell string."""
    if storage_backend(pool) == "file":
        subfolder = f"/replica-{replica}" if pool.tiers[1].scope == "worker" else ""
        return [("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", f"$KV_DIR{subfolder}")]
    if _lmcache_disk(pool) is not None:
        return [("LMCACHE_LOCAL_DISK", f"file://$KV_DIR/replica-{replica}/")]
    return []


def _lmcache_variables(pool: PoolSpec, model: ModelSpec) -> list[Variable]:
    """LMCache's variables. Sizes are GiB per rank, as each rank has its own LMCache; with MLA only the first stores."""
    ranks, nearest, movement = pool.tensor_parallel, pool.tiers[0], pool.movement
    result = [
        Variable("LMCACHE_CHUNK_SIZE", "tokens", str(movement.chunk_tokens)),
        Variable("LMCACHE_LOCAL_CPU", "keep KV in host memory", "True"),
        Variable("LMCACHE_MAX_LOCAL_CPU_SIZE", "GiB of host memory of each rank", f"{nearest.gib / ranks:g}"),
        Variable("LMCACHE_CACHE_POLICY", "eviction", nearest.eviction.upper()),
        Variable("LMCACHE_SAVE_DECODE_CACHE", "store the KV of outputs", str(movement.save_decode)),
    ]
    if model.mla is not None and ranks > 1:
        extra = {"save_only_first_rank": True, "first_rank_max_local_cpu_size": nearest.gib}
        result.append(Variable("LMCACHE_EXTRA_CONFIG", "all ranks have the same KV", json.dumps(extra)))
    if pool.engine.name == "sglang":
        result += [
            Variable("LMCACHE_USE_EXPERIMENTAL", "as SGLang's guide says", "True"),
            Variable("LMCACHE_USE_LAYERWISE", "as SGLang's guide says", "True"),
        ]
    disk = _lmcache_disk(pool)
    if disk is not None:
        storing = 1 if model.mla is not None else ranks
        result += [
            Variable("KV_DIR", f"folder on {disk.medium} for KV"),
            Variable("LMCACHE_MAX_LOCAL_DISK_SIZE", "GiB of disk of each rank", f"{disk.gib / storing:g}"),
        ]
    if len(pool.tiers) > 1 and pool.tiers[-1].scope != "worker":
        result.append(Variable("LMCACHE_REMOTE_URL", f"URL of the shared store on {pool.tiers[-1].medium}"))
    return result


def _lmcache_disk(pool: PoolSpec) -> TierSpec | None:
    """LMCache's tier on a disk of one worker."""
    if is_moved_by(pool, "lmcache") and len(pool.tiers) > 1 and pool.tiers[1].scope == "worker":
        return pool.tiers[1]
    return None


def notes(pool: PoolSpec) -> list[str]:
    """Notes on settings of the tiers that the engine lacks, as sentences."""
    if not has_tiers(pool):
        return []
    return render_notes(
        "cache_tiers.md.j2",
        pool=pool,
        connector=pool.kv_connector,
        title=kv_connector_title(pool.engine.name, pool.kv_connector),
        usual=MovementSpec(),
        storage=storage_tier(pool),
        backend=storage_backend(pool),
        has_server=has_server(pool),
        offloading=_tier_connector(pool) is not None,
    )
