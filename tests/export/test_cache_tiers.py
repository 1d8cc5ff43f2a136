"""Cache tiers in flags, environment and notes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.export.engines.alternative import on_other_engine, other_engine
from hisearch.export.engines.cache_tiers import notes, variables
from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.tiers import MovementSpec
from hisearch.specs.models.model import MlaSpec
from tests.export.conftest import export_all

DRAM = {"medium": "ddr5", "gib": 256, "scope": "worker"}
DISK = {"medium": "nvme-gen5", "gib": 3500, "scope": "node"}
OWN_DISK = {"medium": "nvme-gen5", "gib": 500, "scope": "worker"}
REMOTE = {"medium": "rdma-pool", "gib": 4000, "scope": "cluster"}


@pytest.fixture
def pool(build_deployment: Any) -> Any:
    def build(engine: str, tiers: list[dict[str, Any]], version: str = "", **movement: Any) -> PoolSpec:
        fields = {"tiers": tiers, "movement": movement, "tensor_parallel": 2}
        made: PoolSpec = build_deployment(engine={"name": engine, "version": version}, pool=fields).pool
        return made

    return build


@pytest.fixture
def flags(build_model: Any, build_accelerator: Any) -> Any:
    def of(made: PoolSpec) -> dict[str, str]:
        """The flags that concern tiers."""
        emitted = engine_flags(Launch(made, build_model(), build_accelerator(), 400_000))
        marks = ("hicache", "hierarchical", "lmcache", "offloading", "transfer", "hybrid")
        return {flag[0]: "".join(flag[1:]) for flag in emitted if any(mark in flag[0] for mark in marks)}

    return of


def test_hicache_with_a_storage_tier(pool: Any, flags: Any) -> None:
    movement = {
        "write_policy": "write_back", "prefetch": "timeout", "prefetch_threshold_tokens": 512,
        "prefetch_timeout_base_s": 0.5, "prefetch_timeout_s_per_ki_token": 0.1,
    }  # fmt: skip
    emitted = flags(pool("sglang", [DRAM, DISK], **movement))
    extra = json.loads(emitted.pop("--hicache-storage-backend-extra-config"))
    assert extra == {
        "prefetch_threshold": 512, "prefetch_timeout_base": 0.5, "prefetch_timeout_per_ki_token": 0.1,
    }  # fmt: skip
    assert isinstance(extra["prefetch_threshold"], int)
    assert emitted == {
        "--enable-hierarchical-cache": "",
        "--hicache-size": "137",
        "--hicache-write-policy": "write_back",
        "--hicache-storage-backend": "file",
        "--hicache-storage-prefetch-policy": "timeout",
    }
    assert flags(pool("sglang", [DRAM, REMOTE]))["--hicache-storage-backend"] == "mooncake"


def test_vllm_s_offloading(pool: Any, flags: Any) -> None:
    usual = {"--kv-offloading-backend": "native", "--kv-offloading-size": "256"}
    emitted = flags(pool("vllm", [{**DRAM, "eviction": "arc"}], store_threshold=2))
    connector = json.loads(emitted.pop("--kv-transfer-config"))
    assert emitted == usual
    assert connector == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"eviction_policy": "arc", "store_threshold": 2},
    }
    old = flags(pool("vllm", [DRAM], version="0.19.1"))
    assert old == usual | {"--disable-hybrid-kv-cache-manager": ""}
    old = flags(pool("vllm", [{**DRAM, "eviction": "arc"}], version="0.19.1"))
    assert json.loads(old["--kv-transfer-config"])["kv_connector_extra_config"] == {"eviction_policy": "arc"}


def test_lmcache_is_configured_by_the_environment(pool: Any, flags: Any, build_model: Any) -> None:
    made = pool(
        "vllm", [{**DRAM, "eviction": "fifo"}, {**OWN_DISK, "eviction": "fifo"}, REMOTE], kv_connector="lmcache"
    )
    (connector,) = flags(made).items()
    assert (connector[0], json.loads(connector[1])["kv_connector"]) == ("--kv-transfer-config", "LMCacheConnectorV1")
    old = made.model_copy(update={"engine": made.engine.model_copy(update={"version": "0.19.1"})})
    assert flags(old) == {
        "--kv-offloading-backend": "lmcache",
        "--kv-offloading-size": "256",
        "--disable-hybrid-kv-cache-manager": "",
    }
    assert {variable.name: variable.value for variable in variables(made, build_model())} == {
        "LMCACHE_CHUNK_SIZE": "256",
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "128",
        "LMCACHE_CACHE_POLICY": "FIFO",
        "LMCACHE_SAVE_DECODE_CACHE": "False",
        "KV_DIR": None,
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "250",
        "LMCACHE_REMOTE_URL": None,
    }
    made = pool("sglang", [DRAM], "0.5.9", kv_connector="lmcache", save_decode=True, chunk_tokens=512)
    assert flags(made) == {"--enable-lmcache": ""}
    with pytest.raises(ExportError, match=r"sglang 0\.5\.23 has LMCache as a server"):
        flags(pool("sglang", [DRAM], kv_connector="lmcache"))
    environment = {variable.name: variable.value for variable in variables(made, build_model())}
    assert (environment["LMCACHE_USE_LAYERWISE"], environment["LMCACHE_SAVE_DECODE_CACHE"]) == ("True", "True")
    assert environment["LMCACHE_CHUNK_SIZE"] == "512"


def test_a_node_s_lmcache_is_a_server(pool: Any, flags: Any, build_model: Any) -> None:
    made = pool(
        "vllm",
        [{**DRAM, "scope": "node"}, {"medium": "nvme-gen5", "gib": 500, "scope": "node"}],
        kv_connector="lmcache",
    )
    emitted = flags(made)
    assert json.loads(emitted.pop("--kv-transfer-config")) == {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
    }
    assert (emitted, variables(made, build_model())) == ({}, [])
    assert notes(made) == [
        "Start an LMCache server for each node: "
        "lmcache server --l1-size-gb 256 --chunk-size 256 --eviction-policy LRU.",
        "Size and eviction of nvme-gen5 behind it are set by its --l2-adapter: 500 GiB for each node, lru.",
    ]


def test_lmcache_stores_equal_kv_once(pool: Any, build_model: Any) -> None:
    mla = MlaSpec(kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    environment = {
        variable.name: variable.value
        for variable in variables(
            pool("vllm", [DRAM, OWN_DISK], kv_connector="lmcache"), build_model(attention="mla", mla=mla)
        )
    }
    assert json.loads(environment["LMCACHE_EXTRA_CONFIG"] or "") == {
        "save_only_first_rank": True, "first_rank_max_local_cpu_size": 256,
    }  # fmt: skip
    assert environment["LMCACHE_MAX_LOCAL_DISK_SIZE"] == "500"


@pytest.mark.parametrize(
    ("engine", "tiers", "movement", "expected"),
    [
        ("sglang", [DRAM], {}, []),
        ("vllm", [DRAM], {}, []),
        (
            "sglang",
            [{**DRAM, "eviction": "slru"}],
            {},
            ["SGLang evicts its host tier by --radix-eviction-policy (lru);"],
        ),
        ("sglang", [DRAM], {"load_back_tokens": 64}, ["SGLang loads back from 10 tokens on, which no flag changes;"]),
        (
            "vllm",
            [{**DRAM, "ttl_s": 60}],
            {},
            ["vLLM's native offloading lets nothing expire; ddr5 was simulated with a"],
        ),
        (
            "sglang",
            [DRAM, DISK],
            {},
            ["neither limits its folder nor evicts: keep it within 3,500 GiB by lru yourself."],
        ),
        ("sglang", [DRAM, REMOTE], {}, ["at the Mooncake services: 4,000 GiB in all, lru."]),
        ("vllm", [DRAM, REMOTE], {"kv_connector": "lmcache"}, ["are set at its server: 4,000 GiB, lru."]),
        ("vllm", [DRAM, OWN_DISK], {"kv_connector": "lmcache"}, []),
        ("vllm", [DRAM], {"store_threshold": 2}, ["of the last 64,000 blocks"]),
    ],
)
def test_what_no_setting_says(
    pool: Any, engine: str, tiers: list[dict[str, Any]], movement: dict[str, Any], expected: list[str]
) -> None:
    written = notes(pool(engine, tiers, **movement))
    assert len(written) == len(expected)
    for text, part in zip(written, expected, strict=True):
        assert part in text


def test_nothing_is_set_without_a_prefix_cache(build_deployment: Any, build_model: Any) -> None:
    made = build_deployment(engine={"prefix_caching": False}, pool={"tiers": [DRAM, DISK]}).pool
    assert variables(made, build_model()) == notes(made) == []


def test_another_engine_gets_what_its_kv_connector_has(pool: Any) -> None:
    def moved(made: PoolSpec) -> tuple[PoolSpec, list[str]]:
        translated, words = on_other_engine(made, other_engine(made.engine)[0])
        return PoolSpec.model_validate(translated.model_dump()), words

    translated, words = moved(pool("sglang", [{**DRAM, "eviction": "slru"}, DISK], write_policy="write_back"))
    assert ([tier.gib for tier in translated.tiers], translated.tiers[0].eviction, translated.kv_connector) == (
        [256],
        "lru",
        "offload",
    )
    assert translated.movement == MovementSpec()
    assert words == [
        "Tiers behind host memory are left out: vLLM's native offloading was given ddr5 alone.",
        "Host memory evicts by lru; the simulated policy is slru.",
        "write_policy write_back has no counterpart and is left out.",
    ]
    translated, words = moved(pool("vllm", [{**DRAM, "eviction": "arc"}], store_threshold=3))
    assert (translated.engine.name, translated.kv_connector, translated.tiers[0].eviction) == (
        "sglang",
        "hicache",
        "lru",
    )
    assert words == [
        "Host memory evicts by lru; the simulated policy is arc.",
        "store_threshold 3 has no counterpart and is left out.",
    ]
    lmcache = pool("vllm", [DRAM, OWN_DISK], kv_connector="lmcache")
    translated, words = moved(lmcache)
    assert (translated.tiers, translated.movement, words) == (lmcache.tiers, lmcache.movement, [])
    assert moved(pool("trtllm", [DRAM]))[1] == []
    assert moved(pool("sglang", []))[1] == []


STUB = """#!/bin/bash
env | grep -E '^(SGLANG|LMCACHE|MOONCAKE|KV_DIR)' | sort
"""


def _export(out: Path, made: PoolSpec, build_deployment: Any, build_model: Any, build_accelerator: Any) -> Path:
    deployment = build_deployment().model_copy(update={"pools": [made]})
    export_all(deployment, build_model(), build_accelerator(), out)
    return out / made.engine.name / "run.sh"


@pytest.fixture
def environment_of(build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path) -> Any:
    def run(made: PoolSpec, replica: int, **given: str) -> subprocess.CompletedProcess[str]:
        script = _export(tmp_path / "out", made, build_deployment, build_model, build_accelerator)
        subprocess.run(["bash", "-n", str(script)], check=True)
        for name in ("python", "vllm"):
            (tmp_path / name).write_text(STUB)
            (tmp_path / name).chmod(0o755)
        environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"} | given
        command = [str(script), "replica", str(replica)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20, check=False)

    return run


def test_a_folder_is_shared_by_its_node(pool: Any, environment_of: Any) -> None:
    made = pool("sglang", [DRAM, DISK])
    refused = environment_of(made, 0)
    assert refused.returncode != 0
    assert "KV_DIR: set KV_DIR" in refused.stderr
    assert environment_of(made, 1, KV_DIR="/kv store").stdout.splitlines() == [
        "KV_DIR=/kv store",
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=/kv store",
    ]
    local = pool("sglang", [DRAM, OWN_DISK])
    assert "STORAGE_DIR=/kv/replica-2\n" in environment_of(local, 2, KV_DIR="/kv").stdout


def test_mooncake_and_lmcache_variables_reach_the_engine(pool: Any, environment_of: Any) -> None:
    completed = environment_of(
        pool("sglang", [DRAM, REMOTE]), 0, MOONCAKE_MASTER="10.0.0.1:50051", MOONCAKE_PROTOCOL="tcp"
    )
    assert completed.stdout.splitlines() == [
        "MOONCAKE_GLOBAL_SEGMENT_SIZE=0",
        "MOONCAKE_MASTER=10.0.0.1:50051",
        "MOONCAKE_PROTOCOL=tcp",
    ]
    made = pool("vllm", [DRAM, OWN_DISK, REMOTE], kv_connector="lmcache")
    completed = environment_of(made, 1, KV_DIR="/kv", LMCACHE_REMOTE_URL="redis://pool:6379")
    assert {"LMCACHE_LOCAL_DISK=file:///kv/replica-1/", "LMCACHE_CHUNK_SIZE=256"} <= set(completed.stdout.splitlines())


def test_the_readme_and_the_yaml_name_the_tiers(
    pool: Any, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    made = pool("sglang", [DRAM, DISK])
    _export(tmp_path, made, build_deployment, build_model, build_accelerator)
    readme = (tmp_path / "README.md").read_text()
    words = "KV below device memory: 256 GiB ddr5 per worker, 3,500 GiB nvme-gen5 per node, HiCache write-through."
    assert words in readme
    assert "keep it within 3,500 GiB by lru yourself" in readme
    assert "Tiers behind host memory are left out" in readme
    spec = yaml.safe_load((tmp_path / "deployment.yaml").read_text())["spec"]
    assert PoolSpec.model_validate(spec["pools"][0]) == made
    vllm = (tmp_path / "alternatives/vllm/run.sh").read_text()
    assert "--kv-offloading-size" in vllm
    assert "KV_DIR" not in vllm
