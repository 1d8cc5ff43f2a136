"""Helm values for llm-d's chart ``llm-d-modelservice``.

Keys are from the chart's ``values.yaml`` (llm-d-incubation/llm-d-modelservice, chart v0.4.0). The chart has only
prefill and decode roles. Unified replicas are its decode pods, without the sidecar that would send prompts to prefill
pods.

The scheduler's values are for the chart ``inferencepool`` of the Gateway API inference extension 1.4. They hold an
EndpointPickerConfig (``apix/config/v1alpha1/endpointpickerconfig_types.go``). Their image is llm-d's: the chart's own
lacks two of the scorers.
"""

from __future__ import annotations

from typing import Any

from hisearch.export.engines.launch import ExportError
from hisearch.export.registry import Platform
from hisearch.export.rendering import render, render_yaml
from hisearch.export.servers.containers import server_container
from hisearch.export.servers.exported import Export
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.models.model import names_weights
from hisearch.specs.yaml_nodes import dump_yaml

PLATFORM = Platform(
    summary="values of the chart llm-d-modelservice",
    title="llm-d's Helm chart",
    folder="llm-d",
    paths=("values.yaml", "options.yaml", "scheduler-values.yaml"),
    rank=3,
)
_CHART_VERSION = "v0.4.0"
_POOL_CHART_VERSION = "v1.4.0"
#: Weight -> its scorer, in the order in which scores were added up.
_SCORERS = {
    "queue_weight": "queue-scorer",
    "kv_utilization_weight": "kv-cache-utilization-scorer",
    "prefix_weight": "prefix-cache-scorer",
    "running_weight": "running-requests-size-scorer",
    "active_requests_weight": "active-request-scorer",
    "no_hit_weight": "no-hit-lru-scorer",
}
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
    picks = export.routed and export.deployment.router.policy == "endpoint_picker" and not export.disaggregated
    readme = render(
        "llm_d.md.j2", export=export, chart=_CHART_VERSION, options=replica.options, picks=picks,
        pool_chart=_POOL_CHART_VERSION,
    )  # fmt: skip
    written = {"llm-d/README.md": readme, "llm-d/values.yaml": values}
    if replica.options:
        written["llm-d/options.yaml"] = render_yaml("options.yaml.j2", worker=worker, replica=replica)
    if picks:
        written["llm-d/scheduler-values.yaml"] = dump_yaml(scheduler_values(export.deployment.router))
    return written


def scheduler_values(router: RouterSpec) -> dict[str, Any]:
    """Values of the chart ``inferencepool`` that have its scheduler score as was simulated.

    Raises:
        ExportError: metrics of now were simulated.
    """
    if router.metrics_refresh_s == 0.0:
        raise ExportError("llm-d's scheduler scrapes metrics at intervals, as metrics_refresh_s says; 0 is none")
    plugins: list[dict[str, Any]] = []
    scorers: list[dict[str, Any]] = []
    for name, kind in _SCORERS.items():
        weight = getattr(router, name)
        if weight > 0:
            parameters = _prefix_parameters(router) if kind == "prefix-cache-scorer" else {}
            plugins.append({"type": kind} | ({"parameters": parameters} if parameters else {}))
            scorers.append({"pluginRef": kind, "weight": weight})
    picker = f"{router.picker.replace('_', '-')}-picker"
    config = {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [*plugins, {"type": picker}],
        "schedulingProfiles": [{"name": "default", "plugins": [*scorers, {"pluginRef": picker}]}],
    }
    return {
        "inferenceExtension": {
            "image": {"hub": "ghcr.io/llm-d", "name": "llm-d-inference-scheduler", "tag": f"v{router.version}"},
            "flags": {"refresh-metrics-interval": f"{router.metrics_refresh_s * 1000:g}ms"},
            "pluginsConfigFile": "hisearch.yaml",
            "pluginsCustomConfig": {"hisearch.yaml": dump_yaml(config)},
        }
    }


def _prefix_parameters(router: RouterSpec) -> dict[str, Any]:
    auto_tuned = router.block_tokens is None and router.lru_capacity_blocks is None
    parameters = {"autoTune": auto_tuned, "maxPrefixBlocksToMatch": router.max_prefix_blocks}
    if router.block_tokens is not None:
        parameters["blockSizeTokens"] = router.block_tokens
    if router.lru_capacity_blocks is not None:
        parameters["lruCapacityPerServer"] = router.lru_capacity_blocks
    return parameters
