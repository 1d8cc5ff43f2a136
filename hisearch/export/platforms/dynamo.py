"""A graph for NVIDIA Dynamo's operator: a routing frontend, and the pools' replicas as workers.

Format: ``nvidia.com/v1alpha1`` DynamoGraphDeployment, as in ai-dynamo/dynamo's ``examples/backends/*/deploy``, with
roles as in ``disagg.yaml`` there. Engine versions of images: Dynamo's support matrix
(docs.nvidia.com/dynamo/resources/support-matrix).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import exported_release
from hisearch.export.registry import Platform
from hisearch.export.rendering import render, render_yaml, unexpanded
from hisearch.export.servers.containers import Container, container
from hisearch.export.servers.exported import Export
from hisearch.export.servers.placement import Server
from hisearch.export.servers.roles import role_flags, server_options
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.routing import RouterName, RouterSpec
from hisearch.specs.yaml_nodes import dump_yaml

PLATFORM = Platform(
    summary="a DynamoGraphDeployment", title="NVIDIA Dynamo", folder="dynamo", paths=("graph.yaml",), rank=4
)
_PORT = 8000


class Runtime(NamedTuple):
    """Dynamo's image for an engine. engine_version: in the image. module: of the worker. model: its flag."""

    image: str
    engine_version: str
    module: str
    model: str


#: The newest releases of Dynamo whose engines' flags are known here.
_RUNTIMES: dict[EngineName, Runtime] = {
    "sglang": Runtime("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.0.0", "0.5.9", "dynamo.sglang", "--model-path"),
    "vllm": Runtime("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.1.1", "0.19.0", "dynamo.vllm", "--model"),
    "trtllm": Runtime(
        "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.0.0", "1.3.0rc5.post1", "dynamo.trtllm", "--model-path"
    ),
}

#: Simulated policy -> the frontend's flags. ``kv`` without events indexes what it has routed, like cache_aware.
_ROUTER_FLAGS: dict[RouterName, tuple[str, ...]] = {
    "random": ("--router-mode", "random"),
    "round_robin": ("--router-mode", "round-robin"),
    "power_of_two": ("--router-mode", "round-robin"),
    "cache_aware": ("--router-mode", "kv", "--no-router-kv-events"),
    "dynamo_kv": ("--router-mode", "kv"),
}

#: What makes workers tell the router of their blocks; Dynamo's worker reads where to, and whether, from the engine's.
_EVENT_WORDS: dict[EngineName, tuple[str, ...]] = {
    "sglang": ("--kv-events-config", '{"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:5557"}'),
    "vllm": (
        "--kv-events-config",
        '{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:5557"}',
    ),
    "trtllm": ("--publish-events-and-metrics",),
}

#: Flag of trtllm-serve -> its name in the engine's options; a Dynamo worker reads them from its file only.
_TRTLLM_OPTIONS = {
    "--backend": "backend",
    "--tp_size": "tensor_parallel_size",
    "--pp_size": "pipeline_parallel_size",
    "--ep_size": "moe_expert_parallel_size",
    "--max_batch_size": "max_batch_size",
    "--max_num_tokens": "max_num_tokens",
    "--max_seq_len": "max_seq_len",
}


def files(export: Export) -> dict[str, str]:
    """``graph.yaml``; with ConfigMaps where TensorRT-LLM needs options.

    Raises:
        ExportError: Dynamo does not support such pools, or its frontend not the policy.
    """
    if export.several and not export.disaggregated:
        raise ExportError("Dynamo's graph was given one kind of workers, or prefill and decode ones; these are unequal")
    router = export.deployment.router if export.routed else RouterSpec(policy="round_robin")
    policy = router.policy
    if policy not in _ROUTER_FLAGS:
        raise ExportError(f"Dynamo's frontend has nothing like {policy}; it takes {', '.join(_ROUTER_FLAGS)}")
    workers = []
    for first in (first._replace(launch=on_runtime(first.launch)) for first in export.firsts):
        options = dump_yaml(trtllm_engine_options(first.launch)) if export.engine == "trtllm" else ""
        replica = container(first.launch, _PORT, options=options)
        words = _worker_words(first, export.deployment)
        workers.append((first.launch.pool, export.worker(first), replica, words))
    written_for = exported_release(on_runtime(export.launches[0]).pool.engine)
    facts = {"export": export, "runtime": _RUNTIMES[export.engine], "written_for": written_for}
    graph = render_yaml("dynamo.yaml.j2", **facts, workers=workers, router=router_words(router))
    readme = render("dynamo.md.j2", **facts, policy=policy, port=_PORT)
    return {"dynamo/README.md": readme, "dynamo/graph.yaml": graph}


def router_words(router: RouterSpec) -> list[str]:
    """The frontend's flags for a policy (``dynamo/common/configuration/groups/kv_router_args.py`` of release 1.1.1)."""
    words = list(_ROUTER_FLAGS[router.policy])
    if router.policy == "dynamo_kv":
        words += ["--router-kv-overlap-score-weight", f"{router.overlap_weight:g}"]
        words += ["--router-temperature", f"{router.router_temperature:g}"]
        by_events = router.block_tracking == "events"
        words += ["--router-kv-events"] if by_events else ["--no-router-kv-events"]
        words += [] if by_events else ["--router-ttl-secs", f"{router.router_ttl_s:g}"]
    return words


def on_runtime(launch: Launch) -> Launch:
    """The launch on the engine of Dynamo's image, whose flags differ from those of the simulated release.

    Dynamo's own frontend reads prompts and sends tokens; its workers take no number of servers.
    """
    pool, engine = launch.pool, launch.pool.engine
    engine = engine.model_copy(update={"version": _RUNTIMES[engine.name].engine_version, "api_servers": None})
    return launch._replace(pool=pool.model_copy(update={"engine": engine}))


def _worker_words(server: Server, deployment: DeploymentSpec) -> list[str]:
    """Arguments of ``python3 -m dynamo.<engine>``: the model by its variable, the engine's flags, the role's."""
    launch, role = server.launch, server.launch.pool.role
    engine = launch.pool.engine.name
    words = [_RUNTIMES[engine].model, "$(MODEL)", "--served-model-name", launch.model.huggingface_id]
    if engine == "trtllm":
        words += ["--extra-engine-args", str(Container.OPTIONS_FILE)]
    else:
        words += [unexpanded(word) for flag in engine_flags(launch) for word in flag]
    router = deployment.router
    if router.policy == "dynamo_kv" and router.block_tracking == "events" and role != "decode":
        words += [unexpanded(word) for word in _EVENT_WORDS[engine]]
    if role == "unified":
        return words
    words += [word for flag in role_flags(server, deployment) for word in flag]
    return (
        words
        + {
            "sglang": ["--host", "0.0.0.0"],
            "vllm": [f"--is-{role}-worker"],
            "trtllm": ["--disaggregation-mode", role],
        }[engine]
    )


def trtllm_engine_options(launch: Launch) -> dict[str, Any]:
    """Options of TensorRT-LLM's engine, including the flags of ``trtllm-serve``."""
    options: dict[str, Any] = {}
    for flag, value in ((flag[0], flag[1]) for flag in engine_flags(launch) if len(flag) == 2):
        options[_TRTLLM_OPTIONS[flag]] = int(value) if value.isdigit() else value
    return options | server_options(launch)
