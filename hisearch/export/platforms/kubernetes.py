"""Kubernetes: a Deployment of replicas, a router that discovers them, and a Service in front.

Each replica fits one host and is one pod; wider ones use a LeaderWorkerSet, see ``wide``.
"""

from __future__ import annotations

from typing import Any

from hisearch.export.engines.flags import Launch
from hisearch.export.platforms.containers import (
    KV_FOLDER,
    OPTIONS_FILE,
    ROUTER_IMAGE,
    SHARED_MEMORY_GIB,
    WEIGHTS_FOLDER,
    Container,
    container,
    resource_name,
    router_words,
)
from hisearch.export.platforms.placement import SERVICE_PORTS
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.yaml_nodes import dump_yaml

FILE = "kubernetes/manifests.yaml"
#: Resource of the accelerators' device plugin.
ACCELERATOR_RESOURCE = "nvidia.com/gpu"
#: Folder of a node for KV that its pods share.
NODE_KV_FOLDER = "/mnt/kv"
_LABEL = "app.kubernetes.io/name"

Manifest = dict[str, Any]


def kubernetes_files(deployment: DeploymentSpec, launch: Launch, name: str, options: str) -> dict[str, str]:
    """``manifests.yaml``, several documents.

    Args:
        deployment: the exported one.
        launch: its pool.
        name: of the resources.
        options: text of TensorRT-LLM's options file, or "".
    """
    return {FILE: "---\n".join(dump_yaml(manifest) for manifest in manifests(deployment, launch, name, options))}


def manifests(deployment: DeploymentSpec, launch: Launch, name: str, options: str) -> list[Manifest]:
    """The documents of ``kubernetes_files``."""
    port, pool = SERVICE_PORTS[launch.pool.engine.name], launch.pool
    replica, worker = container(launch, port, options=options), f"{name}-{resource_name(pool.name)}"
    documents: list[Manifest] = []
    if options:
        data = {OPTIONS_FILE.name: options}
        documents.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{worker}-options"}, "data": data}
        )
    documents.append(_deployment(worker, pool.replicas, pod_spec(replica, worker, name, port)))
    if pool.replicas > 1:
        documents += router_manifests(deployment, name, worker, port)
    return [*documents, service(name, f"{name}-router" if pool.replicas > 1 else worker, port)]


def labelled(name: str) -> dict[str, str]:
    """The label by which a Service or a router finds pods."""
    return {_LABEL: name}


def service(name: str, front: str, port: int) -> Manifest:
    """Port ``port`` of the pods labelled ``front``."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": labelled(front), "ports": [{"name": "http", "port": port, "targetPort": "http"}]},
    }


def _deployment(name: str, replicas: int, pod: Manifest, account: str | None = None) -> Manifest:
    labels = labelled(name)
    template = {"metadata": {"labels": labels}, "spec": ({"serviceAccountName": account} if account else {}) | pod}
    spec: Manifest = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    if account is None:
        # All accelerators are in use: an old pod has to end before a new one fits.
        spec["strategy"] = {"type": "Recreate"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


def pod_spec(replica: Container, worker: str, name: str, port: int) -> Manifest:
    """The pod of one replica; values set by the user come from the ConfigMap ``<name>-settings``."""
    volumes, mounts = _volumes(replica, worker)
    resources = {
        "requests": {"cpu": str(replica.cores), "memory": f"{replica.memory_gib}Gi"},
        "limits": {ACCELERATOR_RESOURCE: str(replica.accelerators)},
    }
    return {
        "containers": [
            {
                "name": "engine",
                "image": replica.image,
                "command": list(replica.command[:1]),
                "args": [_unexpanded(word) for word in replica.words("\0")[1:]],
                "env": environment(replica, name),
                "ports": [{"name": "http", "containerPort": port}],
                "resources": resources,
                **probes(),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def environment(replica: Container, name: str) -> list[Manifest]:
    """Variables of a replica, with a Hugging Face token where the secret ``hf-token`` exists."""
    values = [("MODEL", replica.model), *((setting.name, setting.value) for setting in replica.settings)]
    variables: list[Manifest] = [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}}
    ]
    for variable, value in values:
        if value is None:
            variables.append(
                {"name": variable, "valueFrom": {"configMapKeyRef": {"name": f"{name}-settings", "key": variable}}}
            )
        else:
            variables.append({"name": variable, "value": value.replace("$(", "$$(")})
    return variables


def probes() -> Manifest:
    """Half an hour to load weights; then out of the Service after 30 s of failures, restarted after 60 s."""
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    return {
        "startupProbe": probe | {"failureThreshold": 180},
        "readinessProbe": probe | {"failureThreshold": 3},
        "livenessProbe": probe | {"failureThreshold": 6},
    }


def _volumes(replica: Container, worker: str) -> tuple[list[Manifest], list[Manifest]]:
    volumes: list[Manifest] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}},
        {"name": "weights", "emptyDir": {}},
    ]
    mounts: list[Manifest] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "weights", "mountPath": WEIGHTS_FOLDER},
    ]
    if replica.kv_scope == "worker":
        volumes.append({"name": "kv", "emptyDir": {"sizeLimit": f"{int(replica.kv_gib)}Gi"}})
    elif replica.kv_scope == "node":
        volumes.append({"name": "kv", "hostPath": {"path": NODE_KV_FOLDER, "type": "Directory"}})
    if replica.kv_scope is not None:
        mounts.append({"name": "kv", "mountPath": KV_FOLDER})
    if replica.options:
        volumes.append({"name": "options", "configMap": {"name": f"{worker}-options"}})
        mounts.append({"name": "options", "mountPath": str(OPTIONS_FILE.parent), "readOnly": True})
    return volumes, mounts


def router_manifests(deployment: DeploymentSpec, name: str, worker: str, port: int) -> list[Manifest]:
    """The router, which watches the pods of its namespace, and its permission to do so."""
    router = f"{name}-router"
    found_by = ("--service-discovery", "--selector", f"{_LABEL}={worker}")
    place = ("--service-discovery-port", str(port), "--service-discovery-namespace", "$(POD_NAMESPACE)")
    words = router_words(deployment, port, *found_by, *place)
    pod = {
        "containers": [
            {
                "name": "router",
                "image": ROUTER_IMAGE,
                "command": words[:1],
                "args": words[1:],
                "env": [
                    {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                ],
                "ports": [{"name": "http", "containerPort": port}],
                "resources": {"requests": {"cpu": "2", "memory": "4Gi"}},
                "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10},
            }
        ]
    }
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    metadata = {"name": router}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": router},
            "subjects": [{"kind": "ServiceAccount", "name": router}],
        },
        _deployment(router, 1, pod, account=router),
    ]


def _unexpanded(word: str) -> str:
    """A word escaped for Kubernetes; the model's placeholder becomes its variable."""
    return "$(MODEL)" if word == "\0" else word.replace("$(", "$$(")
