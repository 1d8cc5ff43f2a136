"""Checks a file without running it: errors, and settings that are likely unintended.

Warnings concern only the lists that a search space states. From default lists the search itself leaves out what a
model, an accelerator or a host does not support.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.checks import checks
from hisearch.specs.checks.setting_notes import setting_notes
from hisearch.specs.deployments import tier_checks
from hisearch.specs.deployments.tiers import KV_CONNECTORS, SIMULATED_KV_CONNECTORS, TierSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.document import Document, kind_of
from hisearch.specs.documents.resolve import load_deployment, load_study
from hisearch.specs.documents.resolve_fleet import load_fleet_study
from hisearch.specs.documents.resolved import Hardware, ResolvedDeployment, ResolvedStudy
from hisearch.specs.errors import Problem, SpecError
from hisearch.specs.machines.parallelism import Parallelism, degrees_of, slots_problem, split_problems


@dataclass(frozen=True)
class Checkup:
    """Result of checking one file. With ``problems`` it cannot be used; ``warnings`` are for the reader to judge."""

    path: Path
    kind: str
    name: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """True where the file can be used."""
        return not self.problems


def load_any(ref: str | Path, overrides: Iterable[str] = (), catalogue: Catalogue | None = None) -> Checkup:
    """Loads the file at ``ref``, of any kind, with all it names, and checks that its parts are compatible.

    Args:
        ref: path of a YAML document, or of a Hugging Face ``config.json``.
        overrides: ``key.path=value`` settings; for studies and deployments alone.
        catalogue: where names are looked up; the working directory and what ships where None.

    Returns:
        The result; :class:`SpecError` is never raised.
    """
    catalogue = catalogue or Catalogue()
    path, kind = Path(ref), ""
    try:
        path = catalogue.find_file(str(ref))
        kind = "Model" if path.suffix == ".json" else kind_of(path)
        if kind == "Study":
            study = load_study(path, overrides, catalogue)
            return Checkup(path, kind, study.name, *_judge_study(study))
        if kind == "FleetStudy":
            fleet = load_fleet_study(path, overrides, catalogue)
            judged = [_judge_study(part) for part in fleet.parts.values()]
            problems, warnings = (
                tuple(dict.fromkeys(problem for listed in side for problem in listed))
                for side in zip(*judged, strict=True)
            )
            return Checkup(path, kind, fleet.name, problems, warnings)
        if kind == "Deployment":
            deployment = load_deployment(path, overrides, catalogue)
            return Checkup(path, kind, deployment.name, *_judge_deployment(deployment))
        document = catalogue.get(kind, str(path))
        noted = _slo_warnings(document) if kind == "SLO" else []
        return Checkup(path, kind, document.name, (), tuple(noted))
    except SpecError as error:
        return Checkup(path, kind, path.stem, error.problems)


def _judge_study(study: ResolvedStudy) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    execution = study.space.spec.execution
    problems, warnings = _parallelism(study)
    for name, accelerator in study.accelerators.items():
        for dtype in execution.weight_dtypes:
            if message := checks.dtype_problem(name, accelerator.spec, dtype):
                warnings.append(study.space.problem("spec.execution.weight_dtypes", message))
    if execution.weight_dtypes:
        accelerators = {name: document.spec for name, document in study.accelerators.items()}
        left_out = checks.left_out_formats(execution, accelerators, study.model.spec)
        warnings += [study.space.problem("spec.execution.weight_dtypes", message) for message in left_out]
    problems += _kv_connectors(study)
    warnings += _tier_capacities(study)
    for chunk in execution.chunk_tokens:
        above = [limit for limit in execution.max_running_requests if limit > chunk]
        short = [ENGINE_TITLES[engine] for engine in execution.engines if engine != "sglang"]
        if above and short:
            message = f"{chunk} is less than max_running_requests {above[0]}: left out for {' and '.join(short)}"
            warnings.append(study.space.problem("spec.execution.chunk_tokens", message))
    if "sglang" not in execution.engines and study.space.spec.cache.eviction == ["lfu"]:
        problems.append(
            study.space.problem("spec.cache.eviction", f"{ENGINE_TITLES[execution.engines[0]]} evicts by lru alone")
        )
    warnings += _slo_warnings(study.slo)
    warnings += _price_notes(study.hardware, study.space)
    return tuple(problems), tuple(warnings)


def _parallelism(study: ResolvedStudy) -> tuple[list[Problem], list[Problem]]:
    """Degrees of parallelism unusable in any combination (problems, warnings); problems where the model takes none."""
    execution, model = study.space.spec.execution, study.model
    refusals = {}
    for split in execution.splits:
        by_engine = [list(split_problems(model.spec, split.under(engine))) for engine in execution.engines]
        if all(by_engine):
            refusals[split] = f"{by_engine[0][0].message} of {model.name}"
    takes_none = len(refusals) == len(set(execution.splits))
    unusable = _useless_degrees(study, refusals, defaults=takes_none)
    for host_name, host in study.hosts.items():
        crowded = ((split, slots_problem(split, host_name, host.spec)) for split in execution.splits)
        unusable += _useless_degrees(study, {split: problem.message for split, problem in crowded if problem})
    return (unusable, []) if takes_none else ([], unusable)


def _useless_degrees(
    study: ResolvedStudy, refusals: Mapping[Parallelism, str], *, defaults: bool = False
) -> list[Problem]:
    """Problems of list entries whose every combination is refused, where other entries of the list are usable.

    Where no combination is left at all, the tensor-parallel degrees are reported. defaults: also check lists that the
    space does not state.
    """
    execution = study.space.spec.execution
    problems = []
    for key in degrees_of(Parallelism()):
        if not defaults and key not in execution.model_fields_set:
            continue
        degrees: list[int] = getattr(execution, key)
        for index, degree in enumerate(degrees):
            splits = [split for split in execution.splits if degrees_of(split)[key] == degree]
            if all(split in refusals for split in splits) and (len(degrees) > 1 or key == "tensor_parallel"):
                at = f"spec.execution.{key}.{index}"
                problems.append(study.space.problem(at, refusals[splits[0]]))
    return problems


def _tier_capacities(study: ResolvedStudy) -> list[Problem]:
    """Tiers whose largest size does not fit, for each host and the smallest worker; memory of other hosts."""
    cache = study.space.spec.cache
    if "tiers" not in cache.model_fields_set:
        return []
    smallest = min(study.space.spec.execution.splits, key=lambda split: split.ranks)
    media = {name: document.spec for name, document in study.media.items()}
    hosts = {name: document.spec for name, document in study.hosts.items()}
    problems = []
    for number, space in enumerate(cache.tiers):
        largest = [
            TierSpec(medium=name, gib=space.sizes()[-1], scope=scope)
            for name in space.media
            for scope in (*space.scope, *([] if space.scope else [None]))
            if space.sizes()[-1] > 0
        ]
        for tier, (host_name, host) in itertools.product(largest, study.hosts.items()):
            left_out = ": left out there" if tier_checks.of_another_host([tier], media, host_name, hosts) else ""
            problems += [
                study.space.problem(f"spec.cache.tiers.{number}.gib", f"{problem.message}: left out for such workers")
                for problem in tier_checks.capacity_problems([tier], smallest, media, host_name, host.spec)
            ]
            problems += [
                study.space.problem(f"spec.cache.tiers.{number}.media", f"{problem.message}{left_out}")
                for problem in tier_checks.other_memory([tier], media, host_name, host.spec)
            ]
    return list(dict.fromkeys(problems))


def _kv_connectors(study: ResolvedStudy) -> list[Problem]:
    """KV connectors that no engine of the space has, or is simulated with."""
    engines = study.space.spec.execution.engines
    return [
        study.space.problem(
            f"spec.cache.movement.kv_connectors.{index}",
            f"{kv_connector} is exported, not simulated, with the engines of the space"
            if any(kv_connector in KV_CONNECTORS[engine] for engine in engines)
            else f"no engine of the space has {kv_connector}",
        )
        for index, kv_connector in enumerate(study.space.spec.cache.movement.kv_connectors)
        if not any(kv_connector in SIMULATED_KV_CONNECTORS[engine] for engine in engines)
    ]


def _judge_deployment(resolved: ResolvedDeployment) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for index, pool in enumerate(resolved.deployment.pools):
        at, accelerator = f"spec.pools.{index}", resolved.accelerators[pool.accelerator].spec
        model = resolved.model_of(pool)
        problems += [
            resolved.document.problem(f"{at}.{problem.key}", f"{problem.message} of {model.name}")
            for problem in itertools.islice(split_problems(model.spec, pool.parallelism), 1)
        ]
        dtype, name = pool.weight_dtype, pool.accelerator
        held = dtype or model.spec.weight_dtype
        if message := checks.format_problem(pool.engine.name, name, accelerator, model.spec, held):
            problems.append(resolved.document.problem(f"{at}.weight_dtype", message))
        elif dtype is not None and (message := checks.dtype_problem(name, accelerator, dtype)):
            warnings.append(resolved.document.problem(f"{at}.weight_dtype", message))
        host_name = pool.host or accelerator.host
        if host_name is not None:
            host = resolved.hosts[host_name].spec
            if problem := slots_problem(pool.parallelism, host_name, host):
                problems.append(resolved.document.problem(f"{at}.{problem.key}", problem.message))
            if pool.devices is not None and (
                crowded := checks.cpu_problem(pool, pool.devices, resolved.hardware.device_specs, host_name, host)
            ):
                problems.append(resolved.document.problem(f"{at}.devices.attached", crowded))
    warnings += setting_notes(resolved)
    warnings += _price_notes(resolved.hardware, resolved.document)
    return tuple(problems), tuple(warnings)


def _slo_warnings(document: Document[Any]) -> list[Problem]:
    return [document.problem("spec.terms", message) for message in checks.slo_warnings(document.spec)]


def _price_notes(hardware: Hardware, document: Document[Any]) -> list[Problem]:
    """One note on all prices that are assumptions (law L8)."""
    entries = hardware.accelerators | hardware.devices
    assumed = [name for name, entry in entries.items() if entry.spec.price.evidence == "assumed"]
    if not assumed:
        return []
    oldest = min(entries[name].spec.price.as_of for name in assumed)
    message = f"prices of {', '.join(assumed)} are assumptions of {oldest} or later; edit the accelerators' profiles"
    return [document.problem("spec", message)]
