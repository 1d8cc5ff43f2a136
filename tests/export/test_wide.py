"""Replicas wider than a host: shares of hosts, scripts that start them, a LeaderWorkerSet."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.platforms.dynamo import trtllm_engine_options
from hisearch.export.servers.containers import memory_gib
from hisearch.export.servers.placement import nodes_of, place
from hisearch.specs.documents.catalogue import Catalogue
from tests.export import forms
from tests.export.command_lines import parse
from tests.export.conftest import export_all
from tests.export.test_export_scripts import call

KUBERNETES = ("1.30", "1.34")


@pytest.fixture
def export(build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path) -> Any:
    def run(engine: str = "vllm", slots: int = 8, **pool: Any) -> tuple[Path, Launch]:
        wide = {"tensor_parallel": 8, "pipeline_parallel": 2, "replicas": 2} | pool
        deployment = build_deployment(engine={"name": engine}, pool=wide)
        launch = Launch(deployment.pool, build_model(), build_accelerator(), 400_000)
        out = tmp_path / "out"
        export_all(deployment, launch.model, launch.accelerator, out, slots)
        return out, launch

    return run


@pytest.mark.parametrize(
    ("tensor", "pipeline", "slots", "nodes"), [(8, 2, 8, 2), (4, 4, 8, 2), (4, 3, 8, 3), (2, 4, 8, 1), (8, 4, 8, 4)]
)
def test_shares_hold_whole_stages_as_many_on_each_host(
    build_deployment: Any,
    build_model: Any,
    build_accelerator: Any,
    tensor: int,
    pipeline: int,
    slots: int,
    nodes: int,
) -> None:
    pool = build_deployment(pool={"tensor_parallel": tensor, "pipeline_parallel": pipeline, "replicas": 3}).pool
    assert nodes_of(pool, slots) == nodes
    shares = place([Launch(pool, build_model(), build_accelerator(), 400_000)], [slots], [None])
    assert [(s.member, s.node) for s in shares] == [(r, n) for r in range(3) for n in range(nodes)]
    used = [(s.host, device) for s in shares for device in s.devices]
    assert len(set(used)) == len(used) == 3 * tensor * pipeline
    assert max(device for _, device in used) < slots
    assert all(len(s.devices) % tensor == 0 for s in shares)
    assert len({(s.host, s.port) for s in shares}) == len(shares)


def test_a_stage_wider_than_a_host_is_refused(build_deployment: Any) -> None:
    with pytest.raises(ExportError, match="a stage's ranks share a host, or fill hosts that peer links join"):
        nodes_of(build_deployment(pool={"tensor_parallel": 16}).pool, 8)


def _recorded_call(line: str) -> tuple[str, list[str]]:
    """(devices, arguments) of a call of the stub."""
    _, devices, arguments = line.split("|", 2)
    return devices, arguments.strip()[1:-1].split("><")


@pytest.mark.parametrize(("engine", "behind"), [("vllm", 2), ("sglang", 4)])
def test_every_share_starts_its_node_of_its_replica(export: Any, tmp_path: Path, engine: str, behind: int) -> None:
    out, launch = export(engine)
    script = out / engine / "run.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    addresses = {"HOST_0": "10.0.0.1", "HOST_2": "10.0.0.3"}
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / "python3").symlink_to("python")
    simulated = {flag[0]: list(flag[1:]) for flag in engine_flags(launch)}
    for replica, address in ((0, "10.0.0.1"), (1, "10.0.0.3")):
        for node in (0, 1):
            done = call(script, "share", str(replica), str(node), stubs=stubs, **addresses)
            assert done.returncode == 0, done.stderr
            devices, words = _recorded_call(done.stdout)
            assert devices == "0,1,2,3,4,5,6,7"
            parsed = parse(engine, words[behind:])
            assert {flag: parsed[flag] for flag in simulated} == simulated
            assert (parsed["--nnodes"], parsed["--node-rank"]) == (["2"], [str(node)])
            port = str(29500 + replica)
            if engine == "vllm":
                assert (parsed["--master-addr"], parsed["--master-port"]) == ([address], [port])
                assert ("--headless" in parsed) == (node == 1)
            else:
                assert parsed["--dist-init-addr"] == [f"{address}:{port}"]
    assert "set HOST_0" in call(script, "share", "0", "1", stubs=stubs).stderr
    assert call(script, "share", "0", "2", stubs=stubs, **addresses).returncode == 2
    router = call(script, "router", stubs=stubs, **addresses)
    _, words = _recorded_call(router.stdout)
    first = 8001 if engine == "vllm" else 30001
    urls = parse("sglang-router", words[2:])["--worker-urls"]
    assert urls == [f"http://10.0.0.1:{first}", f"http://10.0.0.3:{first + 2}"]
    host = call(script, "host", "3", stubs=stubs, **addresses)
    assert "<--node-rank><1>" in host.stdout


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_manifest_is_a_leader_worker_set(export: Any, engine: str, replicas: int) -> None:
    out, launch = export(engine, replicas=replicas)
    group, *others = yaml.safe_load_all((out / "kubernetes/manifests.yaml").read_text())
    forms.check(group, forms.LEADER_WORKER_SET)
    assert (group["apiVersion"], group["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    assert (group["spec"]["replicas"], template["size"]) == (replicas, 2)
    simulated = {flag[0]: list(flag[1:]) for flag in engine_flags(launch)}
    for role in ("leader", "worker"):
        (container,) = template[f"{role}Template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        words = container["command"] + container["args"]
        parsed = parse(engine, words[words.index("$(MODEL)") + 1 :])
        assert {flag: parsed[flag] for flag in simulated} == simulated
        assert parsed["--node-rank"] == ["$(LWS_WORKER_INDEX)"]
        leader = parsed["--master-addr" if engine == "vllm" else "--dist-init-addr"][0]
        assert leader.removesuffix(":29500") == "$(LWS_LEADER_ADDRESS)"
        assert ("--headless" in parsed) == (engine == "vllm" and role == "worker")
        assert ("readinessProbe" in container) == (role == "leader")
    (service,) = [manifest for manifest in others if manifest["kind"] == "Service"]
    leaders = template["leaderTemplate"]["metadata"]["labels"]
    assert template["workerTemplate"]["metadata"]["labels"] != leaders
    assert (service["spec"]["selector"] == leaders) == (replicas == 1)
    assert any(manifest["kind"] == "Deployment" for manifest in others) == (replicas > 1)


@pytest.mark.parametrize("version", KUBERNETES)
def test_pods_and_the_other_manifests_fit_kubernetes_schemas(export: Any, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    out, _ = export()
    group, *others = yaml.safe_load_all((out / "kubernetes/manifests.yaml").read_text())
    template = group["spec"]["leaderWorkerTemplate"]
    pods = [
        forms.as_pod(spec["containers"], spec["volumes"])
        for spec in (template[f"{role}Template"]["spec"] for role in ("leader", "worker"))
    ]
    for manifest in (*pods, *others):
        validator.validate(manifest, version, strict=True)


def test_what_engines_start_otherwise_is_refused(export: Any) -> None:
    with pytest.raises(ExportError, match="mpirun"):
        export("trtllm")
    with pytest.raises(ExportError, match="--data-parallel-size-local"):
        export("vllm", tensor_parallel=1, attention_data_parallel=8)


def test_the_readme_names_hosts_and_what_is_not_written(export: Any) -> None:
    out, _ = export()
    readme = (out / "README.md").read_text()
    assert "| 1 | 1 | 3 | 0, 1, 2, 3, 4, 5, 6, 7 |" in readme
    assert "Nothing is written here for Docker Compose" in readme
    assert "run.sh host H" in readme
    assert not (out / "compose").exists()


def test_all_ranks_of_a_replica_count_in_every_manifest(
    build_deployment: Any, build_model: Any, build_accelerator: Any
) -> None:
    """Attention groups and stages have accelerators of their own."""
    from hisearch.export.servers.containers import container

    pool = build_deployment(
        engine={"name": "trtllm"},
        pool={"tensor_parallel": 1, "attention_data_parallel": 4, "pipeline_parallel": 2, "expert_parallel": 4},
    ).pool
    launch = Launch(pool, build_model(), build_accelerator(), 400_000)
    pod_container = container(launch, 8000)
    assert (pod_container.accelerators, pod_container.cores, pod_container.memory_gib) == (8, 36, 96)
    half = container(launch, 8000, nodes=2)
    assert (half.accelerators, half.cores, half.memory_gib) == (4, 20, 64)
    options = trtllm_engine_options(launch)
    assert (options["tensor_parallel_size"], options["pipeline_parallel_size"]) == (4, 2)
    assert options["moe_expert_parallel_size"] == 4


def test_ranks_that_peer_links_join_lie_on_several_hosts(
    build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    """Four ranks of a tray each, all in one command; where peer links join fewer it stays refused."""
    deployment = build_deployment(engine={"name": "sglang"}, pool={"tensor_parallel": 8, "replicas": 2})
    pool = deployment.pool
    launch = Launch(pool, build_model(), build_accelerator(), 400_000)
    assert [(s.member, s.node, s.host, s.devices) for s in place([launch], [4], [72])] == [
        (replica, node, 2 * replica + node, (0, 1, 2, 3)) for replica in (0, 1) for node in (0, 1)
    ]
    for refused in ({"reach": 4}, {}):
        with pytest.raises(ExportError, match="fill hosts that peer links join"):
            nodes_of(pool, 4, **refused)
    with pytest.raises(ExportError, match="fill hosts that peer links join"):
        nodes_of(build_deployment(pool={"tensor_parallel": 6}).pool, 4, 72)
    export_all(deployment, launch.model, launch.accelerator, tmp_path, 4, 72)
    script = (tmp_path / "sglang/run.sh").read_text()
    assert "--nnodes 2" in script
    assert "--tp-size 8" in script
    readme = (tmp_path / "README.md").read_text()
    assert "one NVLink domain" in readme
    assert "Activations pass" not in readme


@pytest.mark.parametrize(
    ("model", "engine", "kv_connector", "pool", "stored_gib"),
    [
        ("qwen3-32b", "vllm", "lmcache", {"tensor_parallel": 8}, 300),
        ("deepseek-v3", "vllm", "lmcache", {"tensor_parallel": 8}, 600),
        ("deepseek-v3", "sglang", "hicache", {"tensor_parallel": 8}, 300),
        ("deepseek-v3", "sglang", "hicache", {"tensor_parallel": 1, "attention_data_parallel": 8}, 300),
    ],
)
def test_pods_ask_for_the_memory_that_the_ranks_of_their_host_store_in(
    build_deployment: Any,
    build_accelerator: Any,
    model: str,
    engine: str,
    kv_connector: str,
    pool: dict[str, int],
    stored_gib: int,
) -> None:
    """Plus 32 GiB and 8 a rank. Under MLA LMCache's first rank stores for all; HiCache has a pool per rank."""
    tiers = [{"medium": "ddr5", "gib": 600}]
    deployment = build_deployment(
        engine={"name": engine}, pool={**pool, "tiers": tiers, "movement": {"kv_connector": kv_connector}}
    ).pool
    launch = Launch(deployment, Catalogue().get("Model", model).spec, build_accelerator(), 400_000)
    assert memory_gib(launch, 2) == stored_gib + 32 + 8 * 4
