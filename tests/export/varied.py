"""Command lines of varied deployments, for every release whose flags were read."""

from __future__ import annotations

from typing import Any

from hisearch.base.engine_rules import MODELLED
from hisearch.export.engines.launch import Launch
from hisearch.export.servers.containers import server_container
from hisearch.export.servers.exported import export_of
from hisearch.specs.deployments.deployment import DeploymentSpec
from tests.export.conftest import make_accelerator, make_model

#: ``vllm-0.19.1`` and so on.
RELEASES = [f"{engine}-{version}" for engine, versions in MODELLED.items() for version in versions]

_DRAM = {"medium": "ddr5", "gib": 256, "scope": "worker"}
_DISK = {"medium": "nvme-gen5", "gib": 3500, "scope": "node"}
_STORE = {"medium": "nvme-gen5", "gib": 4000, "scope": "cluster"}
_ADAPTERS = {"adapters": {"rank": 16}, "slots": 4}
#: Name -> settings of the engine, and of its pool.
Settings = dict[str, tuple[dict[str, Any], dict[str, Any]]]
_BOTH: Settings = {
    "plain": ({}, {}),
    "large steps": ({"chunk_tokens": 16384, "max_running_requests": 512, "memory_fraction": 0.85}, {}),
    "no prefix cache": ({"prefix_caching": False}, {}),
    "whole prompts": ({"chunked_prefill": False}, {}),
    "without overlap": ({"overlap": False}, {}),
    "by priority": ({"schedule": "priority"}, {}),
    "fused": ({"fused_all_reduce": True}, {"tensor_parallel": 4}),
    "not fused": ({"fused_all_reduce": False}, {}),
    "fp8 weights": ({}, {"weight_dtype": "fp8"}),
    "fp8 KV": ({}, {"kv_dtype": "fp8"}),
    "pipeline": ({}, {"pipeline_parallel": 2, "tensor_parallel": 4}),
    "host memory": ({}, {"tiers": [_DRAM]}),
    "pages of 32": ({"page_tokens": 32}, {}),
    "adapters": ({}, {"agents": _ADAPTERS}),
}
_OF_ENGINE: dict[str, Settings] = {
    "vllm": {
        "prompts in parts": ({"long_prefill_tokens": 512, "reserve_full_prompt": False}, {}),
        "arc": ({}, {"tiers": [{**_DRAM, "eviction": "arc"}], "movement": {"store_threshold": 2}}),
        "lmcache": ({}, {"tiers": [_DRAM], "movement": {"kv_connector": "lmcache"}}),
        "server": ({}, {"tiers": [{**_DRAM, "scope": "node"}], "movement": {"kv_connector": "lmcache"}}),
    },
    "sglang": {
        "orders": ({"schedule": "dfs-weight", "eviction": "lfu", "mixed_chunk": True, "receive_interval": 20}, {}),
        "lof by priority": (
            {"schedule": "lof", "priority_scheduling": True, "high_priority_first": True, "preemption_threshold": 2},
            {},
        ),
        "few prompts": ({"prefill_max_requests": 4, "schedule_conservativeness": 0.4, "schedule": "lpm"}, {}),
        "disk": ({}, {"tiers": [_DRAM, _DISK], "movement": {"write_policy": "write_back"}}),
        "store": ({}, {"tiers": [_DRAM, _STORE]}),
        "fp4 KV": ({}, {"kv_dtype": "fp4"}),
    },
}
_OF_RELEASE: dict[str, Settings] = {
    "vllm-0.33.0": {"watermark": ({"watermark": 0.05}, {})},
    "sglang-0.5.9": {"lmcache": ({}, {"tiers": [_DRAM], "movement": {"kv_connector": "lmcache"}})},
    "sglang-0.5.23": {"slru": ({"eviction": "slru"}, {})},
}
_EXPERTS = {"experts": 128, "experts_per_token": 8, "expert_intermediate_size": 1536}


def varied(engine: str, version: str) -> dict[str, list[str]]:
    """Name -> words behind the program and its model, of varied servers of a release."""
    given = {"name": engine, "version": version}
    cases = _BOTH | _OF_ENGINE[engine] | _OF_RELEASE.get(f"{engine}-{version}", {})
    commands: dict[str, list[str]] = {}
    for name, (settings, pool) in cases.items():
        base = {"accelerator": "h100-sxm", "tensor_parallel": 2, "engine": given | settings}
        (commands[name],) = _words([base | pool])
    groups = {"attention_data_parallel": 4, "expert_parallel": 8 if engine == "vllm" else 4, "tensor_parallel": 2}
    (commands["attention groups"],) = _words([{"accelerator": "h100-sxm", "engine": given} | groups], experts=True)
    roles = [
        {"name": "prefill", "role": "prefill", "accelerator": "h100-sxm", "engine": given},
        {"name": "decode", "role": "decode", "accelerator": "h100-sxm", "tensor_parallel": 2, "engine": given},
    ]
    commands |= zip(("prefill", "decode"), _words(roles, transfer={"fabric": "ib-ndr-400"}), strict=True)
    return commands


def _words(pools: list[dict[str, Any]], *, experts: bool = False, **changes: Any) -> list[list[str]]:
    """Arguments of the first server of each pool."""
    deployment = DeploymentSpec.model_validate({"model": "qwen3-32b", "pools": pools} | changes)
    model = make_model(**({"moe": _EXPERTS} if experts else {}))
    launches = [Launch(pool, model, make_accelerator(), 400_000) for pool in deployment.pools]
    export = export_of(deployment, launches, [8] * len(launches))
    return [list(server_container(server, deployment, 8000).arguments) for server in export.firsts]
