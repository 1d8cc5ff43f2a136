"""Everything an export writes besides launch scripts: manifests and benchmarks, a README each."""

from __future__ import annotations

from typing import NamedTuple

import jinja2

from hisearch.export.benchmark import FOLDER, REQUESTS, Benchmark, tools
from hisearch.export.engines.flags import ENGINE_VERSIONS, Launch
from hisearch.export.engines.trtllm_options import options_text
from hisearch.export.operating import security_note, weights_gib
from hisearch.export.platforms import compose, dynamo, kubernetes, llm_d
from hisearch.export.platforms.containers import ROUTER_IMAGE, WEIGHTS_FOLDER, container, resource_name
from hisearch.export.platforms.placement import SERVICE_PORTS, Placement
from hisearch.export.platforms.rendering import render
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.models.model import names_weights


class Export(NamedTuple):
    """The inputs of the files. name: of resources. summary: a short description of the pool."""

    deployment: DeploymentSpec
    launch: Launch
    placements: list[Placement]
    name: str
    summary: str


def target_files(export: Export, benchmark: Benchmark | None) -> dict[str, str]:
    """Path in the exported folder -> text.

    Args:
        export: the deployment.
        benchmark: requests to send; None where there is no workload.

    Raises:
        ExportError: the engine lacks a setting of the deployment.
    """
    launch = export.launch
    options = options_text(launch) if launch.pool.engine.name == "trtllm" else ""
    files = _compose(export, options) | _kubernetes(export, options) | _llm_d(export, options) | _dynamo(export)
    return files | (benchmark_files(export.launch, benchmark) if benchmark is not None else {})


def _required(export: Export) -> list[str]:
    """Environment variables that the user has to set."""
    replica = container(export.launch, SERVICE_PORTS[export.launch.pool.engine.name])
    return [*(["MODEL"] if replica.model is None else []), *(s.name for s in replica.settings if s.value is None)]


def _compose(export: Export, options: str) -> dict[str, str]:
    launch, engine = export.launch, export.launch.pool.engine.name
    replica = container(launch, SERVICE_PORTS[engine], options=options)
    readme = render(
        "compose.md.j2",
        summary=export.summary,
        engine=engine,
        hosts=len({placement.host for placement in export.placements}),
        replicas=launch.pool.replicas,
        port=SERVICE_PORTS[engine],
        settings=[setting for setting in replica.settings if setting.meaning],
        image=replica.image,
        router_image=ROUTER_IMAGE,
        model=launch.model.huggingface_id,
        required=replica.model is None,
        checkpoint=replica.checkpoint,
        weights=WEIGHTS_FOLDER,
        weights_gib=weights_gib([launch]),
        security=security_note("replicas", SERVICE_PORTS[engine], launch.pool.replicas > 1),
    )
    files = compose.compose_files(export.deployment, launch, export.placements, options)
    return {"compose/README.md": readme} | files


def _kubernetes(export: Export, options: str) -> dict[str, str]:
    launch, engine = export.launch, export.launch.pool.engine.name
    readme = render(
        "kubernetes.md.j2",
        summary=export.summary,
        name=export.name,
        one=container(launch, SERVICE_PORTS[engine], options=options),
        replicas=launch.pool.replicas,
        port=SERVICE_PORTS[engine],
        required=_required(export),
        resource=kubernetes.ACCELERATOR_RESOURCE,
        node_folder=kubernetes.NODE_KV_FOLDER,
        weights=WEIGHTS_FOLDER,
        router_image=ROUTER_IMAGE,
        accelerator=launch.pool.accelerator,
        model=launch.model.huggingface_id,
        service=export.name,
        weights_gib=weights_gib([launch]),
    )
    files = kubernetes.kubernetes_files(export.deployment, launch, export.name, options)
    return {"kubernetes/README.md": readme} | files


def _llm_d(export: Export, options: str) -> dict[str, str]:
    readme = render(
        "llm_d.md.j2",
        name=export.name,
        chart=llm_d.CHART_VERSION,
        options=bool(options),
        required=_required(export),
        policy=llm_d.policy_note(export.deployment),
        image=container(export.launch, llm_d.PORT).image,
        model=export.launch.model.huggingface_id,
        weights_gib=weights_gib([export.launch]),
    )
    return {"llm-d/README.md": readme} | llm_d.llm_d_files(export.launch, export.name, options)


def _dynamo(export: Export) -> dict[str, str]:
    engine = export.launch.pool.engine.name
    readme = render(
        "dynamo.md.j2",
        name=export.name,
        required=_required(export),
        image=dynamo.RUNTIMES[engine].image,
        model=export.launch.model.huggingface_id,
        service=f"{export.name}-frontend",
        port=8000,
        weights_gib=weights_gib([export.launch]),
        notes=dynamo.notes(export.deployment, export.launch, ENGINE_VERSIONS[engine]),
    )
    return {"dynamo/README.md": readme} | dynamo.dynamo_files(export.deployment, export.launch, export.name)


def benchmark_files(launch: Launch, benchmark: Benchmark) -> dict[str, str]:
    """Scripts that send the simulated requests to the server of ``launch``'s model."""
    engine, replay = launch.pool.engine.name, benchmark.replay
    benchmark_tools = tools(benchmark, engine)
    common = {
        "about": benchmark.about,
        "count": f"{len(replay):,}",
        "requests": REQUESTS,
        "block_tokens": replay.block_tokens,
    }
    versions = {tool.name: tool.version for tool in benchmark_tools}
    readme = render("benchmark.md.j2", **common, versions=versions, rate=f"{replay.rate_rps:.3g}")
    files = {f"{FOLDER}/README.md": readme, f"{FOLDER}/{REQUESTS}": replay.text()}
    files[f"{FOLDER}/prompts.py"] = _prompts_script()
    for tool in benchmark_tools:
        files[f"{FOLDER}/{tool.name}.sh"] = render(
            "benchmark.sh.j2",
            **common,
            tool=tool,
            model=launch.model.huggingface_id,
            named=names_weights(launch.model.huggingface_id),
            port=SERVICE_PORTS[engine],
        )
    return files


def _prompts_script() -> str:
    """Source of the program that makes prompts, unrendered."""
    loader = jinja2.PackageLoader("hisearch.export")
    text, _, _ = loader.get_source(jinja2.Environment(autoescape=False), "prompts.py.txt")
    return text


#: Every path that ``target_files`` may write.
TARGET_FILES = (
    *(f"{folder}/README.md" for folder in ("compose", "kubernetes", "llm-d", "dynamo", FOLDER)),
    *(compose.FILE, f"compose/{compose.OPTIONS}", kubernetes.FILE, llm_d.FILE, "llm-d/options.yaml", dynamo.FILE),
    *(f"{FOLDER}/{file}" for file in (REQUESTS, "prompts.py", "guidellm.sh", "sglang.sh", "vllm.sh")),
)


def name_of(deployment: DeploymentSpec) -> str:
    """Name of the resources of an exported deployment: that of its model."""
    return resource_name(f"hisearch-{deployment.model.rsplit('/', 1)[-1]}")
