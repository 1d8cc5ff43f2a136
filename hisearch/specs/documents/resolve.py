"""Studies and deployments with every reference in them resolved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hisearch.specs.base import EngineName
from hisearch.specs.deployments.answer_storage import storage_problems
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.speculation import SpeculationSpec, check_speculation_of
from hisearch.specs.deployments.tier_checks import scope_of, tier_problems
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.document import Document, parse_document
from hisearch.specs.documents.kept import Kept, kept_with
from hisearch.specs.documents.overrides import apply_overrides
from hisearch.specs.documents.references import Resolver
from hisearch.specs.documents.resolved import Hardware, ResolvedDeployment, ResolvedStudy
from hisearch.specs.errors import KeyedError, KeyPath, Problem, SpecError, UnknownReferenceError, dotted
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.pages import kept_page_tokens
from hisearch.specs.source import Source, read_source
from hisearch.specs.studies.search_space import SearchSpaceSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.slo_phrase import is_phrase
from hisearch.specs.studies.study import StudySpec
from hisearch.specs.validation_messages import describe
from hisearch.specs.wording import unknown


def load_study(ref: str | Path, overrides: Iterable[str] = (), catalogue: Catalogue | None = None) -> ResolvedStudy:
    """Loads a study and all it names; the study in a run folder with the run's own copies of that.

    Args:
        ref: a catalogue name or a path.
        overrides: ``key.path=value`` settings, applied before validation.
        catalogue: where names are looked up; the working directory and what ships where None.

    Raises:
        SpecError: with file, line and key.
    """
    settings = tuple(overrides)
    source, catalogue = _open("Study", ref, settings, catalogue)
    return resolve_study(source, settings, kept_with(source.path, catalogue) or catalogue)


def load_deployment(
    ref: str | Path, overrides: Iterable[str] = (), catalogue: Catalogue | None = None
) -> ResolvedDeployment:
    """Loads a deployment and all it names; arguments and errors as of :func:`load_study`."""
    settings = tuple(overrides)
    source, catalogue = _open("Deployment", ref, settings, catalogue)
    document: Document[DeploymentSpec] = parse_document(source, "Deployment")
    resolver = Resolver(catalogue, document)
    model = resolver.refer(document, "Model", "spec.model", document.spec.model)
    pool_models = _pool_models(resolver, document)
    profile = resolver.profile(document, document.spec.profile)
    document = _with_pages(document, model, pool_models)
    hardware = Hardware({}, {}, {})
    for index, pool in enumerate(document.spec.pools):
        at = f"spec.pools.{index}"
        resolver.accelerator(hardware, document, f"{at}.accelerator", pool.accelerator)
        if pool.host is not None:
            resolver.host(hardware, document, f"{at}.host", pool.host)
        for number, tier in enumerate(pool.tiers):
            resolver.medium(hardware, document, f"{at}.tiers.{number}.medium", tier.medium)
        if pool.devices is not None:
            resolver.devices(hardware, document, f"{at}.devices", pool.devices)
    if (fabric := document.spec.transfer.fabric) is not None:
        hardware.fabrics[fabric] = resolver.refer(document, "Fabric", "spec.transfer.fabric", fabric)
    _check_tiers(document, hardware, model, pool_models)
    for index, pool in enumerate(document.spec.pools):
        served = model if pool.model is None else pool_models[pool.model]
        keypath = ("spec", "pools", index, "engine", "speculation")
        _check_speculation(document, keypath, pool.engine.speculation, served.spec, [pool.engine.name])
    resolved = ResolvedDeployment(_with_scopes(document, hardware), model, profile, hardware, settings, pool_models)
    _check_one_name_each(resolved)
    return resolved


def _pool_models(resolver: Resolver, document: Document[DeploymentSpec]) -> dict[str, Document[ModelSpec]]:
    """Models that pools name, by the pools' names for them."""
    return {
        pool.model: resolver.refer(document, "Model", f"spec.pools.{index}.model", pool.model)
        for index, pool in enumerate(document.spec.pools)
        if pool.model is not None
    }


def _with_pages(
    document: Document[DeploymentSpec], model: Document[ModelSpec], pool_models: Mapping[str, Document[ModelSpec]]
) -> Document[DeploymentSpec]:
    """The same deployment with ``page_tokens`` set for models whose page size the engines fix."""
    pools = []
    for index, pool in enumerate(document.spec.pools):
        kept = kept_page_tokens((model if pool.model is None else pool_models[pool.model]).spec)
        if kept is None or pool.engine.page_tokens is not None:
            pools.append(pool)
            continue
        try:
            engine = EngineSpec.model_validate(pool.engine.model_dump() | {"page_tokens": kept})
            pools.append(PoolSpec.model_validate(pool.model_dump() | {"engine": engine}))
        except ValidationError as error:
            words = describe(error.errors(include_url=False)[0])
            message = f"{words} ({kept}-token pages are what engines keep for this model's sparse attention)"
            raise document.error(f"spec.pools.{index}", message) from None
    return replace(document, spec=document.spec.model_copy(update={"pools": pools}))


def _check_one_name_each(resolved: ResolvedDeployment) -> None:
    """Refuses pools that call one model by two names, or two models with a name in common."""
    taken: dict[str, str] = {}
    spec = resolved.deployment
    for ref, model in resolved.served.items():
        for name in dict.fromkeys((ref, model.spec.huggingface_id, *spec.served_names.get(ref, ()))):
            if taken.setdefault(name, ref) != ref:
                index = next(k for k, pool in enumerate(spec.pools) if spec.model_ref(pool) == ref)
                message = f"'{ref}' and '{taken[name]}' are both called {name}: requests could not tell them apart"
                raise resolved.document.error(f"spec.pools.{index}.model", message)


def _check_device_profile(space: Document[SearchSpaceSpec], profile: Document[LatencyProfileSpec]) -> None:
    """Refuses a space that would compare workers with devices, priced by the roofline, with others priced by tables."""
    priced_alike = profile.spec.estimator != "tables"
    if any(block is not None for block in space.spec.execution.devices) and not priced_alike:
        raise space.error(
            "spec.profile",
            f"{profile.name} prices workers without devices by measured tables, those of execution.devices are priced "
            "by the roofline: name a profile of another estimator",
        )


def _check_speculation(
    document: Document[Any],
    at: KeyPath,
    speculation: SpeculationSpec | None,
    model: ModelSpec,
    engines: Collection[EngineName],
) -> None:
    """Refuses drafted tokens, at ``at`` of the document, that are not simulated for the model."""
    try:
        check_speculation_of(speculation, model, engines)
    except KeyedError as error:
        raise document.error((*at, *error.keypath), error.message) from None


def _check_tiers(
    document: Document[DeploymentSpec],
    hardware: Hardware,
    model: Document[ModelSpec],
    pool_models: Mapping[str, Document[ModelSpec]],
) -> None:
    """Refuses tiers that the KV connector cannot use, or that no node has; ``pool_models``: by the pools' names."""
    media = {name: medium.spec for name, medium in hardware.media.items()}
    problems: list[Problem] = []
    for index, pool in enumerate(document.spec.pools):
        name = pool.host or hardware.accelerators[pool.accelerator].spec.host
        host = hardware.hosts[name].spec if name is not None else None
        tier_issues = tier_problems(pool, media, name, host)
        served = model if pool.model is None else pool_models[pool.model]
        tier_issues += storage_problems(document.spec, pool, served.spec, media, name, host)
        problems += [document.problem(f"spec.pools.{index}.{problem.key}", problem.message) for problem in tier_issues]
    if problems:
        raise SpecError(*problems)


def _with_scopes(document: Document[DeploymentSpec], hardware: Hardware) -> Document[DeploymentSpec]:
    """The same deployment with every tier's scope written out."""
    pools = [
        pool.model_copy(
            update={
                "tiers": [
                    tier.model_copy(update={"scope": scope_of(tier, hardware.media[tier.medium].spec)})
                    for tier in pool.tiers
                ]
            }
        )
        for pool in document.spec.pools
    ]
    return replace(document, spec=document.spec.model_copy(update={"pools": pools}))


def resolve_study(source: Source, overrides: tuple[str, ...], catalogue: Catalogue) -> ResolvedStudy:
    """Validates the study in ``source``, to which ``overrides`` have been applied, and looks up all it names.

    Raises:
        SpecError: with file, line and key.
    """
    document = _parsed_study(source, catalogue)
    spec, resolver = document.spec, Resolver(catalogue)
    model = _called(resolver.named_or_inline(document, "Model", "spec.model", spec.model), spec.huggingface_id)
    slo = _slo_for(resolver.named_or_inline(document, "SLO", "spec.slo", spec.slo), model)
    document = replace(document, spec=spec.with_objectives_of(slo.spec))
    space: Document[SearchSpaceSpec] = resolver.named_or_inline(document, "SearchSpace", "spec.space", spec.space)
    workload = resolver.workload(document)
    profile = resolver.profile(space, space.spec.profile)
    hardware = Hardware({}, {}, {})
    for index, name in enumerate(space.spec.execution.accelerators):
        resolver.accelerator(hardware, space, f"spec.execution.accelerators.{index}", name)
    _check_device_profile(space, profile)
    schedules = space.spec.execution.schedules
    if "edf" in schedules and not slo.spec.ttft_targets_s:
        at = ("spec", "execution", "schedules", schedules.index("edf"))
        raise space.error(at, f"edf goes by deadlines, and {slo.name} bounds the TTFT of no priority")
    for index, speculation in enumerate(space.spec.execution.speculation):
        keypath = ("spec", "execution", "speculation", index)
        _check_speculation(space, keypath, speculation, model.spec, space.spec.execution.engines)
    for index, block in enumerate(space.spec.execution.devices):
        if block is not None:
            resolver.devices(hardware, space, f"spec.execution.devices.{index}", block)
    for number, tier in enumerate(space.spec.cache.tiers):
        for index, name in enumerate(tier.media):
            resolver.medium(hardware, space, f"spec.cache.tiers.{number}.media.{index}", name)
    _pools_of_space(resolver, hardware, space)
    cache = space.spec.cache.in_memory_of(host.spec for host in hardware.hosts.values())
    space = replace(space, spec=space.spec.model_copy(update={"cache": cache}))
    kept = catalogue.folder if isinstance(catalogue, Kept) else None
    study = ResolvedStudy(document, model, slo, space, profile, workload, hardware, overrides, kept)
    _check_pins(study)
    return study


#: Keys of a study that name a document -> its kind.
_NAMED = {"model": "Model", "slo": "SLO", "space": "SearchSpace"}


def _parsed_study(source: Source, catalogue: Catalogue) -> Document[StudySpec]:
    """The study; its errors and its unresolved names are reported together.

    Raises:
        SpecError: all of these.
    """
    problems: list[Problem] = []
    document: Document[StudySpec] | None = None
    try:
        document = parse_document(source, "Study")
    except SpecError as error:
        problems += error.problems
    spec = source.data.get("spec") if isinstance(source.data, dict) else None
    named = {key: spec.get(key) for key in _NAMED} if isinstance(spec, dict) else {}
    for key, ref in named.items():
        kind = _NAMED[key]
        at = ("spec", key)
        setting = source.problem(at, "").setting
        if not isinstance(ref, str) or any(problem.key == dotted(at) for problem in problems):
            continue
        if key == "slo" and is_phrase(ref):
            continue
        try:
            catalogue.locate(kind, ref, None if setting else source.path.parent)
        except UnknownReferenceError as error:
            problems.append(source.problem(at, error.message))
    if document is None or problems:
        raise SpecError(*sorted(problems, key=lambda problem: problem.line or 0))
    return document


def _called(model: Document[ModelSpec], huggingface_id: str | None) -> Document[ModelSpec]:
    """The model as a study serves it."""
    if huggingface_id is None:
        return model
    return replace(model, spec=model.spec.model_copy(update={"huggingface_id": huggingface_id}))


def _slo_for(slo: Document[SloSpec], model: Document[ModelSpec]) -> Document[SloSpec]:
    """The SLO of the study's model, from an SLO that may cover several models."""
    if not slo.spec.models:
        return slo
    names = {model.name, model.spec.huggingface_id}
    if unserved := slo.spec.unserved(names):
        raise slo.error(("spec", "models", unserved[0]), f"the study deploys {model.name} alone")
    return replace(slo, spec=slo.spec.of(names))


def _pools_of_space(resolver: Resolver, hardware: Hardware, space: Document[SearchSpaceSpec]) -> None:
    """Adds the accelerators that prefill and decode workers of a space name, and the fabrics that connect them."""
    disaggregated = space.spec.pools.disaggregated
    if disaggregated is None:
        return
    for side, side_space in (("prefill", disaggregated.prefill), ("decode", disaggregated.decode)):
        for index, name in enumerate(side_space.accelerators or ()):
            resolver.accelerator(hardware, space, f"spec.pools.disaggregated.{side}.accelerators.{index}", name)
    for index, name in enumerate(disaggregated.fabrics):
        hardware.fabrics[name] = resolver.refer(space, "Fabric", f"spec.pools.disaggregated.fabrics.{index}", name)


def _open(
    kind: str, ref: str | Path, overrides: Iterable[str], catalogue: Catalogue | None
) -> tuple[Source, Catalogue]:
    catalogue = catalogue or Catalogue()
    path = catalogue.find_file(str(ref)) if isinstance(ref, Path) else catalogue.locate(kind, ref)
    return apply_overrides(read_source(path), kind, overrides), catalogue.for_file(path)


def _check_pins(study: ResolvedStudy) -> None:
    """Refuses a study whose pins do not match what its names lead to now."""
    pins = study.study.pins
    if not pins:
        return
    current = {f"{doc.kind}/{doc.name}": doc.digest for doc in study.documents[1:]}
    problems: list[Problem] = []
    for name, digest in pins.items():
        now = study.trace_digest if name == "trace" else current.get(name)
        if not now:
            problems.append(study.document.problem(("spec", "pins", name), f"not used{unknown(name, current)}"))
        elif now != digest:
            hashes = f"SHA-256 {digest[:12]}… then, {now[:12]}… now"
            message = f"has changed since it was pinned ({hashes}); remove the pin to go on"
            problems.append(study.document.problem(("spec", "pins", name), message))
    if problems:
        raise SpecError(*problems)
