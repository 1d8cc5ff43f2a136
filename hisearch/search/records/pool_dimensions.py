"""Search dimensions of routers, admission and several pools, with all their values.

Numbers of workers are given by their maximum. Names are those of ``parameters_of``: plain for the first pool, prefixed
with the pool's name for the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hisearch.search.model.deployments import OWN_WEIGHT_DTYPE, router_configs
from hisearch.search.model.routing_configs import decode_routers, mixed_routing
from hisearch.specs.deployments.engine_settings import SWA_FULL_TOKENS_RATIO
from hisearch.specs.studies.pool_space import SideSpace
from hisearch.specs.studies.search_space import SearchSpaceSpec

#: Name of a parameter -> its values.
Dimensions = dict[str, tuple[Any, ...]]

#: Second pools, by name.
POOLS = ("decode", "other")

#: Stage 1's choice for a pool -> the list of its values in section execution.
_LISTS = {
    "accelerator": "accelerators",
    "tensor_parallel": "tensor_parallel",
    "pipeline_parallel": "pipeline_parallel",
    "attention_data_parallel": "attention_data_parallel",
    "expert_parallel": "expert_parallel",
    "decode_context_parallel": "decode_context_parallel",
    "prefill_context_parallel": "prefill_context_parallel",
    "weight_dtype": "weight_dtypes",
    "chunk_tokens": "chunk_tokens",
    "max_running_requests": "max_running_requests",
}


def pool_dimensions(space: SearchSpaceSpec) -> Dimensions:
    """Every parameter of routers, of admission and of pools, with its values."""
    disaggregated, mixed = space.pools.disaggregated, space.pools.mixed
    fronts = router_configs(space.routing) + (router_configs(mixed_routing(space, mixed)) if mixed is not None else [])
    rows: list[Mapping[str, Any]] = [{"router": router.policy} | router.parameters() for router in fronts]
    rows += [{"admission": a.policy} | a.parameters() for a in space.routing.admission if a.policy != "none"]
    rows += _of_a_pool(space, SideSpace(), "")
    if disaggregated is not None:
        at_decode = decode_routers(space, disaggregated)
        rows += [{f"decode_router.{name}": v for name, v in router.parameters().items()} for router in at_decode]
        rows += [{"decode_router": router.policy} for router in at_decode]
        rows += [{"fabric": name} for name in disaggregated.fabrics]
        rows += [{"local_prefill_tokens": tokens} for tokens in disaggregated.local_prefill_tokens]
        rows += [
            {"shape": "disaggregated"},
            *_of_a_pool(space, disaggregated.prefill, ""),
            *_of_a_pool(space, disaggregated.decode, "decode."),
        ]
    if mixed is not None:
        rows += [{"shape": "mixed"}, *_of_a_pool(space, SideSpace(), "other.")]
    return _together(rows)


def _of_a_pool(space: SearchSpaceSpec, side: SideSpace, start: str) -> list[dict[str, Any]]:
    """A row for each value of each setting of a pool's workers, and one for the most workers."""
    execution, side_lists = space.execution, side.lists()
    rows = [
        {start + name: value}
        for name, key in _LISTS.items()
        for value in side_lists.get(key, getattr(execution, key)) or [OWN_WEIGHT_DTYPE]
    ]
    rows += [{start + "engine": engine} for engine in execution.engines]
    if "trtllm" in execution.engines:
        rows += [{start + "capacity_policy": policy} for policy in execution.capacity_policies]
    if "sglang" in execution.engines:
        rows += [{start + "window_pool": r} for r in execution.swa_full_tokens_ratios if r != SWA_FULL_TOKENS_RATIO]
    rows += [{start + "schedule": name} for name in execution.schedules if name != "fcfs"]
    rows += [{start + "experts": e.label} for e in execution.experts if e.label]
    rows += [{start + "speculation": drafts.label} for drafts in execution.speculation if drafts is not None]
    rows += [{start + "kv_dtype": name} for name in execution.kv_dtypes]
    return [*rows, {start + "replicas": side_lists.get("max_replicas", execution.max_replicas)}]


def _together(rows: Iterable[Mapping[str, Any]]) -> Dimensions:
    """Each name with its distinct values, in order of appearance."""
    values_by_name: dict[str, dict[Any, None]] = {}
    for row in rows:
        for name, value in row.items():
            values_by_name.setdefault(name, {})[value] = None
    return {name: tuple(values) for name, values in values_by_name.items()}
