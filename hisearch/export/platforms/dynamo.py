"""A graph for NVIDIA Dynamo's operator: a routing frontend, and the pool's replicas as workers.

Format: ``nvidia.com/v1alpha1`` DynamoGraphDeployment, as in ai-dynamo/dynamo's ``examples/backends/*/deploy``. Engine
versions of images: Dynamo's support matrix (docs.nvidia.com/dynamo/resources/support-matrix).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hisearch.export.engines.flags import Launch, engine_flags
from hisearch.export.engines.trtllm_options import llm_api_options
from hisearch.export.platforms.containers import container, resource_name
from hisearch.export.platforms.kubernetes import environment, pod_spec
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.routing import RouterName
from hisearch.specs.yaml_nodes import dump_yaml

FILE = "dynamo/graph.yaml"
_PORT = 8000


class Runtime(NamedTuple):
    """Dynamo's image for an engine. engine_version: in the image. module: of the worker. model: its flag."""

    image: str
    engine_version: str
    module: str
    model: str


#: The releases of Dynamo whose engines are nearest to the simulated ones.
RUNTIMES: dict[EngineName, Runtime] = {
    "sglang": Runtime("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.0.0", "0.5.9", "dynamo.sglang", "--model-path"),
    "vllm": Runtime("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.1.1", "0.19.0", "dynamo.vllm", "--model"),
    "trtllm": Runtime(
        "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.0.0", "1.3.0rc5.post1", "dynamo.trtllm", "--model-path"
    ),
}

#: Simulated policy -> the frontend's flags. ``kv`` without events indexes what it has routed, like cache_aware.
ROUTER_FLAGS: dict[RouterName, tuple[str, ...]] = {
    "random": ("--router-mode", "random"),
    "round_robin": ("--router-mode", "round-robin"),
    "power_of_two": ("--router-mode", "round-robin"),
    "cache_aware": ("--router-mode", "kv", "--no-router-kv-events"),
}

#: Flag of trtllm-serve -> its name in the engine's options; a Dynamo worker reads them from its file only.
_TRTLLM_OPTIONS = {
    "--backend": "backend",
    "--tp_size": "tensor_parallel_size",
    "--pp_size": "pipeline_parallel_size",
    "--ep_size": "moe_expert_parallel_size",
    "--max_batch_size": "max_batch_size",
    "--max_num_tokens": "max_num_tokens",
    "--max_seq_len": "max_seq_len",
}


def dynamo_files(deployment: DeploymentSpec, launch: Launch, name: str) -> dict[str, str]:
    """``graph.yaml``; with a ConfigMap where TensorRT-LLM needs options."""
    worker = f"{name}-{resource_name(launch.pool.name)}"
    options = dump_yaml(trtllm_engine_options(launch)) if launch.pool.engine.name == "trtllm" else ""
    documents: list[dict[str, Any]] = []
    if options:
        data = {"llm_api_options.yaml": options}
        documents.append({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{worker}-options"}, "data": data,
        })  # fmt: skip
    documents.append(_graph(deployment, launch, name, worker, options))
    return {FILE: "---\n".join(dump_yaml(document) for document in documents)}


def _graph(deployment: DeploymentSpec, launch: Launch, name: str, worker: str, options: str) -> dict[str, Any]:
    policy: RouterName = deployment.router.policy if launch.pool.replicas > 1 else "round_robin"
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {
            "backendFramework": launch.pool.engine.name,
            "services": {
                "Frontend": frontend_of(launch.pool.engine.name, policy),
                "Worker": worker_of(launch, name, worker, options),
            },
        },
    }


def frontend_of(engine: EngineName, policy: RouterName) -> dict[str, Any]:
    """The frontend, which clients talk to; it routes by a policy of ``ROUTER_FLAGS``."""
    return {
        "componentType": "frontend",
        "replicas": 1,
        "extraPodSpec": {
            "mainContainer": {
                "image": RUNTIMES[engine].image,
                "command": ["python3", "-m", "dynamo.frontend"],
                "args": list(ROUTER_FLAGS[policy]),
            }
        },
    }


def worker_of(launch: Launch, name: str, worker: str, options: str) -> dict[str, Any]:
    """The pool's replicas; the operator sets its own probes and ports."""
    runtime = RUNTIMES[launch.pool.engine.name]
    replica = container(launch, _PORT, options=options)
    pod = pod_spec(replica, worker, name, _PORT)
    engine = pod["containers"][0]
    volumes = [volume for volume in pod["volumes"] if volume["name"] != "shm"]
    mounts = [mount for mount in engine["volumeMounts"] if mount["name"] != "shm"]
    memory = {"cpu": str(replica.cores), "memory": f"{replica.memory_gib}Gi"}
    return {
        "componentType": "worker",
        "replicas": launch.pool.replicas,
        "resources": {"requests": memory, "limits": {"gpu": str(replica.accelerators)}},
        "sharedMemory": {"size": "16Gi"},
        "extraPodSpec": {
            "volumes": volumes,
            "mainContainer": {
                "image": runtime.image,
                "command": ["python3", "-m", runtime.module],
                "args": worker_words(launch, bool(options)),
                "env": environment(replica, name),
                "volumeMounts": mounts,
            },
        },
    }


def worker_words(launch: Launch, options: bool) -> list[str]:
    """Arguments of ``python3 -m dynamo.<engine>``: the model by its variable, and the engine's flags."""
    runtime, model = RUNTIMES[launch.pool.engine.name], "$(MODEL)"
    words = [runtime.model, model, "--served-model-name", launch.model.huggingface_id]
    if launch.pool.engine.name == "trtllm":
        return [*words, *(("--extra-engine-args", "/etc/hisearch/llm_api_options.yaml") if options else ())]
    return words + [word.replace("$(", "$$(") for flag in engine_flags(launch) for word in flag]


def trtllm_engine_options(launch: Launch) -> dict[str, Any]:
    """Options of TensorRT-LLM's engine, including the flags of ``trtllm-serve``."""
    options: dict[str, Any] = {}
    for flag, value in ((flag[0], flag[1]) for flag in engine_flags(launch) if len(flag) == 2):
        options[_TRTLLM_OPTIONS[flag]] = int(value) if value.isdigit() else value
    return options | llm_api_options(launch)


def notes(deployment: DeploymentSpec, launch: Launch, simulated_version: str) -> list[str]:
    """Differences from the simulation, as sentences."""
    runtime, lines = RUNTIMES[launch.pool.engine.name], list[str]()
    if runtime.engine_version != simulated_version:
        lines.append(
            f"The image holds version {runtime.engine_version} of the engine; the flags are those of "
            f"{simulated_version}, which was simulated."
        )
    if launch.pool.replicas > 1 and deployment.router.policy == "power_of_two":
        lines.append("Dynamo's frontend was given round-robin: this release has no power_of_two.")
    if launch.pool.replicas > 1 and deployment.router.policy == "cache_aware":
        lines.append(
            "Dynamo's kv routing weighs cached blocks against load by a cost of its own; the simulated thresholds of "
            "cache_aware have no counterpart."
        )
    return lines
