"""What the requests of a simulation are promised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hisearch.simulate.plans.fleet import ServedModel
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.studies.slo import SloSpec

#: A promise that every simulation keeps: what is scored where there is no SLO. Not valid as a document.
NO_SLO = SloSpec.model_construct(terms=[], max_rejected_fraction=1.0, models={})


def promise_to(models: Sequence[ServedModel], slo: str | Path | SloSpec | None, catalogue: Catalogue) -> SloSpec | None:
    """The SLO that a deployment of these models is held against; None where there is none.

    Args:
        models: that it serves.
        slo: by name, path or value.
        catalogue: where names are looked up.

    Raises:
        SpecError: with file, line and key; it promises something to requests for a model that is not served.
        ValueError: likewise, of an SLO that stands in no file.
    """
    if slo is None:
        return None
    document = None if isinstance(slo, SloSpec) else catalogue.get("SLO", str(slo))
    promise: SloSpec = slo if document is None else document.spec  # type: ignore[assignment]
    unserved = promise.unserved({name for model in models for name in model.names})
    if not unserved:
        return promise
    served = ", ".join(model.name for model in models)
    if document is not None:
        raise document.error(("spec", "models", unserved[0]), f"no pool serves it; served: {served}")
    raise ValueError(f"SLO: models.{unserved[0]}: no pool serves it; served: {served}")
