"""Helm values for llm-d's chart ``llm-d-modelservice``.

Keys are from the chart's ``values.yaml`` (llm-d-incubation/llm-d-modelservice, chart v0.4.0). The chart has only
prefill and decode roles. Unified replicas are its decode pods, without the sidecar that would send prompts to prefill
pods.
"""

from __future__ import annotations

from hisearch.export.engines.flags import ExportError
from hisearch.export.registry import Platform
from hisearch.export.rendering import render, render_yaml
from hisearch.export.servers.containers import resource_name, server_container
from hisearch.export.servers.exported import Export
from hisearch.export.servers.pods import NODE_LABEL, pod_of
from hisearch.specs.models.model import names_weights

PLATFORM = Platform(
    summary="values of the chart llm-d-modelservice",
    title="llm-d's Helm chart",
    folder="llm-d",
    paths=("values.yaml", "options.yaml"),
    rank=3,
)
_CHART_VERSION = "v0.4.0"
#: The chart's own default, which its InferencePool expects, and its default for an engine behind the sidecar.
_PORT, _BEHIND_PROXY = 8000, 8200


def files(export: Export) -> dict[str, str]:
    """``values.yaml``, and the ConfigMap that it mounts where TensorRT-LLM needs one.

    Raises:
        ExportError: the chart does not support such pools, or its sidecar not the engine's protocol.
    """
    if export.several and not export.disaggregated:
        raise ExportError("llm-d's chart has one pool of decode pods and one of prefill pods, none of unequal workers")
    if export.disaggregated and export.engine != "vllm":
        raise ExportError(f"llm-d's sidecar hands over between servers of vLLM (nixlv2), not of {export.engine}")
    pods = []
    for first in export.firsts:
        port = _BEHIND_PROXY if first.launch.pool.role == "decode" else _PORT
        replica = server_container(first, export.deployment, port)
        pods.append((first.launch.pool, port, pod_of(replica, export.worker(first), export.name)))
    facts = {"export": export, "chart": _CHART_VERSION, "options": pods[0][2].replica.options}
    values = render_yaml(
        "llm_d.yaml.j2",
        **facts,
        pods=pods,
        port=_PORT,
        behind_proxy=_BEHIND_PROXY,
        uri=f"hf://{export.model}" if names_weights(export.model) else "hf://ORGANISATION/MODEL",
        label=resource_name(export.model),
        resource_name=resource_name,
        node_label=NODE_LABEL,
    )
    written = {"llm-d/README.md": render("llm_d.md.j2", **facts), "llm-d/values.yaml": values}
    if facts["options"]:
        written["llm-d/options.yaml"] = render_yaml("options.yaml.j2", worker=pods[0][2].worker, **facts)
    return written
