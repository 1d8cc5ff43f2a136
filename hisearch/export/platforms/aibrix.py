"""AIBrix: pods that its gateway finds by their labels, and the gateway's settings.

Labels: AIBrix 0.5 ``pkg/constants/model.go``. Settings: ``pkg/plugins/gateway/algorithms/prefix_cache.go``,
``pkg/utils/prefixcacheindexer/hash.go``; ``ROUTING_ALGORITHM`` is taken where a request has no header
``routing-strategy``. They are values of its chart (``dist/chart/values.schema.json: gatewayPlugin.container.envs``).
"""

from __future__ import annotations

from typing import Any

from hisearch.base.router_rules import MODELLED_ROUTERS
from hisearch.export.engines.launch import ExportError
from hisearch.export.registry import Platform
from hisearch.export.rendering import render, render_yaml, resource_name
from hisearch.export.servers.containers import server_container
from hisearch.export.servers.exported import Export
from hisearch.specs.deployments.routing import RouterName, RouterSpec
from hisearch.specs.yaml_nodes import dump_yaml

PLATFORM = Platform(
    summary="labelled pods, values of its chart",
    title="AIBrix",
    folder="aibrix",
    paths=("manifests.yaml", "gateway-values.yaml"),
    rank=6,
)
_PORT = 8000
#: Simulated policy -> the gateway's strategy.
_STRATEGIES: dict[RouterName, str] = {"prefix_cache": "prefix-cache", "random": "random"}


def files(export: Export) -> dict[str, str]:
    """``manifests.yaml`` with the pods, ``gateway-values.yaml`` with the gateway's settings.

    Raises:
        ExportError: AIBrix was given no such pools, or its gateway lacks the policy.
    """
    if export.several:
        raise ExportError("AIBrix was given one pool of equal workers; there are several")
    if export.engine == "trtllm":
        raise ExportError("AIBrix's gateway reads no metrics of TensorRT-LLM's servers")
    values = gateway_values(export.deployment.router)
    facts = {"export": export, "served": resource_name(export.model.rsplit("/", 1)[-1]), "port": _PORT}
    (first,) = export.firsts
    replica = server_container(first, export.deployment, _PORT)
    manifests = render_yaml("aibrix.yaml.j2", **facts, pool=first.launch.pool, replica=replica)
    strategy = values["gatewayPlugin"]["container"]["envs"]["ROUTING_ALGORITHM"]
    readme = render("aibrix.md.j2", **facts, strategy=strategy, version=MODELLED_ROUTERS["aibrix"][-1])
    return {
        "aibrix/README.md": readme,
        "aibrix/manifests.yaml": manifests,
        "aibrix/gateway-values.yaml": dump_yaml(values),
    }


def gateway_values(router: RouterSpec) -> dict[str, Any]:
    """Values of AIBrix's chart that have its gateway choose as was simulated.

    Raises:
        ExportError: its gateway lacks the policy or a setting of it.
    """
    if router.policy not in _STRATEGIES:
        raise ExportError(f"AIBrix's gateway has nothing like {router.policy}; it takes {', '.join(_STRATEGIES)}")
    settings = {"ROUTING_ALGORITHM": _STRATEGIES[router.policy]}
    if router.policy == "prefix_cache":
        minutes = router.index_ttl_s / 60
        if not minutes.is_integer():
            raise ExportError(f"AIBrix's gateway forgets blocks after whole minutes, not after {router.index_ttl_s} s")
        prefix = {
            "TOKENIZER_TYPE": "character",
            "BLOCK_SIZE": router.block_characters,
            "BLOCK_NUMBER": router.index_blocks_in_all,
            "EVICTION_DURATION_MINS": int(minutes),
            "POD_RUNNING_REQUEST_IMBALANCE_ABS_COUNT": router.imbalance_requests,
            "STANDARD_DEVIATION_FACTOR": router.deviation_factor,
        }
        settings |= {f"AIBRIX_PREFIX_CACHE_{name}": str(value) for name, value in prefix.items()}
    return {"gatewayPlugin": {"replicaCount": 1, "container": {"envs": settings}}}
