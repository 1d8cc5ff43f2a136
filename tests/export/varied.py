"""Command lines of varied deployments, for every release whose flags were read."""

from __future__ import annotations

from typing import Any, NamedTuple

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
_EAGLE3 = {"method": "eagle3", "draft_tokens": 2, "draft_weights": "acme/head"}
_ADAPTERS = {"adapters": {"rank": 16}, "slots": 4}


class Command(NamedTuple):
    """A server's command line. words: behind the program and its model. model: kind of model that it serves."""

    words: list[str]
    model: str = "dense"


class Varied(NamedTuple):
    """A deployment, its pools' launches, and the kind of model that it serves."""

    deployment: DeploymentSpec
    launches: list[Launch]
    kind: str


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
    "eager": ({"enforce_eager": True}, {}),
    "captured sizes": ({"cudagraph_capture_sizes": [1, 8, 64]}, {}),
    "small graphs": ({"max_cudagraph_capture_size": 96}, {}),
    "fp8 weights": ({}, {"weight_dtype": "fp8"}),
    "fp8 KV": ({}, {"kv_dtype": "fp8"}),
    "pipeline": ({}, {"pipeline_parallel": 2, "tensor_parallel": 4}),
    "host memory": ({}, {"tiers": [_DRAM]}),
    "pages of 32": ({"page_tokens": 32}, {}),
    "adapters": ({}, {"agents": _ADAPTERS}),
    "slots of adapters": ({}, {"lora": {"max_loras": 4, "rank": 32, "targets": ["q", "k", "v", "o"]}}),
}
_OF_ENGINE: dict[str, Settings] = {
    "vllm": {
        "drafts by mtp": ({"speculation": {"method": "mtp", "draft_tokens": 3}}, {"tensor_parallel": 4}),
        "drafts by eagle3": ({"speculation": _EAGLE3}, {}),
        "drafts by ngram": ({"speculation": {"method": "ngram", "draft_tokens": 2}}, {}),
        "decode graphs": ({"cudagraph_mode": "full_decode_only", "fused_all_reduce": False}, {}),
        "prompts in parts": ({"long_prefill_tokens": 512, "reserve_full_prompt": False}, {}),
        "front": ({"stream_interval": 20, "api_servers": 4}, {}),
        "arc": ({}, {"tiers": [{**_DRAM, "eviction": "arc"}], "movement": {"store_threshold": 2}}),
        "lmcache": ({}, {"tiers": [_DRAM], "movement": {"kv_connector": "lmcache"}}),
        "server": ({}, {"tiers": [{**_DRAM, "scope": "node"}], "movement": {"kv_connector": "lmcache"}}),
    },
    "sglang": {
        "orders": ({"schedule": "dfs-weight", "eviction": "lfu", "mixed_chunk": True, "receive_interval": 20}, {}),
        "front": ({"stream_interval": 30, "api_servers": 6}, {}),
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
    "vllm-0.33.0": {
        "watermark": ({"watermark": 0.05}, {}),
        "shares of a step": ({"long_prefill_tokens": 512, "long_prefill_adaptive": True}, {}),
    },
    "sglang-0.5.23": {
        "slru": ({"eviction": "slru"}, {}),
        "drafts by mtp": ({"speculation": {"method": "mtp", "draft_tokens": 3}}, {"tensor_parallel": 4}),
        "drafts by eagle3": ({"speculation": _EAGLE3}, {}),
        "drafts by ngram": ({"speculation": {"method": "ngram", "draft_tokens": 2}}, {}),
    },
    "sglang-0.5.9": {"lmcache": ({}, {"tiers": [_DRAM], "movement": {"kv_connector": "lmcache"}})},
}
_LMCACHE = {"movement": {"kv_connector": "lmcache"}}
_PREFILL_TIERS: dict[str, dict[str, Any]] = {"prefill": {"tiers": [_DRAM]}}
#: vLLM on models of other attention: name -> kind of model, settings of its pool.
_OF_MODELS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "vllm-0.19.1": {
        "windows": ("windows", {}),
        "linear": ("linear", {}),
        "mla": ("mla", {}),
        "mla, host memory": ("mla", {"tiers": [_DRAM]}),
        "mla, lmcache": ("mla", {"tiers": [_DRAM]} | _LMCACHE),
        "mla, fp8 KV": ("mla", {"kv_dtype": "fp8"}),
    },
    "vllm-0.33.0": {
        "windows": ("windows", {}),
        "linear": ("linear", {}),
        "mla": ("mla", {}),
        "windows, host memory": ("windows", {"tiers": [_DRAM]}),
        "linear, host memory": ("linear", {"tiers": [_DRAM]}),
        "windows, arc": ("windows", {"tiers": [{**_DRAM, "eviction": "arc"}]}),
        "mla, lmcache": ("mla", {"tiers": [_DRAM]} | _LMCACHE),
    },
}
#: Disaggregated: name -> kind of model, settings of each role's pool.
_OF_ROLES: dict[str, dict[str, tuple[str, dict[str, dict[str, Any]]]]] = {
    "vllm-0.19.1": {
        "joined": ("dense", _PREFILL_TIERS),
        "joined lmcache": ("dense", {"prefill": {"tiers": [_DRAM]} | _LMCACHE}),
        "windows disaggregated": ("windows", {}),
        "linear disaggregated": ("linear", {}),
    },
    "vllm-0.33.0": {
        "joined": ("dense", _PREFILL_TIERS),
        "joined windows": ("windows", _PREFILL_TIERS),
        "linear disaggregated": ("linear", {}),
    },
}
_ROLES = ("prefill", "decode")
_MLA = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_HEADS = {"key_heads": 16, "value_heads": 32, "key_head_dim": 128, "value_head_dim": 128}
#: Kind of model -> how it differs from the dense one.
_MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "windows": {"sliding_window_tokens": 128},
    "linear": {"linear_attention": {"layers": 48, **_HEADS}},
    "mla": {"attention": "mla", "mla": _MLA},
}
_EXPERTS = {"experts": 128, "experts_per_token": 8, "expert_intermediate_size": 1536}


def varied(engine: str, version: str) -> dict[str, Command]:
    """Name -> command lines of varied servers of a release: the first server of each pool."""
    commands: dict[str, Command] = {}
    for name, (deployment, launches, kind) in varied_deployments(engine, version).items():
        servers = export_of(deployment, launches, [8] * len(launches)).firsts
        for server, pool in zip(servers, deployment.pools, strict=True):
            words = list(server_container(server, deployment, 8000).arguments)
            commands[f"{pool.role} {name}".strip() if len(launches) > 1 else name] = Command(words, kind)
    return commands


def varied_deployments(engine: str, version: str, like: str = "") -> dict[str, Varied]:
    """Name -> varied deployments on a release; the disaggregated one without a setting has no name.

    ``like``: another release of the engine, whose own cases are taken.
    """
    given, title = {"name": engine, "version": version}, f"{engine}-{like or version}"
    cases = _BOTH | _OF_ENGINE[engine] | _OF_RELEASE.get(title, {})
    made: dict[str, Varied] = {}
    base = {"accelerator": "h100-sxm", "tensor_parallel": 2}
    for name, (settings, pool) in cases.items():
        made[name] = _varied([base | {"engine": given | settings} | pool])
    for name, (kind, pool) in _OF_MODELS.get(title, {}).items():
        made[name] = _varied([base | {"engine": given} | pool], kind)
    groups = {"attention_data_parallel": 4, "expert_parallel": 8 if engine == "vllm" else 4, "tensor_parallel": 2}
    made["attention groups"] = _varied([base | {"engine": given} | groups], "experts")
    for name, (kind, pools) in ({"": ("dense", {})} | _OF_ROLES.get(title, {})).items():
        roles = [base | {"name": role, "role": role, "engine": given} | pools.get(role, {}) for role in _ROLES]
        made[name] = _varied(roles, kind, transfer={"fabric": "ib-ndr-400"})
    return made


def _varied(pools: list[dict[str, Any]], kind: str = "dense", **changes: Any) -> Varied:
    deployment = DeploymentSpec.model_validate({"model": "qwen3-32b", "pools": pools} | changes)
    model = make_model(**({"moe": _EXPERTS} if kind == "experts" else _MODELS[kind]))
    return Varied(deployment, [Launch(pool, model, make_accelerator(), 400_000) for pool in deployment.pools], kind)
