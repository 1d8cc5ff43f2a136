"""A server's container as parts of a Kubernetes pod."""

from __future__ import annotations

from typing import Any, NamedTuple

from hisearch.export.servers.containers import (
    KV_FOLDER,
    OPTIONS_FILE,
    SHARED_MEMORY_GIB,
    WEIGHTS_FOLDER,
    Container,
)

#: Resource of the accelerators' device plugin.
ACCELERATOR_RESOURCE = "nvidia.com/gpu"
#: Folder of a node for KV that its pods share.
NODE_KV_FOLDER = "/mnt/kv"
#: Node label of the accelerator type, set by the user.
NODE_LABEL = "hisearch/accelerator"
#: Variable that other servers know a pod's address by.
_SIDE_CHANNEL_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"

Manifest = dict[str, Any]


class Pod(NamedTuple):
    """Parts of a pod. worker: name of the resources of its pool. args: behind the program's name."""

    worker: str
    replica: Container
    args: list[str]
    env: list[Manifest]
    volumes: list[Manifest]
    mounts: list[Manifest]


def pod_of(replica: Container, worker: str, name: str) -> Pod:
    """The pod of one server; values set by the user come from the ConfigMap ``<name>-settings``.

    Args:
        replica: the server's container.
        worker: name of its pool's resources.
        name: of the export's resources.
    """
    args = ["$(MODEL)" if word == "\0" else unexpanded(word) for word in replica.words("\0")[1:]]
    volumes, mounts = _volumes(replica, worker)
    return Pod(worker, replica, args, _environment(replica, name), volumes, mounts)


def unexpanded(word: str) -> str:
    """A word that Kubernetes leaves as it is."""
    return word.replace("$(", "$$(")


def _environment(replica: Container, name: str) -> list[Manifest]:
    """Variables of a replica, with a Hugging Face token where the secret ``hf-token`` exists."""
    token = {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}
    env: list[Manifest] = [{"name": "HF_TOKEN", "valueFrom": token}]
    for variable, value in (("MODEL", replica.model), *((s.name, s.value) for s in replica.settings)):
        if value is None:
            given = {"valueFrom": {"configMapKeyRef": {"name": f"{name}-settings", "key": variable}}}
        elif variable == _SIDE_CHANNEL_HOST:
            given = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        else:
            given = {"value": unexpanded(value)}
        env.append({"name": variable, **given})
    return env


def _volumes(replica: Container, worker: str) -> tuple[list[Manifest], list[Manifest]]:
    """Volumes, and where they are mounted."""
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
