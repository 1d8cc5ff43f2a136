"""Exports a deployment without a study: a document of the user's own, or of the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hisearch.api.deployments.deployment import plan_pool
from hisearch.api.studies.exporting import reach_of, slots_of
from hisearch.export.context import DEPLOYMENT, ExportContext
from hisearch.export.deployment import export_deployment
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import release_notice
from hisearch.export.engines.weights import weights_notice
from hisearch.export.trial_status import TrialStatus
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.documents.stand_alone import stand_alone

#: Said first of its figures.
UNSEEN = "Nothing was predicted for a workload: simulate it on yours, as below, before you rely on it."
#: The trace of the command that simulates an export; others are named as easily.
TRACE = "chat-multiturn"


def export_document(
    deployment: str | Path, folder: str | Path, *, settings: Sequence[str] = (), catalogue: Catalogue | None = None
) -> list[Path]:
    """Write launch scripts and manifests of a deployment into ``folder``; see ``export_deployment``.

    Nothing is simulated: its KV capacity is planned, and no benchmark is written.

    Args:
        deployment: a path, or a name of the catalogue.
        folder: where to; made where absent.
        settings: overrides, ``KEY=VALUE``.
        catalogue: of the documents that it names.

    Returns:
        The files written, README first.

    Raises:
        SpecError: the document cannot be used; with file, line and key.
        ExportError: the deployment cannot be expressed as launch commands, or ``folder`` holds other files at these
            paths.
    """
    resolved = load_deployment(deployment, settings, catalogue)
    spec, name = resolved.deployment, resolved.document.name
    if len(resolved.models) > 1:
        served = ", ".join(model.name for model in resolved.models)
        raise ExportError(f"{name}: its pools serve several models ({served}); export a document of each")
    if any(pool.agents is not None for pool in spec.pools):
        raise ExportError(f"{name}: what its agents' objects take goes by a workload; export a run of a study")
    accelerators = resolved.accelerators
    launches = [
        Launch(
            pool, resolved.model_of(pool).spec, accelerators[pool.accelerator].spec,
            plan_pool(resolved, index).kv_capacity_tokens,
        )
        for index, pool in enumerate(spec.pools)
    ]  # fmt: skip
    slots, reaches = ([of(resolved, pool) for pool in spec.pools] for of in (slots_of, reach_of))
    alone = stand_alone(spec, resolved.model, resolved.profile, resolved.hardware, resolved.pool_models)
    launches = [launch._replace(pool=pool) for launch, pool in zip(launches, alone.pools, strict=True)]
    notices = tuple(text for text in (weights_notice(launches), release_notice(launches)) if text)
    context = ExportContext(
        TrialStatus(name, f"Deployment {name}, as its document has it", conditions=(UNSEEN,)),
        replay=f"hisearch simulate {DEPLOYMENT} --trace {TRACE}",
        notices=notices,
    )
    return export_deployment(alone, launches, Path(folder), slots=slots, reaches=reaches, context=context)
