"""The front of several servers: a router's command line, or TensorRT-LLM's orchestrator.

Flags: sglang-router 0.3.2 and vllm-router 0.1.17 ``router_args.py``, production-stack 0.1.11
``src/vllm_router/parsers/parser.py``. Keys of the orchestrator's file: TensorRT-LLM 1.1 ``llmapi/disagg_utils.py`` and
``serve/router.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hisearch.export.engines.flags import ROUTER_POLICIES, ROUTER_VERSION, router_flags
from hisearch.export.engines.launch import ExportError
from hisearch.export.servers.containers import ROUTER_COMMAND, ROUTER_IMAGE, engine_image
from hisearch.export.servers.placement import SERVICE_PORTS, Server
from hisearch.export.servers.roles import is_disaggregated
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.routing import RouterName, RouterSpec
from hisearch.specs.yaml_nodes import dump_yaml

VLLM_ROUTER_VERSION = "0.1.17"
#: Published by the router's project; it has no tag for each version.
VLLM_ROUTER_IMAGE = "vllm/vllm-router:nightly"

STACK_VERSION = "0.1.11"
#: The default of production-stack's chart; tags are not the chart's versions.
_STACK_IMAGE = "lmcache/lmstack-router:latest"
_STACK_PACKAGE = f"git+https://github.com/vllm-project/production-stack@vllm-stack-{STACK_VERSION}"
_STACK_COMMAND = "vllm-router"
#: The header that names a session; any other does, as long as clients send it.
STACK_SESSION_KEY = "x-session-id"
#: Simulated policy -> what its router calls it.
_STACK_LOGICS: dict[RouterName, str] = {
    "round_robin": "roundrobin", "prefix_aware": "prefixaware", "consistent_hashing": "session",
}  # fmt: skip
#: ``HashTrie``'s default; no flag sets another.
_STACK_CHUNK_CHARACTERS = 128

#: Weights may take half an hour to load.
_STARTUP = ("--worker-startup-timeout-secs", "1800")

#: Simulated policy -> TensorRT-LLM's router, and whether it is equivalent.
_TRTLLM_ROUTERS: dict[RouterName, tuple[dict[str, Any], bool]] = {
    "round_robin": ({"type": "round_robin"}, True),
    "least_outstanding_tokens": ({"type": "load_balancing", "use_tokens": True}, True),
    "power_of_two": ({"type": "load_balancing", "use_tokens": True}, False),
    "cache_aware": ({"type": "kv_cache_aware"}, False),
    "kv_aware": ({"type": "kv_cache_aware"}, False),
}

#: Policies of platforms' own routers -> the nearest that the routers here have; their platform gets them as they are.
PLATFORM_POLICIES: dict[RouterName, RouterName] = {
    "dynamo_kv": "cache_aware", "endpoint_picker": "cache_aware", "prefix_cache": "cache_aware",
}  # fmt: skip

#: Simulated policies that have a front of their own, before unified workers.
FRONT_POLICIES: tuple[RouterName, ...] = ("prefix_aware", "consistent_hashing")

#: Returns a server's address for the front, without ``http://``.
Address = Callable[[Server], str]


class Front(NamedTuple):
    """A front. title: with its version. image: its container image. package: to install without containers."""

    title: str
    image: str
    package: str


def front_of(deployment: DeploymentSpec) -> Front:
    """The front of a deployment's servers."""
    engine = deployment.pool.engine.name
    if is_disaggregated(deployment) and engine == "trtllm":
        return Front(
            "trtllm-serve disaggregated", engine_image(deployment.pool.engine), "tensorrt-llm, as for the servers"
        )
    if is_disaggregated(deployment) and engine == "vllm":
        return Front(f"vllm-router {VLLM_ROUTER_VERSION}", VLLM_ROUTER_IMAGE, f"vllm-router=={VLLM_ROUTER_VERSION}")
    if _is_stack(deployment):
        return Front(f"production-stack's router {STACK_VERSION}", _STACK_IMAGE, _STACK_PACKAGE)
    return Front(f"sglang-router {ROUTER_VERSION}", ROUTER_IMAGE, f"sglang-router=={ROUTER_VERSION}")


def front_words(
    deployment: DeploymentSpec, servers: Sequence[Server], address: Address, config: str, host: str, model: str = ""
) -> list[str]:
    """The front's command line.

    Args:
        deployment: the exported one.
        servers: that answer requests, of all its pools.
        address: of each.
        config: path of the orchestrator's file, where ``front_config`` is not empty.
        host: the address that it listens on.
        model: the name that servers serve.

    Raises:
        ExportError: the front lacks the policy.
    """
    engine = deployment.pool.engine.name
    listen = ["--host", host, "--port", str(SERVICE_PORTS[engine])]
    if not is_disaggregated(deployment):
        urls = [f"http://{address(server)}" for server in servers]
        if _is_stack(deployment):
            models = ",".join([model] * len(urls))
            known = ["--service-discovery", "static", "--static-backends", ",".join(urls), "--static-models", models]
            return [_STACK_COMMAND, *known, *_stack_words(deployment.router), *listen]
        return [*ROUTER_COMMAND, "--worker-urls", *urls, *_words(_router_flags(deployment.router)), *_STARTUP, *listen]
    if engine == "trtllm":
        return ["trtllm-serve", "disaggregated", "--config_file", config]
    words = [*ROUTER_COMMAND, "--pd-disaggregation"]
    if engine == "vllm":
        words = ["vllm-router", "--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    for server in servers:
        role = server.launch.pool.role
        bootstrap = [str(server.side_port)] if engine == "sglang" and role == "prefill" else []
        words += [f"--{role}", f"http://{address(server)}", *bootstrap]
    policies = _policies(engine, deployment.router, deployment.decode_router)
    return [*words, *_words(policies), *_STARTUP, *listen]


def discovering_words(deployment: DeploymentSpec, selector: str, namespace: str) -> list[str]:
    """Command line of a router that looks for pods with the label ``selector``.

    Raises:
        ExportError: the router lacks the policy.
    """
    port = str(SERVICE_PORTS[deployment.pool.engine.name])
    if _is_stack(deployment):
        pods = ["--k8s-label-selector", selector, "--k8s-namespace", namespace, "--k8s-port", port]
        logic = _stack_words(deployment.router)
        return [_STACK_COMMAND, "--service-discovery", "k8s", *pods, *logic, "--host", "0.0.0.0", "--port", port]
    watched = ["--service-discovery", "--selector", selector, "--service-discovery-port", port]
    flags = _words(_router_flags(deployment.router))
    place = ["--service-discovery-namespace", namespace]
    return [*ROUTER_COMMAND, *watched, *place, *flags, "--host", "0.0.0.0", "--port", port]


def front_config(deployment: DeploymentSpec, servers: Sequence[Server], address: Address, host: str) -> str:
    """Text of TensorRT-LLM's orchestrator's file; "" where another front is used.

    Raises:
        ExportError: it lacks the policy.
    """
    if not is_disaggregated(deployment) or deployment.pool.engine.name != "trtllm":
        return ""
    config: dict[str, Any] = {"hostname": host, "port": SERVICE_PORTS["trtllm"], "backend": "pytorch"}
    if deployment.transfer.local_prefill_tokens:
        config["conditional_disagg_config"] = {"max_local_prefill_length": deployment.transfer.local_prefill_tokens}
    roles = (
        ("context_servers", "prefill", deployment.router),
        ("generation_servers", "decode", deployment.decode_router),
    )
    for key, role, router in roles:
        urls = [address(server) for server in servers if server.launch.pool.role == role]
        config[key] = {"num_instances": len(urls), "urls": urls, "router": _trtllm_router(router)}
    return dump_yaml(config)


def nearest_routers(deployment: DeploymentSpec) -> list[tuple[RouterName, str]]:
    """Simulated policies that the front lacks, each with the front's nearest."""
    policies = (deployment.router.policy, deployment.decode_router.policy)
    if _is_stack(deployment) and deployment.router.policy == "consistent_hashing":
        return [("consistent_hashing", "session, a ring of hashes")]
    if not is_disaggregated(deployment) or deployment.pool.engine.name != "trtllm":
        return [(policy, PLATFORM_POLICIES[policy]) for policy in policies if policy in PLATFORM_POLICIES]
    nearest = [(policy, *_TRTLLM_ROUTERS[policy]) for policy in policies]
    return [(policy, router["type"]) for policy, router, same in nearest if not same]


def _is_stack(deployment: DeploymentSpec) -> bool:
    """Whether its front is production-stack's."""
    return deployment.router.policy in FRONT_POLICIES and not is_disaggregated(deployment)


def _stack_words(router: RouterSpec) -> list[str]:
    logic = stack_logic(router)
    return ["--routing-logic", logic, *(["--session-key", STACK_SESSION_KEY] if logic == "session" else [])]


def stack_logic(router: RouterSpec) -> str:
    """What production-stack's router calls a simulated policy.

    Raises:
        ExportError: it lacks the policy or a setting of it.
    """
    if router.policy not in _STACK_LOGICS:
        takes = ", ".join(_STACK_LOGICS)
        raise ExportError(f"production-stack's router has nothing like {router.policy}; it takes {takes}")
    if router.policy == "prefix_aware" and router.chunk_characters != _STACK_CHUNK_CHARACTERS:
        raise ExportError(
            f"production-stack's router matches {_STACK_CHUNK_CHARACTERS} characters at once and has no flag for "
            f"chunk_characters: {router.chunk_characters}"
        )
    return _STACK_LOGICS[router.policy]


def _router_flags(router: RouterSpec) -> list[tuple[str, ...]]:
    """Flags of sglang-router's policy that is, or is nearest to, the simulated one."""
    nearest = PLATFORM_POLICIES.get(router.policy)
    return router_flags(router if nearest is None else RouterSpec(policy=nearest))


def _trtllm_router(router: RouterSpec) -> dict[str, Any]:
    if router.policy not in _TRTLLM_ROUTERS:
        raise ExportError(
            f"trtllm-serve disaggregated has nothing like {router.policy}; it takes {', '.join(_TRTLLM_ROUTERS)}"
        )
    return dict(_TRTLLM_ROUTERS[router.policy][0])


def _policies(engine: EngineName, router: RouterSpec, decode_router: RouterSpec) -> list[tuple[str, ...]]:
    """Policies of both roles; the one set of thresholds is the prefill router's."""
    title = f"vllm-router {VLLM_ROUTER_VERSION}" if engine == "vllm" else f"sglang-router {ROUTER_VERSION}"
    for policy in (router.policy, decode_router.policy):
        if policy not in (*ROUTER_POLICIES, *PLATFORM_POLICIES):
            raise ExportError(f"{title} has no policy {policy}; it takes {', '.join(ROUTER_POLICIES)}")
    (_, policy), *thresholds = _router_flags(router)
    return [("--prefill-policy", policy), *thresholds, ("--decode-policy", decode_router.policy)]


def _words(flags: Sequence[tuple[str, ...]]) -> list[str]:
    return [word for flag in flags for word in flag]
