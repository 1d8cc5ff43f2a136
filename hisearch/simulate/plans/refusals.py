"""Pools that the engines or the kernels do not support, refused with their keys."""

from __future__ import annotations

from hisearch.latency.sharding import InvalidParallelism
from hisearch.simulate.plans.tiers import TierRefused
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.checks.checks import format_problem
from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.deployments.tier_checks import TierProblem
from hisearch.specs.deployments.tiers import (
    GROUP_KV_CONNECTORS,
    KV_CONNECTOR_TITLES,
    SIMULATED_KV_CONNECTORS,
    kv_connector_title,
    may_expire,
)
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.parallelism import engine_problem
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.versions import compiles_engine


def check_formats(pool: PoolSpec, model: ModelSpec, accelerator: AcceleratorSpec) -> None:
    """Refuse weights for which the engine has no kernels on the accelerator.

    Raises:
        InvalidParallelism: with the key.
    """
    problem = format_problem(
        pool.engine.name, pool.accelerator, accelerator, model, pool.weight_dtype or model.weight_dtype
    )
    if problem:
        raise InvalidParallelism(problem, "weight_dtype")


def check_split(pool: PoolSpec, model: ModelSpec) -> None:
    """Refuse parallelism that the engine or the kernels do not support.

    Raises:
        InvalidParallelism: with the key.
    """
    split = pool.parallelism
    problem = engine_problem(pool.engine.name, split, model, halves=pool.engine.experts.two_batch_overlap)
    if problem is not None:
        raise InvalidParallelism(f"pool {pool.name}: {problem.message}", problem.key)
    for key, degree in (("attention_data_parallel", split.attention_data), ("pipeline_parallel", split.pipeline)):
        if degree == 1:
            continue
        refused = f"pool {pool.name}: {key} {degree} is not simulated "
        if compiles_engine(pool.engine.name, pool.engine.version) and key == "attention_data_parallel":
            raise InvalidParallelism(f"{refused}with compiled engines of {ENGINE_TITLES['trtllm']} 0", key)
        if pool.tiers and (key == "pipeline_parallel" or pool.kv_connector not in GROUP_KV_CONNECTORS):
            kv_connector = (
                ""
                if key == "pipeline_parallel"
                else f" that {kv_connector_title(pool.engine.name, pool.kv_connector)} fills"
            )
            raise InvalidParallelism(f"{refused}with cache tiers{kv_connector}", key)
        if _offloads_by_chunk(pool):
            raise InvalidParallelism(
                f"{refused}with the offloading connector that vLLM has since 0.23; leave tiers out, or set "
                "engine.version to 0.22.0 or earlier",
                key,
            )
        if key == "attention_data_parallel" and split.pipeline > 1:
            raise InvalidParallelism(f"{refused}together with pipeline_parallel {split.pipeline}", key)


def _offloads_by_chunk(pool: PoolSpec) -> bool:
    """Whether tiers are filled by vLLM's offloading connector as it is since 0.23."""
    if pool.engine.name != "vllm" or pool.kv_connector != "offload" or not pool.tiers:
        return False
    return rules_in_force("vllm", pool.engine.version)["offloads_by_chunk"]


def check_simulated(pool: PoolSpec) -> None:
    """Refuse tiers that the kernels do not support.

    HiCache, vLLM's offloading connector, LMCache under vLLM and TensorRT-LLM's host cache are simulated in full;
    LMCache under SGLang is not. Only stores behind HiCache's host tier have times to live.

    Raises:
        TierRefused: with the key.
    """
    if not pool.tiers or pool.kv_connector == "hicache":
        return
    if pool.kv_connector not in SIMULATED_KV_CONNECTORS[pool.engine.name]:
        title, known = ENGINE_TITLES[pool.engine.name], " or ".join(SIMULATED_KV_CONNECTORS[pool.engine.name])
        message = (
            f"{KV_CONNECTOR_TITLES[pool.kv_connector]} under {title} can be exported, not simulated; simulated is "
            f"{known}, which is nearest with a store of the same size behind host memory, and LMCache under vLLM. "
            f"{title} asks LMCache while it matches a prefix, and loads into its radix tree there: "
            "rules of their own, not built yet"
        )
        raise TierRefused(pool.name, TierProblem("movement.kv_connector", message))
    for index, tier in enumerate(pool.tiers):
        if tier.ttl_s is not None and not may_expire(pool.kv_connector, index):
            connector = kv_connector_title(pool.engine.name, pool.kv_connector)
            message = f"times to live are not simulated under {connector}; leave it out"
            raise TierRefused(pool.name, TierProblem(f"tiers.{index}.ttl_s", message))
