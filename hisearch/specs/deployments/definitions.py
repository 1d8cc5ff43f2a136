"""Specs that a deployment's document holds itself."""

from __future__ import annotations

from pydantic import Field

from hisearch.specs.base import Strict
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, FabricSpec, HostSpec, MediumSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec


class DefinitionsSpec(Strict):
    """Specs of a deployment's own, by the name it calls them; they come before the catalogue's."""

    models: dict[str, ModelSpec] = Field(default_factory=dict, description="Models.")
    accelerators: dict[str, AcceleratorSpec] = Field(default_factory=dict, description="Accelerators.")
    hosts: dict[str, HostSpec] = Field(default_factory=dict, description="Hosts.")
    media: dict[str, MediumSpec] = Field(default_factory=dict, description="Media.")
    devices: dict[str, DeviceSpec] = Field(default_factory=dict, description="Devices.")
    profiles: dict[str, LatencyProfileSpec] = Field(default_factory=dict, description="Latency profiles.")
    fabrics: dict[str, FabricSpec] = Field(default_factory=dict, description="Fabrics.")


#: Kind -> the section of ``DefinitionsSpec`` that holds it.
DEFINITIONS: dict[str, str] = {
    "Model": "models",
    "Accelerator": "accelerators",
    "Host": "hosts",
    "Medium": "media",
    "Device": "devices",
    "LatencyProfile": "profiles",
    "Fabric": "fabrics",
}
