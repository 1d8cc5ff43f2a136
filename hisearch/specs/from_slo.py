"""A study made from an SLO alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hisearch.specs.catalogue import Catalogue
from hisearch.specs.overrides import apply_overrides
from hisearch.specs.resolve import resolve_study
from hisearch.specs.resolved import ResolvedStudy, study_text
from hisearch.specs.source import text_source
from hisearch.specs.study import StudySpec, WorkloadRef

DEFAULT_SPACE = "quickstart"


def study_from_slo(
    slo: str | Path,
    model: str,
    trace: str | Path,
    *,
    space: str = DEFAULT_SPACE,
    overrides: Iterable[str] = (),
    catalogue: Catalogue | None = None,
) -> tuple[ResolvedStudy, str]:
    """A study made from an SLO, a model and a trace; all else has stated defaults.

    Args:
        slo: a catalogue name, or the path of an SLO file.
        model: a catalogue name, or a path.
        trace: a catalogue name, or the path of a trace or workload file.
        space: a catalogue name, or a path.
        overrides: ``key.path=value`` settings on the resulting study.
        catalogue: where names are looked up; the working directory and what ships where None.

    Returns:
        The study resolved, and its YAML text, for keeping and editing: :func:`hisearch.specs.resolve.load_study` reads
        it once it is saved.

    Raises:
        SpecError: with file, line and key of what is wrong; the file of the made study is called ``NAME.yaml``.
    """
    catalogue = catalogue or Catalogue()
    settings = tuple(overrides)
    slo_ref = str(catalogue.find_file(str(slo))) if isinstance(slo, Path) else slo
    name = f"{catalogue.get('SLO', slo_ref).name}-{catalogue.get('Model', model).name}"
    spec = StudySpec(model=model, workload=WorkloadRef(trace=str(trace)), slo=slo_ref, space=space)
    description = "Made from an SLO; what was not asked for (space, objectives, budget, seed) is hisearch's default."
    text = study_text(name, description, spec.model_dump(mode="json", exclude_none=True, exclude={"pins"}))
    source = apply_overrides(text_source(text, catalogue.root / f"{name}.yaml"), "Study", settings)
    study = resolve_study(source, settings, catalogue)
    return study, study_text(study.name, study.document.description, source.data["spec"])
