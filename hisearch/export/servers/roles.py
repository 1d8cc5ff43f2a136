"""Flags, variables and options that a server's role adds, and those of a replica that spans hosts.

Flags and settings were read in the engines' sources and documentation: SGLang 0.5.9 and 0.5.23 ``server_args.py`` (PD
disaggregation over Mooncake), vLLM 0.19.1 and 0.33.0 (``NixlConnector``, ``VLLM_NIXL_SIDE_CHANNEL_…`` in ``envs.py``),
TensorRT-LLM 1.1 (``cache_transceiver_config`` of its options; context servers run without the overlap scheduler).
"""

from __future__ import annotations

from typing import Any

from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import exported_release, is_changed
from hisearch.export.engines.trtllm_options import llm_api_options
from hisearch.export.servers.placement import Server
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.deployments.cluster import TransferSpec
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.yaml_nodes import dump_yaml

#: Rendezvous port of a replica's hosts; replica N takes the N-th port after it.
MEETING_PORT = 29500


def is_disaggregated(deployment: DeploymentSpec) -> bool:
    """True with prefill/decode disaggregation."""
    return any(pool.role == "decode" for pool in deployment.pools)


def check_spanning(pool: PoolSpec) -> None:
    """Refuse replicas over several hosts whose flags are not written.

    Raises:
        ExportError: TensorRT-LLM, or attention groups of vLLM.
    """
    if pool.engine.name == "vllm" and pool.attention_data_parallel > 1:
        raise ExportError(
            f"pool {pool.name}: vLLM starts each host's attention groups by settings of their own "
            "(--data-parallel-size-local, --data-parallel-address), for which nothing is written here"
        )
    if pool.engine.name == "trtllm":
        raise ExportError(
            "trtllm-serve is started on several hosts by mpirun or a workload manager, for which nothing is written "
            "here"
        )


def group_flags(pool: PoolSpec, nodes: int, node: int | str, leader: str, port: int) -> list[tuple[str, ...]]:
    """Rendezvous flags of one of a replica's hosts; none where it has one host.

    Args:
        pool: of the replica.
        nodes: number of its hosts.
        node: rank of this one, or the variable that has it.
        leader: address of the first host.
        port: of the rendezvous there.
    """
    if nodes == 1:
        return []
    flags = [("--nnodes", str(nodes)), ("--node-rank", str(node))]
    if pool.engine.name == "sglang":
        return [*flags, ("--dist-init-addr", f"{leader}:{port}")]
    return [*flags, ("--master-addr", leader), ("--master-port", str(port))]


def follower_flags(pool: PoolSpec) -> list[tuple[str, ...]]:
    """Additional flags of all hosts of a replica but the first."""
    return [("--headless",)] if pool.engine.name == "vllm" else []


def check_expressible(deployment: DeploymentSpec) -> None:
    """Refuse settings of several pools that an engine or the router lacks.

    Raises:
        ExportError: names the setting.
    """
    engines = {pool.engine.name for pool in deployment.pools}
    if len(engines) > 1:
        raise ExportError(f"pools of {' and '.join(sorted(engines))} behind one router: no router starts both")
    releases = {exported_release(pool.engine) for pool in deployment.pools}
    if len(releases) > 1:
        title = ENGINE_TITLES[deployment.pool.engine.name]
        raise ExportError(f"pools of {title} {' and '.join(sorted(releases))}: files are written for one release")
    engine, usual = deployment.pool.engine.name, TransferSpec()
    version = f"{ENGINE_TITLES[engine]} {exported_release(deployment.pool.engine)}"
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


def role_flags(server: Server, deployment: DeploymentSpec) -> list[tuple[str, ...]]:
    """Flags that a server's role adds to those of its engine."""
    pool = server.launch.pool
    if pool.role == "unified":
        return []
    if pool.engine.name in ("vllm", "trtllm"):  # vLLM's connectors do not differ by role.
        return []
    flags: list[tuple[str, ...]] = [
        ("--disaggregation-mode", pool.role),
        ("--disaggregation-transfer-backend", "mooncake"),
    ]
    if pool.role == "decode":
        flags.append(("--num-reserved-decode-tokens", str(deployment.transfer.reserved_decode_tokens)))
        return [*flags, *([("--disaggregation-decode-enable-offload-kvcache",)] if pool.writes_back_output else [])]
    flags.append(("--disaggregation-bootstrap-port", str(server.side_port)))
    if is_changed(pool.engine, "finds_decode_ranks"):
        return flags
    others = {other.tensor_parallel for other in deployment.pools if other.role == "decode"} - {pool.tensor_parallel}
    return [*flags, *(("--disaggregation-decode-tp", str(ranks)) for ranks in sorted(others))]


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
