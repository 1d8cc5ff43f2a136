"""LoRA adapters that a pool's workers serve: section ``lora`` of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from pydantic import Field

from hisearch.specs.base import Count, NonNegative, Strict
from hisearch.specs.deployments.agent_memory import TargetName
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.errors import KeyedError
from hisearch.specs.versions import precedes

#: Values that vLLM accepts for the largest rank (``config.lora.MaxLoRARanks``).
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
#: First SGLang release with ``--lora-drain-wait-threshold`` (sgl-project/sglang#17913), of those that are modelled.
DRAINS_SINCE = "0.5.23"
#: Adapters that an SGLang server with overlapped loading holds, for each slot (``check_lora_server_args``).
OVERLAPPED_ADAPTERS = 2


class LoraSpec(Strict):
    """LoRA adapters: which request asks for which is the workload's to say.

    A batch has at most ``max_loras`` adapters; a request whose adapter would be one too many is passed over. Under
    SGLang the base model counts as one. Slots are as large as the largest rank, and leave the KV pool.
    """

    max_loras: Count = Field(description="Slots in device memory: vLLM --max-loras, SGLang --max-loras-per-batch.")
    rank: Count = Field(16, description="Largest rank of an adapter, for which slots are made: --max-lora-rank.")
    targets: list[TargetName] = Field(
        default_factory=lambda: list(get_args(TargetName)),
        min_length=1,
        description="Matrices that adapters change: --lora-target-modules. Both engines make slots for q, k and v "
        "together, and for gate and up, of dense feed-forward layers.",
    )
    dtype: Literal["bf16", "fp16"] = Field("bf16", description="Format of the adapters: vLLM --lora-dtype.")
    max_cpu_loras: Count | None = Field(
        None,
        description="vLLM: adapters that host memory holds, least recently used; others are read from the host's "
        "disks by the step that needs them (--max-cpu-loras). max_loras where absent. SGLang keeps all that it was "
        "given.",
    )
    eviction: Literal["lru", "fifo"] = Field(
        "lru", description="SGLang: the adapter that leaves its slot (--lora-eviction-policy). vLLM goes by last use."
    )
    overlap_loading: bool = Field(
        False,
        description="SGLang: adapters are copied while other requests compute (--enable-lora-overlap-loading); else "
        "the step that needs them waits, as always under vLLM. A server then holds at most twice max_loras adapters.",
    )
    drain_wait_s: NonNegative = Field(
        0.0,
        description="SGLang: wait in seconds after which a running adapter makes room for one that waits; 0: never "
        "(--lora-drain-wait-threshold).",
    )


def check_lora(lora: LoraSpec | None, engine: EngineSpec, others: Mapping[str, bool]) -> None:
    """Refuse what the engine does not have, or what is not simulated together with adapters.

    others: by key of the pool, whether it has something that is not simulated together with adapters.

    Raises:
        KeyedError: with a key below the pool.
    """
    if lora is None:
        return
    if engine.name not in ("vllm", "sglang"):
        raise KeyedError(("lora",), f"adapters are simulated for the engines sglang and vllm, not {engine.name}")
    for key, given in others.items():
        if given:
            raise KeyedError((key,), "not simulated together with lora; leave one of the two out")
    if engine.speculation is not None:
        raise KeyedError(("engine", "speculation"), "not simulated together with lora; leave one of the two out")
    if engine.name == "vllm":
        _check_vllm(lora)
    else:
        _check_sglang(lora, engine.version, by_priority=engine.by_priority)


def _check_vllm(lora: LoraSpec) -> None:
    if lora.rank > VLLM_RANKS[-1]:
        raise KeyedError(("lora", "rank"), f"vLLM accepts ranks up to {VLLM_RANKS[-1]}")
    if lora.max_cpu_loras is not None and lora.max_cpu_loras < lora.max_loras:
        raise KeyedError(("lora", "max_cpu_loras"), f"must be at least max_loras, {lora.max_loras}")
    for key in ("eviction", "overlap_loading", "drain_wait_s"):
        if getattr(lora, key) != LoraSpec.model_fields[key].default:
            raise KeyedError(("lora", key), "vLLM has none; leave it out")


def _check_sglang(lora: LoraSpec, version: str, *, by_priority: bool) -> None:
    if lora.max_cpu_loras is not None:
        message = "SGLang keeps all adapters that it was given in host memory; its --max-loaded-loras is not simulated"
        raise KeyedError(("lora", "max_cpu_loras"), message)
    if lora.drain_wait_s and version and precedes(version, DRAINS_SINCE):
        raise KeyedError(("lora", "drain_wait_s"), f"SGLang {version} has none; it is modelled for {DRAINS_SINCE}")
    if by_priority:
        raise KeyedError(("lora",), "not simulated together with SGLang's scheduling by priority")


def slot_rank(engine: str, rank: int) -> int:
    """The rank that slots are made for: vLLM accepts certain ones only."""
    if engine != "vllm":
        return rank
    return next((known for known in VLLM_RANKS if known >= rank), VLLM_RANKS[-1])
