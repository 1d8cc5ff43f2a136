"""The SLO of a simulated deployment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hisearch.simulate.plans.fleet import ServedModel
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.studies.slo import SloSpec

#: An SLO that every simulation meets: scored against where none is given. Not valid as a document.
NO_SLO = SloSpec.model_construct(terms=[], max_rejected_fraction=1.0, models={})


def slo_for(models: Sequence[ServedModel], slo: str | Path | SloSpec | None, catalogue: Catalogue) -> SloSpec | None:
    """The SLO of a deployment of these models; None where none is given.

    Args:
        models: served by the deployment.
        slo: by name, path or value.
        catalogue: where names are looked up.

    Raises:
        SpecError: the SLO names a model that is not served; with file, line and key.
        ValueError: the same, of an SLO without a file.
    """
    if slo is None:
        return None
    document = None if isinstance(slo, SloSpec) else catalogue.get("SLO", str(slo))
    slo_spec: SloSpec = slo if document is None else document.spec  # type: ignore[assignment]
    unserved = slo_spec.unserved({name for model in models for name in model.names})
    if not unserved:
        return slo_spec
    served = ", ".join(model.name for model in models)
    if document is not None:
        raise document.error(("spec", "models", unserved[0]), f"no pool serves it; served: {served}")
    raise ValueError(f"SLO: models.{unserved[0]}: no pool serves it; served: {served}")
