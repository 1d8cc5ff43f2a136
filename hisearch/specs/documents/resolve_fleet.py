"""Studies of several models with every reference in them resolved: a study for each model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hisearch.specs.base import API_VERSION
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.document import Document, parse_document
from hisearch.specs.documents.kept import kept_with
from hisearch.specs.documents.overrides import apply_overrides
from hisearch.specs.documents.resolve import resolve_study
from hisearch.specs.documents.resolved import ResolvedStudy, deployed_name, inline_model_name, study_text
from hisearch.specs.errors import Problem, SpecError, as_keypath
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.source import read_source, text_source
from hisearch.specs.studies.fleet_study import FleetStudySpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.yaml_nodes import dump_yaml, load_yaml

#: Most models with disaggregated pools: the KV transfer is of the whole deployment.
_MOST_DISAGGREGATED = 1


@dataclass(frozen=True)
class ResolvedFleetStudy:
    """A study of several models, and the study that asks for each of them alone, by name."""

    document: Document[FleetStudySpec]
    parts: Mapping[str, ResolvedStudy]
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The study's name."""
        return self.document.name

    @property
    def study(self) -> FleetStudySpec:
        """The study's spec."""
        return self.document.spec

    def names_of(self, name: str) -> tuple[str, ...]:
        """All names by which requests may ask for the model that stands under ``name``."""
        requested, part = self.study.models[name].asked_as, self.parts[name]
        return tuple(dict.fromkeys((name, part.model_name, part.model.spec.huggingface_id, *requested)))

    def to_yaml(self) -> str:
        """The study with all defaults filled in, for keeping; what is the user's own is written out."""
        spec = self.study.model_dump(mode="json", exclude_none=True)
        for name, part in self.parts.items():
            part_spec = load_yaml(part.to_yaml(), part.document.path)[0]["spec"]
            part_spec["workload"].pop("models", None)
            spec["models"][name] |= {key: part_spec[key] for key in ("model", "slo", "space")}
            if self.study.own(name, "workload"):
                spec["models"][name]["workload"] = part_spec["workload"]
            else:
                spec["workload"] = part_spec["workload"]
        for key in ("slo", "space"):
            spec.pop(key, None)
        metadata = {"name": self.name, "description": self.document.description}
        return dump_yaml(
            {
                "apiVersion": API_VERSION,
                "kind": "FleetStudy",
                "metadata": {key: value for key, value in metadata.items() if value},
                "spec": spec,
            }
        )


def load_fleet_study(
    ref: str | Path, overrides: Iterable[str] = (), catalogue: Catalogue | None = None
) -> ResolvedFleetStudy:
    """Loads a study of several models and all it names; arguments and errors as of ``resolve.load_study``."""
    settings = tuple(overrides)
    catalogue = catalogue or Catalogue()
    path = catalogue.find_file(str(ref)) if isinstance(ref, Path) else catalogue.locate("FleetStudy", ref)
    source = apply_overrides(read_source(path), "FleetStudy", settings)
    document: Document[FleetStudySpec] = parse_document(source, "FleetStudy")
    catalogue = kept_with(path, catalogue) or catalogue.for_file(path)
    slos = _slos(document, catalogue)
    parts = {name: _part(document, name, slos[name], catalogue) for name in document.spec.models}
    resolved = ResolvedFleetStudy(document, parts, settings)
    _check_together(resolved)
    return resolved


def _slos(document: Document[FleetStudySpec], catalogue: Catalogue) -> dict[str, Any]:
    """SLO of each model's requests, as in a Study."""
    spec = document.spec
    shared: SloSpec | None = None
    slo_document: Document[SloSpec] | None = None
    if isinstance(spec.slo, str):
        try:
            slo_document = catalogue.get("SLO", spec.slo, document.path.parent)
        except SpecError as error:
            raise document.error("spec.slo", error.message) from None
        shared = slo_document.spec
    elif spec.slo is not None:
        shared = spec.slo
    if shared is None or not shared.models:
        return {name: spec.part(name)["slo"] for name in spec.models}
    names = {
        name: (name, *model.asked_as, *_published(document, name, catalogue)) for name, model in spec.models.items()
    }
    if unserved := shared.unserved({alias for several in names.values() for alias in several}):
        message = f"none of the study's models; they are {', '.join(spec.models)}"
        at = slo_document.problem(("spec", "models", unserved[0]), message) if slo_document else None
        raise SpecError(at or document.problem(("spec", "slo", "models", unserved[0]), message))
    shared_slo = {
        name: shared.of(several).model_dump(mode="json", exclude_none=True) for name, several in names.items()
    }
    return {name: spec.part(name)["slo"] if spec.own(name, "slo") else shared_slo[name] for name in spec.models}


def _published(document: Document[FleetStudySpec], name: str, catalogue: Catalogue) -> tuple[str, ...]:
    """Names of a model in deployments and of its publisher; empty if it is unknown, which its study will report."""
    model = document.spec.models[name].model or name
    if isinstance(model, ModelSpec):
        return (inline_model_name(model), model.huggingface_id)
    try:
        resolved_model: Document[ModelSpec] = catalogue.get("Model", model, document.path.parent)
    except SpecError:
        return ()
    return (deployed_name(resolved_model), resolved_model.spec.huggingface_id)


def _part(document: Document[FleetStudySpec], name: str, slo: Any, catalogue: Catalogue) -> ResolvedStudy:
    """The study that asks for the model called ``name`` alone."""
    made = document.path.parent / f"{document.name}-{name}.yaml"
    text = study_text(f"{document.name}-{name}", document.description, document.spec.part(name) | {"slo": slo})
    try:
        part = resolve_study(text_source(text, made), (), catalogue)
    except SpecError as error:
        raise SpecError(*(_in_fleet(problem, made, document, name) for problem in error.problems)) from None
    requested = part.study.workload.models
    if not requested:
        return part
    names = dict.fromkeys((*requested, part.model_name, part.model.spec.huggingface_id))
    workload = part.study.workload.model_copy(update={"models": list(names)})
    study = part.study.model_copy(update={"workload": workload})
    return replace(part, document=replace(part.document, spec=study))


def _in_fleet(problem: Problem, made: Path, document: Document[FleetStudySpec], name: str) -> Problem:
    """A problem of a model's study, located in the user's study; any other unchanged."""
    if problem.path != made:
        return problem
    keys = as_keypath(problem.key)
    is_own = len(keys) > 1 and (
        keys[1] == "model" or (keys[1] in ("workload", "slo", "space") and document.spec.own(name, str(keys[1])))
    )
    return document.problem(("spec", "models", name, *keys[1:]) if is_own else keys, problem.message)


def _check_together(resolved: ResolvedFleetStudy) -> None:
    """Refuses models with a name in common, and spaces whose deployments cannot be combined."""
    document, parts = resolved.document, resolved.parts
    taken: dict[str, str] = {}
    for name in parts:
        for alias in resolved.names_of(name):
            if taken.setdefault(alias, name) != name:
                message = f"'{name}' and '{taken[alias]}' are both called {alias}: requests could not tell them apart"
                raise document.error(("spec", "models", name), message)
    first = next(iter(parts.values()))
    for name, part in parts.items():
        at = ("spec", "models", name, "space") if resolved.study.own(name, "space") else ("spec", "space")
        admission = part.space.spec.routing.admission
        if len(admission) > 1 or admission[0].policy == "token_bucket":
            message = (
                "admission is of the whole deployment: of models searched one by one name one policy, no token_bucket"
            )
            raise document.error(at, f"routing.admission of {part.space.name}: {message}")
        if admission != first.space.spec.routing.admission:
            raise document.error(at, f"{part.space.name} and {first.space.name}: routing.admission must be the same")
        if part.profile.name != first.profile.name:
            raise document.error(at, f"{part.space.name} and {first.space.name}: profile must be the same")
    disaggregated = [name for name, part in parts.items() if part.space.spec.pools.disaggregated is not None]
    if len(disaggregated) > _MOST_DISAGGREGATED:
        models = ", ".join(disaggregated)
        message = (
            f"pools.disaggregated: the KV transfer is of the whole deployment; one model may have it, not {models}"
        )
        raise document.error(("spec", "models", disaggregated[1]), message)
