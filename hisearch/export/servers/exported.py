"""What is exported: a deployment's pools as servers on hosts, of which every platform makes its files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hisearch.export.context import ExportContext
from hisearch.export.engines.cache_tiers import Variable, variables
from hisearch.export.engines.launch import Launch
from hisearch.export.engines.releases import exported_release
from hisearch.export.engines.weights import Checkpoint, needs_checkpoint, weights_to_bring
from hisearch.export.rendering import resource_name
from hisearch.export.servers.containers import Container, engine_image
from hisearch.export.servers.fronts import Front, front_of
from hisearch.export.servers.node_labels import node_label
from hisearch.export.servers.placement import SERVICE_PORTS, Server, nodes_of, place
from hisearch.export.servers.roles import check_expressible, check_spanning, is_disaggregated
from hisearch.latency.parameters import weight_bytes_per_rank
from hisearch.search.model.deployments import SHAPES, format_devices, shape_of
from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec

#: Seconds between a pod's notice to end and the engine's. Assumed: what watches pods forgets it within some seconds.
LEAVING_S = 15
#: Bounds of a server's time to finish its requests, and what it gets where no request was simulated; seconds, assumed
#: (30 s is Kubernetes' own default, terminationGracePeriodSeconds).
LEAST_GRACE_S, USUAL_GRACE_S, MOST_GRACE_S = 30.0, 300.0, 3600.0
#: Local disk of a pod beside its KV: weights with a file that is being downloaded, compiled kernels and logs. Assumed.
WEIGHTS_HEADROOM = 1.1
CACHES_GIB = 20


class HostUse(NamedTuple):
    """Accelerator slots of a host, and how many of them no server takes."""

    host: int
    slots: int
    idle: int


@dataclass(frozen=True)
class Export:
    """A deployment as servers on hosts.

    launches: of each pool. slots: accelerator slots of a host of each pool. nodes: hosts of a replica, 1 where there
    are several pools. servers: of all pools, pool by pool.
    """

    deployment: DeploymentSpec
    launches: Sequence[Launch]
    slots: Sequence[int]
    nodes: int
    servers: Sequence[Server]
    context: ExportContext

    @property
    def engine(self) -> EngineName:
        """The engine of all pools."""
        return self.deployment.pool.engine.name

    @property
    def engine_title(self) -> str:
        """The engine's name for people."""
        return ENGINE_TITLES[self.engine]

    @property
    def version(self) -> str:
        """The engine's version: images and packages are pinned to it, and flags are its."""
        return exported_release(self.deployment.pool.engine)

    @property
    def images(self) -> list[str]:
        """Container images: the engine's first, then the front's."""
        return list(
            dict.fromkeys([engine_image(self.deployment.pool.engine), *([self.front.image] if self.routed else [])])
        )

    @property
    def model(self) -> str:
        """The model's Hugging Face id, by which clients ask for it."""
        return self.launches[0].model.huggingface_id

    @property
    def port(self) -> int:
        """The clients' port."""
        return SERVICE_PORTS[self.engine]

    @property
    def name(self) -> str:
        """Name of its resources: that of the model."""
        return resource_name(f"hisearch-{self.deployment.model.rsplit('/', 1)[-1]}")

    def worker(self, server: Server) -> str:
        """Name of the resources of a server's pool."""
        return f"{self.name}-{resource_name(server.pool)}"

    @property
    def several(self) -> bool:
        """True with more than one pool."""
        return len(self.launches) > 1

    @property
    def routed(self) -> bool:
        """True where clients talk to a front, not to the only replica."""
        return len(self.leaders) > 1

    @property
    def disaggregated(self) -> bool:
        """True with prefill/decode disaggregation."""
        return is_disaggregated(self.deployment)

    @property
    def meets(self) -> bool:
        """True where servers need addresses of hosts to start: that of their leader, or their own for others."""
        return self.nodes > 1 or (self.disaggregated and self.engine == "vllm")

    @property
    def grace_s(self) -> int:
        """Seconds that a server may take to end: its notice, and time to finish its requests."""
        return LEAVING_S + self.finishing_s

    @property
    def finishing_s(self) -> int:
        """Seconds that a server has to finish its requests: twice their simulated p99, within bounds."""
        longest_s = 2.0 * self.context.status.e2e_p99_s
        return math.ceil(min(max(longest_s, LEAST_GRACE_S), MOST_GRACE_S) if self.timed else USUAL_GRACE_S)

    @property
    def finishing(self) -> str:
        """What a server has to finish its requests, and why so long."""
        given = f"it has {self.finishing_s} s for its requests"
        if not self.timed:
            return f"{given}, of which none was simulated"
        p99_s = self.context.status.e2e_p99_s
        return (
            f"{given}, whose simulated p99 is {p99_s:.3g} s: twice that, but {LEAST_GRACE_S:g} s at least and "
            f"{MOST_GRACE_S / 60.0:g} min at most"
        )

    @property
    def timed(self) -> bool:
        """True where requests were simulated."""
        return math.isfinite(self.context.status.e2e_p99_s)

    @property
    def leaving_s(self) -> int:
        """Seconds between a pod's notice to end and the engine's."""
        return LEAVING_S

    def node_label(self, pool: PoolSpec) -> tuple[str, str]:
        """Label and value of the nodes that have a pool's accelerators."""
        return node_label(pool.accelerator)

    def storage_gib(self, replica: Container) -> int:
        """GiB of a replica's local disk on Kubernetes: weights with what a download needs, its own KV, caches, logs."""
        own_kv_gib = replica.kv_gib if replica.kv_scope == "worker" else 0.0
        return math.ceil(WEIGHTS_HEADROOM * self.weights_gib + own_kv_gib) + CACHES_GIB

    @property
    def front(self) -> Front:
        """The front."""
        return front_of(self.deployment)

    @property
    def unit(self) -> str:
        """What ``run.sh`` calls a server."""
        return "server" if self.several else "share" if self.nodes > 1 else "replica"

    @property
    def units(self) -> str:
        """What texts call the workers."""
        return "servers" if self.several else "replicas"

    @property
    def title(self) -> str:
        """A short description of the pools."""
        pools = self.deployment.pools
        if not self.several:
            return summary(pools[0])
        return f"{SHAPES[shape_of(self.deployment)]}: {'; '.join(f'{p.name}: {summary(p)}' for p in pools)}"

    @cached_property
    def leaders(self) -> list[Server]:
        """The servers that answer requests."""
        return [server for server in self.servers if server.node == 0]

    @cached_property
    def firsts(self) -> list[Server]:
        """The first server of each pool."""
        return [server for server in self.leaders if server.member == 0]

    @property
    def splits_stages(self) -> bool:
        """True where the ranks of a stage lie on several hosts."""
        return self.launches[0].pool.parallelism.stage_ranks > self.slots[0]

    def leader_of(self, server: Server) -> Server:
        """The server that answers for a replica."""
        return self.servers[server.number - server.node]

    @cached_property
    def hosts(self) -> list[HostUse]:
        """Every host, in the order of their numbers."""
        slots = dict(zip((launch.pool.name for launch in self.launches), self.slots, strict=True))
        of_host: dict[int, list[Server]] = {}
        for server in self.servers:
            of_host.setdefault(server.host, []).append(server)
        return [
            HostUse(host, slots[servers[0].pool], slots[servers[0].pool] - sum(len(s.devices) for s in servers))
            for host, servers in sorted(of_host.items())
        ]

    @cached_property
    def checkpoints(self) -> list[tuple[str, Checkpoint]]:
        """Pools whose weights the user has to supply, and which these are."""
        return [
            (launch.pool.name, needed) for launch in self.launches if (needed := weights_to_bring(launch)) is not None
        ]

    @cached_property
    def variables(self) -> list[Variable]:
        """Environment variables that scripts read."""
        return list({v.name: v for launch in self.launches for v in variables(launch.pool, launch.model)}.values())

    @property
    def settings(self) -> list[Variable]:
        """Environment variables of containers that people may set."""
        return [variable for variable in self.variables if variable.name != "KV_DIR"]

    @property
    def required(self) -> list[str]:
        """Variables of containers that the user has to set."""
        names = [setting.name for setting in self.settings if setting.value is None]
        return ["MODEL", *names] if self.checkpoints else names

    @property
    def weights_gib(self) -> int:
        """GiB of the largest checkpoint to download: the published one, or another format where needed."""
        return max(math.ceil(_download_bytes(launch) / 2**30) for launch in self.launches)


def export_of(
    deployment: DeploymentSpec,
    launches: Sequence[Launch],
    slots: Sequence[int],
    reaches: Sequence[int] | None = None,
    context: ExportContext = ExportContext(),  # noqa: B008  (frozen)
) -> Export:
    """Place a deployment's servers on hosts.

    Args:
        deployment: the simulated one.
        launches: of each pool.
        slots: accelerator slots of a host of each pool.
        reaches: number of accelerators joined by peer links of each pool's hosts; those of one host where None.
        context: of the export.

    Raises:
        ExportError: the engine or its router lacks a setting, or a replica fits no host.
    """
    if len(launches) > 1:
        check_expressible(deployment)
    servers = place(launches, slots, reaches or slots, context.first_host)
    nodes = nodes_of(launches[0].pool, slots[0], reaches[0] if reaches else None) if len(launches) == 1 else 1
    if nodes > 1:
        check_spanning(launches[0].pool)
    return Export(deployment, launches, slots, nodes, servers, context)


def summary(pool: PoolSpec) -> str:
    """A short description of the pool: ``2 replicas on 4 x h100-sxm, tensor parallel 2``."""
    replicas = "1 replica" if pool.replicas == 1 else f"{pool.replicas} replicas"
    text = f"{replicas} on {pool.accelerators} x {pool.accelerator}, tensor parallel {pool.tensor_parallel}"
    others = {
        "pipeline parallel": pool.pipeline_parallel,
        "attention data parallel": pool.attention_data_parallel,
        "expert parallel": pool.expert_parallel,
        "decode context parallel": pool.decode_context_parallel,
        "prefill context parallel": pool.prefill_context_parallel,
    }
    text += "".join(f", {name} {degree}" for name, degree in others.items() if degree > 1)
    return text if pool.devices is None else f"{text}, simulated with {format_devices(pool.devices)} each"


def _download_bytes(launch: Launch) -> float:
    published = launch.model.weight_dtype
    weight_dtype = published if needs_checkpoint(launch) is None else launch.pool.weight_dtype or published
    return weight_bytes_per_rank(launch.model, 1, weight_dtype)
