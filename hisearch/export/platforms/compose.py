"""Docker Compose: every server a service on its host's network, with the ports and devices of the launch scripts.

Form: the Compose Specification (compose-spec/compose-spec, ``schema/compose-spec.json``). With several hosts, services
of host H are in the profile ``host-H``, and the front in ``router``.
"""

from __future__ import annotations

from hisearch.export.registry import Platform
from hisearch.export.rendering import render, render_yaml, resource_name
from hisearch.export.servers.containers import Container, server_container
from hisearch.export.servers.exported import Export
from hisearch.export.servers.fronts import front_config, front_words
from hisearch.export.servers.placement import Server

PLATFORM = Platform(
    summary="services on the host's network",
    title="Docker Compose",
    folder="compose",
    paths=("compose.yaml", "llm_api_options.yaml"),
    rank=1,
)
#: Path of the front's configuration file in its container.
_FRONT_FILE = "/etc/hisearch/front.yaml"


def files(export: Export) -> dict[str, str]:
    """``compose.yaml`` and the files that it mounts.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """

    def host_address(host: int) -> str:
        return "127.0.0.1" if len(export.hosts) == 1 else f"${{HOST_{host}:?address of host {host}}}"

    def address(server: Server) -> str:
        return f"{host_address(server.host)}:{server.port}"

    deployment = export.deployment
    replicas = {server.number: server_container(server, deployment, server.port) for server in export.servers}
    config = front_config(deployment, export.servers, address, "0.0.0.0")
    model = "${MODEL:?as the replicas serve it}" if export.checkpoints else default("MODEL", export.model)
    front = front_words(deployment, export.servers, address, _FRONT_FILE, "0.0.0.0", model) if export.routed else []
    text = render_yaml(
        "compose.yaml.j2",
        export=export,
        replicas=replicas,
        service_name=lambda s: f"{resource_name(s.pool) if export.several else 'replica'}-{s.member}",
        options_name=lambda s: f"{resource_name(s.pool)}-options" if export.several else "options",
        host_address=host_address,
        plain=plain,
        default=default,
        front=front,
        config=config,
        front_file=_FRONT_FILE,
    )
    readme = render("compose.md.j2", export=export, weights_folder=Container.WEIGHTS_FOLDER)
    options = replicas[0].options if not export.several else ""
    return {
        "compose/README.md": readme,
        "compose/compose.yaml": text,
        **({"compose/llm_api_options.yaml": options} if options else {}),
    }


def plain(text: str) -> str:
    """Text with dollar signs escaped for Compose."""
    return text.replace("$", "$$")


def default(name: str, value: str) -> str:
    """A variable with a default; only the value where it holds a closing brace."""
    return plain(value) if "}" in value else "${" + name + ":-" + plain(value) + "}"
