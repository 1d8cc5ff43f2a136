"""Every pod of every manifest: its nodes, its bounds, its rights, and the folders that it can write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.export.context import OF_NO_STUDY, ExportContext
from hisearch.export.deployment import export_deployment
from hisearch.export.engines.launch import Launch
from hisearch.export.servers.containers import memory_gib
from hisearch.export.servers.node_labels import OWN_LABEL, PRODUCT_LABEL, PRODUCTS, node_label
from hisearch.specs.documents.catalogue import Catalogue
from tests.export import forms
from tests.export.conftest import export_all, make_accelerator, make_deployment, make_model

ENGINES = ("sglang", "vllm", "trtllm")


def pods(document: Any) -> Iterator[dict[str, Any]]:
    """Everything that has containers, at any depth."""
    if isinstance(document, dict):
        if "containers" in document or "mainContainer" in document:
            yield document
        for value in document.values():
            yield from pods(value)
    elif isinstance(document, list):
        for value in document:
            yield from pods(value)


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return pod.get("containers") or [pod["mainContainer"]]


@pytest.fixture(params=ENGINES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    deployment = make_deployment(engine={"name": request.param}, pool={"replicas": 2})
    export_all(deployment, make_model(), make_accelerator(), tmp_path / "out")
    return request.param, tmp_path / "out"


def every_pod(folder: Path) -> list[dict[str, Any]]:
    paths = ("kubernetes/manifests.yaml", "llm-d/values.yaml", "dynamo/graph.yaml")
    return [pod for path in paths for pod in pods(list(yaml.safe_load_all((folder / path).read_text())))]


def test_containers_have_no_rights_and_can_write_where_they_have_to(folder: tuple[str, Path]) -> None:
    engine, out = folder
    ours = [pod for pod in every_pod(out) if any("securityContext" in c for c in containers_of(pod))]
    assert len(ours) == 4  # engine and router of Kubernetes, llm-d's pod, Dynamo's worker
    for pod in ours:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in containers_of(pod):
            security = container["securityContext"]
            assert (security["runAsNonRoot"], security["allowPrivilegeEscalation"]) == (True, False)
            assert security["runAsUser"] > 0
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            writable = [m["mountPath"] for m in container["volumeMounts"] if "emptyDir" in volumes[m["name"]]]
            assert "/tmp" in writable
            env = {entry["name"]: entry.get("value") for entry in container["env"]}
            assert {env["HOME"], env.get("HF_HOME", "/tmp")} <= set(writable)
            assert not any(path.startswith("/root") for path in writable), "others may not enter root's home"
            if container["name" if "name" in container else "image"] == "router" or engine == "vllm":
                assert security.get("readOnlyRootFilesystem") or "mainContainer" in pod
            else:
                assert "readOnlyRootFilesystem" not in security


def test_engines_have_time_to_finish_and_write_to_volumes_that_are_mounted(tmp_path: Path) -> None:
    """Twice the p99 of 26 s, after 15 s of notice; Kubernetes' default of 30 s would cut requests."""
    context = ExportContext(OF_NO_STUDY._replace(e2e_p99_s=26.0))
    export_all(make_deployment(), make_model(), make_accelerator(), tmp_path / "out", context=context)
    manifests = list(yaml.safe_load_all((tmp_path / "out/kubernetes/manifests.yaml").read_text()))
    engines = [pod for pod in pods(manifests) if pod["containers"][0]["name"] == "engine"]
    (values,) = yaml.safe_load_all((tmp_path / "out/llm-d/values.yaml").read_text())
    engines.append(forms.llm_d_pod(values["decode"])["spec"])
    assert len(engines) == 2
    for pod in engines:
        assert pod["terminationGracePeriodSeconds"] == 15 + 52
        assert pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "15"]
        assert pod["containers"][0]["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"]
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    for folder in ("kubernetes", "llm-d"):
        readme = (tmp_path / "out" / folder / "README.md").read_text()
        assert "has 52 s for its requests, whose simulated p99 is 26 s: twice that" in readme
        assert "the Service first" not in readme


@pytest.mark.parametrize(
    ("rest_holds", "sentence"),
    [
        (None, "Whether the rest holds the SLO meanwhile was not simulated: a study asks for it with"),
        (True, "at a time. The rest holds the SLO meanwhile, as was simulated."),
        (False, "The rest does not hold the SLO meanwhile, as was simulated: buy one more"),
    ],
)
def test_it_is_said_whether_the_rest_holds_the_slo(tmp_path: Path, rest_holds: bool | None, sentence: str) -> None:
    context = ExportContext(OF_NO_STUDY._replace(rest_holds=rest_holds))
    export_all(make_deployment(), make_model(), make_accelerator(), tmp_path / "out", context=context)
    assert sentence in (tmp_path / "out/kubernetes/README.md").read_text()


def test_memory_and_disk_are_limited_to_what_is_requested(folder: tuple[str, Path]) -> None:
    _, out = folder
    for path in ("kubernetes/manifests.yaml", "llm-d/values.yaml"):
        for pod in pods(list(yaml.safe_load_all((out / path).read_text()))):
            for container in containers_of(pod):
                requests, limits = container["resources"]["requests"], container["resources"]["limits"]
                for bounded in ("memory", "ephemeral-storage"):
                    assert requests[bounded] == limits[bounded]
                assert "cpu" not in limits, "a limit on cores throttles the engine's host work"


def test_shared_memory_counts_and_the_disk_holds_the_weights(tmp_path: Path) -> None:
    deployment = make_deployment(engine={"name": "vllm"}, pool={"replicas": 1})
    launch = Launch(deployment.pool, make_model(), make_accelerator(), 400_000)
    export_all(deployment, launch.model, launch.accelerator, tmp_path / "out")
    (pod,) = pods(list(yaml.safe_load_all((tmp_path / "out/kubernetes/manifests.yaml").read_text())))
    (container,) = containers_of(pod)
    shared = next(v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if v["name"] == "shm")
    requested = {
        name: int(size.removesuffix("Gi")) for name, size in container["resources"]["limits"].items() if "Gi" in size
    }
    assert requested["memory"] == memory_gib(launch) + int(shared.removesuffix("Gi"))
    assert requested["ephemeral-storage"] > 62  # GiB of weights
    assert pod["nodeSelector"] == {PRODUCT_LABEL: "NVIDIA-H100-80GB-HBM3"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_agents_objects_count_in_the_memory_of_pods(tmp_path: Path) -> None:
    agents = {"adapters": {"rank": 16}, "slots": 8}
    deployment = make_deployment(pool={"replicas": 1, "agents": agents})
    launch = Launch(deployment.pool, make_model(), make_accelerator(), 400_000, objects_bytes=50.5 * 2**30)
    assert memory_gib(launch) == memory_gib(launch._replace(objects_bytes=0.0)) + 51
    export_deployment(deployment, [launch], tmp_path / "out", slots=[8])
    (pod,) = pods(list(yaml.safe_load_all((tmp_path / "out/kubernetes/manifests.yaml").read_text())))
    (container,) = containers_of(pod)
    shared = next(v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if v["name"] == "shm")
    requested = container["resources"]["requests"]["memory"]
    assert int(requested.removesuffix("Gi")) == memory_gib(launch) + int(shared.removesuffix("Gi"))
    assert "Agents' objects take 50.5 GiB of host memory for each replica" in (tmp_path / "out/README.md").read_text()
    assert "(tiers, agents' objects, " in (tmp_path / "out/kubernetes/README.md").read_text()


def test_nodes_are_found_by_the_accelerators_product_or_by_a_label_of_the_users() -> None:
    assert node_label("h200") == (PRODUCT_LABEL, "NVIDIA-H200")
    assert node_label("My own accelerator") == (OWN_LABEL, "my-own-accelerator")
    assert set(PRODUCTS) <= set(Catalogue().names("Accelerator"))
    assert all(value.startswith("NVIDIA-") and " " not in value and len(value) <= 63 for value in PRODUCTS.values())
