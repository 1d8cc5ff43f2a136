"""A study made from an SLO alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.checkpoints import named_model
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.overrides import apply_overrides
from hisearch.specs.documents.resolve import resolve_study
from hisearch.specs.documents.resolved import ResolvedStudy, ships, study_text
from hisearch.specs.errors import Problem, SpecError, UnknownReferenceError
from hisearch.specs.source import text_source
from hisearch.specs.studies.slo_phrase import is_phrase, parse_slo
from hisearch.specs.studies.study import StudySpec, WorkloadRef

DEFAULT_SPACE = "quickstart"

#: Key of the made study -> the option of `hisearch run` that put its value there.
_OPTIONS = {"spec.model": "--model", "spec.workload.trace": "--trace"}


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
        slo: a catalogue name, the path of an SLO file, or a phrase (``specs.studies.slo_phrase``).
        model: a catalogue name, or a path.
        trace: a catalogue name, or the path of a trace or workload file.
        space: a catalogue name, or a path.
        overrides: ``key.path=value`` settings on the resulting study.
        catalogue: where names are looked up; the working directory and what ships where None.

    Returns:
        The study resolved, and its YAML text, for keeping and editing. ``documents.resolve.load_study`` reads it
        from any folder: the user's own files are named by their absolute paths.

    Raises:
        SpecError: with file, line and key of each problem. A problem of the made study itself has its key, or the
            option of `hisearch run` that set it (``--model``, ``--trace``, ``--set``).
    """
    catalogue = catalogue or Catalogue()
    settings = tuple(overrides)
    slo_ref = str(catalogue.find_file(str(slo))) if isinstance(slo, Path) else slo
    try:
        stated_model, served = named_model(model, catalogue)
    except UnknownReferenceError as error:
        raise UnknownReferenceError.at(error.message, key=_OPTIONS["spec.model"]) from None
    stated = parse_slo(slo_ref) if is_phrase(slo_ref) else slo_ref
    name = f"{catalogue.get('SLO', stated).name if isinstance(stated, str) else 'slo'}-{served.name}"
    spec = StudySpec(**stated_model, workload=WorkloadRef(trace=str(trace)), slo=stated, space=space)
    description = "Made from an SLO; what was not asked for (space, objectives, budget, seed) is hisearch's default."
    text = study_text(
        name, description, spec.model_dump(mode="json", exclude_none=True, exclude={"pins", "objectives"})
    )
    made = catalogue.root / f"{name}.yaml"
    try:
        source = apply_overrides(text_source(text, made), "Study", settings)
        study = resolve_study(source, settings, catalogue)
    except SpecError as error:
        raise SpecError(*(_by_option(problem, made) for problem in error.problems)) from None
    return study, study_text(study.name, study.document.description, _with_absolute_paths(study, source.data["spec"]))


def _by_option(problem: Problem, made: Path) -> Problem:
    """A problem of the made study, which has no file, located by its option or key; any other unchanged."""
    if problem.path != made:
        return problem
    if problem.setting:
        return replace(problem, path=None)
    return replace(problem, path=None, line=None, key=_OPTIONS.get(problem.key, problem.key))


def _with_absolute_paths(study: ResolvedStudy, spec: dict[str, Any]) -> dict[str, Any]:
    """The made study's data, with the objectives of its SLO and absolute paths of the user's own files."""
    spec = {**spec, "workload": dict(spec["workload"]), "objectives": list(study.study.objectives)}
    for key, document in (("model", study.model), ("slo", study.slo), ("space", study.space)):
        spec[key] = _absolute(document, spec[key])
    workload, trace = study.workload, spec["workload"]["trace"]
    if isinstance(workload, Path):
        trace = str(workload)
    elif isinstance(trace, str):
        trace = _absolute(workload, trace)
    elif workload.spec.file is not None:
        trace = {**trace, "file": {**trace["file"], "path": workload.spec.file.path}}
    spec["workload"]["trace"] = trace
    return spec


def _absolute(document: Document[Any], value: Any) -> Any:
    """A reference to a document that resolves from any folder; inline documents stay."""
    return value if document.inline or ships(document) else str(document.path)
