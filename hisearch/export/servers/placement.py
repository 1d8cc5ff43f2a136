"""Hosts, accelerators and ports of servers.

An engine that spans hosts runs one process tree on each, with equally many ranks (vLLM ``config/parallel.py``,
SGLang ``server_args.py``). Each of them is a server here; the one with node rank 0 answers for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hisearch.export.engines.launch import ExportError, Launch
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.machines.parallelism import fits_hosts

#: The port of clients. A single server takes it; several take the ports after it.
SERVICE_PORTS: dict[EngineName, int] = {"sglang": 30000, "vllm": 8000, "trtllm": 8000}
#: First port for negotiating KV transfers: SGLang's bootstrap server, vLLM's side channel.
_SIDE_PORTS: dict[EngineName, int] = {"sglang": 8998, "vllm": 5600, "trtllm": 0}
#: Distance between ports of consecutive servers: each rank of vLLM may take one.
_SIDE_STEP = 16


class Server(NamedTuple):
    """One replica of a pool, or one host's share of it.

    number: of the deployment's servers, from 0. member: of the pool's replicas, from 0. node: its rank among the
    replica's hosts. side_port: see ``_SIDE_PORTS``; 0 for none.
    """

    launch: Launch
    number: int
    member: int
    node: int
    host: int
    devices: tuple[int, ...]
    port: int
    side_port: int

    @property
    def pool(self) -> str:
        """Name of its pool."""
        return self.launch.pool.name

    @property
    def accelerator(self) -> str:
        """Name of its pool's accelerator."""
        return self.launch.pool.accelerator


def nodes_of(pool: PoolSpec, slots: int, reach: int | None = None) -> int:
    """Hosts of a replica: the fewest with equally many complete stages each, or as many as its stages fill.

    Args:
        pool: of the replicas.
        slots: accelerator slots of a host.
        reach: number of accelerators joined by peer links, over several hosts; those of one host where None.

    Raises:
        ExportError: a stage is wider than a host, and does not fill hosts joined by peer links.
    """
    split = pool.parallelism
    if not fits_hosts(split.stage_ranks, slots, reach or slots):
        raise ExportError(
            f"pool {pool.name}: {split} does not fit a host with {slots} accelerators: a stage's "
            "ranks share a host, or fill hosts that peer links join"
        )
    if split.stage_ranks > slots:
        return split.ranks // slots
    counts = (n for n in range(1, split.pipeline + 1) if split.pipeline % n == 0)
    return next(n for n in counts if split.ranks // n <= slots)


def hosts_taken(pool: PoolSpec, slots: int, reach: int | None = None) -> int:
    """Hosts that a pool fills, as of ``nodes_of``.

    Raises:
        ExportError: as of ``nodes_of``.
    """
    nodes = nodes_of(pool, slots, reach)
    return math.ceil(pool.replicas * nodes / (slots // (pool.parallelism.ranks // nodes)))


def place(
    launches: Sequence[Launch], slots: Sequence[int], reaches: Sequence[int | None], first_host: int = 0
) -> list[Server]:
    """Fill hosts in order, pool by pool; each pool has hosts of its own.

    Args:
        launches: of each pool.
        slots: accelerator slots of a host of each pool.
        reaches: see ``nodes_of``, of each pool.
        first_host: number of the first host.

    Raises:
        ExportError: a replica fits no host, or spans hosts in a deployment of several pools.
    """
    servers: list[Server] = []
    first_port = 1 if len(launches) > 1 or launches[0].pool.replicas > 1 else 0
    for launch, per_host, reach in zip(launches, slots, reaches, strict=True):
        pool, engine = launch.pool, launch.pool.engine.name
        nodes = nodes_of(pool, per_host, reach)
        if nodes > 1 and len(launches) > 1:
            raise ExportError(
                f"pool {pool.name}: {pool.parallelism} does not fit a host with {per_host} accelerators; beside other "
                "pools, launch scripts are written for replicas within one host"
            )
        width = pool.parallelism.ranks // nodes
        fitting = per_host // width
        for index in range(pool.replicas * nodes):
            (member, node), (host, slot) = divmod(index, nodes), divmod(index, fitting)
            number = len(servers)
            has_side_port = pool.role != "unified" and _SIDE_PORTS[engine]
            side_port = _SIDE_PORTS[engine] + number * _SIDE_STEP if has_side_port else 0
            devices = tuple(range(slot * width, (slot + 1) * width))
            port = SERVICE_PORTS[engine] + first_port + number
            servers.append(Server(launch, number, member, node, first_host + host, devices, port, side_port))
        first_host += hosts_taken(pool, per_host, reach)
    return servers
