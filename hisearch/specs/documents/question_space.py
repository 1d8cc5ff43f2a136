"""The search space of a question in a few numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

from hisearch.specs.base import EngineName
from hisearch.specs.documents.catalogue import Catalogue, is_path
from hisearch.specs.documents.question import Question
from hisearch.specs.errors import UnknownReferenceError
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.parallelism import Parallelism, engine_problem, split_problems
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.pages import usual_kv_dtype
from hisearch.specs.models.windows import keeps_window_pool

#: TP degrees.
RANKS = [1, 2, 4, 8]

#: Routers: what follows caches, and where nothing matches the fewest requests in flight; and one that knows nothing.
#: power_of_two knows loads of SGLang's workers alone, and those by polls.
ROUTERS = ["cache_aware", "round_robin"]

#: SGLang's sizes of the pool for windows; the last is its default.
WINDOW_RATIOS = [0.1, 0.3, 0.8]

#: Wider choices where the largest rate of given accelerators is asked for; and more of mixtures of experts.
_WIDE = {
    "chunk_tokens": [1024, 2048, 4096, 8192, 16384],
    "max_running_requests": [64, 128, 256, 512, 1024],
    "pipeline_parallel": [1, 2],
    "capacity_policies": ["guaranteed_no_evict", "max_utilization"],
}
_WIDE_MOE = {"attention_data_parallel": [1, 2, 4, 8], "expert_parallel": [1, 2, 4, 8]}
#: What KV moves over from prefill to decode workers: switches that join all accelerators of a host, slowest first; and
#: where none does, 200 Gb/s, which is what PCIe 4 attains.
_SWITCHES = ("nvlink4-switch", "nvlink5-switch")
_OTHER_FABRIC = "roce-200"

#: Share of its accelerators' part of the host's main memory that a worker's tier takes where one is tried. Above a
#: half, a full host has no room for workers with the tier of wider ones.
TIER_SHARE = 0.625

_GIB = 1024.0**3


def space_of(question: Question, catalogue: Catalogue, model: ModelSpec) -> dict[str, Any]:
    """Accelerators and engines of the question.

    Raises:
        UnknownReferenceError: a name leads nowhere.
    """
    execution: dict[str, Any] = {
        "accelerators": [_gpu(name, catalogue) for name in question.gpu],
        "engines": list(question.engine),
        "tensor_parallel": RANKS,
        "chunk_tokens": [2048, 8192],
        "max_running_requests": [64, 256],
        "max_replicas": 128,
        "max_accelerators": 512,
    }
    if question.have is not None:
        execution |= _WIDE | {"max_replicas": question.have[1], "max_accelerators": question.have[1]}
        if model.moe is not None:
            execution |= _WIDE_MOE
    if set(question.engine) - {"trtllm"} and len(degrees := _shared_context(model)) > 1:
        execution["decode_context_parallel"] = degrees
    if len(sharing := _shared_prompts(question, model)) > 1:
        execution["prefill_context_parallel"] = sharing
    if "sglang" in question.engine and keeps_window_pool("sglang", model):
        execution["swa_full_tokens_ratios"] = WINDOW_RATIOS
    if question.kv or usual_kv_dtype(model) != "bf16":
        execution["kv_dtypes"] = list(question.kv) or [usual_kv_dtype(model)]
    if question.weights:
        execution["weight_dtypes"] = list(question.weights)
    pools = {}
    if question.have is not None and question.have[1] > 1:
        fabrics = [_fabric(catalogue.get("Accelerator", question.have[0]).spec, catalogue)]
        pools = {"pools": {"disaggregated": {"fabrics": fabrics, "decode_policies": ["round_robin", "power_of_two"]}}}
    return {
        **pools,
        "execution": execution,
        "routing": {"policies": ROUTERS},
        "cache": {
            "memory_fraction": [0.9, 0.9 if question.have is None else 0.95],
            "eviction": ["lru"],
            "tiers": _tiers(question, catalogue),
        },
    }


def _tiers(question: Question, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Main memory of the accelerators' host: ``TIER_SHARE`` of their part for workers of every width, or none."""
    if question.have is None or not question.offers_tiers:  # `have` for types alone
        return []
    name = catalogue.get("Accelerator", question.have[0]).spec.host
    if name is None:
        return []
    host = catalogue.get("Host", name).spec
    share_gib = math.floor(TIER_SHARE * host.dram_bytes / host.accelerators / _GIB)
    return [{"media": [host.dram], "gib": [0, *(share_gib * ranks for ranks in RANKS if ranks <= host.accelerators)]}]


def _fabric(accelerator: AcceleratorSpec, catalogue: Catalogue) -> str:
    """The slowest switch that is no slower than the accelerator's own link, which bounds transfers all the same.

    Bridges between a few accelerators are no switch.
    """
    link = accelerator.worker_link
    if link.kind != "nvlink":
        return _OTHER_FABRIC
    rates = {name: catalogue.get("Fabric", name).spec.link.bandwidth_bytes_per_s for name in _SWITCHES}
    return next((name for name, rate in rates.items() if rate >= link.bandwidth_bytes_per_s), _SWITCHES[-1])


def _shared_context(model: ModelSpec) -> list[int]:
    """Numbers of ranks that may share each sequence's KV: those that would hold copies of it at some TP degree."""
    splits = itertools.product(RANKS, RANKS)
    shared = {
        ranks for tensor, ranks in splits if not any(split_problems(model, Parallelism(tensor, decode_context=ranks)))
    }
    return sorted({1} | shared)


def _shared_prompts(question: Question, model: ModelSpec) -> list[int]:
    """Numbers of sets of ranks that may share prompts of models with MLA, whose KV more TP would not spread."""
    return [
        ranks
        for ranks in (RANKS if model.mla is not None else [1])
        if ranks == 1 or any(_shares_prompts(engine, model, ranks) for engine in question.engine)
    ]


def _shares_prompts(engine: str, model: ModelSpec, ranks: int) -> bool:
    split = Parallelism(prefill_context=ranks).under(engine)
    return not any(split_problems(model, split)) and engine_problem(cast("EngineName", engine), split, model) is None


def _gpu(name: str, catalogue: Catalogue) -> str:
    """What a study writes for an accelerator: its name, or its absolute path."""
    try:
        path = catalogue.locate("Accelerator", name)
    except UnknownReferenceError as error:
        raise UnknownReferenceError.at(error.message, key="gpu") from None
    return str(path) if is_path(name) else name
