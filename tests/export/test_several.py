"""Deployments of several pools: every command line is the programs' own, and both sides know each other's addresses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.base.engine_rules import MODELLED
from hisearch.export.engines.launch import ExportError
from hisearch.export.engines.releases import READ, exported_release
from hisearch.export.servers.node_labels import node_label
from hisearch.specs.deployments.deployment import DeploymentSpec
from tests.export import forms
from tests.export.command_lines import OF_DYNAMO, parse
from tests.export.conftest import export_all

KUBERNETES = ("1.30", "1.34")
ENGINES = ("sglang", "vllm", "trtllm")


def disaggregated(engine: str, version: str = "", **changes: Any) -> DeploymentSpec:
    """Nine prefill workers, on two hosts, and two wider decode workers on other accelerators."""
    prefill = {"name": "prefill", "role": "prefill", "accelerator": "h100-sxm", "replicas": 9}
    decode = {"name": "decode", "role": "decode", "accelerator": "h200", "tensor_parallel": 2, "replicas": 2}
    pools = [prefill | changes.pop("prefill", {}), decode | changes.pop("decode", {})]
    return DeploymentSpec.model_validate(
        {
            "model": "qwen3-32b",
            "pools": [{"engine": {"name": engine, "version": version}} | pool for pool in pools],
            "router": {"policy": "cache_aware"},
            "decode_router": {"policy": "power_of_two"},
            "transfer": {"fabric": "ib-ndr-400"} | changes.pop("transfer", {}),
        }
        | changes
    )


def mixed(engine: str) -> DeploymentSpec:
    """Two kinds of unified workers."""
    pools = [
        {"name": "main", "accelerator": "h100-sxm", "replicas": 2, "engine": {"name": engine}},
        {"name": "other", "accelerator": "h200", "tensor_parallel": 4, "engine": {"name": engine}},
    ]
    return DeploymentSpec.model_validate({"model": "qwen3-32b", "pools": pools, "router": {"policy": "power_of_two"}})


CASES: dict[str, tuple[Any, ...]] = {
    f"{shape.__name__}-{engine}": (shape, engine) for shape in (disaggregated, mixed) for engine in ENGINES
}
CASES |= {f"disaggregated-{engine}-{READ[engine][0]}": (disaggregated, engine, READ[engine][0]) for engine in MODELLED}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> DeploymentSpec:
    shape, *engine_and_version = CASES[request.param]
    deployment: DeploymentSpec = shape(*engine_and_version)
    return deployment


@pytest.fixture
def write(build_model: Any, build_accelerator: Any, tmp_path: Path) -> Any:
    """Exports a deployment; the folder."""

    def export(deployment: DeploymentSpec) -> Path:
        export_all(deployment, build_model(), build_accelerator(), tmp_path / "out")
        return tmp_path / "out"

    return export


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def started(folder: Path, engine: str, *words: str) -> list[str]:
    """The command line that ``run.sh`` would run, with the addresses of three hosts."""
    hosts = {f"HOST_{host}": f"10.0.0.{host}" for host in range(3)}
    shell = f"exec() {{ printf '%s\\0' \"$@\"; exit 0; }}; set -- {' '.join(words)}; . {folder / engine / 'run.sh'}"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"} | hosts
    )
    return done.stdout.split("\0")[:-1]


def limits(pool: Any, flags: dict[str, list[str]], folder: Path) -> None:
    """Batches and KV memory are those that were simulated."""
    engine = pool.engine
    running, tokens = {
        "sglang": ("--max-running-requests", "--chunked-prefill-size"),
        "vllm": ("--max-num-seqs", "--max-num-batched-tokens"),
        "trtllm": ("--max_batch_size", "--max_num_tokens"),
    }[engine.name]
    assert (flags[running], flags[tokens]) == ([str(engine.max_running_requests)], [str(engine.chunk_tokens)])
    if engine.name == "sglang":
        assert flags["--max-total-tokens"] == ["400000"]
    elif engine.name == "vllm":
        assert flags["--num-gpu-blocks-override"] == [str(400_000 // engine.page_size)]
    else:
        name = pool.role if pool.role != "unified" else {"main": "unified-0", "other": "unified-1"}[pool.name]
        options = yaml.safe_load((folder / f"trtllm/{name}.yaml").read_text())
        assert options["kv_cache_config"]["max_tokens"] == 400_000


def role_of(pool: Any, flags: dict[str, list[str]]) -> None:
    """Flags of a server's role, for its engine."""
    if pool.role == "unified" or pool.engine.name == "trtllm":
        assert "--disaggregation-mode" not in flags
        assert "--kv-transfer-config" not in flags
    elif pool.engine.name == "sglang":
        assert flags["--disaggregation-mode"] == [pool.role]
        assert ("--disaggregation-bootstrap-port" in flags) == (pool.role == "prefill")
        names_degree = pool.role == "prefill" and exported_release(pool.engine) == "0.5.9"
        assert flags.get("--disaggregation-decode-tp") == (["2"] if names_degree else None)
        assert flags.get("--num-reserved-decode-tokens") == (["512"] if pool.role == "decode" else None)
    else:
        assert json.loads(flags["--kv-transfer-config"][0]) == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


#: Words before an engine's flags: the program and the model.
_BEHIND = {"sglang": 5, "vllm": 3, "trtllm": 2}


def test_scripts(case: DeploymentSpec, write: Any) -> None:
    folder, engine = write(case), case.pool.engine.name
    ports: dict[str, dict[str, str]] = {}
    number = 0
    for pool in case.pools:
        for _ in range(pool.replicas):
            words = started(folder, engine, "server", str(number))
            flags = parse(engine, words[_BEHIND[engine] :], exported_release(pool.engine))
            role_of(pool, flags)
            limits(pool, flags, folder)
            ports.setdefault(pool.role, {})[flags["--port"][0]] = flags.get("--disaggregation-bootstrap-port", [""])[0]
            number += 1
    assert sum(len(assigned) for assigned in ports.values()) == number  # all distinct
    front(case, started(folder, engine, "router"), ports, folder)


def front(case: DeploymentSpec, words: list[str], ports: dict[str, dict[str, str]], folder: Path) -> None:
    """The router's configuration names every server, by the port it listens on."""
    engine = case.pool.engine.name
    if "decode" not in ports:
        flags = parse("sglang-router", words[3:])
        assert {url.rsplit(":", 1)[1] for url in flags["--worker-urls"]} == set(ports["unified"])
    elif engine == "sglang":
        flags = parse("sglang-router", words[3:])
        urls = flags["--prefill"]
        assert {url.rsplit(":", 1)[1]: port for url, port in zip(urls[::2], urls[1::2], strict=True)} == ports[
            "prefill"
        ]
        assert {url.rsplit(":", 1)[1] for url in flags["--decode"]} == set(ports["decode"])
        assert (flags["--prefill-policy"], flags["--decode-policy"]) == (["cache_aware"], ["power_of_two"])
    elif engine == "vllm":
        flags = parse("vllm-router", words[1:])
        for role in ("prefill", "decode"):
            assert {url.rsplit(":", 1)[1] for url in flags[f"--{role}"]} == set(ports[role])
    else:
        assert words[:3] == ["trtllm-serve", "disaggregated", "--config_file"]
        orchestrator(case, yaml.safe_load(Path(words[3]).read_text()), ports)
        for role in ("prefill", "decode"):
            options = yaml.safe_load((folder / f"trtllm/{role}.yaml").read_text())
            assert options["cache_transceiver_config"]["max_tokens_in_buffer"] == 40_960
            assert options["disable_overlap_scheduler"] == (role == "prefill")


def orchestrator(case: DeploymentSpec, config: dict[str, Any], ports: dict[str, dict[str, str]]) -> None:
    """TensorRT-LLM's file, by the keys of ``extract_disagg_cfg`` and ``extract_ctx_gen_cfgs``."""
    assert set(config) == {"hostname", "port", "backend", "context_servers", "generation_servers"}
    for key, role in (("context_servers", "prefill"), ("generation_servers", "decode")):
        assert set(config[key]) == {"num_instances", "urls", "router"}
        assert {url.rsplit(":", 1)[1] for url in config[key]["urls"]} == set(ports[role])
        assert config[key]["num_instances"] == len(config[key]["urls"])
    assert config["context_servers"]["router"] == {"type": "kv_cache_aware"}
    assert config["generation_servers"]["router"] == {"type": "load_balancing", "use_tokens": True}


def test_compose(case: DeploymentSpec, write: Any) -> None:
    folder, engine = write(case), case.pool.engine.name
    (document,) = documents(folder / "compose/compose.yaml")
    forms.check(document, forms.COMPOSE)
    router = document["services"].pop("router")
    assert len(document["services"]) == sum(pool.replicas for pool in case.pools)
    assert router["profiles"] == ["router"]
    devices = set()
    for name, service in document["services"].items():
        pool = next(pool for pool in case.pools if name.startswith(f"{pool.name}-"))
        release = exported_release(pool.engine)
        flags = parse(engine, (service["entrypoint"] + service["command"])[_BEHIND[engine] :], release)
        assert f":{release}" in service["image"].replace(":v", ":")
        role_of(pool, flags)
        (held,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert len(held["device_ids"]) == pool.tensor_parallel
        devices.add((*service["profiles"], *held["device_ids"]))
        if engine == "vllm" and pool.role != "unified":
            host = service["profiles"][0].removeprefix("host-")
            assert service["environment"]["VLLM_NIXL_SIDE_CHANNEL_HOST"].startswith("${HOST_" + host + ":?")
        if engine == "trtllm":
            options = yaml.safe_load(document["configs"][service["configs"][0]["source"]]["content"])
            assert ("cache_transceiver_config" in options) == (pool.role != "unified")
    assert len(devices) == len(document["services"])


def test_kubernetes(case: DeploymentSpec, write: Any) -> None:
    folder, engine = write(case), case.pool.engine.name
    manifests = documents(folder / "kubernetes/manifests.yaml")
    sets = [manifest for manifest in manifests if manifest["kind"] == "StatefulSet"]
    services = {m["metadata"]["name"]: m["spec"] for m in manifests if m["kind"] == "Service"}
    names = []
    for pool, manifest in zip(case.pools, sets, strict=True):
        spec, name = manifest["spec"], manifest["metadata"]["name"]
        (container,) = spec["template"]["spec"]["containers"]
        words = container["command"] + container["args"]
        role_of(pool, parse(engine, words[_BEHIND[engine] :], exported_release(pool.engine)))
        assert spec["replicas"] == pool.replicas
        assert services[spec["serviceName"]]["clusterIP"] == "None"
        assert services[spec["serviceName"]]["selector"] == spec["template"]["metadata"]["labels"]
        assert spec["template"]["spec"]["nodeSelector"] == dict([node_label(pool.accelerator)])
        names += [f"{name}-{number}.{name}" for number in range(pool.replicas)]
    (router,) = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
    router_text = json.dumps([router, *(m for m in manifests if m["kind"] == "ConfigMap")])
    assert all(f"{name}:" in router_text for name in names)
    assert services["hisearch-qwen3-32b"]["selector"] == router["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("version", KUBERNETES)
def test_schemas(case: DeploymentSpec, write: Any, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    folder = write(case)
    manifests = documents(folder / "kubernetes/manifests.yaml")
    if (folder / "llm-d/values.yaml").exists():
        (values,) = documents(folder / "llm-d/values.yaml")
        for role in ("prefill", "decode"):
            manifests.append(forms.llm_d_pod(values[role]))
    if (folder / "dynamo/graph.yaml").exists():
        *configs, graph = documents(folder / "dynamo/graph.yaml")
        manifests += configs
        for service in graph["spec"]["services"].values():
            pod = service["extraPodSpec"]
            manifests.append(forms.as_pod([pod["mainContainer"]], pod.get("volumes", [])))
    for manifest in manifests:
        validator.validate(manifest, version, strict=True)


def test_charts(case: DeploymentSpec, write: Any) -> None:
    folder, engine = write(case), case.pool.engine.name
    readme = (folder / "README.md").read_text()
    roles = [pool.role for pool in case.pools]
    is_written = {"llm-d": engine == "vllm" and "decode" in roles, "dynamo": "decode" in roles}
    for name, expected in is_written.items():
        assert (folder / name).exists() == (f"`{name}/` |" in readme) == expected
        assert (f"`{name}/` was not written" in readme) != expected
    if is_written["llm-d"]:
        (values,) = documents(folder / "llm-d/values.yaml")
        forms.check(values, forms.LLM_D)
        for pool in case.pools:
            (container,) = values[pool.role]["containers"]
            flags = parse(engine, (container["command"] + container["args"])[3:], exported_release(pool.engine))
            behind = (
                values["routing"]["proxy"]["targetPort"] if pool.role == "decode" else values["routing"]["servicePort"]
            )
            assert flags["--port"] == [str(behind)]
            assert values[pool.role]["replicas"] == pool.replicas
    if is_written["dynamo"]:
        graph = documents(folder / "dynamo/graph.yaml")[-1]
        forms.check(graph, forms.DYNAMO)
        for pool in case.pools:
            service = graph["spec"]["services"][pool.role.capitalize()]
            words = service["extraPodSpec"]["mainContainer"]["args"]
            assert (service["subComponentType"], service["replicas"]) == (pool.role, pool.replicas)
            if engine == "sglang":
                assert "--disaggregation-mode" in parse(engine, words[4:], OF_DYNAMO[engine])
            elif engine == "vllm":
                assert words[-1] == f"--is-{pool.role}-worker"
                role_of(pool, parse(engine, words[4:-1], OF_DYNAMO[engine]))
            else:
                assert words[-2:] == ["--disaggregation-mode", pool.role]


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (disaggregated("sglang", transfer={"local_prefill_tokens": 64}), "no transfer.local_prefill_tokens"),
        (disaggregated("sglang", transfer={"order": "prefill_first"}), "no transfer.order prefill_first"),
        (disaggregated("vllm", transfer={"order": "reserve_first"}), "no transfer.order reserve_first"),
        (disaggregated("sglang", transfer={"granularity": "layer"}), "no transfer.granularity layer"),
        (disaggregated("sglang", decode_router={"policy": "weighted"}), "sglang-router 0.3.2 has no policy weighted"),
        (disaggregated("vllm", router={"policy": "kv_aware"}), "vllm-router 0.1.17 has no policy kv_aware"),
        (disaggregated("trtllm", router={"policy": "random"}), "nothing like random"),
        (disaggregated("sglang", admission={"policy": "queue_cap"}), "the admission queue_cap"),
        (disaggregated("sglang", decode={"engine": {"name": "vllm"}}), "sglang and vllm behind one router"),
        (disaggregated("sglang", prefill={"tensor_parallel": 16}), "does not fit a host with 8"),
        (
            disaggregated("sglang", prefill={"schedule": [{"at_s": 9, "replicas": 2}]}),
            "pool prefill: replicas over time",
        ),
    ],
)
def test_what_no_engine_can_express_is_refused_by_name(write: Any, deployment: DeploymentSpec, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        write(deployment)


def test_short_prompts_stay_with_decode_servers_of_tensorrt_llm(write: Any) -> None:
    folder = write(disaggregated("trtllm", transfer={"local_prefill_tokens": 64}))
    words = started(folder, "trtllm", "router")
    config = yaml.safe_load(Path(words[3]).read_text())
    assert config["conditional_disagg_config"] == {"max_local_prefill_length": 64}


def test_decode_workers_that_write_to_the_prefill_pools_storage(write: Any) -> None:
    """They get the engine's flag, a host pool of their size and the storage backend, but no HiCache tree."""
    host = {"medium": "ddr5", "gib": 256, "scope": "worker"}
    store = {"medium": "rdma-pool", "gib": 4096, "scope": "cluster"}
    deployment = disaggregated(
        "sglang", prefill={"tensor_parallel": 2, "tiers": [host, store]}, decode={"tiers": [host]}
    )
    folder = write(deployment)
    environment = "MOONCAKE_MASTER=10.0.0.9:50051"
    by_role = {}
    for number in (0, 10):
        shell = f"export {environment}; exec() {{ printf '%s\\0' \"$@\"; exit 0; }}; "
        shell += f"set -- server {number}; . {folder / 'sglang/run.sh'}"
        hosts = {f"HOST_{host}": f"10.0.0.{host}" for host in range(4)}
        done = subprocess.run(
            ["bash", "-c", shell], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"} | hosts
        )
        flags = parse("sglang", done.stdout.split("\0")[:-1][_BEHIND["sglang"] :])
        by_role[flags["--disaggregation-mode"][0]] = flags
    for role, flags in by_role.items():
        assert ("--enable-hierarchical-cache" in flags) == (role == "prefill")
        assert ("--disaggregation-decode-enable-offload-kvcache" in flags) == (role == "decode")
        assert flags["--hicache-size"] == ["137"]
        assert flags["--hicache-storage-backend"] == ["mooncake"]
    assert "--hicache-storage-prefetch-policy" not in by_role["decode"]
    assert "--hicache-write-policy" not in by_role["decode"]


@pytest.mark.parametrize("version", ["0.19.1", "0.33.0"])
def test_tiers_of_disaggregated_vllm_join_what_moves_kv_between_workers(version: str, write: Any) -> None:
    deployment = disaggregated("vllm", version, prefill={"tiers": [{"medium": "ddr5", "gib": 64}]})
    script = (write(deployment) / "vllm/run.sh").read_text()
    configs = [
        json.loads(line.split("'")[1]) for line in script.splitlines() if line.strip().startswith("--kv-transfer")
    ]
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    offload = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 64 * 2**30},
    }
    multi = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [nixl, offload]},
    }
    assert configs == [multi] * 9 + [nixl] * 2
    # --kv-offloading-size would replace the connector by the one of offloading alone.
    assert "--kv-offloading" not in script
