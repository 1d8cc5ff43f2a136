"""Every kind of document: its model, the catalogue folder it lives in, and its JSON Schema for other tools."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from pydantic import Field, create_model

from hisearch.specs.base import API_VERSION, Metadata, Strict
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, FabricSpec, HostSpec, MediumSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.studies.fleet_study import FleetStudySpec
from hisearch.specs.studies.search_space import SearchSpaceSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.study import StudySpec
from hisearch.specs.wording import unknown
from hisearch.specs.workloads.workload import WorkloadSpec

KINDS: dict[str, type[Strict]] = {
    "Study": StudySpec,
    "SLO": SloSpec,
    "SearchSpace": SearchSpaceSpec,
    "Workload": WorkloadSpec,
    "Model": ModelSpec,
    "Accelerator": AcceleratorSpec,
    "Medium": MediumSpec,
    "Device": DeviceSpec,
    "Host": HostSpec,
    "Fabric": FabricSpec,
    "LatencyProfile": LatencyProfileSpec,
    "Deployment": DeploymentSpec,
    "FleetStudy": FleetStudySpec,
}

FOLDERS: dict[str, str] = {
    "Study": "studies",
    "SLO": "slos",
    "SearchSpace": "spaces",
    "Workload": "traces",
    "Model": "profiles/models",
    "Accelerator": "profiles/accelerators",
    "Medium": "profiles/media",
    "Device": "profiles/devices",
    "Host": "profiles/hosts",
    "Fabric": "profiles/fabrics",
    "LatencyProfile": "profiles/latency",
    "Deployment": "studies/deployments",
    "FleetStudy": "studies/fleets",
}


@cache
def envelope_model(kind: str) -> type[Strict]:
    """Model of a whole document of ``kind``: ``apiVersion``, ``kind``, ``metadata``, ``spec``.

    Raises:
        KeyError: no such kind.
    """
    spec = KINDS[kind]
    fields: dict[str, Any] = {
        "apiVersion": (Literal[API_VERSION], Field(description="Version of the document format.")),
        "kind": (Literal[kind], Field(description="What the document describes.")),
        "metadata": (Metadata, Field(description=Metadata.__doc__)),
        "spec": (spec, Field(description=(spec.__doc__ or "").splitlines()[0])),
    }
    return create_model(f"{kind}Document", __base__=Strict, __doc__=f"A document of kind {kind}.", **fields)


def json_schema(kind: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a whole document of ``kind``, envelope included.

    Raises:
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no kind '{kind}'{unknown(kind, KINDS)}")
    schema = envelope_model(kind).model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": f"hisearch {kind}"}
