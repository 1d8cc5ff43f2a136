"""Accelerators and ports of replicas."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.export.engines.flags import ExportError
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import PoolSpec

#: The port of clients. A single replica takes it; several take the ports after it.
SERVICE_PORTS: dict[EngineName, int] = {"sglang": 30000, "vllm": 8000, "trtllm": 8000}


class Placement(NamedTuple):
    """One replica: its host's number, its devices there, and its port."""

    replica: int
    host: int
    devices: tuple[int, ...]
    port: int


def place(pool: PoolSpec, accelerators_per_host: int) -> list[Placement]:
    """Fill hosts in order; a replica never spans hosts.

    Raises:
        ExportError: a replica needs more accelerators than a host has.
    """
    width = pool.parallelism.ranks
    if width > accelerators_per_host:
        raise ExportError(
            f"pool {pool.name}: {pool.parallelism} does not fit a host with {accelerators_per_host} "
            "accelerators; launch scripts are written for replicas within one host"
        )
    per_host = accelerators_per_host // width
    first_port = SERVICE_PORTS[pool.engine.name] + (1 if pool.replicas > 1 else 0)
    placements = []
    for replica in range(pool.replicas):
        host, slot = divmod(replica, per_host)
        devices = tuple(range(slot * width, (slot + 1) * width))
        placements.append(Placement(replica, host, devices, first_port + replica))
    return placements
