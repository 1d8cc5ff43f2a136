"""Docker Compose: every replica a service on its host's network, with the ports and devices of the launch scripts.

Form: the Compose Specification (compose-spec/compose-spec, ``schema/compose-spec.json``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hisearch.export.engines.flags import Launch
from hisearch.export.platforms.containers import (
    KV_FOLDER,
    OPTIONS_FILE,
    ROUTER_IMAGE,
    WEIGHTS_FOLDER,
    Container,
    container,
    router_words,
)
from hisearch.export.platforms.placement import SERVICE_PORTS, Placement
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.yaml_nodes import dump_yaml

FILE = "compose/compose.yaml"
OPTIONS = "llm_api_options.yaml"


def compose_files(
    deployment: DeploymentSpec, launch: Launch, placements: list[Placement], options: str
) -> dict[str, str]:
    """``compose.yaml`` and the files that it mounts.

    With several hosts, services of host H are in the profile ``host-H``, and the router in ``router``.
    """
    hosts = sorted({placement.host for placement in placements})
    services: dict[str, Any] = {}
    for placement in placements:
        replica = container(launch, placement.port, placement.replica, options)
        service = service_of(replica, placement.devices)
        if len(hosts) > 1:
            service = {"profiles": [f"host-{placement.host}"]} | service
        services[f"replica-{placement.replica}"] = service
    if len(placements) > 1:
        services["router"] = _router(deployment, launch, placements, hosts)
    document: dict[str, Any] = {"name": "hisearch", "services": services}
    if options:
        document["configs"] = {"options": {"file": f"./{OPTIONS}"}}
    files = {FILE: dump_yaml(document)}
    return files | ({f"compose/{OPTIONS}": options} if options else {})


def service_of(replica: Container, devices: Sequence[int], source: str = "options") -> dict[str, Any]:
    """A service on its host's network; ``source``: name of the config with TensorRT-LLM's options."""
    missing = f"weights in {replica.checkpoint}, a Hugging Face id or a folder in the container"
    model = "${MODEL:?" + missing + "}" if replica.model is None else _default("MODEL", replica.model)
    command = [plain(word) for word in replica.words("\0")]
    environment = {
        setting.name: "${" + setting.name + ":?" + plain(setting.meaning) + "}"
        if setting.value is None
        else _default(setting.name, setting.value)
        if setting.meaning
        else plain(setting.value)
        for setting in replica.settings
    }
    volumes = [f"${{WEIGHTS:-~/.cache/huggingface}}:{WEIGHTS_FOLDER}"]
    if replica.kv_scope is not None:
        volumes.append("${KV_DIR:?folder for KV}:" + KV_FOLDER)
    held = [str(device) for device in devices]
    port = next(replica.arguments[i + 1] for i, word in enumerate(replica.arguments) if word == "--port")
    service: dict[str, Any] = {
        "image": replica.image,
        "entrypoint": command[:1],
        "command": [model if word == "\0" else word for word in command[1:]],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}"} | environment,
        "network_mode": "host",
        "ipc": "host",
        "ulimits": {"memlock": -1, "stack": 67108864},
        "volumes": volumes,
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "device_ids": held, "capabilities": ["gpu"]}]}
            }
        },
        "healthcheck": _health(port),
        "restart": "unless-stopped",
    }
    if replica.options:
        service["configs"] = [{"source": source, "target": str(OPTIONS_FILE)}]
    return service


def _health(port: str) -> dict[str, Any]:
    """A health check by Python, which every image has; weights may take half an hour to load."""
    command = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/health', timeout=5)"
    return {"test": ["CMD", "python3", "-c", command], "interval": "10s", "timeout": "10s", "start_period": "30m"}


def _router(
    deployment: DeploymentSpec, launch: Launch, placements: list[Placement], hosts: list[int]
) -> dict[str, Any]:
    def address(host: int) -> str:
        return "127.0.0.1" if len(hosts) == 1 else "${HOST_" + str(host) + ":?address of host " + str(host) + "}"

    urls = [f"http://{address(placement.host)}:{placement.port}" for placement in placements]
    words = router_words(deployment, SERVICE_PORTS[launch.pool.engine.name], "--worker-urls", *urls)
    service: dict[str, Any] = {
        "image": ROUTER_IMAGE,
        "entrypoint": words[:1],
        "command": words[1:],
        "network_mode": "host",
        "restart": "unless-stopped",
    }
    return service if len(hosts) == 1 else {"profiles": ["router"]} | service


def _default(name: str, value: str) -> str:
    """A variable with a default; only the value where it holds a closing brace."""
    return plain(value) if "}" in value else "${" + name + ":-" + plain(value) + "}"


def plain(text: str) -> str:
    """Text with dollar signs escaped for Compose."""
    return text.replace("$", "$$")
