"""Forms of manifests whose schemas come with no Python package: every key that may be written, and the type of values.

Compose: compose-spec/compose-spec, ``schema/compose-spec.json`` at 00655e2. DynamoGraphDeployment: ai-dynamo/dynamo,
``examples/backends/*/deploy`` and ``api/v1alpha1`` of its operator. llm-d-modelservice: ``values.yaml`` and
``templates`` at 024c0f2 (chart v0.4.0). LeaderWorkerSet: kubernetes-sigs/lws, ``config/crd/bases`` at 83ba21e. Pods
inside them have Kubernetes' own schema, which ``as_pod`` brings them to.
"""

from __future__ import annotations

from typing import Any

#: A pod's container or volumes, checked by Kubernetes' schema instead; or a plugin's parameter of any type.
POD = object()
_WORDS = [str]

_SERVICE: dict[str, Any] = {
    "profiles": _WORDS,
    "image": str,
    "entrypoint": _WORDS,
    "command": _WORDS,
    "environment": {"*": str},
    "network_mode": str,
    "ipc": str,
    "ulimits": {"*": int},
    "volumes": _WORDS,
    "deploy": {
        "resources": {"reservations": {"devices": [{"driver": str, "device_ids": _WORDS, "capabilities": _WORDS}]}}
    },
    "healthcheck": {"test": _WORDS, "interval": str, "timeout": str, "start_period": str},
    "restart": str,
    "stop_grace_period": str,
    "configs": [{"source": str, "target": str}],
}
COMPOSE = {"name": str, "services": {"*": _SERVICE}, "configs": {"*": {"file": str, "content": str}}}

_DYNAMO_SERVICE = {
    "componentType": str,
    "subComponentType": str,
    "replicas": int,
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"gpu": str, "memory": str}},
    "sharedMemory": {"size": str},
    "extraPodSpec": {"volumes": POD, "mainContainer": POD, "nodeSelector": {"*": str}, "tolerations": [{"*": str}]},
}
DYNAMO = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {"backendFramework": str, "services": {"*": _DYNAMO_SERVICE}},
}

_LLM_D_PODS = {
    "create": bool,
    "replicas": int,
    "parallelism": {"tensor": int, "data": int, "dataLocal": int, "workers": int},
    "nodeSelector": {"*": str},
    "tolerations": [{"*": str}],
    "podSecurityContext": {"fsGroup": int, "fsGroupChangePolicy": str},
    "terminationGracePeriodSeconds": int,
    "containers": POD,
    "volumes": POD,
}
LLM_D = {
    "modelArtifacts": {"name": str, "uri": str, "labels": {"*": str}},
    "accelerator": {"type": str},
    "routing": {"servicePort": int, "proxy": {"enabled": bool, "targetPort": int, "connector": str}},
    "decode": _LLM_D_PODS,
    "prefill": _LLM_D_PODS,
}


#: EndpointPickerConfig: kubernetes-sigs/gateway-api-inference-extension, ``apix/config/v1alpha1``.
ENDPOINT_PICKER = {
    "apiVersion": str,
    "kind": str,
    "plugins": [{"name": str, "type": str, "parameters": {"*": POD}}],
    "schedulingProfiles": [{"name": str, "plugins": [{"pluginRef": str, "weight": float}]}],
}

_QUANTITIES = {"cpu": str, "memory": str, "ephemeral-storage": str, "nvidia.com/gpu": str}
#: vLLM's chart ``vllm-stack``: vllm-project/production-stack, ``helm/values.schema.json`` at 01eaf92.
PRODUCTION_STACK = {
    "routerSpec": {
        "enableRouter": bool,
        "replicaCount": int,
        "serviceDiscovery": str,
        "routingLogic": str,
        "sessionKey": str,
    },
    "servingEngineSpec": {
        "enableEngine": bool,
        "containerPort": int,
        "modelSpec": [
            {
                "name": str,
                "repository": str,
                "tag": str,
                "modelURL": str,
                "replicaCount": int,
                "resources": {"requests": _QUANTITIES, "limits": _QUANTITIES},
                "shmSize": str,
                "nodeSelectorTerms": [{"matchExpressions": [{"key": str, "operator": str, "values": _WORDS}]}],
                "env": POD,
                "vllmConfig": {"tensorParallelSize": int, "enablePrefixCaching": bool, "extraArgs": _WORDS},
            }
        ],
    },
}
#: AIBrix's chart: vllm-project/aibrix, ``dist/chart/values.schema.json`` at 0120c1b.
AIBRIX = {"gatewayPlugin": {"replicaCount": int, "container": {"envs": {"*": str}}}}

_LWS_POD = {"metadata": {"labels": {"*": str}}, "spec": POD}
LEADER_WORKER_SET = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str, "labels": {"*": str}},
    "spec": {
        "replicas": int,
        "leaderWorkerTemplate": {
            "size": int,
            "restartPolicy": str,
            "leaderTemplate": _LWS_POD,
            "workerTemplate": _LWS_POD,
        },
    },
}


def check(value: Any, form: Any, where: str = "") -> None:
    """Hold ``value`` against ``form``.

    Raises:
        AssertionError: a key that there is not, or a value of another type.
    """
    if form is POD:
        return
    if isinstance(form, dict):
        assert isinstance(value, dict), f"{where}: expected a mapping, got {value!r}"
        for key, inner in value.items():
            assert key in form or "*" in form, f"{where}: there is no {key}"
            check(inner, form.get(key, form.get("*")), f"{where}.{key}")
    elif isinstance(form, list):
        assert isinstance(value, list), f"{where}: expected a list, got {value!r}"
        for index, inner in enumerate(value):
            check(inner, form[0], f"{where}[{index}]")
    else:
        assert type(value) is form, f"{where}: expected {form.__name__}, got {value!r}"


#: Keys of a container that llm-d's chart copies or reads; of others it takes no note.
LLM_D_CONTAINER = {
    "name", "image", "command", "args", "env", "ports", "resources", "securityContext", "volumeMounts", "startupProbe",
    "readinessProbe", "livenessProbe", "modelCommand", "mountModelVolume", "extraConfig",
}  # fmt: skip


def llm_d_pod(values: dict[str, Any]) -> dict[str, Any]:
    """The pod that llm-d's chart makes of a role's values, but for its accelerators.

    Raises:
        AssertionError: a container has a key that the chart leaves out.
    """
    containers = []
    for container in values["containers"]:
        assert set(container) <= LLM_D_CONTAINER, f"the chart leaves out {set(container) - LLM_D_CONTAINER}"
        own = {"modelCommand", "mountModelVolume", "extraConfig"}
        kept = {key: value for key, value in container.items() if key not in own}
        containers.append(kept | container.get("extraConfig", {}))
    pod = as_pod(containers, values["volumes"])
    pod["spec"] |= {
        "nodeSelector": values["nodeSelector"],
        "tolerations": values["tolerations"],
        "securityContext": values["podSecurityContext"],
        "terminationGracePeriodSeconds": values["terminationGracePeriodSeconds"],
    }
    return pod


def as_pod(containers: list[dict[str, Any]], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """A Kubernetes Pod of these parts."""
    named = [{"name": "main"} | container for container in containers]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "main"},
        "spec": {"containers": named, "volumes": volumes},
    }
