"""Workers of several pools as servers: their placement, and the flags that their roles add.

Flags and settings were read in the engines' sources and documentation: SGLang 0.5.9 ``server_args.py`` (PD
disaggregation over Mooncake), vLLM 0.19.1 (``NixlConnector``, ``VLLM_NIXL_SIDE_CHANNEL_…`` in ``envs.py``),
TensorRT-LLM 1.1 (``cache_transceiver_config`` of its options; context servers run without the overlap scheduler).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hisearch.export.engines.cache_tiers import has_tiers
from hisearch.export.engines.flags import ENGINE_VERSIONS, ExportError, Launch, engine_flags
from hisearch.export.engines.trtllm_options import llm_api_options
from hisearch.export.platforms.placement import SERVICE_PORTS, place
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.deployments.cluster import TransferSpec
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.yaml_nodes import dump_yaml

#: First port for negotiating KV transfers: SGLang's bootstrap server, vLLM's side channel.
_SIDE_PORTS = {"sglang": 8998, "vllm": 5600, "trtllm": 0}
#: Distance between ports of consecutive servers: each rank of vLLM may take one.
_SIDE_STEP = 16


class Server(NamedTuple):
    """A worker. number: global, from 0. member: in its pool, from 0. side_port: see ``_SIDE_PORTS``; 0 for none."""

    launch: Launch
    number: int
    member: int
    host: int
    devices: tuple[int, ...]
    port: int
    side_port: int

    @property
    def pool(self) -> str:
        """Name of its pool."""
        return self.launch.pool.name


def place_servers(launches: Sequence[Launch], accelerators_per_host: Sequence[int]) -> list[Server]:
    """Place the servers, pool by pool, each pool on its own hosts.

    Raises:
        ExportError: a worker needs more accelerators than a host has.
    """
    servers: list[Server] = []
    for launch, slots in zip(launches, accelerators_per_host, strict=True):
        engine = launch.pool.engine.name
        first_host = max((server.host for server in servers), default=-1) + 1
        disaggregated = launch.pool.role != "unified"
        for placement in place(launch.pool, slots):
            number = len(servers)
            side = _SIDE_PORTS[engine] + number * _SIDE_STEP if disaggregated and _SIDE_PORTS[engine] else 0
            port = SERVICE_PORTS[engine] + 1 + number
            servers.append(
                Server(launch, number, placement.replica, first_host + placement.host, placement.devices, port, side)
            )
    return servers


def is_disaggregated(deployment: DeploymentSpec) -> bool:
    """True with prefill/decode disaggregation."""
    return any(pool.role == "decode" for pool in deployment.pools)


def check_expressible(deployment: DeploymentSpec) -> None:
    """Refuse settings that an engine lacks.

    Raises:
        ExportError: names the setting.
    """
    engines = {pool.engine.name for pool in deployment.pools}
    if len(engines) > 1:
        raise ExportError(f"pools of {' and '.join(sorted(engines))} behind one router: no router starts both")
    engine, usual = deployment.pool.engine.name, TransferSpec()
    version = f"{ENGINE_TITLES[engine]} {ENGINE_VERSIONS[engine]}"
    for pool in deployment.pools:
        if pool.autoscale is not None or pool.schedule:
            raise ExportError(f"pool {pool.name}: replicas over time are up to an autoscaler; fixed ones are exported")
        if pool.devices is not None:
            raise ExportError(f"pool {pool.name}: no engine has settings for attached devices")
    if deployment.admission.policy != "none":
        raise ExportError(f"no router here has the admission {deployment.admission.policy}")
    if not is_disaggregated(deployment):
        return
    transfer = deployment.transfer
    if transfer.order == ("prefill_first" if engine == "sglang" else "reserve_first"):
        raise ExportError(f"{version} has no transfer.order {transfer.order}")
    if transfer.granularity not in ("auto", "chunk" if engine == "sglang" else "whole"):
        raise ExportError(f"{version} has no transfer.granularity {transfer.granularity}")
    if transfer.local_prefill_tokens != usual.local_prefill_tokens and engine != "trtllm":
        raise ExportError(f"{version} has no transfer.local_prefill_tokens; TensorRT-LLM alone has")
    if engine == "vllm" and any(has_tiers(pool) for pool in deployment.pools):
        raise ExportError(
            f"{version} takes one --kv-transfer-config: cache tiers do not combine with prefill/decode disaggregation"
        )


def role_flags(server: Server, deployment: DeploymentSpec) -> list[tuple[str, ...]]:
    """Flags that a server's role adds to those of its engine."""
    pool = server.launch.pool
    if pool.role == "unified":
        return []
    if pool.engine.name == "vllm":
        connector = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        return [("--kv-transfer-config", json.dumps(connector))]
    if pool.engine.name == "trtllm":
        return []
    flags: list[tuple[str, ...]] = [
        ("--disaggregation-mode", pool.role),
        ("--disaggregation-transfer-backend", "mooncake"),
    ]
    if pool.role == "decode":
        flags.append(("--num-reserved-decode-tokens", str(deployment.transfer.reserved_decode_tokens)))
        return [*flags, *([("--disaggregation-decode-enable-offload-kvcache",)] if pool.writes_back_output else [])]
    flags.append(("--disaggregation-bootstrap-port", str(server.side_port)))
    others = {other.tensor_parallel for other in deployment.pools if other.role == "decode"} - {pool.tensor_parallel}
    return [*flags, *(("--disaggregation-decode-tp", str(ranks)) for ranks in sorted(others))]


def server_flags(server: Server, deployment: DeploymentSpec) -> list[tuple[str, ...]]:
    """All flags except addresses.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """
    return [*engine_flags(server.launch), *role_flags(server, deployment)]


def server_variables(server: Server, address: str) -> list[tuple[str, str]]:
    """Environment variables that a server's role needs; ``address``: its host's, for other workers."""
    pool = server.launch.pool
    if pool.role == "unified" or pool.engine.name != "vllm":
        return []
    port = str(server.side_port)
    return [("VLLM_NIXL_SIDE_CHANNEL_HOST", address), ("VLLM_NIXL_SIDE_CHANNEL_PORT", port), ("UCX_NET_DEVICES", "all")]


def server_options(launch: Launch) -> dict[str, Any]:
    """TensorRT-LLM's options of a pool's servers.

    The transfer buffer holds the longest prompt: shorter ones can deadlock under load (``max_tokens_in_buffer``).
    """
    options = llm_api_options(launch)
    if launch.pool.role == "unified":
        return options
    longest = min(launch.model.max_context_tokens, launch.kv_capacity_tokens)
    options["cache_transceiver_config"] = {"backend": "DEFAULT", "max_tokens_in_buffer": longest}
    if launch.pool.role == "prefill":
        options["disable_overlap_scheduler"] = True
    return options


def server_options_text(launch: Launch) -> str:
    """Text of the options file; "" for the other engines, which only take flags."""
    return dump_yaml(server_options(launch)) if launch.pool.engine.name == "trtllm" else ""
