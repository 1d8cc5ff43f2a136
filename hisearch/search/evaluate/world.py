"""Everything that decides the outcome of a study's simulations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from hisearch.search.model.population import Population
from hisearch.search.model.problem import USUAL_MOST_LOAD
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, FabricSpec, HostSpec, MediumSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.study import MOST_LOAD, LimitSpec
from hisearch.traces.changes.continuation import Continuation
from hisearch.traces.compiled import CompiledTrace


@dataclass(frozen=True)
class World:
    """Everything that decides a simulation's outcome, besides the job itself.

    accelerators, hosts, media, devices, fabrics: catalogue entries by name. load: the study's factor on the arrival
    rate. seed: of every simulation (common random numbers). limits: bounds by objective. capacity: it is an objective.
    population: the agents, if the load is their number. continuation: how the trace goes on, None if it has no load to
    raise; it follows from the trace and its source. replicas_down: replicas of each pool that are away in every
    simulation, though paid for.
    """

    model: ModelSpec
    slo: SloSpec
    profile_name: str
    profile: LatencyProfileSpec
    accelerators: Mapping[str, AcceleratorSpec]
    hosts: Mapping[str, HostSpec]
    media: Mapping[str, MediumSpec]
    trace: CompiledTrace
    load: float = 1.0
    seed: int = 0
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict)
    limits: Mapping[str, LimitSpec] = field(default_factory=dict)
    capacity: bool = False
    fabrics: Mapping[str, FabricSpec] = field(default_factory=dict)
    population: Population | None = None
    continuation: Continuation | None = None
    replicas_down: int = 0

    @property
    def most_load(self) -> float:
        """Largest load that is tried to find a capacity: any, where the workload goes on until it shows an overload."""
        return USUAL_MOST_LOAD if self.continuation is None else MOST_LOAD

    def digest(self, version: str) -> str:
        """Digest of the content, the program's version and its kernels: a journal with another digest does not apply.

        Fields at their defaults are left out, as in ``Job.digest``.
        """
        from hisearch.base.kernel_cache import all_kernels_digest

        content = {
            "version": version,
            "kernels": all_kernels_digest(),
            "model": _stated(self.model),
            "slo": _stated(self.slo),
            "profile": [self.profile_name, _stated(self.profile)],
            "accelerators": {name: _stated(spec) for name, spec in self.accelerators.items()},
            "hosts": {name: _stated(spec) for name, spec in self.hosts.items()},
            "media": {name: _stated(spec) for name, spec in self.media.items()},
            "devices": {name: _stated(spec) for name, spec in self.devices.items()},
            "trace": self.trace.digest,
            "load": self.load,
            "seed": self.seed,
        }
        # Later fields: left out if a world has none, so that its digest does not change.
        later = {
            "limits": {name: _stated(limit) for name, limit in self.limits.items()},
            "capacity": self.capacity,
            "fabrics": {name: _stated(spec) for name, spec in self.fabrics.items()},
            "population": _stated(self.population.spec) if self.population is not None else None,
            "replicas_down": self.replicas_down,
            "goes_on": _stated(self.continuation.generator)
            if self.continuation and self.continuation.generator
            else None,
        }
        content |= {name: value for name, value in later.items() if value}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _stated(spec: BaseModel) -> dict[str, Any]:
    """A spec as plain data, without values at their defaults."""
    return spec.model_dump(mode="json", exclude_defaults=True)
