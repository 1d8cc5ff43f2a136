"""Replicas wider than a host: pipeline stages, or ranks that peer links join, as launch scripts and a LeaderWorkerSet.

An engine that spans hosts runs one process tree on each. All get the same command line, their node rank, and the
address of the first host, which answers for all (vLLM 0.19.1 ``config/parallel.py`` and SGLang 0.5.9
``server_args.py``: equally many ranks on each host). On Kubernetes such a group of pods belongs to a
LeaderWorkerSet (kubernetes-sigs/lws, ``leaderworkerset.x-k8s.io/v1``). It gives every pod the leader's address and its
own index.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hisearch.export.context import ExportContext
from hisearch.export.deployment import summary
from hisearch.export.engines.agents import notes as notes_on_agents
from hisearch.export.engines.cache_tiers import notes as notes_on_tiers
from hisearch.export.engines.cache_tiers import of_replica, variables
from hisearch.export.engines.flags import (
    ENGINE_VERSIONS,
    ExportError,
    Launch,
    engine_flags,
    router_flags,
    weights_to_bring,
)
from hisearch.export.operating import format_slots, security_note, weights_gib
from hisearch.export.platforms.containers import COMMANDS, ROUTER_IMAGE, Container, container, resource_name
from hisearch.export.platforms.kubernetes import (
    ACCELERATOR_RESOURCE,
    FILE,
    labelled,
    pod_spec,
    router_manifests,
    service,
)
from hisearch.export.platforms.placement import SERVICE_PORTS
from hisearch.export.platforms.rendering import render
from hisearch.export.targets import benchmark_files, name_of
from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.machines.parallelism import fits_hosts
from hisearch.specs.yaml_nodes import dump_yaml

#: Rendezvous port of a replica's hosts; replica N takes the N-th port after it.
MEETING_PORT = 29500
#: Variables that a LeaderWorkerSet sets in its pods.
_LEADER, _NODE = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"


class Share(NamedTuple):
    """One host's share of a replica. node: node rank in the replica; node 0 serves requests."""

    replica: int
    node: int
    host: int
    devices: tuple[int, ...]
    port: int


def nodes_of(pool: PoolSpec, accelerators_per_host: int, reach: int | None = None) -> int:
    """Hosts of a replica: the fewest with equally many complete stages each, or as many as its stages fill.

    Args:
        pool: of the replicas.
        accelerators_per_host: accelerator slots of one host.
        reach: number of accelerators joined by peer links, over several hosts; those of one host where None.

    Raises:
        ExportError: a stage is wider than a host, and does not fill hosts joined by peer links.
    """
    split = pool.parallelism
    if not fits_hosts(split.stage_ranks, accelerators_per_host, reach or accelerators_per_host):
        raise ExportError(
            f"pool {pool.name}: {split} does not fit a host with {accelerators_per_host} accelerators: a stage's "
            "ranks share a host, or fill hosts that peer links join"
        )
    if split.stage_ranks > accelerators_per_host:
        return split.ranks // accelerators_per_host
    counts = (n for n in range(1, split.pipeline + 1) if split.pipeline % n == 0)
    return next(n for n in counts if split.ranks // n <= accelerators_per_host)


def place_shares(pool: PoolSpec, accelerators_per_host: int, reach: int | None = None) -> list[Share]:
    """Fill hosts in order, one host per share; arguments and errors as of ``nodes_of``."""
    nodes = nodes_of(pool, accelerators_per_host, reach)
    width = pool.parallelism.ranks // nodes
    per_host, shares = accelerators_per_host // width, []
    for index in range(pool.replicas * nodes):
        (replica, node), (host, slot) = divmod(index, nodes), divmod(index, per_host)
        devices = tuple(range(slot * width, (slot + 1) * width))
        port = SERVICE_PORTS[pool.engine.name] + (1 + index if pool.replicas > 1 else index)
        shares.append(Share(replica, node, host, devices, port))
    return shares


def group_flags(engine: EngineName, nodes: int, node: str, leader: str, port: int | str) -> list[tuple[str, ...]]:
    """Rendezvous flags of a replica's processes; ``leader``: address of its first host.

    Raises:
        ExportError: the engine needs another launcher.
    """
    if engine == "vllm":
        return [
            ("--nnodes", str(nodes)),
            ("--node-rank", node),
            ("--master-addr", leader),
            ("--master-port", str(port)),
        ]
    if engine == "sglang":
        return [("--nnodes", str(nodes)), ("--node-rank", node), ("--dist-init-addr", f"{leader}:{port}")]
    raise ExportError(
        "trtllm-serve is started on several hosts by mpirun or a workload manager, for which nothing is written here"
    )


def follower_flags(engine: EngineName) -> list[tuple[str, ...]]:
    """Additional flags of all hosts but the first."""
    return [("--headless",)] if engine == "vllm" else []


def check_expressible(pool: PoolSpec) -> None:
    """Refuse settings whose flags are not written.

    Raises:
        ExportError: attention groups of vLLM on several hosts.
    """
    if pool.engine.name == "vllm" and pool.attention_data_parallel > 1:
        raise ExportError(
            f"pool {pool.name}: vLLM starts each host's attention groups by settings of their own "
            "(--data-parallel-size-local, --data-parallel-address), for which nothing is written here"
        )


def export_wide(
    deployment: DeploymentSpec,
    launch: Launch,
    out: Path,
    *,
    accelerators_per_host: int,
    reach: int | None = None,
    context: ExportContext = ExportContext(),  # noqa: B008  (frozen)
) -> list[Path]:
    """Write launch scripts and a LeaderWorkerSet into the folder ``out``, as ``export_deployment`` does.

    Args:
        deployment: the simulated one, of one pool whose replicas exceed a host.
        launch: of its pool.
        out: the folder that receives the files.
        accelerators_per_host: accelerator slots of one host.
        reach: number of accelerators joined by peer links, over several hosts; those of one host where None.
        context: further contents of the folder.

    Returns:
        The files written, README first.

    Raises:
        ExportError: the engine's command line cannot express the deployment, or ``out`` holds other files at these
            paths.
    """
    pool = launch.pool
    check_expressible(pool)
    shares, nodes = place_shares(pool, accelerators_per_host, reach), nodes_of(pool, accelerators_per_host, reach)
    engine, name = pool.engine.name, name_of(deployment)
    common: dict[str, Any] = {
        "deployment": deployment,
        "summary": summary(pool),
        "engine": engine,
        "engine_title": ENGINE_TITLES[engine],
        "version": ENGINE_VERSIONS[engine],
        "checkpoint": weights_to_bring(launch),
        "shares": shares,
        "nodes": nodes,
        "split_stages": pool.parallelism.stage_ranks > accelerators_per_host,
        "replicas": pool.replicas,
        "hosts": sorted({share.host for share in shares}),
        "service_port": SERVICE_PORTS[engine],
        "weights_gib": weights_gib([launch]),
    }
    script = render(
        "wide.sh.j2",
        **common,
        status=context.status,
        model=launch.model.huggingface_id,
        command=COMMANDS[engine],
        flags=engine_flags(launch),
        followers=follower_flags(engine),
        groups={
            share: group_flags(engine, nodes, str(share.node), "$LEADER", MEETING_PORT + share.replica)
            for share in shares
        },
        leaders={share.replica: share.host for share in shares if share.node == 0},
        variables=variables(pool, launch.model),
        of_replica={share.replica: of_replica(pool, share.replica) for share in shares},
        router=router_flags(deployment.router) if pool.replicas > 1 else [],
        **_check_urls(shares, SERVICE_PORTS[engine]),
    )
    host_container = container(launch, SERVICE_PORTS[engine], nodes=nodes)
    required = [
        *(["MODEL"] if host_container.model is None else []),
        *(s.name for s in host_container.settings if s.value is None),
    ]
    cluster = render(
        "wide_kubernetes.md.j2",
        **common,
        status=context.status,
        name=name,
        one=host_container,
        required=required,
        resource=ACCELERATOR_RESOURCE,
        model=launch.model.huggingface_id,
        service=name,
        port=SERVICE_PORTS[engine],
        router_image=ROUTER_IMAGE,
        accelerator=pool.accelerator,
    )
    readme = render(
        "wide.md.j2",
        **common,
        model=launch.model,
        **context.facts(),
        slots=format_slots(
            [(share.host, len(share.devices)) for share in shares], [accelerators_per_host] * (shares[-1].host + 1)
        ),
        security=security_note("replicas", SERVICE_PORTS[engine], pool.replicas > 1),
        routed=pool.replicas > 1,
        served=launch.model.huggingface_id,
        port=SERVICE_PORTS[engine],
        kv_capacity_tokens=launch.kv_capacity_tokens,
        notes=[*notes_on_tiers(pool), *notes_on_agents(pool)],
    )
    manifests = wide_manifests(deployment, launch, name, host_container, nodes)
    files = {
        f"{engine}/run.sh": script,
        "kubernetes/README.md": cluster,
        FILE: "---\n".join(dump_yaml(manifest) for manifest in manifests),
    }
    if context.benchmark is not None:
        files |= benchmark_files(launch, context.benchmark)
    return context.write(out, deployment, readme, files)


def _check_urls(shares: Sequence[Share], port: int) -> dict[str, Any]:
    """URLs that ``run.sh check`` queries: the first node of every replica, and the clients' endpoint."""
    urls = [f"http://${{HOST_{s.host}:?address of host {s.host}}}:{s.port}" for s in shares if s.node == 0]
    return {"asked": urls, "clients_url": urls[0] if len(urls) == 1 else f"http://${{ROUTER:-127.0.0.1}}:{port}"}


def wide_manifests(
    deployment: DeploymentSpec, launch: Launch, name: str, host_container: Container, nodes: int
) -> list[dict[str, Any]]:
    """A LeaderWorkerSet of the replicas, a router that discovers their leaders, and a Service.

    Args:
        deployment: the exported one.
        launch: its pool.
        name: of the resources.
        host_container: of one host's share of a replica.
        nodes: hosts of a replica.
    """
    pool, worker = launch.pool, f"{name}-{resource_name(launch.pool.name)}"
    engine, port = pool.engine.name, SERVICE_PORTS[pool.engine.name]
    words = [word for flag in group_flags(engine, nodes, _NODE, _LEADER, MEETING_PORT) for word in flag]
    leader, follower = (pod_spec(host_container, worker, name, port) for _ in range(2))
    leader["containers"][0]["args"] += words
    follower_container = follower["containers"][0]
    follower_container["args"] += [*words, *(word for flag in follower_flags(engine) for word in flag)]
    for key in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):  # the leader answers for all
        del follower_container[key]
    group = {
        "size": nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": {"labels": labelled(worker)}, "spec": leader},
        "workerTemplate": {"metadata": {"labels": labelled(f"{worker}-follower")}, "spec": follower},
    }
    manifests: list[dict[str, Any]] = [
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": worker, "labels": labelled(worker)},
            "spec": {"replicas": pool.replicas, "leaderWorkerTemplate": group},
        }
    ]
    if pool.replicas > 1:
        manifests += router_manifests(deployment, name, worker, port)
    return [*manifests, service(name, f"{name}-router" if pool.replicas > 1 else worker, port)]
