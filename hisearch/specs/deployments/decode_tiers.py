"""Tiers of decode workers: a host pool, from which SGLang writes decode output back to the prefill workers' storage.

SGLang 0.5.9, ``--disaggregation-decode-enable-offload-kvcache`` (``decode_kvcache_offload_manager.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.tiers import KV_CONNECTOR_TITLES, KvConnectorName, MovementSpec, TierSpec
from hisearch.specs.errors import KeyedError


class Engine(Protocol):
    """The properties of a pool's engine that the checks read."""

    @property
    def name(self) -> EngineName: ...  # noqa: D102


class Pool(Protocol):
    """The properties of a pool (``specs.deployments.deployment.PoolSpec``) that the checks read."""

    @property
    def role(self) -> str: ...  # noqa: D102
    @property
    def engine(self) -> Engine: ...  # noqa: D102
    @property
    def tiers(self) -> Sequence[TierSpec]: ...  # noqa: D102
    @property
    def kv_connector(self) -> KvConnectorName: ...  # noqa: D102
    @property
    def movement(self) -> MovementSpec: ...  # noqa: D102


def writes_back_output(pool: Pool) -> bool:
    """Whether the pool's decode workers write their output back to the storage of the prefill workers."""
    return pool.role == "decode" and bool(pool.tiers)


def check_decode_tiers(pool: Pool) -> None:
    """Refuse tiers and movement that decode workers do not have, as far as the pool itself tells.

    Raises:
        KeyedError: with a key below the pool.
    """
    if not writes_back_output(pool):
        return
    title = ENGINE_TITLES[pool.engine.name]
    if pool.engine.name == "vllm":
        message = "vLLM's offloading connector with NIXL's (MultiConnector) is not simulated"
    else:
        message = f"{title} has none there"
    if pool.engine.name != "sglang":
        raise KeyedError(("tiers",), f"tiers of decode workers are SGLang's: {message}; give them to the prefill pool")
    if pool.kv_connector != "hicache":
        title = KV_CONNECTOR_TITLES[pool.kv_connector]
        message = f"decode workers write to HiCache's storage; {title} is not simulated there"
        raise KeyedError(("movement", "kv_connector"), message)
    for key in ("attention_data_parallel", "pipeline_parallel"):
        if getattr(pool, key) > 1:
            raise KeyedError((key,), f"{getattr(pool, key)} is not simulated with tiers on decode workers")
    if len(pool.tiers) > 1:
        message = "a decode worker has a host pool alone; what lies behind it is said by the tiers of the prefill pool"
        raise KeyedError(("tiers", 1), message)
    if pool.tiers[0].eviction != "lru":
        raise KeyedError(("tiers", 0, "eviction"), "nothing is evicted from a decode worker's host pool; leave it out")
    for name, value in pool.movement:
        if name != "kv_connector" and value != MovementSpec.model_fields[name].default:
            message = "a decode worker copies what it has made of a request when that has finished; leave it out"
            raise KeyedError(("movement", name), message)
