"""KV cache tiers below device memory, and how they are moved: what a pool says of them, and what its engine takes.

The KV connectors' rules were read in their sources: HiCache in SGLang 0.5.9 (``hiradix_cache.py``,
``memory_pool_host.py``), the offloading connector in vLLM 0.19 (``v1/kv_offload``), LMCache's ``v1/config.py``,
TensorRT-LLM 1.1's ``llm_args.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from hisearch.base.policies import EVICTIONS, PREFETCHES, WRITE_POLICIES
from hisearch.specs.base import ENGINE_TITLES, Count, EngineName, NonNegativeInt, Positive, Strict
from hisearch.specs.errors import KeyedError
from hisearch.specs.machines.hardware import ScopeName
from hisearch.specs.policies import check_parameters, name_type, parameters_model, summaries

KvConnectorName = Literal["hicache", "offload", "lmcache"]
_STORE_EVICTIONS = {name: policy for name, policy in EVICTIONS.items() if policy.stores}
if TYPE_CHECKING:
    TierEvictionName: TypeAlias = str
    WritePolicyName: TypeAlias = str
    PrefetchName: TypeAlias = str

    class _EvictionParameters(Strict):
        def __getattr__(self, name: str) -> Any: ...

    class _MovementParameters(Strict):
        def __getattr__(self, name: str) -> Any: ...

else:
    TierEvictionName = name_type(_STORE_EVICTIONS)
    WritePolicyName, PrefetchName = name_type(WRITE_POLICIES), name_type(PREFETCHES)
    _EvictionParameters = parameters_model("_EvictionParameters", EVICTIONS)
    _MovementParameters = parameters_model("_MovementParameters", WRITE_POLICIES, PREFETCHES)

ReclaimName = Literal["lazy", "periodic", "pressure"]
HierarchyName = Literal["inclusive", "exclusive"]

#: KV connectors of each engine, its default first.
KV_CONNECTORS: dict[EngineName, tuple[KvConnectorName, ...]] = {
    "sglang": ("hicache", "lmcache"),
    "vllm": ("offload", "lmcache"),
    "trtllm": ("offload",),
}

#: Those of them that are simulated; the others can be exported.
SIMULATED_KV_CONNECTORS: dict[EngineName, tuple[KvConnectorName, ...]] = {**KV_CONNECTORS, "sglang": ("hicache",)}

#: KV connectors as people write them.
KV_CONNECTOR_TITLES: dict[KvConnectorName, str] = {
    "hicache": "HiCache",
    "offload": "native offloading",
    "lmcache": "LMCache",
}

#: KV connectors that are simulated where a worker has several attention groups.
GROUP_KV_CONNECTORS: tuple[KvConnectorName, ...] = ("hicache", "offload")

#: Most tiers that a KV connector fills.
MOST_TIERS: dict[KvConnectorName, int] = {"hicache": 3, "offload": 1, "lmcache": 3}


class TierSpec(_EvictionParameters):
    """One KV cache tier below device memory."""

    medium: str = Field(description="Name or path of the Medium that it is made of.")
    gib: Positive = Field(
        description="Size in GiB of one store: of each worker, of each node, or the cluster's, as the scope says. What "
        "attention groups of a worker have each is an equal part of it. "
        "SGLang's host tier must hold more than its device pool, and is used in whole GB (10^9 bytes) of each rank."
    )
    scope: ScopeName | None = Field(
        None,
        description="Who shares a store; the medium's own scope where absent. A worker's DRAM is its share of its "
        "host's.",
    )
    eviction: TierEvictionName = Field(
        "lru",
        description=f"What goes to make room. {summaries(_STORE_EVICTIONS)} vLLM's offloading has lru and arc, "
        "TensorRT-LLM's lru, LMCache lru, lfu, fifo and mru, one for all tiers that are a worker's own; SGLang evicts "
        "its host tier by the engine's own eviction.",
    )
    ttl_s: Positive | None = Field(
        None,
        description="Time after its last use at which an entry expires; never if absent. Simulated of what is "
        "behind SGLang's host tier; nothing expires in that.",
    )
    reclaim: ReclaimName = Field(
        "lazy",
        description="When expired entries give up their room: lazy, when they are looked up; periodic, every "
        "reclaim_period_s; pressure, before anything else is evicted. Only with ttl_s.",
    )
    reclaim_period_s: Positive = Field(60.0, description="Time between two sweeps of periodic reclamation.")

    @model_validator(mode="after")
    def _check(self) -> TierSpec:
        if self.ttl_s is None and self.reclaim != "lazy":
            raise KeyedError(("reclaim",), f"{self.reclaim} needs ttl_s: without it nothing expires")
        check_parameters(self, EVICTIONS, self.eviction, "eviction")
        if self.reclaim != "periodic" and self.reclaim_period_s != TierSpec.model_fields["reclaim_period_s"].default:
            raise KeyedError(("reclaim_period_s",), "needs reclaim: periodic")
        return self


class MovementSpec(_MovementParameters):
    """How KV moves between device memory and the tiers. A setting that the connector lacks keeps its default."""

    renamed: ClassVar[dict[str, str]] = {"mover": "kv_connector"}

    kv_connector: KvConnectorName | None = Field(
        None,
        description="hicache: SGLang's hierarchical cache (--enable-hierarchical-cache), its default. offload: vLLM's "
        "offloading connector (--kv-offloading-backend native) and TensorRT-LLM's host cache "
        "(kv_cache_config.host_cache_size), their default. lmcache: LMCache under vLLM (LMCacheConnectorV1), "
        "or under SGLang before 0.5.21 (--enable-lmcache), which is exported, not simulated.",
    )
    write_policy: WritePolicyName = Field(
        "write_through",
        description=f"HiCache --hicache-write-policy. {summaries(WRITE_POLICIES)}",
    )
    load_back_tokens: Count = Field(
        10, description="HiCache load_back_threshold, fixed in the engine: fewer tokens are not loaded from the host."
    )
    prefetch: PrefetchName = Field(
        "best_effort",
        description=f"HiCache --hicache-storage-prefetch-policy. {summaries(PREFETCHES)} About a disk or pool behind "
        "the host's memory, as all prefetch settings.",
    )
    prefetch_threshold_tokens: Count = Field(
        256,
        description="HiCache prefetch_threshold in --hicache-storage-backend-extra-config: fewer missing tokens are "
        "not fetched from storage.",
    )
    hierarchy: HierarchyName = Field(
        "inclusive",
        description="Of two storage tiers behind HiCache's host tier. inclusive: what is written goes to both, what is "
        "read from the farther one is copied to the nearer. exclusive: what is written goes to the nearer, what that "
        "evicts moves to the farther one, and back when it is read.",
    )
    store_threshold: NonNegativeInt = Field(
        0,
        description="vLLM store_threshold in kv_connector_extra_config: look-ups (offers, from 0.30 on) of a block "
        "before it is stored; 0 stores it at once.",
    )
    chunk_tokens: Count = Field(256, description="LMCache chunk_size: tokens that are stored and loaded as one.")
    save_decode: bool = Field(False, description="LMCache save_decode_cache: store the KV of outputs too.")


#: Settings of a movement that only one KV connector has.
_OWN: dict[KvConnectorName, tuple[str, ...]] = {
    "hicache": (
        "write_policy", "load_back_tokens", "prefetch", "prefetch_threshold_tokens", "hierarchy",
        *WRITE_POLICIES.parameters(), *PREFETCHES.parameters(),
    ),
    "offload": ("store_threshold",),
    "lmcache": ("chunk_tokens", "save_decode"),
}  # fmt: skip
_STORAGE_ALONE = ("prefetch", "prefetch_threshold_tokens", *PREFETCHES.parameters())

#: Eviction policies of a KV connector's tiers; HiCache's storage is the operator's, and its host tier is what is
#: simulated.
CONNECTOR_EVICTIONS: dict[KvConnectorName, tuple[str, ...]] = {
    "offload": ("lru", "arc"),
    "lmcache": ("lru", "lfu", "fifo", "mru"),
}


def kv_connector_of(engine: EngineName, movement: MovementSpec) -> KvConnectorName:
    """The KV connector, with the engine's default filled in."""
    return movement.kv_connector or KV_CONNECTORS[engine][0]


def kv_connector_title(engine: EngineName, kv_connector: KvConnectorName) -> str:
    """``vLLM's native offloading``, ``HiCache``, ``LMCache``."""
    return (
        f"{ENGINE_TITLES[engine]}'s {KV_CONNECTOR_TITLES[kv_connector]}"
        if kv_connector == "offload"
        else KV_CONNECTOR_TITLES[kv_connector]
    )


def shares_memory(engine: EngineName, kv_connector: KvConnectorName) -> bool:
    """Whether workers may share their nearest tier: those of vLLM that an LMCache server serves."""
    return engine == "vllm" and kv_connector == "lmcache"


#: Why a nearest tier cannot be shared, and what can be, by engine and KV connector.
_OWN_MEMORY: dict[tuple[EngineName, KvConnectorName], str] = {
    (
        "sglang",
        "hicache",
    ): "every rank allocates its host pool itself. Set scope: worker, and let what is shared be the "
    "next entry of tiers, as a store behind the host pool, e.g. {medium: ddr5, gib: 1024, scope: node}",
    (
        "vllm",
        "offload",
    ): "every worker allocates its host memory itself. Set scope: worker, or movement.kv_connector: lmcache, "
    "whose server has memory that workers share",
    (
        "trtllm",
        "offload",
    ): "every worker allocates its host cache itself, and nothing lies behind it. Set scope: worker",
}


def not_shared(engine: EngineName, kv_connector: KvConnectorName, scope: ScopeName) -> str:
    """What to say of a nearest tier of a scope that its KV connector cannot give it; see ``shares_memory``."""
    why = _OWN_MEMORY.get((engine, kv_connector), "set scope: worker")
    return f"{scope}: {kv_connector_title(engine, kv_connector)}'s nearest tier is each worker's own: {why}"


def may_expire(kv_connector: KvConnectorName, index: int) -> bool:
    """Whether a time to live is simulated in the tier ``index``, from 0 on: in the stores behind SGLang's host pool."""
    return kv_connector == "hicache" and index > 0


def evictions_of(engine: EngineName, kv_connector: KvConnectorName, index: int) -> tuple[str, ...]:
    """Policies that the tier ``index``, from 0 on, can evict by; SGLang's host pool follows its engine."""
    if engine == "trtllm" or (kv_connector == "hicache" and index == 0):
        return ("lru",)
    return CONNECTOR_EVICTIONS.get(kv_connector, tuple(_STORE_EVICTIONS))


def check_tiers(engine: EngineName, page_tokens: int, tiers: Sequence[TierSpec], movement: MovementSpec) -> None:
    """Refuse tiers and settings that the KV connector does not have, as far as names tell.

    tiers: nearest first.

    Raises:
        KeyedError: with a key below the pool.
    """
    kv_connector = kv_connector_of(engine, movement)
    if kv_connector not in KV_CONNECTORS[engine]:
        known = ", ".join(KV_CONNECTORS[engine])
        raise KeyedError(("movement", "kv_connector"), f"{ENGINE_TITLES[engine]} has no {kv_connector}; known: {known}")
    _check_settings(engine, kv_connector, tiers, movement)
    if not tiers:
        return
    title = kv_connector_title(engine, kv_connector)
    if len(tiers) > MOST_TIERS[kv_connector]:
        raise KeyedError(("tiers",), f"{title} has {MOST_TIERS[kv_connector]} at most, got {len(tiers)}")
    if not shares_memory(engine, kv_connector) and tiers[0].scope not in (None, "worker"):
        raise KeyedError(("tiers", 0, "scope"), not_shared(engine, kv_connector, tiers[0].scope))
    for index, tier in enumerate(tiers):
        if tier.ttl_s is not None and kv_connector == "hicache" and not may_expire(kv_connector, index):
            message = f"nothing expires in {title}'s host tier, it only makes room; leave ttl_s out"
            raise KeyedError(("tiers", index, "ttl_s"), message)
        policies = evictions_of(engine, kv_connector, index)
        if kv_connector != "hicache" and tier.eviction not in policies:
            message = f"{title} has no {tier.eviction}; known: {', '.join(policies)}"
            raise KeyedError(("tiers", index, "eviction"), message)
    if kv_connector == "lmcache" and movement.chunk_tokens % page_tokens:
        message = f"{movement.chunk_tokens} is no multiple of the engine's pages of {page_tokens} tokens"
        raise KeyedError(("movement", "chunk_tokens"), message)


def _check_settings(
    engine: EngineName, kv_connector: KvConnectorName, tiers: Sequence[TierSpec], movement: MovementSpec
) -> None:
    for owner, names in _OWN.items():
        for name in names:
            value, default = getattr(movement, name), MovementSpec.model_fields[name].default
            if value == default:
                continue
            if owner != kv_connector or (engine == "trtllm" and name == "store_threshold"):
                message = (
                    f"{kv_connector_title(engine, kv_connector)} has no such setting; leave it at {_plain(default)}"
                )
                raise KeyedError(("movement", name), message)
            if name in _STORAGE_ALONE and len(tiers) == 1:
                message = "is about a disk or pool behind the host's memory: add one as the second entry of tiers"
                raise KeyedError(("movement", name), message)
            if name == "hierarchy" and len(tiers) < 3:
                message = "is about two stores behind the host's memory: add them as second and third entry of tiers"
                raise KeyedError(("movement", name), message)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
