"""A self-contained deployment: every document that does not ship with hisearch is written into it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hisearch.specs.deployments.deployment import DEFINITIONS, DefinitionsSpec, DeploymentSpec
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.resolved import Hardware, ships
from hisearch.specs.machines.devices import DeviceSpec, DevicesSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, FabricSpec, HostSpec, MediumSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec


def stand_alone(
    deployment: DeploymentSpec,
    model: Document[ModelSpec],
    profile: Document[LatencyProfileSpec],
    hardware: Hardware,
    pool_models: Mapping[str, Document[ModelSpec]] = MappingProxyType({}),
) -> DeploymentSpec:
    """The same deployment with every document of the user's own among its definitions, and the rest by name.

    model, profile: what the deployment's names lead to. hardware: by the references that lead to them. pool_models: of
    pools that name one, by its own name, under which it is kept.
    """
    definitions = _Definitions(hardware)
    for served in pool_models.values():
        definitions.name(served, served.spec)
    pools = []
    for pool in deployment.pools:
        tiers = [tier.model_copy(update={"medium": definitions.medium(tier.medium)}) for tier in pool.tiers]
        names = {
            "accelerator": definitions.accelerator(pool.accelerator),
            "host": definitions.host(pool.host) if pool.host is not None else None,
            "tiers": tiers,
            "devices": definitions.devices(pool.devices) if pool.devices is not None else None,
        }
        pools.append(pool.model_copy(update=names))
    update: dict[str, Any] = {
        "model": definitions.name(model, model.spec),
        "profile": definitions.name(profile, profile.spec),
        "pools": pools,
    }
    fabric = deployment.transfer.fabric
    if fabric is not None:
        update["transfer"] = deployment.transfer.model_copy(update={"fabric": definitions.fabric(fabric)})
    sections = {section: specs for section, specs in definitions.sections.items() if specs}
    update["definitions"] = DefinitionsSpec(**sections) if sections else None
    return deployment.model_copy(update=update)


class _Definitions:
    """Collects definitions, and returns the name under which each document is then found.

    Attributes:
        sections: of ``DefinitionsSpec``: name -> spec.
    """

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.sections: dict[str, dict[str, Any]] = {section: {} for section in DEFINITIONS.values()}

    def accelerator(self, ref: str) -> str:
        """Name of an accelerator; its usual host goes with it."""
        document = self._hardware.accelerators[ref]
        spec: AcceleratorSpec = document.spec
        if spec.host is not None:
            spec = spec.model_copy(update={"host": self.host(spec.host)})
        return self.name(document, spec)

    def host(self, ref: str) -> str:
        """Name of a host; its media go with it."""
        document = self._hardware.hosts[ref]
        spec: HostSpec = document.spec
        update: dict[str, Any] = {"dram": self.medium(spec.dram)}
        if spec.nvme is not None:
            update["nvme"] = self.medium(spec.nvme)
        return self.name(document, spec.model_copy(update=update))

    def medium(self, ref: str) -> str:
        """Name of a medium."""
        document: Document[MediumSpec] = self._hardware.media[ref]
        return self.name(document, document.spec)

    def fabric(self, ref: str) -> str:
        """Name of a fabric."""
        document: Document[FabricSpec] = self._hardware.fabrics[ref]
        return self.name(document, document.spec)

    def devices(self, spec: DevicesSpec) -> DevicesSpec:
        """The same block with the names that its devices and accelerators have then."""
        attached = {}
        for name, entry in spec.attached.items():
            document: Document[DeviceSpec] = self._hardware.devices[entry.device]
            attached[name] = entry.model_copy(update={"device": self.name(document, document.spec)})
        attention_ffn = spec.attention_ffn
        if attention_ffn is not None and attention_ffn.ffn_accelerator is not None:
            attention_ffn = attention_ffn.model_copy(
                update={"ffn_accelerator": self.accelerator(attention_ffn.ffn_accelerator)}
            )
        return spec.model_copy(update={"attached": attached, "attention_ffn": attention_ffn})

    def name(self, document: Document[Any], spec: Any) -> str:
        """The document's name, under which ``spec`` is kept where it does not ship; numbered where that is taken."""
        if ships(document):
            return document.name
        section = self.sections[DEFINITIONS[document.kind]]
        name, number = document.name, 2
        while section.get(name, spec) != spec:
            name, number = f"{document.name}-{number}", number + 1
        section[name] = spec
        return name
