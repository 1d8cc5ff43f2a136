"""References in documents, and what they lead to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hisearch.specs.base import Strict
from hisearch.specs.deployments.deployment import DEFINITIONS, DeploymentSpec
from hisearch.specs.documents.catalogue import YAML_SUFFIXES, Catalogue
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.resolved import Hardware, inline_model_name
from hisearch.specs.errors import UnknownReferenceError, shown_path
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.studies.study import StudySpec
from hisearch.specs.workloads.workload import WorkloadSpec


def kept_operators(document: Path) -> Path:
    """Where a run keeps the measured operators of the profile or device in ``document``."""
    return document.with_suffix(".operators")


@dataclass(frozen=True)
class Resolver:
    """Resolves references; an error names the key of an unresolved one.

    deployment: its definitions take precedence over the catalogue; None where there is none.
    """

    catalogue: Catalogue
    deployment: Document[DeploymentSpec] | None = None

    def refer(self, document: Document[Any], kind: str, keypath: str, ref: str) -> Document[Any]:
        """The document of ``kind`` that ``ref``, standing at ``keypath``, leads to."""
        defined = self._defined(kind, ref)
        if defined is not None:
            return defined
        try:
            return self.catalogue.get(kind, ref, self._base(document, keypath))
        except UnknownReferenceError as error:
            raise document.error(keypath, error.message) from None

    def profile(self, document: Document[Any], ref: str) -> Document[LatencyProfileSpec]:
        """The latency profile that ``document`` names: one that can price steps without changes."""
        profile: Document[LatencyProfileSpec] = self.refer(document, "LatencyProfile", "spec.profile", ref)
        if profile.spec.estimator == "tables" and profile.spec.operators is None:
            raise document.error(
                "spec.profile",
                f"profile '{profile.name}' names no operator tables; copy it ({shown_path(profile.path)}) and add "
                "operators: FOLDER, a folder of measured tables (docs/latency.md)",
            )
        return profile if profile.spec.operators is None else self._with_operators(profile)

    def _with_operators(self, document: Document[Any]) -> Document[Any]:
        """A profile or device with the full path of its measured operators: a run's own copy, or from its folder."""
        ref = Path(str(document.spec.operators)).expanduser()
        base = self._base(document, "spec.operators") or self.catalogue.root
        tried = list(dict.fromkeys((kept_operators(document.path), base / ref, self.catalogue.root / ref)))
        path = next((candidate for candidate in tried if candidate.exists()), None)
        if path is None:
            places = " or ".join(shown_path(candidate) for candidate in tried[1:])
            raise document.error("spec.operators", f"no folder or file of measured operators at {places}")
        return replace(document, spec=document.spec.model_copy(update={"operators": str(path.resolve())}))

    def _defined(self, kind: str, name: str) -> Document[Any] | None:
        """The deployment's own definition of that name."""
        if self.deployment is None or self.deployment.spec.definitions is None:
            return None
        section = DEFINITIONS[kind]
        spec = getattr(self.deployment.spec.definitions, section).get(name)
        if spec is None:
            return None
        return Document(kind, name, spec, self.deployment.source, ("spec", "definitions", section, name))

    def named_or_inline(self, document: Document[Any], kind: str, keypath: str, value: str | Strict) -> Document[Any]:
        """The document that a key names, or holds."""
        if isinstance(value, str):
            return self.refer(document, kind, keypath, value)
        name = f"{document.name}-{keypath.rpartition('.')[2]}"
        if isinstance(value, ModelSpec):
            name = inline_model_name(value)
        return document.part(kind, name, value, keypath)

    def workload(self, document: Document[StudySpec]) -> Document[WorkloadSpec] | Path:
        """The study's workload; any file it reads is there."""
        at, value = "spec.workload.trace", document.spec.workload.trace
        if isinstance(value, str):
            path = self._workload_file(document, at, value)
            if path is not None:
                if path.suffix not in YAML_SUFFIXES:
                    return path
                value = str(path)
            workload = self.refer(document, "Workload", at, value)
        else:
            workload = document.part("Workload", f"{document.name}-workload", cast(Any, value), at)
        return self._absolute(workload)

    def accelerator(self, hardware: Hardware, document: Document[Any], keypath: str, name: str) -> None:
        """Adds an accelerator and its usual host."""
        accelerator = self.refer(document, "Accelerator", keypath, name)
        hardware.accelerators[name] = accelerator
        if accelerator.spec.host is not None:
            self.host(hardware, accelerator, "spec.host", accelerator.spec.host)

    def host(self, hardware: Hardware, document: Document[Any], keypath: str, name: str) -> None:
        """Adds a host and its media."""
        host = self.refer(document, "Host", keypath, name)
        hardware.hosts[name] = host
        self.medium(hardware, host, "spec.dram", host.spec.dram)
        if host.spec.nvme is not None:
            self.medium(hardware, host, "spec.nvme", host.spec.nvme)

    def medium(self, hardware: Hardware, document: Document[Any], keypath: str, name: str) -> None:
        """Adds a medium."""
        hardware.media[name] = self.refer(document, "Medium", keypath, name)

    def devices(self, hardware: Hardware, document: Document[Any], keypath: str, spec: DevicesSpec) -> None:
        """Adds what a devices block names."""
        for name, entry in spec.attached.items():
            device = self.refer(document, "Device", f"{keypath}.attached.{name}.device", entry.device)
            hardware.devices[entry.device] = device if device.spec.operators is None else self._with_operators(device)
        attention_ffn = spec.attention_ffn
        if attention_ffn is not None and attention_ffn.ffn_accelerator is not None:
            self.accelerator(
                hardware, document, f"{keypath}.attention_ffn.ffn_accelerator", attention_ffn.ffn_accelerator
            )

    def _absolute(self, workload: Document[WorkloadSpec]) -> Document[WorkloadSpec]:
        file, agents = workload.spec.file, workload.spec.agents
        if file is not None:
            path = self._file(workload, "spec.file.path", file.path)
            spec = workload.spec.model_copy(update={"file": file.model_copy(update={"path": str(path)})})
        elif agents is not None and agents.graph.path is not None:
            path = self._file(workload, "spec.agents.graph.path", agents.graph.path)
            graph = agents.graph.model_copy(update={"path": str(path)})
            spec = workload.spec.model_copy(update={"agents": agents.model_copy(update={"graph": graph})})
        else:
            return workload
        return Document(workload.kind, workload.name, spec, workload.source, workload.base, workload.description)

    def _workload_file(self, document: Document[Any], keypath: str, ref: str) -> Path | None:
        try:
            return self.catalogue.find_workload_file(ref, self._base(document, keypath))
        except UnknownReferenceError as error:
            raise document.error(keypath, error.message) from None

    def _file(self, document: Document[Any], keypath: str, ref: str) -> Path:
        try:
            return self.catalogue.find_file(ref, self._base(document, keypath))
        except UnknownReferenceError as error:
            raise document.error(keypath, error.message) from None

    def _base(self, document: Document[Any], keypath: str) -> Path | None:
        """Folder relative paths start from: the document's, or the working directory for what the command line set."""
        return None if document.problem(keypath, "").setting else document.path.parent
