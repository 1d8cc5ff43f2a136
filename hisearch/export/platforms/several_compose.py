"""Docker Compose and Kubernetes for several pools: every server has a fixed address that the front knows.

On Kubernetes a pool is a StatefulSet with a headless Service, which names its pods; the front is a Deployment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hisearch.export.platforms import compose, kubernetes
from hisearch.export.platforms.containers import Container, Setting, container, resource_name
from hisearch.export.platforms.fronts import front_config, front_of, front_words
from hisearch.export.platforms.placement import SERVICE_PORTS
from hisearch.export.platforms.servers import Server, role_flags, server_options_text, server_variables
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.yaml_nodes import dump_yaml

#: Path of the front's configuration file.
FRONT_FILE = "/etc/hisearch/front.yaml"
_LABEL = "app.kubernetes.io/name"
#: Node label of the accelerator type, set by the user.
NODE_LABEL = "hisearch/accelerator"


def server_container(server: Server, deployment: DeploymentSpec, port: int, address: str) -> Container:
    """A server as a container, with the flags and variables of its role.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """
    replica = container(server.launch, port, server.member, server_options_text(server.launch))
    added = [word for flag in role_flags(server, deployment) for word in flag]
    settings = [Setting(name, value, "") for name, value in server_variables(server, address)]
    return replica._replace(arguments=(*added, *replica.arguments), settings=(*replica.settings, *settings))


def compose_text(deployment: DeploymentSpec, servers: Sequence[Server]) -> str:
    """``compose.yaml``; with several hosts, host H's services are in profile ``host-H``, the front in ``router``."""
    hosts = sorted({server.host for server in servers})

    def of_host(host: int) -> str:
        return "127.0.0.1" if len(hosts) == 1 else "${HOST_" + str(host) + ":?address of host " + str(host) + "}"

    services: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    for server in servers:
        replica = server_container(server, deployment, server.port, "")
        source = f"{resource_name(server.pool)}-options"
        service = compose.service_of(replica, server.devices, source)
        for name, _ in server_variables(server, ""):
            if name.endswith("_HOST"):
                service["environment"][name] = of_host(server.host)
        if replica.options:
            configs[source] = {"content": compose.plain(replica.options)}
        profiles = {"profiles": [f"host-{server.host}"]} if len(hosts) > 1 else {}
        services[f"{resource_name(server.pool)}-{server.member}"] = profiles | service

    def address(server: Server) -> str:
        return f"{of_host(server.host)}:{server.port}"

    services["router"], config = _front_service(deployment, servers, address)
    if len(hosts) > 1:
        services["router"] = {"profiles": ["router"]} | services["router"]
    if config:
        configs["front"] = {"content": config}
    return dump_yaml({"name": "hisearch", "services": services} | ({"configs": configs} if configs else {}))


def _front_service(deployment: DeploymentSpec, servers: Sequence[Server], address: Any) -> tuple[dict[str, Any], str]:
    port = SERVICE_PORTS[deployment.pool.engine.name]
    words = front_words(deployment, servers, address, FRONT_FILE)
    config = front_config(deployment, servers, address, "0.0.0.0", port)
    listen_words = [] if config else ["--host", "0.0.0.0", "--port", str(port)]
    service: dict[str, Any] = {
        "image": front_of(deployment).image,
        "entrypoint": words[:1],
        "command": [*words[1:], *listen_words],
        "network_mode": "host",
        "restart": "unless-stopped",
    }
    if config:
        service["configs"] = [{"source": "front", "target": FRONT_FILE}]
    return service, dump_yaml(config) if config else ""


def manifests(deployment: DeploymentSpec, servers: Sequence[Server], name: str) -> list[dict[str, Any]]:
    """Kubernetes documents: a StatefulSet and a Service per pool, then the front and the clients' Service."""
    port = SERVICE_PORTS[deployment.pool.engine.name]
    firsts = [server for server in servers if server.member == 0]
    unequal = len({server.launch.pool.accelerator for server in firsts}) > 1
    documents: list[dict[str, Any]] = []
    for first in firsts:
        documents += _pool(first, deployment, name, port, named=unequal)

    def address(server: Server) -> str:
        worker = f"{name}-{resource_name(server.pool)}"
        return f"{worker}-{server.member}.{worker}:{port}"

    # Every pod has its own address: pods of a pool share ports.
    pod_servers = [server._replace(side_port=_of_pool(server, firsts).side_port) for server in servers]
    return [*documents, *_front(deployment, pod_servers, address, name, port)]


def _of_pool(server: Server, firsts: Sequence[Server]) -> Server:
    return next(first for first in firsts if first.pool == server.pool)


def _pool(first: Server, deployment: DeploymentSpec, name: str, port: int, *, named: bool) -> list[dict[str, Any]]:
    worker = f"{name}-{resource_name(first.pool)}"
    replica = server_container(first, deployment, port, "")
    pod = kubernetes.pod_spec(replica, worker, name, port)
    for variable in pod["containers"][0]["env"]:
        if variable["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST":
            variable.pop("value")
            variable["valueFrom"] = {"fieldRef": {"fieldPath": "status.podIP"}}
    if named:
        pod["nodeSelector"] = {NODE_LABEL: resource_name(first.launch.pool.accelerator)}
    labels = {_LABEL: worker}
    documents: list[dict[str, Any]] = []
    if replica.options:
        data = {"llm_api_options.yaml": replica.options}
        documents.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{worker}-options"}, "data": data}
        )
    service = {
        "clusterIP": "None",
        # The front resolves servers before they can serve.
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [{"name": "http", "port": port, "targetPort": "http"}],
    }
    documents.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": worker}, "spec": service})
    spec = {
        "serviceName": worker,
        "replicas": first.launch.pool.replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    metadata = {"name": worker, "labels": labels}
    return [*documents, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}]


def _front(
    deployment: DeploymentSpec, servers: Sequence[Server], address: Any, name: str, port: int
) -> list[dict[str, Any]]:
    front, documents = f"{name}-router", list[dict[str, Any]]()
    words = front_words(deployment, servers, address, FRONT_FILE)
    config = front_config(deployment, servers, address, "0.0.0.0", port)
    labels = {_LABEL: front}
    router: dict[str, Any] = {
        "name": "router",
        "image": front_of(deployment).image,
        "command": words[:1],
        "args": [*words[1:], *([] if config else ["--host", "0.0.0.0", "--port", str(port)])],
        "ports": [{"name": "http", "containerPort": port}],
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10},
    }
    pod: dict[str, Any] = {"containers": [router]}
    if config:
        data = {"front.yaml": dump_yaml(config)}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": front}, "data": data})
        router["volumeMounts"] = [{"name": "front", "mountPath": "/etc/hisearch", "readOnly": True}]
        pod["volumes"] = [{"name": "front", "configMap": {"name": front}}]
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    documents.append(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": front, "labels": labels}, "spec": spec}
    )
    service = {"selector": labels, "ports": [{"name": "http", "port": port, "targetPort": "http"}]}
    return [*documents, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service}]
