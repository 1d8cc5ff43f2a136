"""One replica's inputs, and the refusal of what a command line cannot say."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec


class ExportError(ValueError):
    """A deployment that the engine's command line cannot express."""


class Launch(NamedTuple):
    """The inputs of one replica's flags. kv_capacity_tokens: the simulated KV pool of one replica.

    objects_bytes: of agents' objects in host memory of one replica, outside its tiers.
    """

    pool: PoolSpec
    model: ModelSpec
    accelerator: AcceleratorSpec
    kv_capacity_tokens: int
    objects_bytes: float = 0.0
