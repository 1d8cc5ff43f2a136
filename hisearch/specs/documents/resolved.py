"""Studies and deployments whose references have all been resolved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hisearch.specs.base import API_VERSION, Strict
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.documents.catalogue import shipped_root
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.kinds import FOLDERS
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, FabricSpec, HostSpec, MediumSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.studies.search_space import SearchSpaceSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.study import StudySpec
from hisearch.specs.workloads.workload import WorkloadSpec
from hisearch.specs.yaml_nodes import dump_yaml

#: In a run folder: the compiled workload of a run that read a trace file.
KEPT_TRACE = "trace.npz"


@dataclass(frozen=True)
class Hardware:
    """Catalogue entries that a study or deployment names, and those that they name in turn; all by name.

    ``hosts`` holds each accelerator's usual host (``AcceleratorSpec.host``) and any that a pool names.
    ``media`` holds the tiers' media and the hosts' own, ``devices`` those attached to accelerators.
    """

    accelerators: dict[str, Document[AcceleratorSpec]]
    hosts: dict[str, Document[HostSpec]]
    media: dict[str, Document[MediumSpec]]
    fabrics: dict[str, Document[FabricSpec]] = field(default_factory=dict)
    devices: dict[str, Document[DeviceSpec]] = field(default_factory=dict)

    @property
    def documents(self) -> list[Document[Any]]:
        """All of them."""
        return [
            *self.accelerators.values(),
            *self.hosts.values(),
            *self.media.values(),
            *self.fabrics.values(),
            *self.devices.values(),
        ]

    @property
    def device_specs(self) -> dict[str, DeviceSpec]:
        """Specs of the pools' devices, by the names that pools use."""
        return {name: document.spec for name, document in self.devices.items()}


class _Resolved:
    """A document with the hardware that it names."""

    document: Document[Any]
    hardware: Hardware

    @property
    def name(self) -> str:
        """The document's name."""
        return self.document.name

    @property
    def accelerators(self) -> dict[str, Document[AcceleratorSpec]]:
        """Accelerators of the space or of the pools, by name."""
        return self.hardware.accelerators

    @property
    def hosts(self) -> dict[str, Document[HostSpec]]:
        """Hosts that pools name and the accelerators' usual ones, by name."""
        return self.hardware.hosts

    @property
    def media(self) -> dict[str, Document[MediumSpec]]:
        """Media of the tiers and of the hosts, by name."""
        return self.hardware.media


@dataclass(frozen=True)
class ResolvedStudy(_Resolved):
    """A study with everything it names.

    Attributes:
        document: the study.
        workload: a workload document, whose trace file, if it reads one, is an absolute path; or a trace file's path.
        profile: the latency profile that the space names.
        overrides: the ``--set`` arguments that were applied.
        kept: the run folder whose own copies all this was read from; None for a study that is in none.
    """

    document: Document[StudySpec]
    model: Document[ModelSpec]
    slo: Document[SloSpec]
    space: Document[SearchSpaceSpec]
    profile: Document[LatencyProfileSpec]
    workload: Document[WorkloadSpec] | Path
    hardware: Hardware
    overrides: tuple[str, ...] = ()
    kept: Path | None = None

    @property
    def model_name(self) -> str:
        """What deployments call the model: the same for the user's study and for what ``to_yaml`` makes of it."""
        return deployed_name(self.model)

    @property
    def study(self) -> StudySpec:
        """The study's spec."""
        return self.document.spec

    @property
    def trace_file(self) -> Path | None:
        """The trace file, or the graph's edges, that are read; None where the workload is generated."""
        if isinstance(self.workload, Path):
            return self.workload
        file, agents = self.workload.spec.file, self.workload.spec.agents
        path = agents.graph.path if agents is not None else file.path if file is not None else None
        return Path(path) if path is not None else None

    @property
    def kept_trace(self) -> Path | None:
        """The compiled trace that the run keeps; None where it keeps none."""
        path = self.kept / KEPT_TRACE if self.kept is not None else None
        return path if path is not None and path.is_file() else None

    @property
    def documents(self) -> list[Document[Any]]:
        """Every document the study was resolved from, the study first."""
        workload = [] if isinstance(self.workload, Path) else [self.workload]
        return [self.document, self.model, self.slo, self.space, self.profile, *workload, *self.hardware.documents]

    @cached_property
    def trace_digest(self) -> str:
        """SHA-256 of the trace file, hexadecimal; "" where the workload is generated.

        Where a run keeps the compiled trace, it is that of the file which was compiled.
        """
        pinned = self.study.pins.get("trace")
        if pinned is not None and self.kept_trace is not None:
            return pinned
        return file_digest(self.trace_file) if self.trace_file is not None else ""

    def input_digests(self) -> dict[str, str]:
        """SHA-256 of every file that was read, by path; inline parts belong to the study's file."""
        digests = {str(document.path): document.digest for document in self.documents if not document.inline}
        if self.trace_file is not None:
            digests[str(self.trace_file)] = self.trace_digest
        return digests

    def pins(self) -> dict[str, str]:
        """SHA-256 of what :meth:`to_yaml` refers to by name, by ``Kind/name``, and of the trace file, as ``trace``."""
        shipped = [
            document
            for document in (self.model, self.slo, self.space, self.workload)
            if isinstance(document, Document) and ships(document)
        ]
        pins = {f"{doc.kind}/{doc.name}": doc.digest for doc in [*shipped, self.profile, *self.hardware.documents]}
        return {**pins, "trace": self.trace_digest} if self.trace_file is not None else pins

    def to_yaml(self) -> str:
        """The study with all defaults filled in, for keeping; :func:`load_study` reads it again.

        What ships with hisearch is named, the rest (the user's own model, SLO, space and workload) is written out.
        Hardware and profile are always named. All that is named is pinned by its digest.
        """
        pins = self.pins()
        spec = self.study.model_dump(mode="json", exclude_none=True)
        for key, document in (("model", self.model), ("slo", self.slo), ("space", self.space)):
            spec[key] = _reference(document, pins)
        spec["workload"]["trace"] = (
            str(self.workload) if isinstance(self.workload, Path) else _reference(self.workload, pins)
        )
        spec["pins"] = pins
        settings = [f"# Setting applied: {setting!a}" for setting in self.overrides]
        header = ["# Resolved by hisearch: defaults filled in, what is named pinned by its SHA-256.", *settings]
        return "\n".join(header) + "\n" + study_text(self.name, self.document.description, spec)


@dataclass(frozen=True)
class ResolvedDeployment(_Resolved):
    """A deployment with everything it names.

    model: of the pools that name none. pool_models: of the others, by the pools' names for them.
    """

    document: Document[DeploymentSpec]
    model: Document[ModelSpec]
    profile: Document[LatencyProfileSpec]
    hardware: Hardware
    overrides: tuple[str, ...] = ()
    pool_models: Mapping[str, Document[ModelSpec]] = field(default_factory=dict)

    def model_of(self, pool: PoolSpec) -> Document[ModelSpec]:
        """The model that a pool of it serves."""
        return self.model if pool.model in (None, self.deployment.model) else self.pool_models[str(pool.model)]

    @property
    def models(self) -> tuple[Document[ModelSpec], ...]:
        """The models that its pools serve, each once, in the order of the pools."""
        return tuple(self.served.values())

    @property
    def served(self) -> dict[str, Document[ModelSpec]]:
        """The same models, by the deployment's names for them."""
        return {self.deployment.model_ref(pool): self.model_of(pool) for pool in self.deployment.pools}

    @property
    def deployment(self) -> DeploymentSpec:
        """The deployment's spec."""
        return self.document.spec


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def study_text(name: str, description: str, spec: dict[str, Any]) -> str:
    """YAML text of a study with the given ``spec`` data."""
    metadata = {"name": name, "description": description} if description else {"name": name}
    return dump_yaml({"apiVersion": API_VERSION, "kind": "Study", "metadata": metadata, "spec": spec})


def deployed_name(model: Document[ModelSpec]) -> str:
    """What deployments call a model."""
    return model.name if ships(model) else inline_model_name(model.spec)


def inline_model_name(model: ModelSpec) -> str:
    """Name of a model that is written out in a study."""
    return model.huggingface_id.rpartition("/")[2].lower()


def _reference(document: Document[Any], pins: dict[str, str]) -> Any:
    if f"{document.kind}/{document.name}" in pins:
        return document.name
    spec: Strict = document.spec
    return spec.model_dump(mode="json", exclude_none=True)


def ships(document: Document[Any]) -> bool:
    """True for a whole document that ships and is found by its name, and for a run's own copy of one."""
    if document.inline or document.kept:
        return document.kept
    folder = shipped_root() / FOLDERS[document.kind]
    return document.path.resolve().parent == folder.resolve() and document.path.stem == document.name
