"""Helm values for vLLM's production-stack: the pool as its model, and its router with the simulated policy.

Keys are from the chart ``vllm-stack`` 0.1.11: ``helm/values.schema.json``, and in ``helm/templates``
``deployment-router.yaml`` and ``deployment-vllm-multi.yaml``, which mounts shared memory for ``tensorParallelSize``.
"""

from __future__ import annotations

from typing import Any

from hisearch.export.engines.launch import ExportError
from hisearch.export.registry import Platform
from hisearch.export.rendering import render, resource_name
from hisearch.export.servers.containers import Container, server_container
from hisearch.export.servers.exported import Export
from hisearch.export.servers.fronts import STACK_SESSION_KEY, STACK_VERSION, stack_logic
from hisearch.specs.yaml_nodes import dump_yaml

PLATFORM = Platform(
    summary="values of the chart vllm-stack",
    title="production-stack's Helm chart",
    folder="production-stack",
    paths=("values.yaml",),
    rank=5,
)
_PORT = 8000
#: Shared memory of collectives between ranks, which counts as the container's; the size in vLLM's own examples.
_SHARED_GIB = 16
#: The chart's command line ends with what listens where.
_LISTENING_WORDS = 4


def files(export: Export) -> dict[str, str]:
    """``values.yaml``.

    Raises:
        ExportError: the chart does not support such pools, or its router not the policy.
    """
    if export.engine != "vllm":
        raise ExportError(f"production-stack's chart starts vLLM, not {export.engine}")
    if export.several:
        raise ExportError("production-stack's chart was given one pool of equal workers; there are several")
    logic = stack_logic(export.deployment.router)
    replica = server_container(export.firsts[0], export.deployment, _PORT)
    if replica.model is None or replica.settings or replica.kv_scope:
        raise ExportError("production-stack's chart was given published weights and KV in device memory alone")
    readme = render("production_stack.md.j2", export=export, version=STACK_VERSION, logic=logic, key=STACK_SESSION_KEY)
    values = {"servingEngineSpec": _engine(export, replica), "routerSpec": _router(logic)}
    return {"production-stack/README.md": readme, "production-stack/values.yaml": dump_yaml(values)}


def _engine(export: Export, replica: Container) -> dict[str, Any]:
    pool = export.launches[0].pool
    repository, tag = replica.image.rsplit(":", 1)
    label, value = export.node_label(pool)
    memory = {
        "memory": f"{replica.memory_gib + _SHARED_GIB}Gi",
        "ephemeral-storage": f"{export.storage_gib(replica)}Gi",
    }
    model = {
        "name": resource_name(export.model.rsplit("/", 1)[-1]),
        "repository": repository,
        "tag": tag,
        "modelURL": replica.model,
        "replicaCount": pool.replicas,
        "resources": {
            "requests": {"cpu": str(replica.cores), **memory},
            "limits": {"nvidia.com/gpu": str(replica.accelerators), **memory},
        },
        "shmSize": f"{_SHARED_GIB}Gi",
        "nodeSelectorTerms": [{"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]}],
        "env": [
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}},
            }
        ],
        "vllmConfig": {
            "tensorParallelSize": pool.tensor_parallel,
            "enablePrefixCaching": pool.engine.prefix_caching,
            "extraArgs": list(replica.arguments[:-_LISTENING_WORDS]),
        },
    }
    return {"enableEngine": True, "containerPort": _PORT, "modelSpec": [model]}


def _router(logic: str) -> dict[str, Any]:
    """One router, as was simulated: each knows only what it sent itself."""
    router = {"enableRouter": True, "replicaCount": 1, "serviceDiscovery": "k8s", "routingLogic": logic}
    return router | ({"sessionKey": STACK_SESSION_KEY} if logic == "session" else {})
