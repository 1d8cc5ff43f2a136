"""Writes a deployment as a folder: launch scripts, manifests, a README, and the deployment's own YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hisearch.export.benchmark import benchmark_files
from hisearch.export.context import DEPLOYMENT, README, ExportContext, document_text
from hisearch.export.engines.agents import notes as notes_on_agents
from hisearch.export.engines.alternative import on_other_engine, other_engine
from hisearch.export.engines.cache_tiers import hicache_gb_per_rank, is_moved_by
from hisearch.export.engines.cache_tiers import notes as notes_on_tiers
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.lora import notes as notes_on_lora
from hisearch.export.engines.lora import on_other_engine as lora_on_other_engine
from hisearch.export.engines.releases import is_changed
from hisearch.export.engines.vllm_cache import simulated_block_size, vllm_block_size, vllm_blocks
from hisearch.export.engines.weights import loading, weights_to_bring
from hisearch.export.files import write_export
from hisearch.export.platforms import scripts
from hisearch.export.registry import PLATFORMS, files_of
from hisearch.export.rendering import render, render_notes
from hisearch.export.servers.exported import Export, export_of
from hisearch.export.servers.fronts import nearest_routers
from hisearch.latency.parameters import kv_bytes_per_token_per_rank
from hisearch.search.model.deployments import format_devices, format_tiers
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.machines.parallelism import engine_problem


def export_deployment(
    deployment: DeploymentSpec,
    launches: Sequence[Launch],
    out: Path,
    *,
    slots: Sequence[int],
    reaches: Sequence[int] | None = None,
    context: ExportContext = ExportContext(),  # noqa: B008  (frozen)
) -> list[Path]:
    """Write launch scripts and manifests for ``deployment`` into the folder ``out`` (made where absent).

    ``README.md``, ``deployment.yaml``, ``<engine>/run.sh`` and the folders of the platforms describe the simulated
    deployment. ``alternatives/<other engine>/run.sh`` is the nearest equivalent on the other engine, which was not
    simulated; it is written for one pool within hosts. An earlier export's own files in ``out`` are replaced or
    removed; other files are left, or refused at the same paths.

    Args:
        deployment: the simulated one, self-contained (``specs.documents.stand_alone``).
        launches: of each pool: the model, its accelerator, KV tokens of one replica, as simulated.
        out: the folder that receives the files; nothing is written outside it.
        slots: accelerator slots of a host of each pool; replicas are packed host by host.
        reaches: number of accelerators joined by peer links of each pool's hosts; those of one host where None.
        context: further contents of the folder.

    Returns:
        The files written, README first.

    Raises:
        ExportError: an engine or its router lacks a setting, a replica fits no host, or ``out`` holds other files at
            these paths.
    """
    export = export_of(deployment, launches, slots, reaches, context)
    files = scripts.files(export)
    options = [name for name in files if name.endswith(".yaml")]
    written, left_out = [], []
    for name, platform in PLATFORMS.items():
        if not platform.folder or (export.nodes > 1 and not platform.spans_hosts):
            continue
        try:
            files |= files_of(name)(export)
            written.append(platform)
        except ExportError as error:
            left_out.append((platform, error))
    other, other_notes = None, list[str]()
    if not export.several and export.nodes == 1:
        other, other_notes = _on_other_engine(export)
        try:
            _check_starts(other)
            script = scripts.files(other, simulated=False)[f"{other.engine}/run.sh"]
            files[f"alternatives/{other.engine}/run.sh"] = script
        except ExportError as error:
            other_notes = [f"No script was written: {error}.", *_checkpoint_notes(export, other)]
    readme = render(
        "README.md.j2",
        export=export,
        options=options,
        platforms=written,
        left_out=left_out,
        narrow=[platform for platform in PLATFORMS.values() if not platform.spans_hosts],
        notes=_notes,
        blocks=lambda launch: vllm_blocks(launch) if export.engine == "vllm" else None,
        nearest_routers=nearest_routers(deployment),
        other=other,
        other_notes=other_notes,
    )
    status = context.status
    description = f"{status.title}. Exported by hisearch; every setting is written out."
    own = document_text("Deployment", status.name, description, deployment.model_dump(mode="json"))
    return write_export(out, {README: readme, DEPLOYMENT: own, **context.inputs, **files, **benchmark_files(export)})


def _on_other_engine(export: Export) -> tuple[Export, list[str]]:
    """The nearest equivalent of a pool on the other engine, and how it differs."""
    (launch,) = export.launches
    engine, notes = other_engine(launch.pool.engine)
    pool, tier_notes = on_other_engine(launch.pool, engine)
    if pool.agents is not None:
        tier_notes = [*tier_notes, "Agents' objects other than KV are not simulated for it, and no flags are written."]
        pool = pool.model_copy(update={"agents": None})
    pool = pool.model_copy(update={"lora": lora_on_other_engine(pool.lora)})
    deployment = export.deployment.model_copy(update={"pools": [pool]})
    other = export_of(deployment, [launch._replace(pool=pool)], export.slots, context=export.context)
    return other, [*notes, *tier_notes, *_checkpoint_notes(export, other)]


def _check_starts(other: Export) -> None:
    """Refuse an alternative whose engine cannot be started with the pool's degrees.

    Raises:
        ExportError: with the engine's reason.
    """
    (launch,) = other.launches
    engine, split = launch.pool.engine, launch.pool.parallelism
    problem = engine_problem(engine.name, split, launch.model, halves=engine.experts.two_batch_overlap)
    if problem is not None:
        raise ExportError(problem.message)


def _checkpoint_notes(export: Export, other: Export) -> list[str]:
    """A note where the other engine needs other weights."""
    needed = weights_to_bring(other.launches[0])
    if needed is None or needed == weights_to_bring(export.launches[0]):
        return []
    return [f"It needs a checkpoint with {needed.dtype} weights: {needed.reason}."]


def _notes(launch: Launch) -> list[str]:
    """What to know of a pool before relying on it, as sentences.

    SGLang before 0.5.15 refuses a host pool that does not exceed the device pool (``memory_pool_host.py``). It holds
    weights twice while it quantises the published ones.
    """
    pool, held = launch.pool, loading(launch)
    host_gb = host_tokens = None
    if is_moved_by(pool, "hicache") and not is_changed(pool.engine, "starts_with_small_host_pool"):
        host_gb = hicache_gb_per_rank(pool)
        host_tokens = int(host_gb * 1e9 / kv_bytes_per_token_per_rank(launch.model, pool.parallelism, pool.kv_dtype))
    sentence = held.sentence(launch.model.weight_dtype, pool.accelerator) if held is not None and held.fits else ""
    return render_notes(
        "pool_notes.md.j2",
        loading=f"{sentence}." if sentence else "",
        tiers=format_tiers(pool) if pool.engine.prefix_caching else "",
        devices=format_devices(pool.devices) if pool.devices is not None else "",
        engine_notes=[*notes_on_tiers(pool), *notes_on_agents(pool, launch.objects_bytes), *notes_on_lora(pool)],
        host_gb=host_gb,
        host_tokens=host_tokens,
        kv_capacity_tokens=launch.kv_capacity_tokens,
        block_size=vllm_block_size(launch) if pool.engine.name == "vllm" else pool.engine.page_size,
        page_size=simulated_block_size(launch),
    )
