"""Writes a deployment as a folder of launch scripts, with a README and the deployment's own YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hisearch.export.context import ExportContext
from hisearch.export.engines.agents import notes as notes_on_agents
from hisearch.export.engines.cache_tiers import hicache_gb_per_rank, is_moved_by, of_replica, on_other_engine, variables
from hisearch.export.engines.cache_tiers import notes as notes_on_tiers
from hisearch.export.engines.flags import (
    ENGINE_VERSIONS,
    ROUTER_VERSION,
    ExportError,
    Launch,
    engine_flags,
    loading,
    other_engine,
    router_flags,
    vllm_blocks,
    weights_to_bring,
)
from hisearch.export.engines.trtllm_options import options_text
from hisearch.export.files import TRTLLM_OPTIONS
from hisearch.export.operating import format_slots, security_note
from hisearch.export.platforms.placement import SERVICE_PORTS, Placement, place
from hisearch.export.platforms.rendering import render
from hisearch.export.targets import Export, name_of, target_files
from hisearch.export.trial_status import TrialStatus
from hisearch.latency.parameters import kv_bytes_per_token_per_rank
from hisearch.search.model.deployments import format_devices, format_tiers
from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec

_COMMANDS: dict[EngineName, str] = {
    "sglang": "python -m sglang.launch_server --model-path",
    "vllm": "vllm serve",
    "trtllm": "trtllm-serve",
}


def export_deployment(
    deployment: DeploymentSpec,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    kv_capacity_tokens: int,
    out: Path,
    *,
    accelerators_per_host: int = 8,
    context: ExportContext = ExportContext(),  # noqa: B008  (frozen)
) -> list[Path]:
    """Write launch scripts and manifests for ``deployment`` into the folder ``out`` (made where absent).

    ``README.md``, ``deployment.yaml``, ``<engine>/run.sh`` and the files for Docker Compose, Kubernetes, llm-d and
    Dynamo describe the simulated deployment. ``alternatives/<other engine>/run.sh`` is the nearest equivalent on the
    other engine, which was not simulated. An earlier export's own files in ``out`` are replaced or removed; other files
    are left, or refused at the same paths.

    Args:
        deployment: the simulated one, self-contained (``specs.documents.stand_alone``).
        model: the model it serves; weights are taken by its Hugging Face id.
        accelerator: the accelerator of its pool.
        kv_capacity_tokens: KV tokens of one replica, as simulated.
        out: the folder that receives the files; nothing is written outside it.
        accelerators_per_host: accelerator slots of one host; replicas are packed host by host.
        context: further contents of the folder.

    Returns:
        The files written, README first.

    Raises:
        ExportError: the engine's command line cannot express the deployment, a replica exceeds a host, or ``out``
            holds other files at these paths.
    """
    launch = Launch(deployment.pool, model, accelerator, kv_capacity_tokens)
    engine = launch.pool.engine.name
    files = {f"{engine}/run.sh": _script(deployment, launch, accelerators_per_host, context.status, simulated=True)}
    if engine == "trtllm":
        files[TRTLLM_OPTIONS] = options_text(launch)
    placements = place(launch.pool, accelerators_per_host)
    export = Export(deployment, launch, placements, name_of(deployment), summary(launch.pool))
    files |= target_files(export, context.benchmark)
    other, notes = other_engine(launch.pool.engine)
    other_pool, tier_notes = on_other_engine(launch.pool, other)
    if other_pool.agents is not None:
        tier_notes = [*tier_notes, "Agents' objects other than KV are not simulated for it, and no flags are written."]
        other_pool = other_pool.model_copy(update={"agents": None})
    other_launch, notes = launch._replace(pool=other_pool), (*notes, *tier_notes)
    try:
        files[f"alternatives/{other.name}/run.sh"] = _script(
            deployment, other_launch, accelerators_per_host, context.status, simulated=False
        )
    except ExportError as error:
        notes = (f"No script was written: {error}.",)
    needed = weights_to_bring(other_launch)
    if needed is not None and needed != weights_to_bring(launch):
        notes = (*notes, f"It needs a checkpoint with {needed.dtype} weights: {needed.reason}.")
    readme = _readme(deployment, launch, accelerators_per_host, other.name, notes, context)
    return context.write(out, deployment, readme, files)


def _script(
    deployment: DeploymentSpec, launch: Launch, accelerators_per_host: int, status: TrialStatus, *, simulated: bool
) -> str:
    placements = place(launch.pool, accelerators_per_host)
    engine = launch.pool.engine.name
    return render(
        "run.sh.j2",
        engine=ENGINE_TITLES[engine],
        version=ENGINE_VERSIONS[engine],
        simulated=simulated,
        status=status,
        summary=summary(launch.pool),
        model=launch.model.huggingface_id,
        checkpoint=weights_to_bring(launch),
        command=_COMMANDS[engine],
        flags=engine_flags(launch),
        options=Path(TRTLLM_OPTIONS).name if engine == "trtllm" else None,
        placements=placements,
        variables=variables(launch.pool, launch.model),
        of_replica={p.replica: of_replica(launch.pool, p.replica) for p in placements},
        hosts=sorted({p.host for p in placements}),
        router=router_flags(deployment.router) if len(placements) > 1 else [],
        service_port=SERVICE_PORTS[engine],
        **_check_urls(placements, SERVICE_PORTS[engine]),
    )


def _check_urls(placements: Sequence[Placement], port: int) -> dict[str, Any]:
    """URLs that ``run.sh check`` queries: every replica, and the clients' endpoint."""
    if len(placements) == 1:
        front = f"http://127.0.0.1:{port}"
        return {"asked": [front], "clients_url": front}
    urls = [f"http://${{HOST_{p.host}:?address of host {p.host}}}:{p.port}" for p in placements]
    return {"asked": urls, "clients_url": f"http://${{ROUTER:-127.0.0.1}}:{port}"}


def summary(pool: PoolSpec) -> str:
    """A short description of the pool: ``2 replicas on 4 x h100-sxm, tensor parallel 2``."""
    replicas = "1 replica" if pool.replicas == 1 else f"{pool.replicas} replicas"
    text = f"{replicas} on {pool.accelerators} x {pool.accelerator}, tensor parallel {pool.tensor_parallel}"
    others = {
        "pipeline parallel": pool.pipeline_parallel,
        "attention data parallel": pool.attention_data_parallel,
        "expert parallel": pool.expert_parallel,
    }
    text += "".join(f", {name} {degree}" for name, degree in others.items() if degree > 1)
    return text if pool.devices is None else f"{text}, simulated with {format_devices(pool.devices)} each"


def _readme(
    deployment: DeploymentSpec,
    launch: Launch,
    accelerators_per_host: int,
    other: EngineName,
    notes: tuple[str, ...],
    context: ExportContext,
) -> str:
    placements = place(launch.pool, accelerators_per_host)
    engine = launch.pool.engine.name
    return render(
        "README.md.j2",
        deployment=deployment,
        **context.facts(),
        pool=launch.pool,
        model=launch.model,
        summary=summary(launch.pool),
        engine=engine,
        engine_title=ENGINE_TITLES[engine],
        version=ENGINE_VERSIONS[engine],
        router_version=ROUTER_VERSION,
        placements=placements,
        hosts=sorted({p.host for p in placements}),
        slots=format_slots(
            [(p.host, len(p.devices)) for p in placements], [accelerators_per_host] * (placements[-1].host + 1)
        ),
        security=security_note("replicas", SERVICE_PORTS[engine], len(placements) > 1),
        routed=len(placements) > 1,
        served=launch.model.huggingface_id,
        port=SERVICE_PORTS[engine],
        kv_capacity_tokens=launch.kv_capacity_tokens,
        blocks=vllm_blocks(launch) if engine == "vllm" else None,
        checkpoint=weights_to_bring(launch),
        loading_note=_loading_note(launch),
        host_tier_note=_host_tier_note(launch),
        tiers=format_tiers(launch.pool) if launch.pool.engine.prefix_caching else "",
        tier_notes=[*_device_notes(launch.pool), *notes_on_tiers(launch.pool), *notes_on_agents(launch.pool)],
        service_port=SERVICE_PORTS[engine],
        other=other,
        other_title=ENGINE_TITLES[other],
        notes=notes,
    )


def _device_notes(pool: PoolSpec) -> list[str]:
    """A note where attached devices were simulated, which no engine supports."""
    if pool.devices is None:
        return []
    return [
        f"Simulated with {format_devices(pool.devices)}, for which no engine has settings: the script starts the "
        "engine without them, and what it then does is not what was simulated."
    ]


def _host_tier_note(launch: Launch) -> str | None:
    """A note where SGLang refuses the host pool: it has to exceed the device pool (``memory_pool_host.py``, 0.5.9)."""
    pool = launch.pool
    if not is_moved_by(pool, "hicache"):
        return None
    size_gb = hicache_gb_per_rank(pool)
    host_tokens = int(size_gb * 1e9 / kv_bytes_per_token_per_rank(launch.model, pool.parallelism, pool.kv_dtype))
    if host_tokens > launch.kv_capacity_tokens:
        return None
    return (
        f"SGLang starts only if the host pool holds more tokens than the device pool. Here {size_gb} GB per rank hold "
        f"about {host_tokens:,} tokens and the device pool {launch.kv_capacity_tokens:,}: enlarge --hicache-size, or "
        "leave the tiers out."
    )


def _loading_note(launch: Launch) -> str | None:
    """A note on SGLang's memory while it quantises the published weights; None where it does not, or cannot."""
    held = loading(launch)
    if held is None or not held.fits:
        return None
    return f"{held.sentence(launch.model.weight_dtype, launch.pool.accelerator)}."
