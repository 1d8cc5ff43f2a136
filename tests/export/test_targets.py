"""Manifests have their platforms' form, and start the engine with the command lines that were simulated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import Launch
from hisearch.export.engines.releases import exported_release
from hisearch.export.platforms.dynamo import on_runtime
from hisearch.export.rendering import resource_name
from tests.export import forms
from tests.export.command_lines import OF_DYNAMO, parse
from tests.export.conftest import export_all

#: Kubernetes versions that manifests have to fit, oldest and newest that the validator knows of those in support.
KUBERNETES = ("1.30", "1.34")

CASES: dict[str, dict[str, Any]] = {
    "sglang": {"engine": {"name": "sglang", "chunk_tokens": 4096, "max_running_requests": 96}},
    "sglang-tiers": {
        "pool": {
            "tensor_parallel": 4,
            "tiers": [{"medium": "ddr5", "gib": 256}, {"medium": "nvme-gen5", "gib": 3500, "scope": "node"}],
        }
    },
    "sglang-shared": {
        "pool": {"tiers": [{"medium": "ddr5", "gib": 256}, {"medium": "rdma-pool", "gib": 4000, "scope": "cluster"}]}
    },
    "vllm": {"engine": {"name": "vllm"}, "router": {"policy": "power_of_two"}},
    "vllm-lmcache": {
        "engine": {"name": "vllm"},
        "pool": {
            "tiers": [{"medium": "ddr5", "gib": 256}, {"medium": "nvme-gen5", "gib": 500, "scope": "worker"}],
            "movement": {"kv_connector": "lmcache"},
        },
    },
    "vllm-drafts": {"engine": {"name": "vllm", "speculation": {"method": "mtp", "draft_tokens": 2}}},
    "sglang-drafts": {"engine": {"speculation": {"method": "mtp", "draft_tokens": 2}}},
    "vllm-int4": {"engine": {"name": "vllm"}, "pool": {"replicas": 1, "weight_dtype": "int4"}},
    "trtllm": {"engine": {"name": "trtllm"}, "pool": {"tiers": [{"medium": "ddr5", "gib": 64}]}},
    "sglang-hosts": {"pool": {"tensor_parallel": 8}},
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CASES[request.param]


@pytest.fixture
def exported(
    case: dict[str, Any], build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> tuple[Path, Launch]:
    """The exported folder, and what it was made from."""
    deployment = build_deployment(**case)
    launch = Launch(deployment.pool, build_model(), build_accelerator(), 400_000)
    export_all(deployment, launch.model, launch.accelerator, tmp_path / "out")
    return tmp_path / "out", launch


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def engine_words(words: list[str], launch: Launch, version: str = "") -> dict[str, list[str]]:
    """Flags behind the model, which the engine's parser takes and which are those of the launch script."""
    assert words[0] in ("$(MODEL)", "Qwen/Qwen3-32B") or words[0].startswith("${MODEL:"), words[0]
    parsed = parse(launch.pool.engine.name, words[1:], version)
    simulated = {flag[0]: list(flag[1:]) for flag in engine_flags(launch)}
    assert {flag: parsed[flag] for flag in simulated} == simulated
    return parsed


def behind(words: list[str], *beginning: str) -> list[str]:
    assert words[: len(beginning)] == list(beginning)
    return words[len(beginning) :]


_BEGINNING = {
    "sglang": ("python3", "-m", "sglang.launch_server", "--model-path"),
    "vllm": ("vllm", "serve"),
    "trtllm": ("trtllm-serve",),
}


def test_compose(exported: tuple[Path, Launch]) -> None:
    folder, launch = exported
    pool = launch.pool
    (document,) = documents(folder / "compose/compose.yaml")
    forms.check(document, forms.COMPOSE)
    replicas = [service for name, service in document["services"].items() if name.startswith("replica-")]
    assert len(replicas) == pool.replicas
    ports, devices = set(), set()
    for service in replicas:
        words = service["entrypoint"] + service["command"]
        parsed = engine_words(behind(words, *_BEGINNING[pool.engine.name]), launch)
        ports.add(parsed["--port"][0])
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert len(device["device_ids"]) == pool.tensor_parallel
        devices.add((tuple(service.get("profiles", ())), tuple(device["device_ids"])))
        assert parsed["--port"][0] in service["healthcheck"]["test"][-1]
    assert len(ports) == len(devices) == pool.replicas
    router = document["services"].get("router")
    assert (router is None) == (pool.replicas == 1)
    if router is not None:
        words = behind(router["entrypoint"] + router["command"], "python3", "-m", "sglang_router.launch_router")
        parsed = parse("sglang-router", words)
        assert {url.rsplit(":", 1)[1] for url in parsed["--worker-urls"]} == ports
        hosts = {name for service in replicas for name in service.get("profiles", ())}
        assert router.get("profiles", []) == (["router"] if hosts else [])


def test_kubernetes(exported: tuple[Path, Launch]) -> None:
    folder, launch = exported
    pool, manifests = launch.pool, documents(folder / "kubernetes/manifests.yaml")
    workers, *others = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
    pod = workers["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert workers["spec"]["replicas"] == pool.replicas
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(pool.tensor_parallel)
    flags = engine_words(behind(container["command"] + container["args"], *_BEGINNING[pool.engine.name]), launch)
    assert flags["--port"] == [str(container["ports"][0]["containerPort"])]
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
    memory = int(container["resources"]["requests"]["memory"].removesuffix("Gi"))
    assert memory > (pool.tiers[0].gib if pool.tiers else 0)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    (service,) = [manifest for manifest in manifests if manifest["kind"] == "Service"]
    front = others[0] if others else workers
    assert service["spec"]["selector"] == front["spec"]["template"]["metadata"]["labels"]
    assert bool(others) == (pool.replicas > 1)
    if others:
        words = others[0]["spec"]["template"]["spec"]["containers"][0]
        router = parse(
            "sglang-router", behind(words["command"] + words["args"], "python3", "-m", "sglang_router.launch_router")
        )
        key, value = router["--selector"][0].split("=")
        assert workers["spec"]["template"]["metadata"]["labels"][key] == value
        assert router["--service-discovery-port"] == flags["--port"]


def test_kubernetes_updates_one_pod_at_a_time_and_lets_it_finish(exported: tuple[Path, Launch]) -> None:
    folder, launch = exported
    manifests = documents(folder / "kubernetes/manifests.yaml")
    workers, *routers = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
    assert workers["spec"]["strategy"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}
    }  # fmt: skip
    pod = workers["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    leaving_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= leaving_s + 30
    budgets = {m["metadata"]["name"]: m["spec"] for m in manifests if m["kind"] == "PodDisruptionBudget"}
    several = launch.pool.replicas > 1
    assert set(budgets) == {manifest["metadata"]["name"] for manifest in [workers, *routers] if several}
    assert all(budget["maxUnavailable"] == 1 for budget in budgets.values())
    for manifest in [workers, *routers] if several else []:
        labels = manifest["spec"]["selector"]["matchLabels"]
        assert budgets[manifest["metadata"]["name"]]["selector"]["matchLabels"] == labels
        (spread,) = manifest["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == labels
    assert [router["spec"]["replicas"] for router in routers] == [2] * len(routers)
    # Of one replica alone it says how it is updated without a break.
    assert ("maxSurge: 1, maxUnavailable: 0` " in (folder / "kubernetes/README.md").read_text()) != several


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_schemas(exported: tuple[Path, Launch], version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    folder, _ = exported
    manifests = documents(folder / "kubernetes/manifests.yaml")
    (values,) = documents(folder / "llm-d/values.yaml")
    manifests.append(forms.llm_d_pod(values["decode"]))
    graph = documents(folder / "dynamo/graph.yaml")
    manifests += graph[:-1]
    for service in graph[-1]["spec"]["services"].values():
        pod = service["extraPodSpec"]
        manifests.append(forms.as_pod([pod["mainContainer"]], pod.get("volumes", [])))
    for manifest in manifests:
        validator.validate(manifest, version, strict=True)
    with pytest.raises(validator.ValidationError):
        validator.validate(manifests[0] | {"spek": {}}, version, strict=True)


def test_a_list_of_the_kubernetes_readme_has_an_item_a_line(exported: tuple[Path, Launch]) -> None:
    text = (exported[0] / "kubernetes/README.md").read_text(encoding="utf-8")
    assert "\n- Images: " in text
    assert [line for line in text.splitlines() if re.search(r"[.:]\s*- [A-Z]", line)] == []


def test_llm_d(exported: tuple[Path, Launch]) -> None:
    folder, launch = exported
    (values,) = documents(folder / "llm-d/values.yaml")
    forms.check(values, forms.LLM_D)
    decode = values["decode"]
    (container,) = decode["containers"]
    assert (decode["replicas"], decode["parallelism"]["tensor"]) == (launch.pool.replicas, launch.pool.tensor_parallel)
    assert container["modelCommand"] == "custom"
    words = behind(container["command"] + container["args"], *_BEGINNING[launch.pool.engine.name])
    assert engine_words(words, launch)["--port"] == [str(values["routing"]["servicePort"])]


def test_dynamo(exported: tuple[Path, Launch]) -> None:
    folder, launch = exported
    pool = launch.pool
    *configs, graph = documents(folder / "dynamo/graph.yaml")
    forms.check(graph, forms.DYNAMO)
    worker = graph["spec"]["services"]["Worker"]
    assert worker["replicas"] == pool.replicas
    assert worker["resources"]["limits"]["gpu"] == str(pool.tensor_parallel)
    assert worker["resources"]["limits"]["memory"] == worker["resources"]["requests"]["memory"]
    container = worker["extraPodSpec"]["mainContainer"]
    assert container["command"] == ["python3", "-m", f"dynamo.{pool.engine.name}"]
    args = container["args"]
    assert args[2:4] == ["--served-model-name", "Qwen/Qwen3-32B"]
    if pool.engine.name == "trtllm":
        options = yaml.safe_load(configs[0]["data"]["llm_api_options.yaml"])
        assert options["tensor_parallel_size"] == pool.tensor_parallel
        assert options["max_num_tokens"] == pool.engine.chunk_tokens
        assert options["kv_cache_config"]["max_tokens"] == 400_000
    else:
        assert configs == []
        engine_words(args[1:2] + args[4:], on_runtime(launch), OF_DYNAMO[pool.engine.name])
    readme = (folder / "dynamo/README.md").read_text()
    flags, simulated = OF_DYNAMO[pool.engine.name], exported_release(pool.engine)
    assert f"the flags are those of {flags}, and {simulated} was simulated" in readme


def test_trtllm_s_options_are_mounted_where_its_command_reads_them(
    build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    export_all(build_deployment(engine={"name": "trtllm"}), build_model(), build_accelerator(), tmp_path)
    (compose,) = documents(tmp_path / "compose/compose.yaml")
    service = compose["services"]["replica-0"]
    path = service["command"][service["command"].index("--extra_llm_api_options") + 1]
    assert service["configs"] == [{"source": "options", "target": path}]
    assert (tmp_path / "compose" / compose["configs"]["options"]["file"]).is_file()
    config, workers, *_ = documents(tmp_path / "kubernetes/manifests.yaml")
    pod = workers["spec"]["template"]["spec"]
    folder = next(m["mountPath"] for m in pod["containers"][0]["volumeMounts"] if m["name"] == "options")
    assert [f"{folder}/{name}" for name in config["data"]] == [path]


@pytest.mark.parametrize("name", ["$(touch owned)", "${HOME}", "a b'c\"d`e`", "x}\nz: 1", "--flag", "€{"])
def test_hostile_names_stay_text(
    build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path, name: str
) -> None:
    export_all(
        build_deployment(pool={"accelerator": name, "name": name}),
        build_model(huggingface_id=f"{name}/x"),
        build_accelerator(),
        tmp_path,
    )
    (compose,) = documents(tmp_path / "compose/compose.yaml")
    model = compose["services"]["replica-0"]["command"][3]
    doubled = f"{name}/x".replace("$", "$$")
    assert model == (doubled if "}" in name else "${MODEL:-" + doubled + "}")
    workers = documents(tmp_path / "kubernetes/manifests.yaml")[0]
    environment = workers["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [e["value"] for e in environment if e["name"] == "MODEL"] == [f"{name}/x".replace("$(", "$$(")]
    assert resource_name(workers["metadata"]["name"]) == workers["metadata"]["name"]


def test_what_only_the_reader_knows_is_asked_for(
    build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    export_all(build_deployment(**CASES["sglang-shared"]), build_model(), build_accelerator(), tmp_path)
    (compose,) = documents(tmp_path / "compose/compose.yaml")
    environment = compose["services"]["replica-0"]["environment"]
    assert environment["MOONCAKE_MASTER"].startswith("${MOONCAKE_MASTER:?")
    assert environment["MOONCAKE_PROTOCOL"] == "${MOONCAKE_PROTOCOL:-rdma}"
    assert "--from-literal=MOONCAKE_MASTER=…" in (tmp_path / "kubernetes/README.md").read_text()
    text = json.dumps(documents(tmp_path / "kubernetes/manifests.yaml"))
    assert '"configMapKeyRef": {"name": "hisearch-qwen3-32b-settings", "key": "MOONCAKE_MASTER"}' in text


@pytest.mark.parametrize(
    ("text", "expected"), [("Qwen3 32B", "qwen3-32b"), ("_", "p"), ("3x", "p-3x"), ("a" * 60, "a" * 40)]
)
def test_resource_names(text: str, expected: str) -> None:
    assert resource_name(text) == expected
