"""Helm values for llm-d's chart ``llm-d-modelservice``.

Keys are from the chart's ``values.yaml`` (llm-d-incubation/llm-d-modelservice, chart v0.4.0). The chart has only
prefill and decode roles. Unified replicas are its decode pods, without the sidecar that would send prompts to prefill
pods.
"""

from __future__ import annotations

from hisearch.export.engines.launch import ExportError
from hisearch.export.registry import Platform
from hisearch.export.rendering import render, render_yaml
from hisearch.export.servers.containers import server_container
from hisearch.export.servers.exported import Export
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
        pool = first.launch.pool
        port = _BEHIND_PROXY if pool.role == "decode" else _PORT
        pods.append((pool, port, export.worker(first), server_container(first, export.deployment, port)))
    _, _, worker, replica = pods[0]
    values = render_yaml(
        "llm_d.yaml.j2",
        export=export,
        pods=pods,
        port=_PORT,
        behind_proxy=_BEHIND_PROXY,
        uri=f"hf://{export.model}" if names_weights(export.model) else "hf://ORGANISATION/MODEL",
    )
    readme = render("llm_d.md.j2", export=export, chart=_CHART_VERSION, options=replica.options)
    written = {"llm-d/README.md": readme, "llm-d/values.yaml": values}
    if replica.options:
        written["llm-d/options.yaml"] = render_yaml("options.yaml.j2", worker=worker, replica=replica)
    return written
