"""Kubernetes: pods of every pool, the front, and the clients' Service.

One pool is a Deployment, whose pods the router discovers. Of several pools each is a StatefulSet with a headless
Service, which names its pods; the front knows them all. Replicas that span hosts are groups of a LeaderWorkerSet
(kubernetes-sigs/lws, ``leaderworkerset.x-k8s.io/v1``), which gives every pod the leader's address and its own index.
"""

from __future__ import annotations

from hisearch.export.registry import Platform
from hisearch.export.rendering import render, render_yaml
from hisearch.export.servers.containers import server_container
from hisearch.export.servers.exported import Export
from hisearch.export.servers.fronts import discovering_words, front_config, front_words
from hisearch.export.servers.placement import Server
from hisearch.export.servers.roles import MEETING_PORT, follower_flags, group_flags

PLATFORM = Platform(
    summary="pods, the front that finds them, a Service",
    title="Kubernetes",
    folder="kubernetes",
    paths=("manifests.yaml",),
    spans_hosts=True,
    rank=2,
)
_LABEL = "app.kubernetes.io/name"
#: Path of the front's configuration file in its container.
_FRONT_FILE = "/etc/hisearch/front.yaml"


def files(export: Export) -> dict[str, str]:
    """``manifests.yaml``, several documents.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """
    deployment, first = export.deployment, export.firsts[0]
    containers = [server_container(s, deployment, export.port, nodes=export.nodes) for s in export.firsts]
    workers = [export.worker(server) for server in export.firsts]

    def address(server: Server) -> str:
        return f"{export.worker(server)}-{server.member}.{export.worker(server)}:{export.port}"

    # Every pod has its own address: pods of a pool share ports.
    side_ports = {first.pool: first.side_port for first in export.firsts}
    servers = [server._replace(side_port=side_ports[server.pool]) for server in export.leaders]
    front: list[str] = []
    if export.several:
        front = front_words(deployment, servers, address, _FRONT_FILE, "0.0.0.0", export.model)
    elif export.routed:
        front = discovering_words(deployment, f"{_LABEL}={workers[0]}", "$(POD_NAMESPACE)")
    # Variables that a LeaderWorkerSet sets in its pods.
    leader, node = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
    group = group_flags(first.launch.pool, export.nodes, node, leader, MEETING_PORT)
    manifests = render_yaml(
        "kubernetes.yaml.j2",
        export=export,
        label=_LABEL,
        pools=list(zip(deployment.pools, workers, containers, strict=True)),
        group=[word for flag in group for word in flag],
        followers=[word for flag in follower_flags(first.launch.pool) for word in flag],
        front=front,
        config=front_config(deployment, servers, address, "0.0.0.0"),
    )
    readme = render("kubernetes.md.j2", export=export, replicas=containers, meeting_port=MEETING_PORT)
    return {"kubernetes/README.md": readme, "kubernetes/manifests.yaml": manifests}
