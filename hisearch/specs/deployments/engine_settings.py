"""Which settings of an engine go together, and from which release on the engine has them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Protocol

from hisearch.base.engine_rules import SETTINGS_SINCE
from hisearch.base.policies import QUEUE_ORDERS
from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.engine_rules import rules_version
from hisearch.specs.versions import PYTORCH_SINCE, precedes

#: First release that forms a batch while the one before it runs, unless told otherwise: vLLM's release notes of 0.14.0
#: (pull request 27614); TensorRT-LLM's "Overlap Scheduler", a feature of its PyTorch backend.
OVERLAPS_SINCE = {"vllm": "0.14.0", "trtllm": PYTORCH_SINCE}

#: First release of TensorRT-LLM that has ``scheduler_config.waiting_queue_policy: priority`` (pull request 12362).
PRIORITY_SINCE = "1.3.0rc11"

#: Evictions of SGLang's radix cache that not every modelled release has: name -> first release.
EVICTIONS_SINCE = {"slru": "0.5.10"}


class Engine(Protocol):
    """The settings (``specs.deployments.engine.EngineSpec``) that the checks read."""

    @property
    def name(self) -> EngineName: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def schedule(self) -> str: ...  # noqa: D102
    @property
    def ttft_targets_s(self) -> Sequence[float | None]: ...  # noqa: D102
    @property
    def speculation(self) -> object: ...  # noqa: D102
    @property
    def eviction(self) -> str: ...  # noqa: D102
    @property
    def priority_scheduling(self) -> bool: ...  # noqa: D102
    @property
    def high_priority_first(self) -> bool: ...  # noqa: D102
    @property
    def preemption_threshold(self) -> int: ...  # noqa: D102
    @property
    def prefill_max_requests(self) -> int | None: ...  # noqa: D102
    @property
    def page_size(self) -> int: ...  # noqa: D102
    @property
    def chunk_tokens(self) -> int: ...  # noqa: D102


#: Settings that TensorRT-LLM alone has, with their defaults.
TRTLLM_SETTINGS = {
    "capacity_policy": "guaranteed_no_evict",
    "chunking_policy": "first_come_first_served",
    "batch_wait_timeout_ms": 0.0,
    "batch_wait_timeout_iters": 0,
    "batch_wait_max_tokens_ratio": 0.0,
    "attention_dp_balance": False,
    "attention_dp_timeout_iters": 50,
    "attention_dp_batching_wait_iters": 10,
}


#: SGLang's ``swa_full_tokens_ratio`` where none is stated.
SWA_FULL_TOKENS_RATIO = 0.8
#: Its ``mamba_full_memory_ratio``, likewise.
MAMBA_FULL_MEMORY_RATIO = 0.9
#: Settings that one engine alone reads, as others have them.
OWN_SETTINGS: dict[EngineName, dict[str, Any]] = {
    "sglang": {
        "eviction": "lru",
        "swa_full_tokens_ratio": SWA_FULL_TOKENS_RATIO,
        "mamba_full_memory_ratio": MAMBA_FULL_MEMORY_RATIO,
    },
    "trtllm": TRTLLM_SETTINGS,
}

#: Settings that an engine does not read, which spaces with several engines may state all the same.
UNREAD: dict[EngineName, tuple[str, ...]] = {
    "vllm": (
        "schedule_conservativeness",
        "max_prefill_tokens",
        "mixed_chunk",
        "swa_full_tokens_ratio",
        "mamba_full_memory_ratio",
    ),
    "sglang": ("long_prefill_tokens", "watermark", "reserve_full_prompt"),
    "trtllm": (
        "long_prefill_tokens",
        "watermark",
        "schedule_conservativeness",
        "mixed_chunk",
        "swa_full_tokens_ratio",
        "mamba_full_memory_ratio",
    ),
}


def with_release_defaults(data: Any) -> Any:
    """Settings as a mapping, with the defaults of the release that they name where it has others.

    vLLM and TensorRT-LLM turn it off where drafts are n-grams (``speculation.NO_OVERLAP_WITH_NGRAM``).
    """
    if not isinstance(data, dict) or "overlap" in data:
        return data
    since, drafts = OVERLAPS_SINCE.get(str(data.get("name"))), data.get("speculation")
    method = drafts.get("method") if isinstance(drafts, dict) else getattr(drafts, "method", None)
    by_ngram = data.get("name") in ("vllm", "trtllm") and method == "ngram"
    former = bool(since) and precedes(str(data.get("version", "")), str(since))
    return data | {"overlap": False} if former or by_ngram else data


def has_order(name: EngineName, version: str, order: str) -> bool:
    """Whether a release of an engine that knows the ``order`` of the waiting queue has it already."""
    if name != "trtllm" or order != "priority":
        return True
    return not precedes(rules_version(name, version), PRIORITY_SINCE)


def check_trtllm(engine: Engine) -> None:
    """Refuse settings that only TensorRT-LLM has in another engine, and blocks that it does not have.

    Blocks have 2, 4, 8, … tokens, and a prompt is cut into whole blocks.

    Raises:
        ValueError: what is wrong.
    """
    if engine.name != "trtllm":
        for key, default in TRTLLM_SETTINGS.items():
            if getattr(engine, key) != default:
                title = ENGINE_TITLES[engine.name]
                raise ValueError(f"{title} has no {key}; {getattr(engine, key)} needs engine trtllm")
        return
    if not has_order("trtllm", engine.version, engine.schedule):
        raise ValueError(f"TensorRT-LLM {engine.version} has no schedule priority: it came with {PRIORITY_SINCE}")
    page = engine.page_size
    if page < 2 or page & (page - 1):
        raise ValueError(f"page_tokens {page}: TensorRT-LLM needs a power of two greater than 1")
    if engine.chunk_tokens < page:
        raise ValueError(f"chunk_tokens {engine.chunk_tokens} is less than one page of {page} tokens")


def check_release(engine: Engine, given: Set[str]) -> None:
    """Refuse settings, of those ``given``, that the engine's release does not have yet.

    Raises:
        ValueError: which, and what the first release with it is.
    """
    follows = rules_version(engine.name, engine.version)
    for key, since in SETTINGS_SINCE.get(engine.name, {}).items():
        if key in given and getattr(engine, key) and precedes(follows, since):
            raise ValueError(f"{ENGINE_TITLES[engine.name]} {engine.version} has no {key}: it came with {since}")


def check_order(engine: Engine) -> None:
    """Refuse deadlines without the order that goes by them, and the reverse; service that is not counted.

    Raises:
        ValueError: which.
    """
    if (engine.schedule == "edf") != bool(engine.ttft_targets_s):
        raise ValueError("schedule edf and ttft_targets_s need each other: a deadline is arrival and its target")
    if engine.ttft_targets_s and all(target is None for target in engine.ttft_targets_s):
        raise ValueError("ttft_targets_s: no priority has a target")
    if QUEUE_ORDERS[engine.schedule].counts_service and engine.speculation is not None:
        raise ValueError(f"schedule {engine.schedule} counts one token per decode step; speculation is not simulated")


def check_sglang(engine: Engine) -> None:
    """Refuse settings that only SGLang has in another engine, and those that it does not have together.

    Raises:
        ValueError: what is wrong, and what the engine has.
    """
    if engine.name != "sglang":
        for key, default in (
            ("priority_scheduling", False),
            ("high_priority_first", False),
            ("preemption_threshold", 10),
            ("prefill_max_requests", None),
        ):
            if getattr(engine, key) != default:
                raise ValueError(f"{ENGINE_TITLES[engine.name]} has no {key}; it needs engine sglang")
        return
    if engine.priority_scheduling and engine.schedule not in ("fcfs", "lof", "priority"):
        raise ValueError(f"priority_scheduling goes with schedule fcfs or lof, not {engine.schedule}")
    since = EVICTIONS_SINCE.get(engine.eviction)
    if since is not None and precedes(rules_version("sglang", engine.version), since):
        raise ValueError(f"SGLang {engine.version} has no eviction {engine.eviction}; {since} is the first that has it")
