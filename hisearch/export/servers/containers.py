"""One replica as a container: image, command line, environment, host resources.

Images are those that the engines' projects publish, by version; ``lmsysorg/sgl-model-gateway`` is the renamed router.
All three engines document that GET /health answers once they can serve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import ClassVar

from hisearch.export.engines.cache_tiers import Variable, has_server, has_tiers, is_moved_by, of_replica, variables
from hisearch.export.engines.flags import ROUTER_VERSION, engine_flags
from hisearch.export.engines.launch import Launch
from hisearch.export.engines.releases import exported_release
from hisearch.export.engines.weights import weights_to_bring
from hisearch.export.servers.placement import Server
from hisearch.export.servers.roles import role_flags, server_options_text, server_variables
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.tier_checks import storing_hosts

#: Images without their tag, which is the release.
IMAGES: dict[EngineName, str] = {
    "sglang": "lmsysorg/sglang:v",
    "vllm": "vllm/vllm-openai:v",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:",
}
ROUTER_IMAGE = f"lmsysorg/sgl-model-gateway:v{ROUTER_VERSION}"

#: Command before the model's name.
COMMANDS: dict[EngineName, tuple[str, ...]] = {
    "sglang": ("python3", "-m", "sglang.launch_server", "--model-path"),
    "vllm": ("vllm", "serve"),
    "trtllm": ("trtllm-serve",),
}
ROUTER_COMMAND = ("python3", "-m", "sglang_router.launch_router")

#: Host memory of a replica without its tiers, and CPU cores: fixed, and per rank. Assumed: engines publish no figure.
MEMORY_GIB = 32
MEMORY_GIB_PER_RANK = 8
CORES = 4
CORES_PER_RANK = 4


def engine_image(engine: EngineSpec) -> str:
    """The image of the release that is exported."""
    return IMAGES[engine.name] + exported_release(engine)


@dataclass(frozen=True)
class Container:
    """One replica.

    command: the program and its first words; the model follows, then ``arguments``. model: None where the user has to
    supply weights, in the format ``checkpoint``. kv_scope: scope of the KV folder; None without one. memory_gib: of the
    host. options: the text of TensorRT-LLM's options file, or "".
    """

    WEIGHTS_FOLDER: ClassVar[str] = "/root/.cache/huggingface"
    KV_FOLDER: ClassVar[str] = "/kv"
    OPTIONS_FILE: ClassVar[PurePosixPath] = PurePosixPath("/etc/hisearch/llm_api_options.yaml")

    image: str
    command: tuple[str, ...]
    model: str | None
    checkpoint: str
    arguments: tuple[str, ...]
    settings: tuple[Variable, ...]
    accelerators: int
    kv_scope: str | None
    kv_gib: float
    memory_gib: int
    cores: int
    options: str

    def words(self, model: str) -> list[str]:
        """The complete command line, with ``model`` for the weights."""
        return [*self.command, model, *self.arguments]

    @property
    def size(self) -> tuple[int, int, int]:
        """Accelerators, cores and GiB of host memory."""
        return self.accelerators, self.cores, self.memory_gib

    @property
    def kv(self) -> tuple[str | None, float]:
        """Scope and GiB of the KV folder."""
        return self.kv_scope, self.kv_gib


def container(
    launch: Launch, port: int | str, replica: int = 0, options: str | None = None, nodes: int = 1
) -> Container:
    """Container of a replica of ``launch.pool``, or of one host's share of it, that listens on all addresses.

    Args:
        launch: the pool.
        port: to listen on.
        replica: its number, which names its KV folder where replicas share a disk.
        options: text of TensorRT-LLM's options file; None: as ``trtllm-serve`` reads it.
        nodes: hosts that share the replica's ranks evenly.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """
    pool = launch.pool
    options = server_options_text(launch) if options is None else options
    arguments = [word for flag in engine_flags(launch) for word in flag]
    if options:
        arguments += ["--extra_llm_api_options", str(Container.OPTIONS_FILE)]
    needed = weights_to_bring(launch)
    settings = [variable for variable in variables(pool, launch.model) if variable.name != "KV_DIR"]
    for name, text in of_replica(pool, replica):
        settings.append(Variable(name, "", text.replace("$KV_DIR", Container.KV_FOLDER)))
    scope, gib = kv_folder(pool)
    ranks = pool.parallelism.ranks // nodes
    return Container(
        image=engine_image(pool.engine),
        command=COMMANDS[pool.engine.name],
        model=launch.model.huggingface_id if needed is None else None,
        checkpoint=needed.dtype if needed is not None else "",
        arguments=(*arguments, "--host", "0.0.0.0", "--port", str(port)),
        settings=tuple(settings),
        accelerators=ranks,
        kv_scope=scope,
        kv_gib=gib,
        memory_gib=memory_gib(launch, nodes),
        cores=CORES + CORES_PER_RANK * ranks,
        options=options,
    )


def server_container(
    server: Server, deployment: DeploymentSpec, port: int, address: str = "", nodes: int = 1
) -> Container:
    """A server as a container, with the flags and variables of its role.

    Args:
        server: the server.
        deployment: of all pools.
        port: to listen on.
        address: of its host, for other servers.
        nodes: hosts that share the replica's ranks evenly.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """
    replica = container(server.launch, port, server.member, nodes=nodes)
    added = [word for flag in role_flags(server, deployment) for word in flag]
    settings = [Variable(name, "", value) for name, value in server_variables(server, address)]
    return replace(replica, arguments=(*added, *replica.arguments), settings=(*replica.settings, *settings))


def kv_folder(pool: PoolSpec) -> tuple[str | None, float]:
    """Scope of a replica's KV folder ("worker" or "node") and its GiB; (None, 0) without one."""
    if not has_tiers(pool) or has_server(pool):
        return None, 0.0
    on_disk = [tier for tier in pool.tiers[1:2] if tier.scope != "cluster"]
    if not on_disk or not (is_moved_by(pool, "hicache") or on_disk[0].scope == "worker"):
        return None, 0.0
    return on_disk[0].scope, on_disk[0].gib


def memory_gib(launch: Launch, nodes: int = 1) -> int:
    """Host memory of a replica on each of its ``nodes``, GiB: its nearest tier, agents' objects, and the engine's own.

    Where one rank stores for all, its node needs memory for the complete tier; all nodes request the same.
    """
    pool, tier_gib, storing = launch.pool, 0.0, nodes
    if has_tiers(pool) and not has_server(pool):
        tier_gib, storing = pool.tiers[0].gib, storing_hosts(pool, 0, launch.model, nodes)
    stored_gib = tier_gib / storing + launch.objects_bytes / 2**30 / nodes
    return math.ceil(stored_gib) + MEMORY_GIB + MEMORY_GIB_PER_RANK * (pool.parallelism.ranks // nodes)
