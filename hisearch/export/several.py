"""Writes a deployment of several pools as a folder: launch scripts, manifests, README, and the deployment itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hisearch.export.context import ExportContext
from hisearch.export.deployment import summary
from hisearch.export.engines.agents import notes as notes_on_agents
from hisearch.export.engines.cache_tiers import notes as notes_on_tiers
from hisearch.export.engines.cache_tiers import of_replica, variables
from hisearch.export.engines.flags import ENGINE_VERSIONS, ExportError, Launch, weights_to_bring
from hisearch.export.operating import format_slots, security_note, weights_gib
from hisearch.export.platforms import dynamo, fronts, llm_d, several_charts
from hisearch.export.platforms.containers import COMMANDS, IMAGES, container
from hisearch.export.platforms.placement import SERVICE_PORTS
from hisearch.export.platforms.rendering import render
from hisearch.export.platforms.servers import (
    Server,
    check_expressible,
    is_disaggregated,
    place_servers,
    server_flags,
    server_options_text,
    server_variables,
)
from hisearch.export.platforms.several_compose import NODE_LABEL, compose_text, manifests
from hisearch.export.targets import benchmark_files, name_of
from hisearch.export.trial_status import TrialStatus
from hisearch.search.model.deployments import SHAPES, shape_of
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.yaml_nodes import dump_yaml


class _Several(NamedTuple):
    """The inputs of the files. name: of resources. title: a heading."""

    deployment: DeploymentSpec
    servers: list[Server]
    name: str
    title: str

    @property
    def firsts(self) -> list[Server]:
        """The first server of each pool."""
        return [server for server in self.servers if server.member == 0]

    @property
    def hosts(self) -> list[int]:
        """Numbers of the hosts."""
        return sorted({server.host for server in self.servers})

    @property
    def engine(self) -> Any:
        """The engine of all pools."""
        return self.deployment.pool.engine.name


def export_several(
    deployment: DeploymentSpec,
    launches: Sequence[Launch],
    out: Path,
    *,
    accelerators_per_host: Sequence[int],
    context: ExportContext = ExportContext(),  # noqa: B008  (frozen)
) -> list[Path]:
    """Write launch scripts and manifests of ``deployment`` into the folder ``out``, as ``export_deployment`` does.

    Args:
        deployment: the simulated one, with more than one pool.
        launches: of each pool.
        out: the folder that receives the files.
        accelerators_per_host: accelerator slots of a host of each pool.
        context: further contents of the folder.

    Returns:
        The files written, README first.

    Raises:
        ExportError: an engine or its router lacks a setting, a worker exceeds a host, or ``out`` holds other files at
            these paths.
    """
    check_expressible(deployment)
    servers = place_servers(launches, accelerators_per_host)
    title = f"{SHAPES[shape_of(deployment)]}: {'; '.join(f'{p.name}: {summary(p)}' for p in deployment.pools)}"
    several = _Several(deployment, servers, name_of(deployment), title)
    files = _scripts(several, context.status) | _containers(several)
    left_out = _charts(several, files)
    if context.benchmark is not None:
        files |= benchmark_files(launches[0], context.benchmark)
    readme = render(
        "several.md.j2",
        **_facts(several),
        **context.facts(),
        left_out=left_out,
        folders=[name for name in ("compose", "kubernetes", "llm-d", "dynamo") if f"{name}/README.md" in files],
        slots=format_slots(
            [(server.host, len(server.devices)) for server in servers], _slots(servers, accelerators_per_host)
        ),
        security=security_note("servers", SERVICE_PORTS[several.engine], routed=True),
        routed=True,
        served=launches[0].model.huggingface_id,
        notes=[*fronts.notes(deployment), *_notes(launches)],
    )
    return context.write(out, deployment, readme, files)


def _facts(several: _Several) -> dict[str, Any]:
    """Template values shared by scripts and READMEs."""
    deployment, servers, engine = several.deployment, several.servers, several.engine
    return {
        "deployment": deployment,
        "title": several.title,
        "name": several.name,
        "disaggregated": is_disaggregated(deployment),
        "engine": engine,
        "engine_title": ENGINE_TITLES[engine],
        "version": ENGINE_VERSIONS[engine],
        "model": servers[0].launch.model.huggingface_id,
        "checkpoints": [
            (first.pool, needed) for first in several.firsts if (needed := weights_to_bring(first.launch)) is not None
        ],
        "servers": servers,
        "firsts": several.firsts,
        "hosts": several.hosts,
        "front": fronts.front_of(deployment),
        "port": SERVICE_PORTS[engine],
        "weights_gib": weights_gib(server.launch for server in several.firsts),
        "variables": list({v.name: v for first in several.firsts for v in _variables(first)}.values()),
    }


def _slots(servers: Sequence[Server], accelerators_per_host: Sequence[int]) -> list[int]:
    """Slots of each host, by its number; a pool's hosts are of one kind."""
    of_pool = dict(zip(dict.fromkeys(server.pool for server in servers), accelerators_per_host, strict=True))
    of_host = {server.host: of_pool[server.pool] for server in servers}
    return [of_host[host] for host in sorted(of_host)]


def _variables(first: Server) -> list[Any]:
    return variables(first.launch.pool, first.launch.model)


def _scripts(several: _Several, status: TrialStatus) -> dict[str, str]:
    deployment, engine = several.deployment, several.engine

    def address(server: Server) -> str:
        return f"$HOST_{server.host}:{server.port}"

    config = fronts.front_config(deployment, several.servers, address, "$LISTEN", SERVICE_PORTS[engine])
    words = fronts.front_words(deployment, several.servers, address, "$CONFIG")
    script = render(
        "several.sh.j2",
        **_facts(several),
        status=status,
        command=COMMANDS[engine],
        flags={server.number: server_flags(server, deployment) for server in several.servers},
        settings={
            server.number: [
                *of_replica(server.launch.pool, server.member),
                *server_variables(server, f"$HOST_{server.host}"),
            ]
            for server in several.servers
        },
        front_lines=_lines(words if config else [*words, "--host", "$LISTEN", "--port", str(SERVICE_PORTS[engine])]),
        front_config=dump_yaml(config) if config else "",
        asked=[f"http://{address(server)}" for server in several.servers],
        clients_url=f"http://${{ROUTER:-127.0.0.1}}:{SERVICE_PORTS[engine]}",
    )
    files = {f"{engine}/run.sh": script}
    for first in several.firsts:
        options = server_options_text(first.launch)
        if options:
            files[f"{engine}/{_options_name(first)}"] = options
    return files


def _lines(words: Sequence[str]) -> list[list[str]]:
    """Words of a command, a line for each flag with its values."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return lines


def _options_name(server: Server) -> str:
    """File of a pool's options, named by its role, as pool names are free text."""
    return f"{server.launch.pool.role}.yaml"


def _containers(several: _Several) -> dict[str, str]:
    deployment = several.deployment
    documents = manifests(deployment, several.servers, several.name)
    settings = [s for first in several.firsts for s in container(first.launch, 0).settings if s.value is None]
    required = list(dict.fromkeys(setting.name for setting in settings))
    to_set = (
        ["MODEL"] if any(weights_to_bring(first.launch) is not None for first in several.firsts) else []
    ) + required
    facts = _facts(several) | {"asked": to_set, "image": IMAGES[several.engine], "node_label": NODE_LABEL}
    facts["unequal"] = len({first.launch.pool.accelerator for first in several.firsts}) > 1
    return {
        "compose/compose.yaml": compose_text(deployment, several.servers),
        "compose/README.md": render("several_compose.md.j2", **facts),
        "kubernetes/manifests.yaml": "---\n".join(dump_yaml(document) for document in documents),
        "kubernetes/README.md": render("several_kubernetes.md.j2", **facts),
    }


def _charts(several: _Several, files: dict[str, str]) -> list[str]:
    """Add llm-d and Dynamo files to ``files``; return sentences on those that were not written."""
    left_out: list[str] = []
    texts: dict[str, tuple[str, Callable[..., str], dict[str, Any]]] = {
        "llm-d": ("values.yaml", several_charts.llm_d_text, {"chart": llm_d.CHART_VERSION}),
        "dynamo": (
            "graph.yaml",
            several_charts.dynamo_text,
            {"runtime": dynamo.RUNTIMES[several.engine], "notes": several_charts.dynamo_notes(several.deployment)},
        ),
    }
    for folder, (file, text_of, more) in texts.items():
        try:
            files[f"{folder}/{file}"] = text_of(several.deployment, several.firsts, several.name)
        except ExportError as error:
            left_out.append(f"`{folder}/` was not written: {error}.")
            continue
        template = f"several_{folder.replace('-', '_')}.md.j2"
        files[f"{folder}/README.md"] = render(template, **_facts(several), **more)
    return left_out


def _notes(launches: Sequence[Launch]) -> list[str]:
    """Notes by pool: settings that engines lack, and manual steps."""
    lines: list[str] = []
    for launch in launches:
        texts = [*notes_on_tiers(launch.pool), *notes_on_agents(launch.pool)]
        lines += [f"Pool {launch.pool.name}: {text}" for text in texts]
    return lines
