"""Disaggregated prefill and decode for llm-d's chart and for NVIDIA Dynamo, which support both roles.

Formats: see ``llm_d`` and ``dynamo``; for roles, ai-dynamo/dynamo's ``examples/backends/*/deploy/disagg.yaml``, and
``routing.proxy`` of llm-d-modelservice's ``values.yaml`` (chart v0.4.0), whose sidecar sends prompts to prefill pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hisearch.export.engines.flags import ExportError
from hisearch.export.platforms import dynamo, llm_d
from hisearch.export.platforms.containers import resource_name
from hisearch.export.platforms.kubernetes import environment, pod_spec
from hisearch.export.platforms.servers import Server, is_disaggregated, role_flags, server_options
from hisearch.export.platforms.several_compose import NODE_LABEL, server_container
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.yaml_nodes import dump_yaml

#: Port of an engine behind llm-d's sidecar, the chart's default.
_BEHIND_PROXY = 8200


def llm_d_text(deployment: DeploymentSpec, firsts: Sequence[Server], name: str) -> str:
    """``values.yaml``.

    Raises:
        ExportError: the chart does not support such pools, or its sidecar not the engine's protocol.
    """
    engine = deployment.pool.engine.name
    if not is_disaggregated(deployment):
        raise ExportError("llm-d's chart has one pool of decode pods and one of prefill pods, none of unequal workers")
    if engine != "vllm":
        raise ExportError(f"llm-d's sidecar hands over between servers of vLLM (nixlv2), not of {engine}")
    model = firsts[0].launch.model.huggingface_id
    values: dict[str, Any] = {
        **llm_d.artifacts(model),
        "routing": {
            "servicePort": llm_d.PORT,
            "proxy": {"enabled": True, "targetPort": _BEHIND_PROXY, "connector": "nixlv2"},
        },
    }
    for first in firsts:
        pool = first.launch.pool
        port = _BEHIND_PROXY if pool.role == "decode" else llm_d.PORT
        replica = server_container(first, deployment, port, "")
        pod = pod_spec(replica, f"{name}-{resource_name(pool.name)}", name, port)
        engine_pod: dict[str, Any] = pod["containers"][0]
        engine_pod |= {
            "modelCommand": "custom",
            "mountModelVolume": False,
            "env": _variables(environment(replica, name)),
        }
        # The chart adds the accelerators itself, by the parallelism.
        engine_pod["resources"] = {"requests": engine_pod["resources"]["requests"], "limits": {}}
        values[pool.role] = {
            "create": True,
            "replicas": pool.replicas,
            "parallelism": {"tensor": pool.parallelism.ranks, "data": 1, "dataLocal": 1, "workers": 1},
            **_node(pool.accelerator, firsts),
            "containers": [engine_pod],
            "volumes": pod["volumes"],
        }
    return dump_yaml(values)


def dynamo_text(deployment: DeploymentSpec, firsts: Sequence[Server], name: str) -> str:
    """``graph.yaml``; with ConfigMaps where TensorRT-LLM needs options.

    Raises:
        ExportError: Dynamo does not support such pools.
    """
    if not is_disaggregated(deployment):
        raise ExportError("Dynamo's graph was given one kind of workers, or prefill and decode ones; these are unequal")
    engine, router = deployment.pool.engine.name, deployment.router.policy
    if router not in dynamo.ROUTER_FLAGS:
        raise ExportError(f"Dynamo's frontend has nothing like {router}; it takes {', '.join(dynamo.ROUTER_FLAGS)}")
    documents: list[dict[str, Any]] = []
    services: dict[str, Any] = {"Frontend": dynamo.frontend_of(engine, router)}
    for first in firsts:
        pool, worker = first.launch.pool, f"{name}-{resource_name(first.pool)}"
        options = ""
        if engine == "trtllm":
            options = dump_yaml(dynamo.trtllm_engine_options(first.launch) | server_options(first.launch))
            data = {"llm_api_options.yaml": options}
            documents.append(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{worker}-options"}, "data": data}
            )
        service = dynamo.worker_of(first.launch, name, worker, options)
        main = service["extraPodSpec"]["mainContainer"]
        main["args"] += _role_words(first, deployment)
        service["extraPodSpec"] |= _node(pool.accelerator, firsts)
        services[pool.role.capitalize()] = {"subComponentType": pool.role} | service
    documents.append(
        {
            "apiVersion": "nvidia.com/v1alpha1",
            "kind": "DynamoGraphDeployment",
            "metadata": {"name": name},
            "spec": {"backendFramework": engine, "services": services},
        }
    )
    return "---\n".join(dump_yaml(document) for document in documents)


def dynamo_notes(deployment: DeploymentSpec) -> list[str]:
    """Differences from the simulation, as sentences."""
    lines = [f"Dynamo's frontend chooses decode workers itself; simulated with {deployment.decode_router.policy}."]
    if deployment.router.policy == "power_of_two":
        lines.append("The frontend was given round-robin for prompts: this release has no power_of_two.")
    if deployment.router.policy == "cache_aware":
        lines.append("Its kv routing weighs cached blocks against load by a cost of its own, without thresholds.")
    return lines


def _role_words(first: Server, deployment: DeploymentSpec) -> list[str]:
    """Role arguments of a Dynamo worker: SGLang's flags, vLLM's connector and Dynamo's switch."""
    role = first.launch.pool.role
    words = [word for flag in role_flags(first, deployment) for word in flag]
    if first.launch.pool.engine.name == "vllm":
        return [*words, f"--is-{role}-worker"]
    return [*words, "--host", "0.0.0.0"] if words else ["--disaggregation-mode", role]


def _variables(variables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The variables with the pod's own address for the side channel."""
    address = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [
        {"name": variable["name"]} | address if variable["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST" else variable
        for variable in variables
    ]


def _node(accelerator: str, firsts: Sequence[Server]) -> dict[str, Any]:
    """Node selector of a pool's pods, where accelerators differ."""
    if len({first.launch.pool.accelerator for first in firsts}) == 1:
        return {}
    return {"nodeSelector": {NODE_LABEL: resource_name(accelerator)}}
