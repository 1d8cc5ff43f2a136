"""``run.sh``: launch commands for machines on which the engine is installed."""

from __future__ import annotations

from hisearch.export.engines.cache_tiers import of_replica
from hisearch.export.engines.flags import engine_flags
from hisearch.export.registry import Platform
from hisearch.export.rendering import render
from hisearch.export.servers.containers import COMMANDS
from hisearch.export.servers.exported import Export
from hisearch.export.servers.fronts import front_config, front_words
from hisearch.export.servers.placement import Server
from hisearch.export.servers.roles import (
    MEETING_PORT,
    follower_flags,
    group_flags,
    role_flags,
    server_options_text,
    server_variables,
)

PLATFORM = Platform(
    summary="launch commands with the settings that were simulated", title="bare machines", spans_hosts=True, rank=0
)  # fmt: skip


def files(export: Export, *, simulated: bool = True) -> dict[str, str]:
    """``run.sh``, and the files that it reads.

    Raises:
        ExportError: the engine or its router lacks a setting of the deployment.
    """
    deployment, leaders = export.deployment, export.leaders

    def address(server: Server) -> str:
        return f"$HOST_{server.host}:{server.port}"

    front = front_words(deployment, leaders, address, "$CONFIG", "$LISTEN", "$MODEL") if export.routed else []
    script = render(
        "run.sh.j2",
        export=export,
        simulated=simulated,
        command=[word.replace("python3", "python") for word in COMMANDS[export.engine]],
        flags={
            server.number: [*engine_flags(server.launch), *role_flags(server, deployment)] for server in export.servers
        },
        added={server.number: _added_flags(export, server) for server in export.servers},
        settings={
            server.number: [
                *of_replica(server.launch.pool, server.member),
                *server_variables(server, f"$HOST_{server.host}"),
            ]
            for server in export.servers
        },
        options=options_name,
        front=[word.replace("python3", "python") for word in front],
        front_config=front_config(deployment, leaders, address, "$LISTEN"),
    )
    options = {f"{export.engine}/{options_name(export, s)}": server_options_text(s.launch) for s in export.firsts}
    return {f"{export.engine}/run.sh": script} | (options if export.engine == "trtllm" else {})


def options_name(export: Export, server: Server) -> str:
    """File of TensorRT-LLM's options; of several pools named by the role, as pool names are free text.

    Pools of the same role are numbered, by their place among all.
    """
    if not export.several:
        return "llm_api_options.yaml"
    pools, role = export.deployment.pools, server.launch.pool.role
    if sum(pool.role == role for pool in pools) == 1:
        return f"{role}.yaml"
    return f"{role}-{[pool.name for pool in pools].index(server.pool)}.yaml"


def _added_flags(export: Export, server: Server) -> list[tuple[str, ...]]:
    """Flags of a server of a replica that spans hosts."""
    pool, leader = server.launch.pool, export.leader_of(server)
    flags = group_flags(pool, export.nodes, server.node, f"$HOST_{leader.host}", MEETING_PORT + server.member)
    return flags + (follower_flags(pool) if server.node else [])
