"""Helm values for llm-d's chart ``llm-d-modelservice``.

Keys are from the chart's ``values.yaml`` (llm-d-incubation/llm-d-modelservice, chart v0.4.0).
"""

from __future__ import annotations

from typing import Any

from hisearch.export.engines.flags import Launch
from hisearch.export.platforms.containers import container, resource_name
from hisearch.export.platforms.kubernetes import environment, pod_spec
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.models.model import names_weights
from hisearch.specs.yaml_nodes import dump_yaml

FILE = "llm-d/values.yaml"
CHART_VERSION = "v0.4.0"
#: The chart's own default, which its InferencePool expects.
PORT = 8000


def llm_d_files(launch: Launch, name: str, options: str) -> dict[str, str]:
    """``values.yaml``, and the ConfigMap that it mounts where TensorRT-LLM needs one.

    The chart has only prefill and decode roles. Unified replicas are its decode pods, without the sidecar that would
    send prompts to prefill pods.
    """
    replica = container(launch, PORT, options=options)
    worker = f"{name}-{resource_name(launch.pool.name)}"
    pod = pod_spec(replica, worker, name, PORT)
    engine: dict[str, Any] = pod["containers"][0]
    engine |= {"modelCommand": "custom", "mountModelVolume": False, "env": environment(replica, name)}
    # The chart adds the accelerators itself, by the parallelism.
    engine["resources"] = {"requests": engine["resources"]["requests"], "limits": {}}
    model = launch.model.huggingface_id
    values: dict[str, Any] = {
        **artifacts(model),
        "routing": {"servicePort": PORT, "proxy": {"enabled": False}},
        "decode": {
            "create": True,
            "replicas": launch.pool.replicas,
            "parallelism": {"tensor": launch.pool.parallelism.ranks, "data": 1, "dataLocal": 1, "workers": 1},
            "containers": [engine],
            "volumes": pod["volumes"],
        },
        "prefill": {"create": False},
    }
    files = {FILE: dump_yaml(values)}
    if options:
        data = {"llm_api_options.yaml": options}
        manifest = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{worker}-options"}, "data": data,
        }  # fmt: skip
        files["llm-d/options.yaml"] = dump_yaml(manifest)
    return files


def artifacts(model: str) -> dict[str, Any]:
    """The chart's values that name a model by its Hugging Face id, and the kind of accelerator."""
    labels = {"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": resource_name(model)}
    uri = f"hf://{model}" if names_weights(model) else "hf://ORGANISATION/MODEL"
    return {
        "modelArtifacts": {"name": model, "uri": uri, "labels": labels},
        "accelerator": {"type": "nvidia"},
    }


def policy_note(deployment: DeploymentSpec) -> str:
    """A note on llm-d's routing, which replaces the simulated policy."""
    return (
        f"llm-d routes by its own inference scheduler, not by the simulated {deployment.router.policy} policy: expect "
        "other hit rates and queues with more than one replica."
    )
